"""`omnidraft generate`: continue a text; the text on stdout, everything else on stderr."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

import omnidraft as od

from ..engine.loading import load
from ..errors import OmnidraftError
from ..files import make_folder_of
from . import common
from .render import Painter, escape, legend


@common.command("omnidraft generate 'def area(width, height):'", "cat prompt.txt | omnidraft generate -k 8 --json",
                "omnidraft generate 'Once upon' --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
                "torchrun --nproc-per-node 2 --no-python omnidraft generate - --backend torch --tensor-parallel < prompt.txt",
                "omnidraft generate -d ./my-drafter -t ./my-target --temperature 0.8 --seed 7 --rounds < prompt.txt",
                "omnidraft generate --chat 'Ann has 3 boxes of 12 pens. How many pens does she have?'")
def generate(
    prompt: Annotated[str | None, typer.Argument(show_default=False, help=(
        "Text to continue; - or nothing reads stdin."))] = None,
    chat: Annotated[bool, common.models("--chat", help=(
        "The text is a message, which the target's chat template makes a prompt of."))] = False,
    draft: common.Draft = "draft-tasks", target: common.Target = "qwen-like",
    backend: common.Backend = "numpy", device: common.Device = "auto", dtype: common.Dtype = "auto",
    device_map: common.DeviceMap = None, tensor_parallel: common.TensorParallel = False, compile: common.Compile = False,
    adapter: common.Adapted = False, adapters: common.AdapterFolder = None,
    verify: common.Verify = "lossless", draft_length: common.DraftLength = 12, threshold: common.Threshold = 0.4,
    tune: common.Tune = False, payoff: common.Payoff = False,
    learn: Annotated[bool, common.speculation("--learn", help=(
        "Add the text's n-grams to the pair's cache and keep it on disk (see `omnidraft cache`)."))] = False,
    temperature: common.Temperature = 0.0,
    top_k: common.TopK = 0, top_p: common.TopP = 1.0, seed: common.Seed = 0,
    max_new_tokens: common.Tokens = 128,
    stream: Annotated[bool, common.output("--stream/--no-stream",
                                          help="Print the text as it is written, or all at the end.")] = True,
    rounds: common.Rounds = False,
    json_lines: Annotated[bool, common.output("--json", help=(
        "One JSON object per round on stdout, then a summary, instead of the text."))] = False,
    plain: common.Plain = False,
) -> None:
    """Continue a text by speculative decoding."""
    from ..decoding import check_prompt

    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens, top_k=top_k, top_p=top_p,
                                tune=tune, payoff=payoff, learn=learn)
    for ignored, line in ((learn and not draft_length, "-k 0 decodes plainly, without --learn; leave one of them out"),
                          (adapter and not draft_length, "-k 0 decodes plainly, without --adapter; leave one of them out"),
                          (json_lines and rounds, "--json has every round already: leave out --rounds")):
        if ignored:
            raise OmnidraftError(line)
    uniforms, how = common.uniforms_of(seed), {"backend": backend, "device": device, "dtype": dtype,
                                               "device_map": device_map, "tensor_parallel": tensor_parallel}
    prompt = read_prompt(prompt) if os.environ.get("RANK", "0") == "0" else ""  # torchrun's other ranks only follow
    pair = common.load_pair(draft, target, compile=compile, **how) if draft_length else None  # plain decoding needs no drafter
    model = pair.target if pair else load(target, **how)
    ids = check_prompt(model, prompt)
    if pair and adapter:
        stored, head = pair.cache, common.use_adapter(pair, adapters)
        if head:
            options = replace(options, stop=replace(options.stop, head=head))
        if learn:  # what is kept for these tokenizers goes on from what was kept for them
            pair.cache = stored
    if chat:
        records = od.Conversation(pair or model).ask(prompt, options, uniforms)
    else:
        records = od.speculative(pair, prompt, options, uniforms) if pair else od.plain(model, ids, options, uniforms)
    path = common.cache_file(pair.draft.tokenizer, model.tokenizer) if pair and learn else None
    if path:
        make_folder_of(path)  # what cannot be written is found before the text
    form = "json" if json_lines else "rounds" if rounds else "stream" if stream else "text"
    if form == "rounds":
        show_legend(plain)
    done = write(records, model.tokenizer, pair.draft.tokenizer if pair else model.tokenizer, form, plain)
    if path:
        pair.cache.save(path)
    if not json_lines:
        print(describe(od.summarize(done), speculated=pair is not None), file=sys.stderr)


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


def write(records: Iterable[od.Round], tokenizer: od.Tokenizer, draft: od.Tokenizer, form: str, plain: bool,
          strip: str = "") -> list[od.Round]:
    """Print a text as it comes and return its rounds: "json" (a line per round), "rounds" (on stderr), "stream" or "text".

    The characters in `strip` are left out where the text begins.
    """
    def shown(text: str) -> str:  # exact in a pipe or file, with control characters escaped on a terminal
        return escape(text) if sys.stdout.isatty() else text

    _, errors = common.consoles()
    plain = plain or common.without_colour(errors)
    painter, decoder = Painter(tokenizer, plain, one_line=True), codecs.getincrementaldecoder("utf-8")("replace")
    done: list[od.Round] = []
    data, begun = b"", False
    for record in records:
        done.append(record)
        new = tokenizer.decode_bytes(record.emitted)
        data += new
        if form == "json":
            fields = {"type": "round", **vars(record), "text": new.decode("utf-8", "replace")}
            print(json.dumps(fields, default=int), flush=True)  # default: NumPy's whole numbers
        elif form == "rounds":  # what was drafted, then every token in the colour of its fate
            drafted = escape(draft.decode_bytes(record.draft_tokens).decode("utf-8", "replace"), "")
            line = Text(f"{len(done):4} ")
            line.append(f"{len(record.draft_tokens):2} drafted {drafted!r}", "" if plain else "dim")
            errors.print(line.append(" -> ").append_text(painter.paint(record)), soft_wrap=True)
        elif form == "stream":
            piece = decoder.decode(new, final=record.done)
            piece = piece if begun else piece.lstrip(strip)
            begun = begun or bool(piece)
            print(shown(piece), end="", flush=True)
    text = data.decode("utf-8", "replace").lstrip(strip)
    if form == "json":
        print(json.dumps({"type": "summary", **od.summarize(done).figures(), "text": text}))
    else:
        print("" if form == "stream" else shown(text), flush=True)
    return done


def describe(summary: od.Summary, speculated: bool) -> str:
    """The summary in one line."""
    line = f"{summary.tokens} tokens in {summary.seconds:.2f} s ({summary.tokens_per_second:.0f} tokens/s)"
    if not speculated:
        return line + ", plain decoding"
    return (f"{line}, {summary.block_efficiency:.2f} per target pass, {summary.acceptance_draft:.0%} of {summary.drafted} "
            f"draft tokens kept, {summary.acceptance_proposed:.0%} of the proposals accepted, {summary.merges} merges")
