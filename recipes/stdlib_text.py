"""The installed Python standard library as natural text: docstrings and comments as prose, functions as code.

Every machine that can run this project has this text, so nothing is downloaded. It differs a little from one Python
version to the next, which is why models are trained once and their weights are shipped.

Example: Library().generate(random.Random(0)) -> {"task": "library", "template": "code", "prompt": "def ...", ...}
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import random
import re
import sysconfig
import tokenize
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path

# Left out: tests, other people's packages, generated tables and files that are mostly data.
SKIPPED_FOLDERS = {
    "test", "tests", "idle_test", "site-packages", "dist-packages", "idlelib", "encodings", "lib2to3", "__pycache__",
    "lib-dynload", "_pyrepl", "__phello__", "_bundled", "turtledemo",
}
SKIPPED_FILES = {
    "symbol.py", "token.py", "keyword.py", "stringprep.py", "opcode.py", "entities.py", "__hello__.py",
    "antigravity.py", "this.py",
}
SKIPPED_PREFIXES = ("_sysconfigdata", "_generated")
SMALLEST_PROSE = 80  # characters
SMALLEST_CODE, LARGEST_CODE = 150, 1800
LARGEST_PROSE = 1800
COMMENT = re.compile(r"^[ \t]*#(?!!)[ \t]?(.*)$")


def source_files(root: Path | None = None) -> Iterator[Path]:
    """Yield the standard library's Python files in sorted order (root: another folder, for tests)."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if any(part in SKIPPED_FOLDERS or part.startswith("config-") for part in parts[:-1]):
            continue
        if parts[-1] not in SKIPPED_FILES and not parts[-1].startswith(SKIPPED_PREFIXES):
            yield path


def _ascii_share(text: str) -> float:
    return len(text.encode("ascii", "ignore")) / max(1, len(text))


def _is_text(text: str) -> bool:
    """Keep what is ASCII (a stray sign is allowed) and is not a table of numbers or symbols."""
    letters = sum(map(str.isalpha, text))
    return _ascii_share(text) > 0.98 and letters > 0.4 * len(text)


