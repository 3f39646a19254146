"""What the commands share: the app, groups of options, loading, and all that is printed."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer
from rich.console import Console
from typer.core import TyperGroup

from .. import Adapters, OmnidraftError, Options, Pair, Tokenizer
from ..engine.loading import folder, load, load_two
from ..errors import OUT_OF_MEMORY, is_out_of_memory
from ..ngram_cache import NGramCache
from ..sampling import Uniforms
from ..verification import RULES
from ..vocabulary import default_folder, load_or_build
from .render import escape


def say(text: str, end: str = "\n", exact: bool = False) -> None:
    """Print a result on stdout; what would steer a terminal is spelled out.

    With `exact` only on a terminal: a pipe or a file gets what a model wrote.
    """
    print(text if exact and not sys.stdout.isatty() else escape(text), end=end, flush=True)


def note(line: str) -> None:
    """Print something about the results on stderr, in the same way."""
    print(escape(line), file=sys.stderr)


def emit(record: dict[str, Any]) -> None:
    """Print one line of JSON on stdout; NumPy's whole numbers are numbers."""
    print(json.dumps(record, default=int), flush=True)


def consoles() -> tuple[Console, Console]:
    """Consoles on stdout and stderr, made now so that redirected streams are seen."""
    return Console(highlight=False), Console(stderr=True, highlight=False)


def without_colour(console: Console) -> bool:
    """Whether styles would be lost here: a pipe, NO_COLOR, a dumb terminal."""
    return console.no_color or console.color_system is None


# ---- the app and its commands --------------------------------------------------------------------
class _OneLineErrors(TyperGroup):
    """Prints an OmnidraftError, a system error or full memory as one line; --debug raises it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # what cannot be written is reported here
            return result
        except (OmnidraftError, MemoryError, RuntimeError, OSError) as error:
            full = is_out_of_memory(error)
            known = isinstance(error, (OmnidraftError, OSError)) or full
            if ctx.params.get("debug") or not known or isinstance(error, BrokenPipeError):
                raise
            line = OUT_OF_MEMORY if full else str(error).replace("\n", " ")
            note(f"error: {line}")
            try:
                sys.stdout.flush()
            except OSError:  # subtle: else the exit would try, and report, the same once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["Examples:", *lines])


app = typer.Typer(
    name="omnidraft", cls=_OneLineErrors, no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog=examples("omnidraft demo", "omnidraft generate 'Once upon a time' --temperature 0.8",
                    "omnidraft demo -h"))


def command(*lines: str, to: typer.Typer = app, **defaults: Any) -> Callable:
    """Register a command whose help ends with the example `lines`.

    A parameter whose type is a dataclass stands for one option per field; `defaults` are by field.
    """
    def register(function: Callable) -> Callable:
        hints, groups, options = get_type_hints(function, include_extras=True), {}, {}
        for parameter in inspect.signature(function).parameters.values():
            kind, name = hints[parameter.name], parameter.name
            if is_dataclass(kind):
                groups[name], types = kind, get_type_hints(kind, include_extras=True)
                options |= {f.name: (types[f.name], defaults.get(f.name, f.default))
                            for f in fields(kind)}
            else:
                options[name] = kind, parameter.default

        @wraps(function)
        def unfolded(**given: Any) -> None:
            for name, kind in groups.items():
                given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
            function(**given)

        unfolded.__signature__ = inspect.Signature([
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
            for name, (kind, value) in options.items()])
        return to.command(epilog=examples(*lines))(unfolded)

    return register


# ---- groups of options ---------------------------------------------------------------------------
def panel(title: str) -> Callable:
    """Options in one of the help's panels."""
    return partial(typer.Option, rich_help_panel=title)


models, speculation, sampling, learning, output = map(
    panel, ("Models", "Speculation", "Sampling", "Learning", "Output"))
MODEL = ("an embedded model (see `omnidraft models`), a Hugging Face folder, "
         "or with --backend torch a hub id")
Side = Annotated[str, typer.Argument(
    show_default=False, help="An embedded model, or a folder with a tokenizer.json.")]
Plain = Annotated[bool, output(
    "--plain", help="Signs + * - ! ^ . instead of colours (also without a colour terminal).")]
Rounds = Annotated[bool, output("--rounds", help="Show every round in colour, on stderr.")]
Store = Annotated[Path | None, output(
    "--adapters", metavar="FOLDER", help="Where adapters are kept.",
    show_default="~/.cache/omnidraft/adapters")]


@dataclass(frozen=True)
class Models:
    """The two models, and what runs them."""

    draft: Annotated[str, models(
        "--draft", "-d", metavar="MODEL", help=f"The drafter: {MODEL}.")] = "draft-tasks"
    target: Annotated[str, models(
        "--target", "-t", metavar="MODEL", help=f"The target: {MODEL}.")] = "qwen-like"
    backend: Annotated[str, models("--backend", metavar="NAME", help=(
        "numpy (Llama, Mistral and Qwen2, on the CPU) or torch (whatever transformers runs)."
    ))] = "numpy"
    device: Annotated[str, models("--device", metavar="NAME", help=(
        "With --backend torch: cpu, cuda, cuda:1, mps; auto takes the fastest."))] = "auto"
    dtype: Annotated[str, models("--dtype", metavar="NAME", help=(
        "float32, float64, with --backend torch also bfloat16, float16; auto is float32 on a CPU, "
        "else as stored."))] = "auto"
    device_map: Annotated[str | None, models(
        "--device-map", metavar="MAP", show_default=False, help=(
            "Spread the target over all devices: auto, balanced or sequential (needs accelerate); "
            "--device is then the drafter's."))] = None
    compile: Annotated[bool, models("--compile", help=(
        "With --backend torch: run the drafter through torch.compile (slow to start; needs a C++ "
        "compiler; on a CPU, Llama, Mistral and Qwen2 are faster without it)."))] = False

    def how(self) -> dict[str, Any]:
        """What runs them, as `load_pair` takes it."""
        return {name: getattr(self, name) for name in (
            "backend", "device", "dtype", "device_map", "compile")}


