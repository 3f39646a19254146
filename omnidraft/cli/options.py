"""The options that several commands share, in groups, and what they stand for."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import Adapters, OmnidraftError, Options, Pair
from ..engine.loading import load, load_two
from ..serving.control import uniforms_of
from ..verification import RULES
from .printing import note

models, speculation, sampling, learning, output = (
    partial(typer.Option, rich_help_panel=topic)
    for topic in ("Models", "Speculation", "Sampling", "Learning", "Output"))
MODEL = "an embedded model (see `omnidraft models`), a folder, or with --backend torch a hub id"
Side = Annotated[str, typer.Argument(help="An embedded model, or a folder with a tokenizer.json.")]
Plain = Annotated[bool, output("--plain", help="Signs + * - ! ^ . instead of colours.")]
Rounds = Annotated[bool, output("--rounds", help="Show every round in colour, on stderr.")]
Store = Annotated[Path | None, output(
    metavar="FOLDER", help="Where adapters are.", show_default="~/.cache/omnidraft/adapters")]
SOURCE = ("math, code or text (they ship), a .jsonl file with a `prompt` (or instruction, "
          "question, document, text) in each line, a text file of prompts, or - for stdin.")
Prompts = Annotated[str, models("--task", "--prompts", metavar="SOURCE", help=SOURCE)]
Json = Annotated[Path | None, output("--json", metavar="FILE", help="Save every figure.")]
JsonLines = Annotated[bool, output("--json", help="An object per round or prompt, and a summary.")]


@dataclass(frozen=True)
class Models:
    """The two models, and what runs them."""

    draft: Annotated[str, models("--draft", "-d", help=f"Drafter: {MODEL}.")] = "draft-tasks"
    target: Annotated[str, models("--target", "-t", help=f"Target: {MODEL}.")] = "qwen-like"
    backend: Annotated[str, models(
        help="numpy (Llama, Mistral, Qwen2 on a CPU) or torch (all of transformers).")] = "numpy"
    device: Annotated[str, models(help="With torch: cpu, cuda, cuda:1, mps, auto.")] = "auto"
    dtype: Annotated[str, models(help="float32, float64; torch: also bfloat16, float16.")] = "auto"
    device_map: Annotated[str | None, models(
        help="Spread the target over devices: auto, balanced, sequential.")] = None

    def pair(self) -> Pair:
        """The pair."""
        return Pair(*load_two(self.draft, self.target, self.backend, device=self.device,
                              dtype=self.dtype, device_map=self.device_map))


@dataclass(frozen=True)
class Served(Models):
    """Models, and on request what the drafter has learned."""

    adapter: Annotated[bool, models(
        "--adapter", help="Draft with what `omnidraft adapt` has learned for the pair.")] = False
    adapters: Store = None

    def served(self, options: Options) -> tuple[Pair, Options]:
        """The pair and its options, both with what was learned if that is asked for."""
        pair = self.pair()
        return pair, use_adapter(pair, self.adapters, options) if self.adapter else options

    def open(self, options: Options) -> tuple[Any, Options]:
        """As `served`, or for draft length 0 the target alone."""
        if options.stop.limit:
            return self.served(options)
        if self.adapter:
            raise OmnidraftError("-k 0 decodes plainly, without --adapter: leave one of them out")
        return load(self.target, self.dtype, self.backend, self.device,
                    device_map=self.device_map), options


@dataclass(frozen=True)
class Decoding:
    """How to decode."""

    verify: Annotated[str, speculation(
        help=f"One of {', '.join(RULES)} (the paper's: omnidraft).")] = Options.verify
    draft_length: Annotated[int, speculation(
        "--draft-length", "-k", help="Most draft tokens in a round; 0 decodes plainly.")] = 12
    threshold: Annotated[float, speculation(help=(
        "Stop drafting once the drafted tokens' probability falls below; 0 never stops."))] = 0.4
    temperature: Annotated[float, sampling("--temperature", "-T", help="0: greedy.")] = 0.0
    top_k: Annotated[int, sampling(help="Draw from the k likeliest tokens; 0 is off.")] = 0
    top_p: Annotated[float, sampling(help="Draw from tokens that add up to p; 1 is off.")] = 1.0
    seed: Annotated[int, sampling(help="Of the random draws.")] = 0
    max_new_tokens: Annotated[int, sampling("--max-new-tokens", "-n", help="Most to write.")] = 128

    def options(self) -> Options:
        """These as Options; raises OmnidraftError for values out of range."""
        uniforms_of(self.seed)
        return Options.of(**{k: v for k, v in vars(self).items() if k != "seed"})


def use_adapter(pair: Pair, root: Path | None, options: Options, needed: bool = True) -> Options:
    """Give the pair what was learned for it, and the options its acceptance head, if it has one.

    Raises OmnidraftError where nothing was learned, if it is `needed`.
    """
    store, draft, target = Adapters(root), pair.draft, pair.target
    own = store.version(store.folder(pair)) > 0
    if adapter := store.load(pair, shipped=True):
        where = f"your own, in {store.folder(pair)}" if own else "the one in the package"
        note(f"{draft.name} drafts with an adapter: {where}")
        pair.draft, pair.cache = adapter.drafter(draft), adapter.cache or pair.cache
        pair.draft.name += " with its adapter"
        return with_head(options, adapter.head)
    if needed:
        raise OmnidraftError(
            f"nothing was learned yet for {draft.name} -> {target.name}: run `omnidraft adapt math "
            f"-d {draft.name} -t {target.name}`, or leave out --adapter")
    return options


def with_head(options: Options, head: Any) -> Options:
    """The options with an acceptance head, if there is one."""
    return replace(options, stop=replace(options.stop, head=head)) if head else options