def _clean(text: str) -> str:
    """Drop trailing spaces, tabs and runs of empty lines."""
    lines = [line.rstrip() for line in text.expandtabs().strip("\n").split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def _pieces(text: str, largest: int) -> Iterator[str]:
    """Cut prose at empty lines into pieces of at most about `largest` characters."""
    piece = ""
    for paragraph in text.split("\n\n"):
        if piece and len(piece) + len(paragraph) > largest:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
    if piece:
        yield piece


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what `ast.walk` does, in its order, but nothing below expressions: no definition is in there."""
    waiting = deque([tree])
    while waiting:
        yield (node := waiting.popleft())
        waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def _comment_blocks(source: str) -> Iterator[str]:
    """Yield runs of at least three comment lines, without their signs."""
    block: list[str] = []
    for line in [*source.split("\n"), ""]:
        match = COMMENT.match(line)
        if match:
            block.append(match[1])
            continue
        if len(block) >= 3:
            yield "\n".join(block)
        block = []


def _long_strings(tree: ast.AST) -> Iterator[str]:
    """Yield the values of dictionaries that hold whole pages of text (pydoc_data/topics.py)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and len(value.value) > 400:
                    yield value.value


def _first_line(node: ast.stmt) -> int:
    """Zero-based line on which a statement starts, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1


def _functions(tree: ast.AST, lines: list[str]) -> Iterator[str]:
    """Yield functions and small classes, dedented; larger ones as runs of whole statements."""
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        start, end = _first_line(node), node.end_lineno
        if len("\n".join(lines[start:end])) <= LARGEST_CODE:
            yield "\n".join(lines[start:end])
        elif isinstance(node, ast.ClassDef) and any(isinstance(inner, ast.FunctionDef) for inner in node.body):
            yield from _methods(node, lines)
        else:
            yield from _runs(node.body, lines, start)


def _methods(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """Yield a large class as groups of neighbouring members; a large method is cut between statements."""
    start, members = _first_line(node), []
    for member in node.body:
        size = member.end_lineno - _first_line(member)
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and size > 45:
            yield from _runs(members, lines, start)
            yield from _runs(member.body, lines, _first_line(member))
            start, members = member.end_lineno, []
        else:
            members.append(member)
    yield from _runs(members, lines, start)


def _runs(statements: list[ast.stmt], lines: list[str], start: int) -> Iterator[str]:
    """Yield the lines from `start` to the last statement in chunks cut between statements."""
    end = start
    for statement in statements:
        stop = statement.end_lineno
        if end > start and len("\n".join(lines[start:stop])) > LARGEST_CODE:
            yield "\n".join(lines[start:end])
            start = end
        end = stop
    yield "\n".join(lines[start:end])


def _dedent(code: str) -> str:
    """Shift a chunk left by the indent of its least indented line that is not empty."""
    lines = code.expandtabs().split("\n")
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines)


def _read(path: Path) -> str | None:
    """Return a file's text, or None where it is not UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(path.read_bytes()).readline)
        return path.read_text(encoding="utf-8") if encoding.startswith("utf-8") else None
    except (SyntaxError, UnicodeDecodeError):
        return None


def documents(root: Path | None = None) -> list[dict]:
    """Return every piece of text as {"kind": "prose" | "code", "text": str}, without repeats, in a fixed order.

    Prose is docstrings, comment blocks and the interpreter's help pages; code is functions and classes, dedented and
    cut between statements to at most about 1,800 characters.
    """
    found: dict[str, str] = {}
    for path in source_files(root):
        source = _read(path)
        if source is None:
            continue
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        prose = [*_docstrings(tree), *_comment_blocks(source)]
        if path.parent.name == "pydoc_data":
            prose += _long_strings(tree)
        for text in prose:
            for piece in _pieces(_clean(inspect.cleandoc(text)), LARGEST_PROSE):
                if SMALLEST_PROSE <= len(piece) <= 3 * LARGEST_PROSE and _is_text(piece):
                    found.setdefault(piece, "prose")
        for code in _functions(tree, source.split("\n")):
            code = _clean(_dedent(code))
            if SMALLEST_CODE <= len(code) <= 2 * LARGEST_CODE and _is_text(code.replace(" ", "")):
                found.setdefault(code, "code")
    return [{"kind": kind, "text": text} for text, kind in found.items()]


def is_held_out(text: str) -> bool:
    """Tell whether a document belongs to the held-out sixteenth (CRC-32 of its text)."""
    return zlib.crc32(text.encode()) % 16 == 0


class Library:
    """The documents, read once and split; `generate` draws from them.

    code_share is the share of draws that give code; the rest is prose.
    Example: Library(code_share=0.6).generate(random.Random(0), held_out=True)["template"] -> "code".
    """

    def __init__(self, texts: list[dict] | None = None, code_share: float = 0.5) -> None:
        texts = documents() if texts is None else texts
        self.code_share = code_share
        self.parts: dict[tuple[str, bool], list[str]] = {}
        for document in texts:
            key = document["kind"], is_held_out(document["text"])
            self.parts.setdefault(key, []).append(document["text"])

    def generate(self, rng: random.Random, held_out: bool = False) -> dict:
        """Draw one document; code comes whole, or as its head (prompt) and body (response)."""
        kind = "code" if rng.random() < self.code_share else "prose"
        text = rng.choice(self.parts[kind, held_out])
        cut = _head_end(text) if kind == "code" and rng.random() < 0.5 else 0
        return {"task": "library", "template": kind, "seen_template": True, "prompt": text[:cut],
                "response": text[cut:] + "\n"}


def _head_end(code: str) -> int:
    """Return where the signature and docstring of a chunk that starts with a function or class end, else 0."""
    try:
        node = ast.parse(code).body[0]
    except SyntaxError:
        return 0
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return 0
    documented = len(node.body) > 1 and ast.get_docstring(node) is not None
    body = node.body[1] if documented else node.body[0]
    lines = code.split("\n")
    head = lines[:node.body[0].end_lineno] if documented else lines[:_first_line(body)]
    return len("\n".join(head))


@functools.lru_cache(maxsize=1)
def _library() -> Library:
    return Library()


def generate(rng: random.Random, held_out: bool = False) -> dict:
    """Draw one document of the installed library, which is read on the first call."""
    return _library().generate(rng, held_out)
