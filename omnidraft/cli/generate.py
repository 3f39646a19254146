"""`omnidraft generate`: continue a text; the text on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.text import Text

from .. import OmnidraftError, Pair, Round, Tokenizer, plain, speculative
from ..decoding import check_prompt
from ..files import make_folder_of
from ..metrics import Summary, summarize
from . import common
from .conversation import Conversation
from .render import Painter, escape, legend


@common.command(
    "omnidraft generate 'def area(width, height):'",
    "cat prompt.txt | omnidraft generate -k 8 --json",
    "omnidraft generate 'Once' --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
    "torchrun --nproc-per-node 2 --no-python omnidraft generate - --backend torch "
    "--tensor-parallel < prompt.txt",
    "omnidraft generate -d ./my-drafter -t ./my-target -T 0.8 --seed 7 --rounds < prompt.txt",
    "omnidraft generate --chat 'Ann has 3 boxes of 12 pens. How many pens does she have?'")
def generate(
    models: common.Served, decoding: common.Sampling,
    prompt: Annotated[str | None, typer.Argument(show_default=False, help=(
        "Text to continue; - or nothing reads stdin."))] = None,
    chat: Annotated[bool, common.models("--chat", help=(
        "The text is a message, and the target's chat template makes a prompt of it."))] = False,
    tensor_parallel: Annotated[bool, common.models("--tensor-parallel", help=(
        "Every process holds a part of the target; start them with torchrun (see the examples; "
        "needs accelerate)."))] = False,
    learn: Annotated[bool, common.speculation("--learn", help=(
        "Add the text's n-grams to the pair's cache on disk (see `omnidraft cache`)."))] = False,
    rounds: common.Rounds = False,
    json_lines: Annotated[bool, common.output("--json", help=(
        "Instead of the text one JSON object per round on stdout, then a summary."))] = False,
    without_colours: common.Plain = False,
) -> None:
    """Continue a text by speculative decoding."""
    options = decoding.options(learn=learn)
    for wrong, line in (
            (learn and not decoding.draft_length, "-k 0 decodes plainly, without --learn"),
            (models.adapter and not decoding.draft_length,
             "-k 0 decodes plainly, without --adapter"),
            (json_lines and rounds, "--json has every round already, without --rounds")):
        if wrong:
            raise OmnidraftError(f"{line}: leave one of them out")
    # torchrun's other ranks only follow
    prompt = read_prompt(prompt) if os.environ.get("RANK", "0") == "0" else ""
    pair, options = common.serve(models, options, tensor_parallel=tensor_parallel)
    model = pair.target if isinstance(pair, Pair) else pair
    drafter, uniforms = getattr(pair, "draft", model), common.uniforms_of(decoding.seed)
    ids, path = check_prompt(model, prompt), None
    if learn:
        path = common.cache_file(drafter.tokenizer, model.tokenizer)
        make_folder_of(path)  # what cannot be written is found before the text
    if chat:
        records = Conversation(pair).ask(prompt, options, uniforms)
    elif isinstance(pair, Pair):
        records = speculative(pair, prompt, options, uniforms)
    else:
        records = plain(model, ids, options, uniforms)
    form = "json" if json_lines else "rounds" if rounds else "text"
    if rounds:
        show_legend(without_colours)
    done = write(records, model.tokenizer, drafter.tokenizer, form, without_colours)
    if path:
        pair.cache.save(path)
    if not json_lines:
        common.note(describe(summarize(done), speculated=pair is not model))


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


def show_legend(plain: bool) -> None:
    """What the colours or signs of "rounds" mean."""
    _, errors = common.consoles()
    errors.print(legend(plain or common.without_colour(errors)))


def write(records: Iterable[Round], tokenizer: Tokenizer, draft: Tokenizer, form: str, plain: bool,
          strip: str = "") -> list[Round]:
    """Print a text as it comes and return its rounds.

    `form` is "text", "json" (a line per round) or "rounds" (those on stderr, the text at the end).
    The characters in `strip` are left out where the text begins.
    """
    _, errors = common.consoles()
    plain = plain or common.without_colour(errors)
    painter = Painter(tokenizer, plain, one_line=True)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    done, text = [], ""
    for record in records:
        done.append(record)
        data = tokenizer.decode_bytes(record.emitted)
        piece = decoder.decode(data, final=record.done)
        piece = piece if text else piece.lstrip(strip)
        text += piece
        if form == "text":
            common.say(piece, end="", exact=True)
        elif form == "json":
            common.emit({"type": "round", **vars(record), "text": data.decode("utf-8", "replace")})
        else:  # what was drafted, then every token in the colour of its fate
            drafted = draft.decode_bytes(record.draft_tokens).decode("utf-8", "replace")
            line = Text(f"{len(done):4} {len(record.draft_tokens):2} drafted ")
            line.append(f"'{escape(drafted, '')}'", "" if plain else "dim").append(" -> ")
            errors.print(line.append_text(painter.paint(record)), soft_wrap=True)
    if form == "json":
        common.emit({"type": "summary", **summarize(done).figures(), "text": text})
    else:
        common.say("" if form == "text" else text, exact=True)
    return done


def describe(summary: Summary, speculated: bool) -> str:
    """The summary in one line."""
    s = summary
    line = f"{s.tokens} tokens in {s.seconds:.2f} s ({s.tokens_per_second:.0f} tokens/s)"
    if not speculated:
        return line + ", plain decoding"
    return (f"{line}, {s.block_efficiency:.2f} per target pass, {s.acceptance_draft:.0%} of "
            f"{s.drafted} draft tokens kept, {s.acceptance_proposed:.0%} of the proposals "
            f"accepted, {s.merges} merges")
