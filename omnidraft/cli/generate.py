"""`omnidraft generate`: continue a text; the text on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OmnidraftError
from . import common

if TYPE_CHECKING:
    from ..decoding import Round
    from ..metrics import Summary


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=common.examples(
        "omnidraft generate 'def area(width, height):'",
        "cat prompt.txt | omnidraft generate -k 8 --json",
        "omnidraft generate 'Once upon' --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
        "omnidraft generate -d ./my-drafter -t ./my-target --temperature 0.8 --seed 7 --rounds < prompt.txt",
    ))(generate)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; - or nothing reads stdin.",
                                                 show_default=False)] = None,
    draft: common.Draft = "draft-tasks",
    target: common.Target = "qwen-like",
    backend: common.Backend = "numpy",
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    verify: common.Verify = "lossless",
    draft_length: common.DraftLength = 12,
    threshold: common.Threshold = 0.4,
    payoff: common.Payoff = False,
    learn: Annotated[bool, typer.Option("--learn", rich_help_panel="Speculation", help=(
        "Add the text's n-grams to the pair's cache and keep it on disk (see `omnidraft cache`)."))] = False,
    temperature: common.Temperature = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", rich_help_panel="Sampling", help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", rich_help_panel="Sampling", help="1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", rich_help_panel="Sampling", help="Of the random draws.")] = 0,
    max_new_tokens: common.Tokens = 128,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", rich_help_panel="Output",
                                         help="Print the text as it is written, or all at the end.")] = True,
    rounds: Annotated[bool, typer.Option("--rounds", rich_help_panel="Output",
                                         help="Show every round in colour, on stderr.")] = False,
    json: Annotated[bool, typer.Option("--json", rich_help_panel="Output", help=(
        "One JSON object per round on stdout, then a summary, instead of the text."))] = False,
    plain: common.Plain = False,
) -> None:
    """Continue a text by speculative decoding."""
    from ..files import make_folder_of
    from ..metrics import summarize

    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens, top_k=top_k, top_p=top_p,
                                payoff=payoff, learn=learn)
    uniforms = common.uniforms_of(seed)
    prompt = read_prompt(prompt)
    model, pair, records = decode(draft, target, prompt, options, uniforms, backend=backend, device=device,
                                  dtype=dtype)
    learn = learn and pair is not None
    if learn:
        path = common.cache_file(pair.draft.tokenizer, pair.target.tokenizer)
        make_folder_of(path)  # what cannot be written is found before the text
    done: list[Round] = []
    if json:
        print_json(records, done, model.tokenizer)
    elif rounds:
        print_rounds(records, done, pair, model.tokenizer, plain)
        print(_shown(model.tokenizer.decode_bytes([t for r in done for t in r.emitted]).decode("utf-8", "replace")))
    else:
        print_text(records, done, model.tokenizer, stream)
    if learn:
        pair.cache.save(path)
    if not json:
        print(describe(summarize(done), speculated=pair is not None), file=sys.stderr)


def read_prompt(prompt: str | None) -> str:
    """The argument, or what comes from stdin; raises OmnidraftError where there is neither."""
    if prompt not in (None, "-"):
        return prompt
    if sys.stdin is None or sys.stdin.isatty() and prompt is None:
        raise OmnidraftError("no prompt: pass it as an argument, as - or through a pipe")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError:
        raise OmnidraftError("the prompt on stdin is not UTF-8 text: convert it first") from None


def decode(draft: str, target: str, prompt: str, options: Any, uniforms: Any,
           **how: str) -> tuple[Any, Any, Iterator[Round]]:
    """(target model, pair or None, rounds to come); with draft length 0 the drafter is not even loaded."""
    from ..decoding import plain, speculative
    from ..models import load

    if options.stop.limit == 0:
        model = load(target, **how)
        common.check_context(model, prompt)
        return model, None, plain(model, model.tokenizer.encode(prompt, bos=True), options, uniforms)
    pair = common.load_pair(draft, target, **how)
    common.check_context(pair.target, prompt)
    return pair.target, pair, speculative(pair, prompt, options, uniforms)


def print_text(records: Iterator[Round], done: list[Round], tokenizer: Any, stream: bool) -> None:
    """Print the text, round by round or at the end; `done` collects the rounds."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    for record in records:
        done.append(record)
        piece = _shown(decoder.decode(tokenizer.decode_bytes(record.emitted), final=record.done))
        if stream:
            print(piece, end="", flush=True)
        else:
            pieces.append(piece)
    print("".join(pieces), flush=True)


def print_json(records: Iterator[Round], done: list[Round], tokenizer: Any) -> None:
    """One JSON object per round, then the summary."""
    import json

    from ..metrics import summarize

    for record in records:
        done.append(record)
        text = tokenizer.decode_bytes(record.emitted).decode("utf-8", "replace")
        line = json.dumps({"type": "round", **vars(record), "text": text}, default=int)  # NumPy's whole numbers
        print(line, flush=True)
    text = tokenizer.decode_bytes([t for r in done for t in r.emitted]).decode("utf-8", "replace")
    print(json.dumps({"type": "summary", **summarize(done).figures(), "text": text}))


def print_rounds(records: Iterator[Round], done: list[Round], pair: Any, tokenizer: Any, plain: bool) -> None:
    """One line per round on stderr: what was drafted, then every token in the colour of its fate."""
    from rich.text import Text

    from ..render import Painter, escape, legend

    _, errors = common.consoles()
    plain = plain or common.without_colour(errors)
    painter = Painter(tokenizer, plain, one_line=True)
    errors.print(legend(plain))
    for record in records:
        done.append(record)
        drafted = pair.draft.tokenizer.decode_bytes(record.draft_tokens).decode("utf-8", "replace") if pair else ""
        line = Text(f"{len(done):4} ")
        line.append(f"{len(record.draft_tokens):2} drafted {escape(drafted, '')!r}", "" if plain else "dim")
        line.append(" -> ").append_text(painter.paint(record))
        errors.print(line, soft_wrap=True)


def describe(summary: Summary, speculated: bool) -> str:
    """The summary in one line."""
    line = f"{summary.tokens} tokens in {summary.seconds:.2f} s ({summary.tokens_per_second:.0f} tokens/s)"
    if not speculated:
        return line + ", plain decoding"
    return (f"{line}, {summary.block_efficiency:.2f} per target pass, {summary.acceptance_draft:.0%} of "
            f"{summary.drafted} draft tokens kept, {summary.acceptance_proposed:.0%} of the proposals accepted, "
            f"{summary.merges} merges")


def _shown(text: str) -> str:
    """Text for stdout: exact in a pipe or file, with control characters escaped on a terminal."""
    from ..render import escape

    return escape(text) if sys.stdout.isatty() else text
