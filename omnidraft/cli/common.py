"""What several commands share: options, loading, consoles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OmnidraftError

if TYPE_CHECKING:
    from rich.console import Console

    from ..decoding import Options
    from ..pairing import Pair
    from ..sampling import Uniforms
    from ..tokenizer import Tokenizer

MODEL = "an embedded model (see `omnidraft models`), a Hugging Face folder, or with --backend torch a hub id"

Draft = Annotated[str, typer.Option("--draft", "-d", metavar="MODEL", rich_help_panel="Models",
                                    help=f"The drafter: {MODEL}.")]
Target = Annotated[str, typer.Option("--target", "-t", metavar="MODEL", rich_help_panel="Models",
                                     help=f"The target: {MODEL}.")]
Backend = Annotated[str, typer.Option("--backend", metavar="NAME", rich_help_panel="Models", help=(
    "numpy (Llama, Mistral and Qwen2, on the CPU) or torch (whatever transformers runs)."))]
Device = Annotated[str, typer.Option("--device", metavar="NAME", rich_help_panel="Models", help=(
    "With --backend torch: cpu, cuda, cuda:1, mps; auto takes the fastest."))]
Dtype = Annotated[str, typer.Option("--dtype", metavar="NAME", rich_help_panel="Models", help=(
    "float32, float64, with --backend torch also bfloat16, float16; auto is float32 on a CPU, else as stored."))]
Verify = Annotated[str, typer.Option("--verify", metavar="RULE", rich_help_panel="Speculation", help=(
    "Verification rule: lossless, omnidraft (the paper's; biased above temperature 0), slem or tli."))]
DraftLength = Annotated[int, typer.Option("--draft-length", "-k", metavar="K", rich_help_panel="Speculation",
                                          help="Most draft tokens in a round; 0 decodes plainly.")]
Threshold = Annotated[float, typer.Option("--threshold", metavar="P", rich_help_panel="Speculation", help=(
    "Stop drafting once the drafted tokens' probability falls below P; 0 always drafts K tokens."))]
Payoff = Annotated[bool, typer.Option("--payoff", rich_help_panel="Speculation",
                                      help="Decode plainly for a while where drafting is measured not to pay.")]
Temperature = Annotated[float, typer.Option("--temperature", "-T", rich_help_panel="Sampling",
                                            help="0 takes the likeliest token.")]
Tokens = Annotated[int, typer.Option("--max-new-tokens", "-n", metavar="N", rich_help_panel="Sampling",
                                     help="Most target tokens to write.")]
Plain = Annotated[bool, typer.Option("--plain", rich_help_panel="Output",
                                     help="Signs + * - ! ^ instead of colours (also without a colour terminal).")]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["Examples:", *lines])


def consoles() -> tuple[Console, Console]:
    """Consoles on stdout and stderr, made now so that redirected streams are seen."""
    from rich.console import Console

    return Console(highlight=False), Console(stderr=True, highlight=False)


def without_colour(console: Console) -> bool:
    """Whether styles would be lost here: a pipe, NO_COLOR, a dumb terminal."""
    return console.no_color or console.color_system is None


def options_of(verify: str, draft_length: int, threshold: float, temperature: float, max_new_tokens: int,
               **more: Any) -> Options:
    """Options for the decoding loop; raises OmnidraftError for values out of range."""
    from ..decoding import Options
    from ..stopping import Confidence

    if not 0 <= threshold <= 1:
        raise OmnidraftError(f"threshold is {threshold}, but must be from 0 to 1")
    return Options(verify=verify, stop=Confidence(draft_length, threshold), temperature=temperature,
                   max_new_tokens=max_new_tokens, **more)


def uniforms_of(seed: int) -> Uniforms:
    """A fresh stream of uniform draws; raises OmnidraftError for a negative seed."""
    import numpy as np

    from ..sampling import Uniforms

    if seed < 0:
        raise OmnidraftError(f"seed is {seed}, but must be 0 or more")
    return Uniforms(np.random.default_rng(seed))


def check_context(model: Any, prompt: str) -> None:
    """Raise OmnidraftError before any work if the prompt is empty or leaves no room in the target's context."""
    if not prompt:
        raise OmnidraftError("the prompt is empty: give some text to go on from")
    length = len(model.tokenizer.encode(prompt, bos=True))
    if length >= model.context_size:
        raise OmnidraftError(f"the prompt has {length} tokens, but {model.name} reads at most "
                             f"{model.context_size - 1}: shorten it")


def cache_file(draft: Tokenizer, target: Tokenizer) -> Path:
    """Where the n-gram cache of a pair of tokenizers is kept: $OMNIDRAFT_CACHE, else ~/.cache/omnidraft."""
    from ..vocabulary import default_folder

    return default_folder() / f"ngrams-{draft.fingerprint[:16]}-{target.fingerprint[:16]}.json"


def load_pair(draft: str, target: str, stored: bool = True, **how: str) -> Pair:
    """Load two models (`how`: backend, device, dtype) and, with `stored`, the n-gram cache on disk for their tokenizers.

    Where there is none, or without `stored`, the cache is filled from the two tokenizers alone.
    """
    from ..models import load
    from ..ngram_cache import NGramCache
    from ..pairing import Pair

    target_model, draft_model = load(target, **how), load(draft, **how)
    cache = None
    if stored:
        path = cache_file(draft_model.tokenizer, target_model.tokenizer)
        if path.is_file():
            cache = NGramCache.load(path, draft_model.tokenizer.fingerprint, target_model.tokenizer.fingerprint)
    return Pair(draft_model, target_model, cache)
