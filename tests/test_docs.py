"""The documents say what is so: generated pages are fresh, code blocks run, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import embedded

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("*/*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = [line for block in re.findall(r"```console\n(.*?)```", README, re.S) for line in block.splitlines()]


@pytest.mark.parametrize("build", [["docs/build.py"], ["-m", "benchmarks.report"]], ids=["cli", "results"])
def test_generated_pages_are_fresh(build):
    done = subprocess.run([sys.executable, *build, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, link


@embedded
def test_python_blocks_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_commands_of_the_readme_exist():
    from typer.main import get_command

    from omnidraft.cli import app

    commands = get_command(app).commands
    lines = [line.split("#")[0].strip() for line in CONSOLE if line.startswith("omnidraft ")]
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line.replace("$'", "'"))
        command = commands[words[1]]
        known = {opt for param in command.params for opt in [*param.opts, *param.secondary_opts]}
        assert {word for word in words[2:] if re.match(r"--?[a-z]", word)} <= known, line


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in CONSOLE:
        if line.startswith("make "):
            assert re.search(rf"^{line.split()[1]}:", makefile, re.M), line
