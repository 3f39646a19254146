"""What the decoding loop asks of arrays, answered with NumPy; `ops_torch` answers the same with tensors on a device.

A pair uses one of the two (`Pair.ops`), so there is one loop only, and it never asks which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from .sampling import Rows, mask, process
from .translation import Translated
from .verification import exact_match, greedy, lossless, rejection_sampling

__all__ = ["exact_match", "greedy", "lossless", "mask", "process", "rejection_sampling", "Translated"]
LOOK = True  # at every drafted token: it costs nothing here
inference = nullcontext


def ops_of(*models: Any) -> ModuleType:
    """The module for the logits of these models: the one that all of them name, or this one."""
    names = {getattr(model, "ops", "ops") for model in models}
    return import_module(f".{names.pop() if len(names) == 1 else 'ops'}", __package__)


def _same(given: Any, *_: Any) -> Any:
    """What is on the host already, where `ops_torch` copies or waits."""
    return given


draws = lift = to_host = to_numpy = wait = head_of = _same


def new_cache(model: Any) -> Any:
    """A cache with which `model.forward` gives logits of the kind that these functions take."""
    return model.new_cache()


def allow(ids: Sequence[int], model: Any) -> np.ndarray:
    """What to add to a row of logits (V,) so that all but `ids` are ruled out."""
    row = np.full(model.vocab_size, -np.inf, np.float32)
    row[ids] = 0.0
    return row


def rows(logits: np.ndarray, make: Callable[[np.ndarray], np.ndarray]) -> Sequence[np.ndarray]:
    """What `make` gives for each row of logits (n, V), made when it is asked for."""
    return Rows(logits, make)


def best(logits: np.ndarray) -> list[int]:
    """The argmax of each row (n, V)."""
    return logits.argmax(-1).tolist()


def look(token: int, row: np.ndarray, temperature: float) -> tuple[int, float]:
    """A drawn token and its probability; `row` (V,) holds probabilities, at temperature 0 logits."""
    return token, float(row[token] if temperature else 1.0 / np.exp(row - row[token]).sum())


def peak(row: np.ndarray, temperature: float) -> float:
    """The largest probability of such a row: that of the token that temperature 0 draws."""
    return float(row.max() if temperature else 1.0 / np.exp(row - row.max()).sum())


def entropy(row: np.ndarray, temperature: float) -> float:
    """Entropy in nats of such a row."""
    probs = row if temperature else process(row)
    return float(-(probs * np.log(np.maximum(probs, 1e-30))).sum())
