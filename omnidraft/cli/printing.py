"""Everything that commands print; `escape` is the one place that makes text safe for a terminal.

Tokens, names of models and folders, and the content of files are untrusted.
"""

import json
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# controls, direction marks, surrogates, private characters, line separators
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Format characters (Cf) that text needs: joiners, and marks before Arabic, Syriac, Kaithi numbers.
_SHOWN = {0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


def escape(text: str, keep: str = "\n\t") -> str:
    r"""Write all characters that could control a terminal as escapes, except those in `keep`.

    >>> escape("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    shown = ""
    for char in text:
        is_safe = ord(char) in _SHOWN or unicodedata.category(char) not in _UNSAFE
        if is_safe or char in keep:
            shown += char
        else:
            shown += char.encode("unicode_escape", "surrogatepass").decode()
    return shown


def show_bytes(data: bytes) -> str:
    """A token's bytes on one line: a space is "·", bytes of a cut character are \\xNN."""
    return escape(data.decode("utf-8", "backslashreplace").replace(" ", "·"), "")


def say(text: str, end: str = "\n", exact: bool = False) -> None:
    """Print a result on stdout, escaped; `exact`: escaped only on a terminal, not in a pipe."""
    if not exact or sys.stdout.isatty():
        text = escape(text)
    print(text, end=end, flush=True)


def note(line: str) -> None:
    """Print a remark on stderr, escaped; on a terminal, lines break between words."""
    line = escape(line)
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns or 80
        line = "\n".join(textwrap.fill(one, width, break_long_words=False, break_on_hyphens=False)
                         for one in line.splitlines())
    print(line, file=sys.stderr)


def emit(record: dict[str, Any]) -> None:
    """Print one line of JSON on stdout; NumPy's integers are numbers."""
    print(json.dumps(record, default=int), flush=True)


def console(plain: bool = False, stderr: bool = False) -> tuple[Any, bool]:
    """A Rich console (`plain`: without colours), and whether it needs signs instead of colours."""
    from rich.console import Console
    made = Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")
    if not (made.width and made.height):  # as COLUMNS=0 says: Rich would print nothing
        made.size = 80, 25
    return made, made.no_color or made.color_system is None


def progress(**more: Any) -> Any:
    """A Rich progress bar on stderr."""
    from rich.progress import Progress

    # subtle: by default Rich writes what goes to stdout to the bar's terminal, even for a pipe
    redirected = sys.stdout.isatty()
    return Progress(console=console(stderr=True)[0], redirect_stdout=redirected, **more)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a moving bar while something takes long, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with progress(transient=True) as bar:
        bar.add_task(escape(what), total=None)
        yield


def columns(rows: Sequence[Sequence[Any]]) -> str:
    """Rows of cells as aligned lines, never cut; a shorter row is a message, not aligned.

    >>> columns([("a", "bb"), ("ccc", "d")])
    'a    bb\\nccc  d'
    """
    table = [[escape(str(cell), "") for cell in row] for row in rows]
    whole = [row for row in table if len(row) == len(table[0])]
    sizes = [max(map(len, column)) for column in zip(*whole, strict=True)]
    lines = ["  ".join(map(str.ljust, row, sizes)).rstrip() for row in table]
    return "\n".join(lines)
