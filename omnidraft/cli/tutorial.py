"""`omnidraft tutorial`: list the lessons, or step through one in the terminal, cell by cell."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ..errors import OmnidraftError
from . import common

LESSONS = Path(__file__).parents[2] / "tutorials"


class Recorded:
    """stdout while a cell runs: passes everything on and keeps it in `parts`, so that it can be shown again."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.parts = stream, []

    def write(self, text: str) -> int:
        """Write and keep."""
        self.parts.append(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Cell(NamedTuple):
    """One cell of a py:percent script: prose (Markdown without its comment signs) or code."""

    prose: bool
    text: str


@common.command("omnidraft tutorial", "omnidraft tutorial 1", "omnidraft tutorial 5 --run-all | less -R")
def tutorial(
    lesson: Annotated[str | None, typer.Argument(help="Number of the lesson; without it they are listed.",
                                                 show_default=False)] = None,
    run_all: Annotated[bool, common.output("--run-all", help="Do not wait for Enter between the cells.")] = False,
) -> None:
    """Step through a lesson: prose, code and its output; Enter goes on, b goes back, q quits."""
    out, _ = common.consoles()
    found = lessons()
    if lesson is None:
        for number, path in found.items():
            out.print(f"{number}  {title(path)}", markup=False)
        return
    path = found.get(int(lesson) if lesson.isdecimal() else 0)
    if path is None:
        raise OmnidraftError(f"there is no lesson {lesson!r}: choose one of {', '.join(map(str, found))}")
    step_through(cells(path.read_text(encoding="utf-8")), path, out,
                 wait=not run_all and sys.stdin.isatty() and sys.stdout.isatty())


def lessons() -> dict[int, Path]:
    """The lessons by number. Raises OmnidraftError where they are not installed."""
    found = {int(path.name[:2]): path for path in sorted(LESSONS.glob("[0-9][0-9]_*.py"))}
    if not found:
        raise OmnidraftError("the lessons are not part of an installed package: clone the repository and run it from there")
    return found


def title(path: Path) -> str:
    """A lesson's heading, without its number."""
    match = re.search(r"^# # (?:\d+ · )?(.+)$", path.read_text(encoding="utf-8"), re.M)
    return match[1] if match else path.stem


def cells(source: str) -> list[Cell]:
    """The cells of a py:percent script.

    >>> cells("# %% [markdown]\\n# # One\\n#\\n# prose\\n\\n# %%\\nx = 1\\n")
    [Cell(prose=True, text='# One\\n\\nprose'), Cell(prose=False, text='x = 1')]
    """
    made = []
    for part in re.split(r"^# %%", source, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        prose = "[markdown]" in head
        text = re.sub(r"^# ?", "", body, flags=re.M).strip() if prose else body.strip("\n")
        if text:
            made.append(Cell(prose, text))
    return made


def step_through(lesson: list[Cell], path: Path, out: Any, wait: bool) -> None:
    """Show the cells in order and run the code ones, each once; with `wait`, ask after every cell. Going back shows again."""
    from rich.markdown import Markdown
    from rich.syntax import Syntax

    names: dict[str, Any] = {}
    printed: dict[int, list[str]] = {}  # by cell that ran
    at = 0
    while at < len(lesson):
        cell = lesson[at]
        out.print()
        out.print(Markdown(cell.text) if cell.prose else Syntax(cell.text, "python", theme="ansi_light", word_wrap=True))
        if not cell.prose:
            out.print()
            if at in printed:
                sys.stdout.write("".join(printed[at]))
            else:
                sys.stdout.flush()
                with redirect_stdout(Recorded(sys.stdout)) as record:
                    run(cell, path, names)
                printed[at] = record.parts
        answer = ask(out, at, len(lesson)) if wait else ""
        if answer == "q":
            return
        at = max(0, at - 1) if answer == "b" else at + 1


def ask(out: Any, at: int, count: int) -> str:
    """What to do next: "" (Enter) on, "b" back, "q" or the end of input quits."""
    try:
        return out.input(f"[dim]{at + 1} of {count}: Enter, b or q [/dim]").strip().lower()
    except (EOFError, KeyboardInterrupt):
        return "q"


def run(cell: Cell, path: Path, names: dict[str, Any]) -> None:
    """Run a code cell of the lesson at `path` among the `names` that the cells before it left.

    It stands behind as many empty lines as precede it in the file, so that an error names the right line.
    """
    if not names:  # the first cell
        names |= {"__name__": "__main__", "__file__": str(path)}
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
    before, _, _ = path.read_text(encoding="utf-8").partition(cell.text)
    exec(compile("\n" * before.count("\n") + cell.text, str(path), "exec"), names)  # noqa: S102 (the repository's own lesson)
