"""`omnidraft tutorial`: list the lessons, step through one in the terminal, test what was built."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .. import OmnidraftError
from . import options
from .common import command
from .printing import console, say

LESSONS = Path(__file__).parents[2] / "tutorials"  # in the repository; a wheel has none


@command("omnidraft tutorial", "omnidraft tutorial 1", "omnidraft tutorial 1 --check")
def tutorial(
    lesson: Annotated[str | None, typer.Argument(
        help="Number of the lesson; without it they are listed.", show_default=False)] = None,
    run_all: Annotated[bool, options.output(
        "--run-all", help="Do not wait for Enter between the cells.")] = False,
    check: Annotated[bool, options.output(
        "--check", help="Test the functions that you built for it.")] = False,
) -> None:
    """Step through a lesson: prose, code and its output. Enter continues, q quits."""
    if not (LESSONS / "runner.py").is_file():
        raise OmnidraftError("an installed package has no lessons: clone the repository for them")
    sys.path.append(str(LESSONS))  # the lessons import from there, too
    import runner

    found = runner.lessons()
    if lesson is None:
        say("\n".join(f"{number}  {runner.title(path)}" for number, path in found.items()))
        return
    path = found.get(int(lesson) if lesson.isdecimal() else 0)
    if path is None:
        raise OmnidraftError(f"there is no lesson {lesson!r}: choose one of "
                             f"{', '.join(map(str, found))}")
    steps = runner.steps(path)
    if check and not (steps and find_spec("pytest")):
        raise OmnidraftError("--check needs pytest (pip install pytest) and lesson 1, 3, 4, 5 or 8")
    if check:
        raise typer.Exit(runner.test(steps))
    wait = not run_all and sys.stdin.isatty() and sys.stdout.isatty()
    cells = runner.cells(path.read_text(encoding="utf-8"))
    runner.step_through(cells, path, console()[0], wait)
    for step in steps:
        say(f"To build: edit {step}, then run omnidraft tutorial {int(lesson)} --check")
