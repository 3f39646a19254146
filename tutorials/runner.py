"""Reading and running the lessons: cells, stepping through them, checking exercises (`omnidraft tutorial`, `make site`)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from omnidraft import OmnidraftError
from omnidraft.cli.printing import say

LESSONS = Path(__file__).parent


class Cell(NamedTuple):
    """One cell of a py:percent script: prose (Markdown without its comment signs) or code."""

    prose: bool
    text: str


def teach(lesson: str | None, out: Any, wait: bool, check: bool) -> int:
    """List the lessons, step through one, or `check` its exercises; the exit code. OmnidraftError for no such lesson."""
    found = lessons()
    if lesson is None and check:
        raise OmnidraftError("--check needs a lesson: give its number (omnidraft tutorial 1 --check)")
    if lesson is None:
        say("\n".join(f"{number}  {title(path)}" for number, path in found.items()))
        return 0
    path = found.get(int(lesson) if lesson.isdecimal() else 0)
    if path is None:
        raise OmnidraftError(f"there is no lesson {lesson!r}: choose one of {', '.join(map(str, found))}")
    if check:
        return test(steps(path))
    source = path.read_text(encoding="utf-8")
    step_through(cells(source), path, out, wait)
    for question in re.findall(r'^check\("(.+)", \w', source, re.M):  # a function of the lesson itself
        say(f"To write {question}: edit {path}, then run python {path}")
    for step in steps(path):
        say(f"To build: edit {step}, then run omnidraft tutorial {int(lesson)} --check")
    return 0


def lessons() -> dict[int, Path]:
    """The lessons by number."""
    return {int(path.name[:2]): path for path in sorted(LESSONS.glob("[0-9][0-9]_*.py"))}


def title(path: Path) -> str:
    """A lesson's heading, without its number."""
    return re.search(r"^# # (?:\d+ · )?(.+)$", path.read_text(encoding="utf-8"), re.M)[1]


def steps(lesson: Path) -> list[Path]:
    """The files in exercises/ whose functions a lesson asks the reader to write."""
    table = (LESSONS / "exercises" / "README.md").read_text(encoding="utf-8")  # not the files, which the reader edits
    found = re.findall(rf"\((step\w+\.py)\).*`omnidraft tutorial {int(lesson.name[:2])} --check`", table)
    return [LESSONS / "exercises" / name for name in found]


def test(steps: list[Path]) -> int:
    """Grade the functions of these steps, which prints failing cases; the exit code. OmnidraftError without steps."""
    if not steps:
        raise OmnidraftError("this lesson has no step in tutorials/exercises: choose a lesson from 1 to 9")
    numbers = [re.search(r"\d+", path.stem)[0] for path in steps]
    return subprocess.run([sys.executable, str(LESSONS / "exercises" / "grade.py"), *numbers]).returncode


def cells(source: str) -> list[Cell]:
    """The cells of a py:percent script.

    >>> cells("# %% [markdown]\\n# # One\\n#\\n# prose\\n\\n# %%\\nx = 1\\n")
    [Cell(prose=True, text='# One\\n\\nprose'), Cell(prose=False, text='x = 1')]
    """
    made = []
    for part in re.split(r"^# %%", source, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        prose = "[markdown]" in head
        made.append(Cell(prose, re.sub(r"^# ?" * prose, "", body, flags=re.M).strip("\n")))
    return made


def step_through(lesson: list[Cell], path: Path, out: Any, wait: bool) -> None:
    """Show the cells in order and run the code ones; with `wait`, ask after every cell, and for answers to its questions."""
    from rich.markdown import Markdown
    from rich.syntax import Syntax

    names: dict[str, Any] = {}
    for at, cell in enumerate(lesson, 1):
        out.print()
        if cell.prose:
            out.print(Markdown(fitted(cell.text, out.width)))
        else:
            out.print(Syntax(cell.text, "python", theme="ansi_light", word_wrap=True))
            out.print()
            sys.stdout.flush()
            run(cell, path, names)
        try:
            for question in re.findall(r'^check\("(.+)", \.\.\.\)', cell.text * wait, re.M):
                while typed := out.input(f"[dim]{question}: your answer, or Enter: [/dim]"):
                    if names["check"](question, typed):
                        break
            if wait and out.input(f"[dim]{at} of {len(lesson)}: Enter or q [/dim]") in ("q", "Q"):
                return
        except (EOFError, KeyboardInterrupt):
            return


def fitted(prose: str, width: int) -> str:
    """Prose whose equations (indented lines) are broken between their columns, or words, to fit a terminal.

    >>> fitted("    x = a + b   (so x is a sum)", 26)
    '    x = a + b\\n            (so x is a sum)'
    """
    made = []
    for line in prose.split("\n"):
        while line.startswith("    ") and len(line) > width + 2:  # shown without this indent, within two margins
            start = len(line) - len(line.lstrip())
            column, word = (line.rfind(gap, start, width + 2) for gap in ("   ", " "))
            cut, indent = column if column > width // 3 else word, max(12, min(start, width // 2))
            if cut <= indent:
                break
            made.append(line[:cut].rstrip())
            line = " " * indent + line[cut:].lstrip()
        made.append(line)
    return "\n".join(made)


def run(cell: Cell, path: Path, names: dict[str, Any]) -> None:
    """Run a code cell of the lesson at `path` among the `names` that earlier cells defined."""
    names |= {"__name__": "__main__", "__file__": str(path)}
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # add an empty line for each line before the cell, so that an error names the right line
    before, _, _ = path.read_text(encoding="utf-8").partition(cell.text)
    code = compile("\n" * before.count("\n") + cell.text, str(path), "exec")
    exec(code, names)  # noqa: S102 (the repository's own lesson)
