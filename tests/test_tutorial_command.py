"""`omnidraft tutorial`: the list, a lesson in a pipe, stepping, answers at the prompt, the tests of the reader's functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnidraft.cli import app

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tutorials import runner as tutorial  # noqa: E402

LESSONS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


def test_the_command_lists_the_lessons():
    result = CliRunner().invoke(app, ["tutorial"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == [str(int(path.name[:2])) for path in LESSONS]


@pytest.mark.parametrize("asked", ["99", "0", "abc", "3.5", "²"])
def test_a_lesson_that_is_not_there_is_one_line(asked):
    result = CliRunner().invoke(app, ["tutorial", asked])
    assert result.exit_code == 1 and not result.stdout
    assert result.stderr == f"error: there is no lesson {asked!r}: choose one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10\n"


def test_a_check_of_no_lesson_is_one_line():
    result = CliRunner().invoke(app, ["tutorial", "--check"])
    assert result.exit_code == 1 and not result.stdout and result.stderr.startswith("error: --check needs a lesson")


def test_without_the_repository_it_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["omnidraft.cli.inspect"], "LESSONS", tmp_path)
    result = CliRunner().invoke(app, ["tutorial"])
    assert result.exit_code == 1 and not result.stdout
    assert result.stderr == "error: the installed package has no lessons: clone the repository\n"


def test_the_command_runs_a_lesson_over_a_pipe():
    done = subprocess.run([sys.executable, "cli.py", "tutorial", "1"], cwd=ROOT, capture_output=True, text=True, timeout=600,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "Speculative decoding" in done.stdout and "1.1 open." in done.stdout
    shown = "".join(done.stdout.split())
    for cell in tutorial.cells(LESSONS[0].read_text(encoding="utf-8")):  # no line of code is cut off at the right
        assert cell.prose or "".join(cell.text.split()) in shown


def test_stepping_shows_each_cell_until_the_reader_quits(monkeypatch, capsys):
    from rich.console import Console

    made = tutorial.cells("# %% [markdown]\n# # Title\n# *prose*\n\n# %%\nprint('ran')\n\n# %%\nprint('second')\n")
    assert [cell.prose for cell in made] == [True, False, False]
    answers = iter(["", "q"])
    monkeypatch.setattr(Console, "input", lambda *_: next(answers))
    tutorial.step_through(made, LESSONS[0], Console(width=80), wait=True)
    shown = capsys.readouterr().out
    assert shown.count("Title") == 1 and shown.count("\nran\n") == 1 and "second" not in shown


def test_answers_are_typed_at_the_prompt_until_they_are_right(monkeypatch, capsys):
    from rich.console import Console

    made = tutorial.cells('# %%\nfrom helpers import check\ncheck("1.1", ...)\ncheck("3.2", ...)\ncheck("2.1", ...)\n')
    answers, asked = iter(["0.9", "0.7", "('CD', 'AD')", "nonsense", "", ""]), []
    monkeypatch.setattr(Console, "input", lambda _, prompt: asked.append(prompt) or next(answers))
    tutorial.step_through(made, LESSONS[0], Console(width=80), wait=True)
    shown = capsys.readouterr().out
    assert [question for question in ("1.1", "3.2", "2.1") for prompt in asked if question in prompt] == [
        "1.1", "1.1", "3.2", "2.1", "2.1"]
    assert shown.count("1.1 not yet") == 1 and shown.count("1.1 right.") == shown.count("3.2 right.") == 1
    assert "2.1 not yet" in shown and next(answers, None) is None


def test_check_runs_the_tests_of_the_lesson_and_names_its_files(monkeypatch):
    ran = []
    monkeypatch.setattr(tutorial.subprocess, "run", lambda command: ran.append(command) or subprocess.CompletedProcess([], 1))
    assert CliRunner().invoke(app, ["tutorial", "5", "--check"]).exit_code == 1
    assert [Path(argument).name for argument in ran[0][1:]] == ["grade.py", "3", "4"]  # needs no pytest
    monkeypatch.setattr(sys.modules["runner"], "step_through", lambda *_: None)
    shown = CliRunner().invoke(app, ["tutorial", "4"]).stdout
    assert (ROOT / "tutorials" / "exercises" / "step5_repair.py").is_file() and "step5_repair.py, then run" in shown
    shown, path = CliRunner().invoke(app, ["tutorial", "2"]).stdout, ROOT / "tutorials" / "02_two_tokenizers.py"
    assert shown.splitlines()[0] == f"To write 2.3: edit {path}, then run python {path}"  # not an answer at the prompt
    assert CliRunner().invoke(app, ["tutorial", "8", "--check"]).exit_code == 1
    assert [Path(argument).name for argument in ran[1][1:]] == ["grade.py", "10"]
    result = CliRunner().invoke(app, ["tutorial", "10", "--check"])
    assert result.stderr == "error: this lesson has no step in tutorials/exercises: choose a lesson from 1 to 9\n"
    assert result.exit_code == 1


def test_check_prints_the_failing_case_without_pytest(tmp_path):
    """As after `make demo`, whose environment has no pytest."""
    code = "import sys, runpy; sys.modules['pytest'] = None; sys.argv = ['omnidraft', 'tutorial', '6', '--check']; " \
           "runpy.run_path('cli.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and done.stdout.startswith("step 7: not written yet; hint: "), done.stderr


def test_equations_are_broken_between_columns_on_a_narrow_terminal():
    for cell in (cell for path in LESSONS for cell in tutorial.cells(path.read_text(encoding="utf-8")) if cell.prose):
        for width in (100, 80, 60):
            fitted = tutorial.fitted(cell.text, width)
            assert "".join(fitted.split()) == "".join(cell.text.split())
            assert not [line for line in fitted.split("\n") if line.startswith("    ") and len(line) > width + 2]
        assert tutorial.fitted(cell.text, 200) == cell.text
    line = "    accepted     q(x) · min(1, p(x) / q(x))  =  min(p(x), q(x))           (so beta is the probability of accepting)"
    assert tutorial.fitted(line, 80).split("\n") == [line[:63], 12 * " " + line[74:]]
