"""`omnidraft tutorial`: list the lessons, step through one in the terminal, test what was built."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import OmnidraftError
from . import options
from .common import command
from .printing import console

LESSONS = Path(__file__).parents[2] / "tutorials"  # in the repository; a wheel has none


@command("omnidraft tutorial", "omnidraft tutorial 1", "omnidraft tutorial 1 --check")
def tutorial(
    lesson: Annotated[str | None, typer.Argument(
        help="Number of the lesson; without it they are listed.", show_default=False)] = None,
    check: Annotated[bool, options.output(
        "--check", help="Test the functions that you built for it.")] = False,
) -> None:
    """Step through a lesson: prose, code and its output. On a terminal Enter continues, q quits."""
    if not (LESSONS / "runner.py").is_file():
        raise OmnidraftError("an installed package has no lessons: clone the repository for them")
    sys.path.append(str(LESSONS))  # the lessons import from there, too
    import runner

    wait = sys.stdin.isatty() and sys.stdout.isatty()
    if failed := runner.teach(lesson, console()[0], wait, check):
        raise typer.Exit(failed)
