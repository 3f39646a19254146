"""`omnidraft tutorial`: list the lessons, or step through one in the terminal, cell by cell."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import OmnidraftError
from . import options
from .common import command
from .printing import console, say

LESSONS = Path(__file__).parents[2] / "tutorials"  # in the repository; a wheel has none


@command("omnidraft tutorial", "omnidraft tutorial 1", "omnidraft tutorial 5 --run-all | less -R")
def tutorial(
    lesson: Annotated[str | None, typer.Argument(
        help="Number of the lesson; without it they are listed.", show_default=False)] = None,
    run_all: Annotated[bool, options.output(
        "--run-all", help="Do not wait for Enter between the cells.")] = False,
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
    wait = not run_all and sys.stdin.isatty() and sys.stdout.isatty()
    cells = runner.cells(path.read_text(encoding="utf-8"))
    runner.step_through(cells, path, console()[0], wait)
