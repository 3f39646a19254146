"""Options that several commands share, alone or in groups, and what the groups make."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import Adapters, OmnidraftError, Options, Pair, pair
from ..engine.load import drafter_for
from ..engine.model import printable
from ..learning.adapters import SHIPPED
from ..pairs.prompts import uniforms_of
from ..verification import RULES
from .printing import note

# an option under a topic of the help
models = partial(typer.Option, rich_help_panel="Models")
speculation = partial(typer.Option, rich_help_panel="Speculation")
sampling = partial(typer.Option, rich_help_panel="Sampling")
learning = partial(typer.Option, rich_help_panel="Learning")
output = partial(typer.Option, rich_help_panel="Output")

MODEL = "a name that `omnidraft models` shows, a folder, a GGUF file, or (torch) a hub id"
SOURCE = ("math, code or text (built in), a .jsonl or .json file with a `prompt` (or instruction, "
          "question, document, text) per line, a text file with a prompt per line, or - for stdin.")

Side = Annotated[str, typer.Argument(
    help="An embedded model, or a folder with a tokenizer.json.")]
Plain = Annotated[bool, output(
    "--plain", help="Mark with signs instead of colours.")]
Store = Annotated[Path | None, output(
    metavar="FOLDER", help="Where adapters are kept.", show_default="~/.cache/omnidraft/adapters")]
Prompts = Annotated[str, models(
    "--task", "--prompts", metavar="SOURCE", help=SOURCE)]
Json = Annotated[Path | None, output(
    "--json", metavar="FILE", help="Save all figures as JSON.")]
JsonLines = Annotated[bool, output(
    "--json", help="Print JSON Lines and a summary.")]
AsJson = Annotated[bool, output(
    "--json", help="Print JSON.")]
Chat = Annotated[bool | None, models(
    "--chat/--no-chat", help="Ask through the chat template.",
    show_default="if the target has a template and the prompts are requests")]
Backend = Annotated[str, models(
    help="numpy (Llama, Mistral and Qwen2, on a CPU) or torch (all of transformers).")]


@dataclass(frozen=True)
class Models:
    """The two models, and the backend that runs them. `draft` None: `drafter_for` the target."""

    draft: Annotated[str | None, models(
        "--draft", "-d", show_default="chosen for the target", help=f"Drafter: {MODEL}.")] = None
    target: Annotated[str, models(
        "--target", "-t", help=f"Target: {MODEL}.")] = "qwen-like"
    backend: Backend = "numpy"
    device: Annotated[str, models(
        help="With torch: cpu, cuda, cuda:1, mps, auto.")] = "auto"
    dtype: Annotated[str, models(
        help="float32, float64; with torch bfloat16, float16.")] = "auto"

    def pair(self, learns: bool = False) -> Pair:
        """The pair; `learns`: the default drafter is one that is to learn."""
        draft = self.draft or drafter_for(self.target, learns)
        return pair(draft, self.target, self.backend, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Served(Models):
    """Models and, on request, the drafter's adapter."""

    adapter: Annotated[str | None, models(
        metavar="WHICH",
        help="Adapter for the drafter: none, auto (the one learned for this pair), or a name, "
             "fingerprint prefix or folder (see `omnidraft adapters list`).")] = "none"
    adapters: Store = None

    def served(self, options: Options) -> tuple[Pair, Options]:
        """The pair and its options, with what was learned if `adapter` asks for it.

        OmnidraftError if "auto" finds nothing; None is "auto" without this error.
        """
        pair = self.pair()
        if self.adapter == "none":
            return pair, options
        which = None if self.adapter == "auto" else self.adapter
        adapter = Adapters(self.adapters).load(pair, which, shipped=True)
        if adapter is not None:
            return adapted(pair, options, adapter)
        if self.adapter == "auto":
            raise OmnidraftError("nothing has been learned yet for this pair: run `omnidraft adapt "
                                 "math` with the same models, or drop --adapter")
        return pair, options


def adapted(pair: Pair, options: Options, adapter: Any) -> tuple[Pair, Options]:
    """The pair whose drafter has its adapter, and the options with the adapter's head."""
    draft = pair.draft
    what = f"your own adapter in {printable(str(adapter.folder))}"
    if adapter.folder.parent == SHIPPED:
        what = "the shipped adapter"
    note(f"{draft.name} drafts with {what}")
    pair.draft = adapter.drafter(draft)
    pair.draft.name += " with its adapter"
    return pair, with_head(options, adapter.head_for(draft))


def with_head(options: Options, head: Any) -> Options:
    """The options with an acceptance head, if there is one."""
    if head is None:
        return options
    return replace(options, stop=replace(options.stop, head=head))


@dataclass(frozen=True)
class Decoding:
    """How to decode."""

    verify: Annotated[str, speculation(
        help=f"Rule: one of {', '.join(RULES)} (the paper's: omnidraft).")] = Options.verify
    draft_length: Annotated[int, speculation(
        "--draft-length", "-k", help="Most draft tokens per round; 0 is plain decoding.")] = 12
    threshold: Annotated[float, speculation(
        help="Stop drafting once the draft's probability falls below this; 0 never stops.")] = 0.4
    adaptive: Annotated[bool | None, speculation(
        "--adaptive/--no-adaptive", show_default="only at temperature 0",
        help="Draft only while it saves time; at T > 0 a seed no longer fixes the text.")] = None
    temperature: Annotated[float, sampling(
        "--temperature", "-T", help="0 is greedy.")] = 0.0
    top_k: Annotated[int, sampling(
        help="Sample from the k most probable tokens; 0 is off.")] = 0
    top_p: Annotated[float, sampling(
        help="Sample from top tokens that sum to p; 1 is off.")] = 1.0
    seed: Annotated[int, sampling(
        help="Random seed.")] = 0
    max_new_tokens: Annotated[int, sampling(
        "--max-new-tokens", "-n", help="Token limit.")] = 128

    def options(self) -> Options:
        """The Options that they make; raises OmnidraftError for values out of range."""
        settings = dict(vars(self))
        uniforms_of(settings.pop("seed"))
        return Options.of(**settings)
