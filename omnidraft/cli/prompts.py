"""Reading prompts: a built-in task, a file with one a line, JSON lines, or stdin."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from .. import OmnidraftError
from ..pairs.conversation import template_of
from ..text.files import check_readable, read_json

TASKS = ("math", "code", "text")  # built in
ASK = ("prompt", "instruction", "question")
CONTINUE = ("document", "text")
FIELDS = ASK + CONTINUE  # of a JSON object; the first found is used
MOST_PROMPTS = 2**20  # of a source
LONGEST_LINE = 2**24  # characters
LARGEST = 2**28  # bytes of a file


class Request(str):
    """A prompt that asks for something, not a text to continue."""


def asked(target: Any, prompts: Iterable[str], chat: bool | None = None) -> Iterator[Any]:
    """The prompts in the form that `Pair.read` takes: chats if wanted, else texts.

    `chat` None: those that are requests, if the target has a chat template.
    """
    has_template = template_of(target)[0] is not None
    for prompt in prompts:
        as_chat = chat
        if chat is None:
            as_chat = has_template and isinstance(prompt, Request)
        if as_chat:
            yield [{"role": "user", "content": str(prompt)}]
        else:
            yield prompt


def read_prompts(source: str) -> tuple[Iterator[str], int | None]:
    """The prompts and their number (unknown for stdin); OmnidraftError if there are none.

    Only one line at a time is in memory.
    """
    if source == "-":
        return _prompts_on_stdin(), None
    path = Path(source)
    if source in TASKS:
        path = Path(__file__).parents[1] / "data" / f"{source}.jsonl"
    try:
        if path.exists() and not path.is_dir():
            check_readable(path, LARGEST)
        count = sum(1 for _ in islice(_lines_of(path, source), MOST_PROMPTS + 1))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise OmnidraftError(f"cannot read prompts from {source}: {reason}; give math, code, text, "
                             "a file, or -") from None
    if not count:
        raise OmnidraftError(f"{source} is empty: give at least one prompt")
    if count > MOST_PROMPTS:
        raise OmnidraftError(f"{source} has over {MOST_PROMPTS:,} prompts: split it")
    is_json = path.suffix in (".jsonl", ".json")
    return (_prompt(line, is_json, source) for line in _lines_of(path, source)), count


def _prompts_on_stdin() -> Iterator[str]:
    """JSON lines if the first line begins like a JSON object."""
    lines = _lines(sys.stdin, "stdin")
    first = next(lines, None)  # now, before models are loaded
    if first is None:
        raise OmnidraftError("stdin is empty: give at least one prompt")
    is_json = first.lstrip().startswith("{")
    return (_prompt(line, is_json, "stdin") for line in chain([first], lines))


def _lines_of(path: Path, source: str) -> Iterator[str]:
    """The lines of a file; of one with a list in JSON, each item as a line of JSON."""
    with path.open(encoding="utf-8-sig") as file:
        if path.suffix == ".json" and file.read(1) == "[":
            yield from map(json.dumps, read_json(path, list))
            return
        file.seek(0)
        yield from _lines(file, source)


def _lines(file: TextIO, source: str) -> Iterator[str]:
    """The lines that are not empty; OmnidraftError for one over LONGEST_LINE characters."""
    while True:
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise OmnidraftError(f"{source} has a line of over {LONGEST_LINE:,} characters: is it "
                                 "the right file?")
        if line.strip():
            yield line


def _prompt(line: str, is_json: bool, source: str) -> str:
    """The prompt in a line: a Request, except what a JSON object calls a document or a text."""
    if not is_json:
        return Request(line.rstrip("\n"))
    record = _json_object(line)
    for name in FIELDS:
        text = record.get(name)
        if not isinstance(text, str):
            continue
        more = record.get("input")
        if name == "instruction" and isinstance(more, str) and more:  # as in Alpaca
            text = f"{text}\n{more}"
        return Request(text) if name in ASK else text
    raise OmnidraftError(f"{source}: a line is not a JSON object with text in one of "
                         f"{', '.join(FIELDS)}: {line[:60].strip()!r}")


def _json_object(line: str) -> dict[str, Any]:
    """The object in a line of JSON, also for a prompt alone; an empty one for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(found, str):
        return {"prompt": found}
    return found if isinstance(found, dict) else {}
