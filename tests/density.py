"""How dense code is: what a reader has to take in, counted with `ast` and `tokenize`.

    python tests/density.py           (one row for each room of the package; a test holds them to limits)
    python tests/density.py engine    (one row for each file of a room)
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent / "omnidraft"
ENGINES = {"vllm.py": "pairs", "llamacpp.py": "pairs"}  # what other engines import, at the top for a short address
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
F_STRING_BEGINS, F_STRING_ENDS = (getattr(tokenize, f"FSTRING_{name}", None) for name in ("START", "END"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


class Density(NamedTuple):
    """Counts over some files; `per_100` gives them per 100 lines of code."""

    tokens: int  # without comments, docstrings and line ends
    lines: int  # that hold code
    characters: int  # in these lines, without indentation
    comments: int
    conditional_expressions: int
    tuple_assignments: int  # a, b = c, d
    stars: int  # *some
    walrus: int
    longest_function: int  # lines of code, without docstring

    def per_100(self, count: int) -> float:
        """A count per 100 lines of code."""
        return 100 * count / max(1, self.lines)


def density(source: str) -> Density:
    """The counts of one file's source."""
    tree = ast.parse(source)
    docstrings = lines_of_docstrings(tree)
    tokens, lines, comments, depth = 0, set(), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        comments += token.type == tokenize.COMMENT
        if token.type in NOT_CODE or token.start[0] in docstrings:
            continue
        depth -= token.type == F_STRING_ENDS
        tokens += not depth and token.type != F_STRING_ENDS  # since Python 3.12 an f-string is several tokens
        depth += token.type == F_STRING_BEGINS
        lines |= set(range(token.start[0], token.end[0] + 1))
    text = source.splitlines()
    nodes = list(ast.walk(tree))
    return Density(
        tokens=tokens,
        lines=len(lines),
        characters=sum(len(text[line - 1].strip()) for line in lines),
        comments=comments,
        conditional_expressions=sum(isinstance(node, ast.IfExp) for node in nodes),
        tuple_assignments=sum(is_tuple_assignment(node) for node in nodes),
        stars=sum(isinstance(node, ast.Starred) for node in nodes),
        walrus=sum(isinstance(node, ast.NamedExpr) for node in nodes),
        longest_function=max([0, *(len(body_lines(node) & lines) for node in nodes if isinstance(node, ast.FunctionDef))]))


def lines_of_docstrings(tree: ast.AST) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            found |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return found


def is_tuple_assignment(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def body_lines(function: ast.FunctionDef) -> set[int]:
    """The lines of a function's body, without its docstring."""
    first = function.body[1:] if ast.get_docstring(function) else function.body
    return set(range(first[0].lineno, function.end_lineno + 1)) if first else set()


def total(some: Iterable[Density]) -> Density:
    """The counts of several files together."""
    some = list(some)
    *sums, _ = map(sum, zip(*some, strict=True))
    return Density(*sums, max(one.longest_function for one in some))


@cache
def rooms() -> dict[str, dict[str, Density]]:
    """The counts of each file by room: the folders of the package, and its top level, "lesson".

    Files that only say what a folder is (no code) are left out.
    """
    found: dict[str, dict[str, Density]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        counts = density(path.read_text(encoding="utf-8"))
        if counts.tokens:
            room = name.parts[0] if len(name.parts) > 1 else ENGINES.get(name.name, "lesson")
            found.setdefault(room, {})[name.as_posix()] = counts
    return found


def totals() -> dict[str, Density]:
    """The counts of each room."""
    return {room: total(files.values()) for room, files in rooms().items()}


def table(found: dict[str, Density]) -> str:
    """One row for each name, then all of them."""
    heads = ("tokens", "lines", "chars/line", "comments", "if-else", "tuples", "stars", "walrus", "longest function")
    shown = [f"{'':24}" + "".join(f"{head:>12}" for head in heads[:-1]) + f"{heads[-1]:>18}"]
    for name, one in [*found.items(), ("all", total(found.values()))]:
        shares = [one.comments, one.conditional_expressions, one.tuple_assignments, one.stars, one.walrus]
        cells = [f"{one.tokens:,}", f"{one.lines:,}", f"{one.characters / max(1, one.lines):.1f}",
                 *(f"{one.per_100(count):.1f}" for count in shares)]
        shown.append(f"{name:24}" + "".join(f"{cell:>12}" for cell in cells) + f"{one.longest_function:>18}")
    return "\n".join(shown)


if __name__ == "__main__":
    print(table(rooms()[sys.argv[1]] if sys.argv[1:] else totals()))
