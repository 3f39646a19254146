"""What decoding needs of a model, and the checks that every model makes.

A model is `llama.Llama` or `transformers_model.TransformersModel`: anything with these attributes.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ..text.errors import OmnidraftError

OUT_OF_MEMORY = "out of memory: use a smaller model or dtype, a shorter text, or another device"


class Cache(Protocol):
    """What a model remembers of the `length` tokens that it has read."""

    length: int

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError like `check_rewind`."""


@runtime_checkable
class Model(Protocol):
    """A causal language model with a tokenizer."""

    tokenizer: Any  # text.tokenizer.Tokenizer
    context_size: int  # maximum tokens in a text
    eos_ids: Any  # the ids that end a text

    def new_cache(self) -> Any:
        """An empty `Cache` for one text."""

    def forward(self, ids: Sequence[int], cache: Any, rows: int = 1) -> Any:
        """Feed `ids` after what the cache holds; returns the logits (rows, V) of the last ids.

        Raises OmnidraftError like `check_pass`, and for logits that are not finite.
        """


def check_pass(model: Any, ids: Sequence[int], count: int, rows: int, before: int) -> None:
    """Raise OmnidraftError if a model cannot read `count` tokens, `ids`, after `before` others."""
    if not 1 <= rows <= count:
        raise OmnidraftError(f"a pass over {count} tokens cannot give {rows} rows of logits")
    if ids and (min(ids) < 0 or max(ids) >= model.vocab_size):
        raise OmnidraftError(f"token ids {min(ids)} to {max(ids)} do not fit a vocabulary of "
                             f"{model.vocab_size}")
    length = before + count
    if length > model.context_size:
        raise OmnidraftError(f"the text is {length} tokens long, but the model's context holds "
                             f"{model.context_size} (shorten the prompt or generate fewer tokens)")


def check_rewind(held: int, length: int) -> None:
    """Raise OmnidraftError if a cache of `held` tokens cannot keep its first `length`."""
    if not 0 <= length <= held:
        raise OmnidraftError(f"cannot rewind a cache of {held} tokens to {length}")


def flat_ids(*values: Any, size: float = math.inf) -> tuple[int, ...]:
    """The ids below `size` in values that are each an id, a list of ids or None; each once.

    >>> flat_ids(2, [5, 2, 99], None, size=10)
    (2, 5)
    """
    found = []
    for value in values:
        found += value if isinstance(value, (list, tuple)) else [value]
    ids = (i for i in found if isinstance(i, int) and 0 <= i < size)
    return tuple(dict.fromkeys(ids))


def printable(name: str) -> str:
    """A model's name on one line: what does not print is an escape, so it cannot forge output.

    >>> print(printable("a\\nb"))
    a\\nb
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def is_out_of_memory(error: BaseException) -> bool:
    """Does this exception of Python, NumPy or PyTorch say that memory is full?

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("no such kernel"))
    (True, False)
    """
    says = f"{type(error)} {error}".lower()
    return isinstance(error, (MemoryError, RuntimeError)) and "memory" in says
