"""One clear line for an argument of the wrong kind."""

import reprlib
from typing import Any

from ..text.errors import OmnidraftError

GENERATOR = "a NumPy generator, such as np.random.default_rng(0)"


def expect(name: str, value: Any, kinds: Any, needed: str) -> None:
    """Raise OmnidraftError unless `value` is of one of the `kinds` (types, or None for None).

    >>> expect("options", None, dict, "Options")
    Traceback (most recent call last):
    omnidraft.text.errors.OmnidraftError: options is None, but must be Options
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, tuple(type(None) if kind is None else kind for kind in kinds)):
        raise OmnidraftError(f"{name} is {shown(value)}, but must be {needed}")


def shown(value: Any) -> str:
    """What a value looks like, in one short line."""
    return " ".join(reprlib.repr(value).split())
