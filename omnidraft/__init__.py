"""Speculative decoding across vocabularies, after OmniDraft (arXiv 2507.02659).

>>> import omnidraft
>>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")         # doctest: +SKIP
>>> pair.generate("Once upon a time", max_new_tokens=32).text              # doctest: +SKIP
"""

from importlib import import_module
from typing import Any

from .engine.cpu import prepare_blas

__version__ = "0.1.0"
prepare_blas()  # OpenBLAS reads its environment when NumPy is imported, so this comes first

from . import decoding  # noqa: E402
from .decoding import Observer, Round, Text  # noqa: E402
from .engine.load import load  # noqa: E402
from .engine.model import Model  # noqa: E402
from .learning.adapters import Adapters  # noqa: E402
from .learning.online import Learner, learn  # noqa: E402
from .options import Options  # noqa: E402
from .pairing import Pairing  # noqa: E402
from .pairs.pair import MODEL, Generation, Pair, pair  # noqa: E402
from .sampling import Uniforms  # noqa: E402
from .text.errors import UNIFORMS, OmnidraftError, checked  # noqa: E402
from .text.tokenizer import Tokenizer  # noqa: E402

__all__ = ["Adapters", "Generation", "Learner", "OmnidraftError", "Options", "Pair", "Round",
           "Tokenizer", "Uniforms", "learn", "load", "pair", "plain", "speculative"]

# The lesson trusts its caller; here the arguments of its two loops are checked before they run.
_OPTIONS = Options, "Options, such as Options.of(max_new_tokens=32)"
_TEXT = (None, Text), "a Text of `decoding`"
plain = checked(decoding.plain, model=(Model, MODEL), options=_OPTIONS,
                uniforms=(Uniforms, UNIFORMS), text=_TEXT)
speculative = checked(
    decoding.speculative, pair=(Pairing, "a pair, such as omnidraft.pair gives"),
    prompt=((str, tuple), "a text, or a tuple: the ids for target and drafter"), options=_OPTIONS,
    uniforms=(Uniforms, UNIFORMS), learner=((None, Observer), "a Learner"), text=_TEXT)

TORCH = ("losses_torch", "sampling_torch", "stopping_torch")


def __getattr__(name: str) -> Any:
    """The Torch file of a component, imported when it is first used, and PyTorch with it."""
    if name not in TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        raise OmnidraftError(f"omnidraft.{name} needs PyTorch ({error}): "
                             "pip install --upgrade 'omnidraft[torch]'") from error
