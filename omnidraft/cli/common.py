"""What several commands share: the app they are registered with, their options, loading, consoles."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import omnidraft as od

from ..engine.loading import folder, load_two
from ..errors import OUT_OF_MEMORY, OmnidraftError, is_out_of_memory
from .render import escape


class _OneLineErrors(TyperGroup):
    """Prints an OmnidraftError, what the system refuses, and that memory is full, as one line; with --debug it is raised."""

    def invoke(self, ctx: Any) -> Any:
        try:
            made = super().invoke(ctx)
            sys.stdout.flush()  # so that what cannot be written is told here
            return made
        except (OmnidraftError, MemoryError, RuntimeError, OSError) as error:
            full = is_out_of_memory(error)
            told = isinstance(error, (OmnidraftError, OSError)) and not isinstance(error, BrokenPipeError)
            if ctx.params.get("debug") or not (full or told):
                raise
            line = OUT_OF_MEMORY if full else str(error).replace("\n", " ")
            print(f"error: {escape(line, '')}", file=sys.stderr)  # names in it may be a stranger's
            try:
                sys.stdout.flush()
            except OSError:  # what could not be written would be tried, and told, once more at the end of the process
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["Examples:", *lines])


app = typer.Typer(
    name="omnidraft", cls=_OneLineErrors, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode="rich",
    epilog=examples("omnidraft demo", "omnidraft generate 'Once upon a time' --temperature 0.8", "omnidraft demo -h"),
)


def command(*lines: str, to: typer.Typer = app) -> Callable:
    """Register a command whose help ends with the example `lines`."""
    return to.command(epilog=examples(*lines))


# An option in one of the help's panels, and the options that several commands have.
models, speculation, sampling, output = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Models", "Speculation", "Sampling", "Output"))
MODEL = "an embedded model (see `omnidraft models`), a Hugging Face folder, or with --backend torch a hub id"
Draft = Annotated[str, models("--draft", "-d", metavar="MODEL", help=f"The drafter: {MODEL}.")]
Target = Annotated[str, models("--target", "-t", metavar="MODEL", help=f"The target: {MODEL}.")]
Backend = Annotated[str, models("--backend", metavar="NAME", help=(
    "numpy (Llama, Mistral and Qwen2, on the CPU) or torch (whatever transformers runs)."))]
Device = Annotated[str, models("--device", metavar="NAME", help=(
    "With --backend torch: cpu, cuda, cuda:1, mps; auto takes the fastest."))]
DeviceMap = Annotated[str | None, models("--device-map", metavar="MAP", show_default=False, help=(
    "Spread the target over all devices: auto, balanced or sequential (needs accelerate); --device is then the drafter's."))]
TensorParallel = Annotated[bool, models("--tensor-parallel", help=(
    "Every process holds a part of the target; start them with torchrun (see the examples; needs accelerate)."))]
Compile = Annotated[bool, models("--compile", help=(
    "With --backend torch: the drafter through torch.compile "
    "(slow at first; needs a C++ compiler; Llama, Mistral and Qwen2 are quicker without, on a CPU)."))]
Dtype = Annotated[str, models("--dtype", metavar="NAME", help=(
    "float32, float64, with --backend torch also bfloat16, float16; auto is float32 on a CPU, else as stored."))]
Verify = Annotated[str, speculation("--verify", metavar="RULE", help=(
    "Verification rule: lossless, omnidraft (the paper's; biased above temperature 0), slem or tli."))]
DraftLength = Annotated[int, speculation("--draft-length", "-k", metavar="K",
                                         help="Most draft tokens in a round; 0 decodes plainly.")]
Threshold = Annotated[float, speculation("--threshold", metavar="P", help=(
    "Stop drafting once the drafted tokens' probability falls below P, or at once if the first's will; 0 always drafts K."))]
Tune = Annotated[bool, speculation("--tune", help="Let the threshold follow the measured throughput, from P on.")]
Payoff = Annotated[bool, speculation("--payoff", help="Decode plainly for a while where drafting is measured not to pay.")]
Temperature = Annotated[float, sampling("--temperature", "-T", help="0 takes the likeliest token.")]
Tokens = Annotated[int, sampling("--max-new-tokens", "-n", metavar="N", help="Most target tokens to write.")]
TopK = Annotated[int, sampling("--top-k", help="0 is off.")]
TopP = Annotated[float, sampling("--top-p", help="1 is off.")]
Seed = Annotated[int, sampling("--seed", help="Of the random draws.")]
Rounds = Annotated[bool, output("--rounds", help="Show every round in colour, on stderr.")]
Plain = Annotated[bool, output("--plain", help="Signs + * - ! ^ instead of colours (also without a colour terminal).")]
AdapterFolder = Annotated[Path | None, output("--adapters", metavar="FOLDER", help="Where adapters are kept.",
                                              show_default="~/.cache/omnidraft/adapters")]
Adapted = Annotated[bool, models("--adapter", help="Draft with what `omnidraft adapt` has learned for this pair.")]
Side = Annotated[str, typer.Argument(show_default=False, help="An embedded model, or a folder with a tokenizer.json.")]


def consoles() -> tuple[Console, Console]:
    """Consoles on stdout and stderr, made now so that redirected streams are seen."""
    return Console(highlight=False), Console(stderr=True, highlight=False)


def without_colour(console: Console) -> bool:
    """Whether styles would be lost here: a pipe, NO_COLOR, a dumb terminal."""
    return console.no_color or console.color_system is None


def options_of(verify: str, draft_length: int, threshold: float, temperature: float, max_new_tokens: int,
               **more: Any) -> od.Options:
    """Options for the decoding loop; raises OmnidraftError for values out of range."""
    return od.Options.of(draft_length, threshold, verify=verify, temperature=temperature, max_new_tokens=max_new_tokens, **more)


def uniforms_of(seed: int) -> od.Uniforms:
    """A fresh stream of uniform draws; raises OmnidraftError for a negative seed."""
    import numpy as np

    if seed < 0:
        raise OmnidraftError(f"seed is {seed}, but must be 0 or more")
    return od.Uniforms(np.random.default_rng(seed))


def tokenizers(draft: str, target: str) -> tuple[od.Tokenizer, od.Tokenizer, Path]:
    """The tokenizers of two models, without the models, and where their n-gram cache is kept."""
    one, other = od.Tokenizer.load(folder(draft)), od.Tokenizer.load(folder(target))
    return one, other, cache_file(one, other)


def cache_file(draft: od.Tokenizer, target: od.Tokenizer) -> Path:
    """Where the n-gram cache of a pair of tokenizers is kept: $OMNIDRAFT_CACHE, else ~/.cache/omnidraft."""
    from ..vocabulary import default_folder

    return default_folder() / f"ngrams-{draft.fingerprint[:16]}-{target.fingerprint[:16]}.json"


def use_adapter(pair: od.Pair, root: Path | None) -> od.AcceptanceHead | None:
    """Give the pair the drafter and the n-gram cache that were learned for it; its acceptance head, if one was trained.

    Raises OmnidraftError where nothing was learned yet.
    """
    adapter = od.Adapters(root).load(pair, shipped=True)
    if adapter is None:
        raise OmnidraftError(f"nothing was learned yet for {pair.draft.name} -> {pair.target.name}: run `omnidraft adapt "
                             f"math -d {pair.draft.name} -t {pair.target.name}`, or leave out --adapter")
    pair.draft, pair.cache = adapter.drafter(pair.draft), adapter.cache or pair.cache
    return adapter.head


def load_pair(draft: str, target: str, stored: bool = True, **how: Any) -> od.Pair:
    """Load two models (`how`: see `models.load_two`) and, with `stored`, the n-gram cache on disk for their tokenizers.

    Where there is none, or without `stored`, the cache is filled from the two tokenizers alone.
    """
    from ..vocabulary import load_or_build

    draft_model, target_model = load_two(draft, target, **how)
    if how.get("compile"):
        print("the first text waits until the drafter is compiled: up to some minutes", file=sys.stderr)
    one, other, cache = draft_model.tokenizer, target_model.tokenizer, None
    if stored and cache_file(one, other).is_file():
        cache = od.NGramCache.load(cache_file(one, other), one.fingerprint, other.fingerprint)
    return od.Pair(draft_model, target_model, cache, alignment=load_or_build(one, other))
