"""Options that several commands share, in groups, and what they stand for: models, prompts."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TextIO

import typer

from .. import Adapters, OmnidraftError, Options, Pair, pair
from ..engine.load import drafter_for, load
from ..engine.model import printable
from ..learning.adapters import SHIPPED
from ..pairs.conversation import template_of
from ..pairs.settings import uniforms_of, usual
from ..text.files import check_readable
from ..verification import RULES
from .printing import note

models, speculation, sampling, learning, output = (
    partial(typer.Option, rich_help_panel=topic)
    for topic in ("Models", "Speculation", "Sampling", "Learning", "Output"))
TASKS = ("math", "code", "text")
ASK, CONTINUE = ("prompt", "instruction", "question"), ("document", "text")
FIELDS = (*ASK, *CONTINUE)  # the first found is used
MOST_PROMPTS, LONGEST_LINE = 2**20, 2**24  # of a source, and characters of each
MODEL = "a name that `omnidraft models` shows, a folder, a GGUF file, or (torch) a hub id"


def typed(text: str | None) -> str | None:
    """A text among the arguments; in an ASCII locale, Python has read its bytes one by one."""
    with suppress(UnicodeError, AttributeError):  # as it is, in any other locale
        return text.encode("ascii", "surrogateescape").decode()
    return text


Side = Annotated[str, typer.Argument(help="An embedded model, or a folder with a tokenizer.json.")]
Plain = Annotated[bool, output("--plain", help="Mark with signs instead of colours.")]
Store = Annotated[Path | None, output(
    metavar="FOLDER", help="Where adapters are kept.", show_default="~/.cache/omnidraft/adapters")]
SOURCE = ("math, code or text (built in), a .jsonl or .json file with a `prompt` (or instruction, "
          "question, document, text) per line, a text file with a prompt per line, or - for stdin.")
Prompts = Annotated[str, models("--task", "--prompts", metavar="SOURCE", help=SOURCE)]
Json = Annotated[Path | None, output("--json", metavar="FILE", help="Save all figures as JSON.")]
Chat = Annotated[bool | None, models(
    "--chat/--no-chat", show_default="if the target has a template and the prompts are requests",
    help="Ask through the chat template.")]
JsonLines = Annotated[bool, output("--json", help="Print JSON Lines and a summary.")]
AsJson = Annotated[bool, output("--json", help="Print JSON.")]
Backend = Annotated[str, models(
    help="numpy (Llama, Mistral and Qwen2, on a CPU), torch (all of transformers) or llamacpp (the "
         "target is a GGUF file).")]


@dataclass(frozen=True)
class Models:
    """The two models, and the backend that runs them. `draft` None: `drafter_for` the target."""

    draft: Annotated[str | None, models(
        "--draft", "-d", show_default="chosen for the target", help=f"Drafter: {MODEL}.")] = None
    target: Annotated[str, models("--target", "-t", help=f"Target: {MODEL}.")] = "qwen-like"
    backend: Backend = "numpy"
    device: Annotated[str, models(help="With torch: cpu, cuda, cuda:1, mps, auto.")] = "auto"
    dtype: Annotated[str, models(help="float32, float64; with torch bfloat16, float16.")] = "auto"

    def flags(self) -> str:
        """The flags that choose these models, as a shell reads them."""
        given = ("--draft", self.draft), ("--target", self.target), ("--backend", self.backend)
        return " ".join(f"{flag} {quote(value)}" for flag, value in given
                        if value not in (None, "numpy"))

    def pair(self, learns: bool = False) -> Pair:
        """The pair; `learns`: the default drafter is one that is to learn."""
        draft = self.draft or drafter_for(self.target, learns)
        return pair(draft, self.target, self.backend, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Served(Models):
    """Models and, on request, the drafter's adapter."""

    adapter: Annotated[str, models(metavar="WHICH", help=(
        "Adapter for the drafter: none, auto (the one learned for this pair), or a name, "
        "fingerprint prefix or folder (see `omnidraft adapters list`)."))] = "none"
    adapters: Store = None

    def served(self, options: Options) -> tuple[Pair, Options]:
        """The pair and its options, with what was learned if `adapter` asks for it.

        OmnidraftError if "auto" finds nothing; None is "auto" without this error.
        """
        pair, which = self.pair(), self.adapter
        if which == "none":
            return pair, options
        draft, auto = pair.draft, which in ("auto", None)
        if adapter := Adapters(self.adapters).load(pair, None if auto else which, shipped=True):
            shipped = adapter.folder.parent == SHIPPED
            where = printable(str(adapter.folder))
            which = "the shipped adapter" if shipped else f"your own adapter in {where}"
            note(f"{draft.name} drafts with {which}")
            pair.draft = adapter.drafter(draft)
            pair.draft.name += " with its adapter"
            return pair, with_head(options, adapter.head_for(draft))
        if which == "auto":
            raise OmnidraftError("nothing has been learned yet for this pair: run `omnidraft adapt "
                                 f"math {self.flags()}`, or drop --adapter")
        return pair, options

    def open(self, options: Options) -> tuple[Any, Options]:
        """Like `served`, with `usual` options; for draft length 0, the target alone."""
        if options.stop.limit:
            pair, options = self.served(options)
            return pair, usual(options, pair.target)
        if self.adapter != "none":
            raise OmnidraftError("-k 0 decodes without a drafter: drop --adapter or -k 0")
        return load(self.target, self.dtype, self.backend, self.device), options


