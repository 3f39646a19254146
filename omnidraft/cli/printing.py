"""Everything that commands print; `escape` is the one place that makes text safe for a terminal.

Tokens, names of models and folders, and the content of files are untrusted.
"""

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

# controls, direction marks, surrogates, private characters, line separators
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def escape(text: str, keep: str = "\n\t") -> str:
    r"""Write all characters that could control a terminal as escapes, except those in `keep`.

    >>> escape("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(
        char if char in keep or unicodedata.category(char) not in _UNSAFE
        and ord(char) & 0xFFFE != 0xFFFE  # not characters, and not allowed in SVG
        else char.encode("unicode_escape", "surrogatepass").decode() for char in text)


def show_bytes(data: bytes) -> str:
    """A token's bytes on one line: a space is "·", bytes of a cut character are \\xNN."""
    return escape(data.decode("utf-8", "backslashreplace").replace(" ", "·"), "")


def say(text: str, end: str = "\n", exact: bool = False) -> None:
    """Print a result on stdout, escaped; `exact`: escaped only on a terminal, not in a pipe."""
    print(text if exact and not sys.stdout.isatty() else escape(text), end=end, flush=True)


def note(line: str) -> None:
    """Print a remark on stderr, escaped."""
    print(escape(line), file=sys.stderr)


def emit(record: dict[str, Any]) -> None:
    """Print one line of JSON on stdout; NumPy's integers are numbers."""
    print(json.dumps(record, default=int), flush=True)


def console(plain: bool = False, stderr: bool = False) -> tuple[Any, bool]:
    """A Rich console (`plain`: without colours), and whether it needs signs instead of colours."""
    from rich.console import Console
    made = Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")
    return made, made.no_color or made.color_system is None


def columns(rows: Sequence[Sequence[Any]]) -> str:
    """Rows of cells as aligned lines, never cut; a shorter row is a message, not aligned.

    >>> columns([("a", "bb"), ("ccc", "d")])
    'a    bb\\nccc  d'
    """
    rows = [[escape(str(cell), "") for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*(
        row for row in rows if len(row) == max(map(len, rows))), strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, sizes)).rstrip() for row in rows)
