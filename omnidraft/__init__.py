"""Speculative decoding across vocabularies, after OmniDraft (arXiv 2507.02659): one small drafter for every target.

>>> import omnidraft
>>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")              # doctest: +SKIP
>>> pair.generate("Once upon a time", max_new_tokens=32).text                   # doctest: +SKIP
>>> for piece in pair.stream("Once upon a time", do_sample=True, seed=1):       # doctest: +SKIP
...     print(piece, end="")
>>> omnidraft.Conversation(pair).say("What is 17 plus 5?")                      # doctest: +SKIP

Names are imported when they are first used, so `import omnidraft` loads no NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .engine.cpu import prepare_blas

__version__ = "0.1.0"
prepare_blas()  # OpenBLAS reads its environment when NumPy is imported, so this comes first

_HOME = {
    "Alignment": "vocabulary", "align": "vocabulary", "aligned_spans": "vocabulary",
    "AcceptanceHead": "stopping", "Confidence": "stopping", "FixedLength": "stopping", "Throughput": "stopping",
    "Conversation": "cli.conversation",
    "NGramCache": "ngram_cache",
    "OmnidraftError": "errors",
    "Options": "decoding", "Round": "decoding", "plain": "decoding", "speculative": "decoding",
    "Adapters": "learning.adapters",
    "Learner": "learning.online", "Schedule": "learning.online", "learn": "learning.online",
    "Generation": "pairing", "Pair": "pairing", "pair": "engine.loading",
    "Recipe": "learning.training", "Trainer": "learning.training",
    "Summary": "metrics", "speedup": "metrics", "summarize": "metrics",
    "Tokenizer": "tokenizer",
    "Uniforms": "sampling", "process": "sampling",
    "load": "engine.loading",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'omnidraft' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