@dataclass(frozen=True)
class Decoding:
    """How to decode."""

    verify: Annotated[str, speculation(
        help=f"Rule: one of {', '.join(RULES)} (the paper's: omnidraft).")] = Options.verify
    draft_length: Annotated[int, speculation(
        "--draft-length", "-k", help="Most draft tokens per round; 0 is plain decoding.")] = 12
    threshold: Annotated[float, speculation(help=(
        "Stop drafting once the draft's probability falls below this; 0 never stops."))] = 0.4
    adaptive: Annotated[bool | None, speculation(
        "--adaptive/--no-adaptive", show_default="only at temperature 0",
        help="Draft only while it saves time; at T > 0 a seed no longer fixes the text.")] = None
    temperature: Annotated[float, sampling("--temperature", "-T", help="0 is greedy.")] = 0.0
    top_k: Annotated[int, sampling(help="Sample from the k most probable tokens; 0 is off.")] = 0
    top_p: Annotated[float, sampling(help="Sample from top tokens that sum to p; 1 is off.")] = 1.0
    seed: Annotated[int, sampling(help="Random seed.")] = 0
    max_new_tokens: Annotated[int, sampling("--max-new-tokens", "-n", help="Token limit.")] = 128

    def options(self) -> Options:
        """The Options that they make; raises OmnidraftError for values out of range."""
        uniforms_of(self.seed)
        return Options.of(**{k: v for k, v in vars(self).items() if k != "seed"})


class Request(str):
    """A prompt that asks for something, not a text to continue."""


def asked(target: Any, prompts: Iterable[str], chat: bool | None = None) -> Iterator[Any]:
    """The prompts in the form that `Pair.read` takes: chats if wanted, else texts.

    `chat` None: those that are requests, if the target has a chat template.
    """
    has_template = template_of(target)[0] is not None
    for prompt in prompts:
        as_chat = has_template and isinstance(prompt, Request) if chat is None else chat
        yield [{"role": "user", "content": str(prompt)}] if as_chat else prompt


def with_head(options: Options, head: Any) -> Options:
    """The options with an acceptance head, if there is one."""
    return replace(options, stop=replace(options.stop, head=head)) if head else options


def read_prompts(source: str) -> tuple[Iterator[str], int | None]:
    """The prompts and their number (unknown for stdin); OmnidraftError if there are none.

    Only one line at a time is in memory.
    """
    if source == "-":  # JSON lines if the first line begins like a JSON object
        lines = _lines(sys.stdin, "stdin")
        if not (first := next(lines, "")):
            raise OmnidraftError("stdin is empty: give at least one prompt")
        is_json = first.lstrip().startswith("{")
        return (_prompt(line, is_json, "stdin") for line in chain([first], lines)), None
    shipped = Path(__file__).parents[1] / "data" / f"{source}.jsonl"
    path = shipped if source in TASKS else Path(source)
    try:
        if path.exists() and not path.is_dir():
            check_readable(path, 2**28)
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


def _lines_of(path: Path, source: str) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as file:
        yield from _lines(file, source)


def _lines(file: TextIO, source: str) -> Iterator[str]:
    """The lines that are not empty; OmnidraftError for one over LONGEST_LINE characters."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OmnidraftError(f"{source} has a line of over {LONGEST_LINE:,} characters: is it "
                                 "the right file?")
        if line.strip():
            yield line


def _prompt(line: str, is_json: bool, source: str) -> str:
    if not is_json:
        return Request(line.rstrip("\n"))
    try:
        found = json.loads(line)
        name = next(name for name in FIELDS if isinstance(found.get(name), str))
    except (ValueError, AttributeError, StopIteration, RecursionError):
        raise OmnidraftError(f"{source}: a line is not a JSON object with text in one of "
                             f"{', '.join(FIELDS)}: {line[:60].strip()!r}") from None
    more = found.get("input") if name == "instruction" else None  # as in Alpaca
    text = f"{found[name]}\n{more}" if isinstance(more, str) and more else found[name]
    return Request(text) if name in ASK else text
