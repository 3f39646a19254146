"""Prompts: those that ship here, a file of lines or of JSON objects, or stdin."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ..errors import OmnidraftError
from ..files import check_readable

TASKS = ("math", "code", "text")
FIELDS = ("prompt", "instruction", "question", "document", "text")  # the first one counts


def read_prompts(source: str) -> tuple[Iterator[str], int | None]:
    """The prompts and their number (unknown for stdin); OmnidraftError where there is none."""
    if source == "-":  # JSON lines if the first begins as an object does
        lines = filter(str.strip, sys.stdin or ())
        first = [*islice(lines, 1)]
        is_json = "".join(first).lstrip().startswith("{")
        return (_prompt(line, is_json, "stdin") for line in chain(first, lines)), None
    shipped = Path(__file__).parents[1] / "data" / f"{source}.jsonl"
    path = shipped if source in TASKS else Path(source)
    try:
        if path.exists():
            check_readable(path, 2**28)
        lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise OmnidraftError(f"cannot read prompts from {source}: {reason}; give math, code, text, "
                             "a file, or -") from None
    if not lines:
        raise OmnidraftError(f"{source} is empty: give at least one prompt")
    return (_prompt(line, path.suffix == ".jsonl", source) for line in lines), len(lines)


def _prompt(line: str, is_json: bool, source: str) -> str:
    if not is_json:
        return line.rstrip("\n")
    try:
        found = json.loads(line)
        name = next(name for name in FIELDS if isinstance(found.get(name), str))
    except (ValueError, AttributeError, StopIteration, RecursionError):
        raise OmnidraftError(f"{source}: a line is no JSON object with a text in one of "
                             f"{', '.join(FIELDS)}: {line[:60].strip()!r}") from None
    more = found.get("input") if name == "instruction" else None  # as alpaca has them
    return f"{found[name]}\n{more}" if isinstance(more, str) and more else found[name]


class Shortener:
    """Cuts prompts that leave the target no room for `new` tokens to their end, and counts them."""

    def __init__(self, target: Any, new: int) -> None:
        self.tokenizer, self.count = target.tokenizer, 0
        self.limit = max(target.context_size // 2, target.context_size - new - 1)

    def __call__(self, prompts: Iterable[str]) -> Iterator[str]:
        """The prompts, none of them longer than `limit` target tokens."""
        most = self.limit * self.tokenizer.longest  # characters; a token has that many bytes
        for prompt in prompts:
            end = prompt[-most:]
            ids = self.tokenizer.encode(end, bos=True)
            if len(ids) > self.limit:
                end = self.tokenizer.decode_bytes(ids[-self.limit + 1:]).decode("utf-8", "ignore")
            self.count += end != prompt
            yield end
