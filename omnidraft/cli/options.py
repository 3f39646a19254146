"""Options that several commands share, alone or in groups, and what the groups make."""

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import Adapters, OmnidraftError, Options, Pair, pair
from ..engine.load import drafter_for
from ..engine.model import printable
from ..learning import online
from ..learning.adapters import SHIPPED
from ..learning.training import Recipe
from ..ngram_cache import NGramCache
from ..pairs.prompts import uniforms_of
from ..text.files import default_folder
from ..verification import RULES
from .printing import busy, note

# an option under a topic of the help
models = partial(typer.Option, rich_help_panel="Models")
speculation = partial(typer.Option, rich_help_panel="Speculation")
sampling = partial(typer.Option, rich_help_panel="Sampling")
learning = partial(typer.Option, rich_help_panel="Learning")
output = partial(typer.Option, rich_help_panel="Output")

MODEL = "a name that `omnidraft models` shows, a folder, a GGUF file, or (torch) a hub id"
SOURCE = ("math, code or text (built in), a .jsonl file with a `prompt` (or instruction, question, "
          "document, text) per line, a .json file with a list of these or of texts, a text file "
          "with a prompt per line, or - for stdin.")

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
    help="numpy (Llama, Mistral, Qwen2, Qwen3 and Gemma 3, on a CPU) or torch (all of "
         "transformers).")]

# arXiv 2507.02659 as options: its rule, learning and schedule, and 1 - gamma for math and code
PAPER = {"verify": "omnidraft", "threshold": 0.3, "loss": "hybrid", "head": "joint", "rank": 32,
         "every": 8}


def set_paper(context: typer.Context, wanted: bool) -> bool:
    """If wanted, the options that are not given are the paper's; its adapters are kept apart."""
    if wanted:
        context.default_map = PAPER | {"adapters": default_folder() / "paper"}
    return wanted


Paper = Annotated[bool, speculation(
    "--paper", is_eager=True, callback=set_paper,
    help="Only the paper's method: rule omnidraft, an n-gram cache that is empty at first, hybrid "
         "loss, joint head, a LoRA adapter (in ~/.cache/omnidraft/paper), threshold 0.3 (the "
         "paper's for math and code; 0.7 for other texts).")]


def check_paper(given: dict[str, Any]) -> None:
    """Raise OmnidraftError if an option (but the threshold) contradicts `PAPER`."""
    for name, value in PAPER.items():
        if name != "threshold" and given.get(name, value) != value:
            raise OmnidraftError(f"--{name} {given[name]} is not the paper's ({value}): drop it, "
                                 "or --paper")


def as_in_paper(pair: Pair, options: Options) -> Options:
    """The options with which the pair's n-gram cache, now empty, learns from what is written."""
    pair.cache = NGramCache()
    return replace(options, learn=True)


@dataclass(frozen=True)
class Models:
    """The two models, and the backend that runs them. `draft` None: `drafter_for` the target."""

    draft: Annotated[str | None, models(
        "--draft", "-d", show_default="chosen for the target",
        help=f"Drafter: {MODEL}; `omnidraft check --rank` compares those that are here.")] = None
    target: Annotated[str, models(
        "--target", "-t", help=f"Target: {MODEL}.")] = "qwen-like"
    backend: Backend = "numpy"
    device: Annotated[str, models(
        help="With torch: cpu, cuda, cuda:1, mps, auto.")] = "auto"
    dtype: Annotated[str, models(
        help="float32, float64; with torch float16, bfloat16 (auto, where it is fast).")] = "auto"
    threads: Annotated[int | None, models(
        min=1, help="With torch: threads on a CPU.", show_default="all cores")] = None

    def pair(self, learns: bool = False) -> Pair:
        """The pair; `learns`: the default drafter is one that is to learn."""
        if self.threads and self.backend != "torch":
            raise OmnidraftError("--threads is for --backend torch; NumPy uses one thread, or as "
                                 "many as OPENBLAS_NUM_THREADS says")
        draft = self.draft or drafter_for(self.target, learns)
        with busy(f"loading {Path(draft).name} and {Path(self.target).name}"):
            made = pair(draft, self.target, self.backend, device=self.device, dtype=self.dtype)
        if self.backend == "torch":
            torch = sys.modules["torch"]
            if self.threads:
                torch.set_num_threads(self.threads)
            elif "OMP_NUM_THREADS" not in os.environ:
                note(f"PyTorch uses {torch.get_num_threads()} threads: beside other work it may "
                     "be faster with --threads 1")
        return made


@dataclass(frozen=True)
class Served(Models):
    """Models and the drafter's adapter."""

    adapter: Annotated[str, models(
        metavar="WHICH",
        help="Adapter for the drafter: auto (the one learned for this pair, if any), none, or a "
             "name, fingerprint prefix or folder (see `omnidraft adapters list`).")] = "auto"
    adapters: Store = None

    def served(self, options: Options, shipped: bool = True) -> tuple[Pair, Options]:
        """The pair and its options, with what was learned; `shipped`: or came with the package."""
        pair = self.pair()
        if self.adapter != "none":
            which = None if self.adapter == "auto" else self.adapter
            adapter = Adapters(self.adapters).load(pair, which, shipped)
            if adapter:
                options = with_head(options, adapted(pair, adapter))
        return pair, options


def adapted(pair: Pair, adapter: Any) -> Any:
    """Give the drafter its adapter, and say so; returns the adapter's head."""
    draft = pair.draft
    what = f"your own adapter in {printable(str(adapter.folder))}"
    if adapter.folder.parent == SHIPPED:
        what = "the shipped adapter"
    before, now = adapter.statistics.tokens_per_pass()
    if now:
        what += f": {now:.2f} tokens per target pass where it wrote {before:.2f} without"
    note(f"{draft.name} drafts with {what}")
    pair.draft = adapter.drafter(draft)
    pair.draft.name += " with its adapter"
    return adapter.head


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


@dataclass(frozen=True)
class Learning:
    """What is learned, and when."""

    loss: Annotated[str, learning(
        help="lifted, dm or hybrid (the paper's).")] = "lifted"
    rank: Annotated[int | None, learning(
        help="LoRA rank; 0 trains all weights. Default: the saved adapter's, else 32.")] = None
    rate: Annotated[float | None, learning(
        help="Learning rate. Default: by rank and model size. It falls while it harms.")] = None
    every: Annotated[int, learning(
        help="Prompts per update.")] = 2
    replay_mb: Annotated[int, learning(
        help="Memory (MB) for replayed texts.")] = 1024
    head: Annotated[str, learning(
        help="Train an acceptance head: none, joint or interleaved.")] = "none"

    def recipe(self) -> Recipe:
        """How the drafter is trained."""
        rank = Recipe.rank if self.rank is None else self.rank
        return Recipe(self.loss, rank=rank, rate=self.rate)

    def schedule(self, held_out: int, paper: bool) -> online.Schedule:
        """When it is trained; the paper has neither replayed texts nor a guard."""
        if paper:
            return online.Schedule(self.every, head=self.head, held_out=held_out, guard=0)
        return online.Schedule(self.every, head=self.head, held_out=held_out, replay=6,
                               memory_bytes=self.replay_mb << 20)