@dataclass(frozen=True)
class Served(Models):
    """Models, with what the drafter has learned if that is asked for."""

    adapter: Annotated[bool, models("--adapter", help=(
        "Draft with what `omnidraft adapt` has learned for this pair."))] = False
    adapters: Store = None


@dataclass(frozen=True)
class Decoding:
    """How to decode."""

    verify: Annotated[str, speculation("--verify", metavar="RULE", help=(
        f"Verification rule: {', '.join(RULES)} (omnidraft is the paper's, and biased above "
        "temperature 0)."))] = Options.verify
    draft_length: Annotated[int, speculation("--draft-length", "-k", metavar="K", help=(
        "Most draft tokens in a round; 0 decodes plainly."))] = 12
    threshold: Annotated[float, speculation("--threshold", metavar="P", help=(
        "Stop drafting once the probability of all drafted tokens together falls below P, and "
        "draft nothing if the first token's is; 0 always drafts K."))] = 0.4
    tune: Annotated[bool, speculation("--tune", help=(
        "Let the threshold, at first P, follow the measured throughput."))] = False
    temperature: Annotated[float, sampling(
        "--temperature", "-T", help="0 takes the likeliest token.")] = 0.0
    seed: Annotated[int, sampling("--seed", help="Of the random draws.")] = 0
    max_new_tokens: Annotated[int, sampling(
        "--max-new-tokens", "-n", metavar="N", help="Most target tokens to write.")] = 128

    def options(self, **more: Any) -> Options:
        """These as Options; raises OmnidraftError for values out of range."""
        uniforms_of(self.seed)
        return Options.of(**{k: v for k, v in vars(self).items() if k != "seed"}, **more)


@dataclass(frozen=True)
class Sampling(Decoding):
    """How to decode, with what cuts the target's distribution."""

    top_k: Annotated[int, sampling("--top-k", help="0 is off.")] = 0
    top_p: Annotated[float, sampling("--top-p", help="1 is off.")] = 1.0


# ---- loading -------------------------------------------------------------------------------------
def uniforms_of(seed: int) -> Uniforms:
    """A fresh stream of uniform draws; raises OmnidraftError for a negative seed."""
    if seed < 0:
        raise OmnidraftError(f"seed is {seed}, but must be 0 or more")
    return Uniforms(np.random.default_rng(seed))


def cache_file(draft: Tokenizer, target: Tokenizer) -> Path:
    """Where the n-gram cache of two tokenizers is kept."""
    return default_folder() / f"ngrams-{draft.fingerprint[:16]}-{target.fingerprint[:16]}.json"


def tokenizers(draft: str, target: str) -> tuple[Tokenizer, Tokenizer, Path]:
    """The tokenizers of two models, without the models, and where their n-gram cache is kept."""
    one, other = Tokenizer.load(folder(draft)), Tokenizer.load(folder(target))
    return one, other, cache_file(one, other)


def load_pair(draft: Any, target: Any, stored: bool = True, **how: Any) -> Pair:
    """A pair as `load_two` loads it, with `stored` with the n-gram cache that is kept on disk."""
    draft, target = load_two(draft, target, **how)
    if how.get("compile"):
        note("the first text waits until the drafter is compiled: up to some minutes")
    one, other, cache = draft.tokenizer, target.tokenizer, None
    if stored and cache_file(one, other).is_file():
        cache = NGramCache.load(cache_file(one, other), one.fingerprint, other.fingerprint)
    return Pair(draft, target, cache, alignment=load_or_build(one, other))


def serve(given: Served, options: Options, **how: Any) -> tuple[Any, Options]:
    """The pair, or for draft length 0 its target alone, and the options with the adapter's head."""
    if not options.stop.limit:
        how = given.how() | how | {"compile": False}
        return load(given.target, **{k: v for k, v in how.items() if v or k != "compile"}), options
    pair = load_pair(given.draft, given.target, **given.how(), **how)
    return pair, use_adapter(pair, given.adapters, options) if given.adapter else options


def use_adapter(pair: Pair, root: Path | None, options: Options) -> Options:
    """Give the pair what was learned for it; the options with the acceptance head, if it has one.

    Raises OmnidraftError where nothing was learned yet.
    """
    adapter, names = Adapters(root).load(pair, shipped=True), (pair.draft.name, pair.target.name)
    if adapter is None:
        raise OmnidraftError(
            "nothing was learned yet for {0} -> {1}: run `omnidraft adapt math -d {0} -t {1}`, or "
            "leave out --adapter".format(*names))
    pair.draft = adapter.drafter(pair.draft)
    if not options.learn:  # else the text's n-grams join those kept for the two tokenizers
        pair.cache = adapter.cache or pair.cache
    return with_head(options, adapter.head)


def with_head(options: Options, head: Any) -> Options:
    """The options with an acceptance head, if there is one."""
    return replace(options, stop=replace(options.stop, head=head)) if head else options
