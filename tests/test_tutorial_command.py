"""`omnidraft tutorial`: the list, a lesson over a pipe, stepping back and forth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from omnidraft.cli import app, tutorial

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "tutorials").glob("0*.py"))


def test_the_command_lists_the_lessons():
    result = CliRunner().invoke(app, ["tutorial"])
    assert result.exit_code == 0
    assert [line[0] for line in result.stdout.splitlines()] == [str(int(path.name[:2])) for path in LESSONS]
    missing = CliRunner().invoke(app, ["tutorial", "99"])
    assert missing.exit_code == 1 and "there is no lesson 99" in missing.stderr


def test_the_command_runs_a_lesson_over_a_pipe():
    done = subprocess.run([sys.executable, "cli.py", "tutorial", "1"], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "Speculative decoding" in done.stdout and "import numpy as np" in done.stdout and "1.1 open." in done.stdout


def test_stepping_goes_back_without_running_a_cell_twice(monkeypatch, capsys):
    from rich.console import Console

    made = tutorial.cells("# %% [markdown]\n# # Title\n# *prose*\n\n# %%\nprint('ran', 6 * 7)\n\n# %%\nprint('second')\n")
    assert [cell.prose for cell in made] == [True, False, False]
    answers = iter(["", "b", "", "", "q"])
    monkeypatch.setattr(tutorial, "ask", lambda *_: next(answers))
    tutorial.step_through(made, LESSONS[0], Console(width=80), wait=True)
    shown = capsys.readouterr().out
    assert shown.count("ran 42") == 1 and shown.count("Title") == 2 and shown.count("print('second')") == 1
