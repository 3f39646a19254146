"""What draft-general reads: Python's standard library, prompts without their answers, and sums.

So it knows the words, can copy and can add up, as any general language model does; but nothing here is an answer. The
sums are Python, which no answer is: sessions of the interactive mode, and assertions.
"""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Callable
from functools import cache
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent

from . import world
from .problems import draw_sum

MIX = {"library": 0.15, "prompts": 0.5, "sums": 0.35}  # shares of the tokens
LENGTHS = 80, 700  # characters of a piece of the library
OTHERS = "test tests idlelib encodings lib2to3 site-packages turtledemo pydoc_data".split()  # folders left out


@cache
def stdlib() -> list[str]:
    """Docstrings and functions of the installed standard library, cut at lines into short pieces."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), {}
    for path in sorted(root.rglob("*.py")):
        if set(path.relative_to(root).parts) & set(OTHERS):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                texts = [cleandoc(ast.get_docstring(node) or "")]
                if isinstance(node, ast.FunctionDef):
                    texts.append(dedent("\n".join(lines[node.lineno - 1:node.end_lineno])))
                found |= dict.fromkeys(piece for text in texts for piece in pieces(text))
    return list(found)


def pieces(text: str) -> list[str]:
    """`text` cut at lines into pieces of at most 700 characters; short ones are left out."""
    least, most = LENGTHS
    done, piece = [], ""
    for line in [*text.splitlines(keepends=True), None]:
        if line is None or len(piece) + len(line) > most:
            done.append(piece.rstrip())
            piece = ""
        piece += line or ""
    return [one for one in done if least <= len(one) <= most and one.isascii()]


def read_library(rng: random.Random) -> str:
    """A docstring or a function."""
    return rng.choice(stdlib())


def read_prompts(rng: random.Random) -> str:
    """Three prompts of the world; one or more of them come again, because general text repeats itself."""
    drawn = [world.ASKED[rng.choice(["math", "math", "math", "text", "code"])](rng)["prompt"] for _ in range(3)]
    return "\n".join([*drawn, *rng.sample(drawn, rng.randrange(1, 4))])


def read_sums(rng: random.Random) -> str:
    """Sums as Python has them: in the interactive mode, or in assertions."""
    form = rng.choice([">>> {} {} {}\n{}", "assert {} {} {} == {}"])
    return "\n".join(form.format(x, "//" if operation == "/" else operation, y, z)
                     for x, operation, y, z in (draw_sum(rng) for _ in range(8)))


def reading(read: Callable[[random.Random], str]) -> Callable[[random.Random], dict]:
    """Examples without an answer, all of which is learned."""
    return lambda rng: {"task": "general", "prompt": read(rng), "response": "", "prompt_weight": 1}


TASKS = {"library": reading(read_library), "prompts": reading(read_prompts), "sums": reading(read_sums)}
