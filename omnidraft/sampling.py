"""From logits to the distribution that is sampled from, and the uniform draws that all randomness comes from.

Every rule of `verification.py` needs exactly the distribution that a token was drawn from, so processing (temperature,
top-k, top-p) happens once, here, for drafter and target alike. At temperature 0 it is the argmax, as a one-hot row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nextafter
from typing import Any

import numpy as np

from .errors import OmnidraftError

BLOCK = 256
BELOW_ONE = 1 - 2**-52  # the greatest draw: rounded, a product with it stays below the total


def process(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """Probabilities (..., V) in float64 of logits (..., V) after temperature, top-k and top-p; 0 switches top-k off.

    The exponentials of float32 logits are float32: without AVX-512 those of float64 cost four times as much.
    Raises OmnidraftError for a row that holds no finite logit or a NaN.

    >>> process(np.array([0.0, 1.0, 1.0]), temperature=0)
    array([0., 1., 0.])
    """
    logits = np.asarray(logits)
    best = logits.max(axis=-1, keepdims=True)  # (..., 1)
    if not np.isfinite(best).all():
        raise OmnidraftError("the model's logits are NaN or infinite: its weights are broken or the number type too small")
    if temperature == 0:
        return (np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]).astype(np.float64)
    probs = np.subtract(logits, best, dtype=np.float32 if logits.dtype == np.float32 else np.float64)
    if temperature != 1:
        with np.errstate(over="ignore"):  # a tiny temperature: -inf, which is right
            probs /= max(temperature, 1e-30)  # what float32 can hold
    np.exp(probs, out=probs)
    probs = probs / probs.sum(-1, keepdims=True, dtype=np.float64)
    if 0 < top_k < logits.shape[-1]:
        least = np.partition(probs, -top_k, axis=-1)[..., -top_k, None]
        probs = np.where(probs >= least, probs, 0.0)
        probs /= probs.sum(-1, keepdims=True)
    if top_p < 1:
        order = np.argsort(-probs, axis=-1, kind="stable")
        ordered = np.take_along_axis(probs, order, -1)
        # A token stays while the tokens before it hold less than top_p, so the one that crosses the bound stays.
        ordered[np.cumsum(ordered, -1) - ordered >= top_p] = 0.0
        np.put_along_axis(probs, order, ordered, -1)
        probs /= probs.sum(-1, keepdims=True)
    return probs


def mask(logits: np.ndarray, size: int) -> np.ndarray:
    """Logits (..., V) with all beyond the tokenizer's `size` ids ruled out, in place (Qwen2 pads 151,646 ids to 152,064).

    >>> mask(np.array([1.0, 2.0, 3.0]), 2)
    array([  1.,   2., -inf])
    """
    if logits.shape[-1] > size:
        logits[..., size:] = -np.inf
    return logits


def locate(weights: np.ndarray, draw: float) -> int:
    """The first index at which the running sum of weights (N,) exceeds `draw` of their total; N if they are NaN or all zero.

    Whole blocks come first, then one of them: adding up many numbers is quick, their running sum takes ten times as long.

    >>> locate(np.array([1.0, 0.0, 3.0]), 0.25)
    2
    """
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK)).cumsum(dtype=np.float64)
    goal = float(sums[-1]) * min(draw, BELOW_ONE)
    block = int(sums.searchsorted(goal, "right"))  # to the right of equal sums: never a zero weight
    if block == len(sums):
        return len(weights)
    start, goal = block * BLOCK, goal - (float(sums[block - 1]) if block else 0.0)
    running = weights[start:start + BLOCK].cumsum(dtype=np.float64)
    return start + int(running.searchsorted(min(goal, nextafter(running[-1], 0.0)), "right"))  # two totals, two roundings


class Rows(Sequence):
    """What `make` gives for each of n rows of logits (V,), or whatever, when it is asked for: those behind a refusal never are.

    >>> Rows(np.zeros((3, 2)), process)[1]
    array([0.5, 0.5])
    """

    def __init__(self, logits: Any, make: Callable[[Any], Any]) -> None:
        self._logits, self._make, self._at, self._row = logits, make, -1, None

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, row: int) -> Any:
        if row != self._at:  # one is kept: they are asked for in order
            self._at, self._row = row, self._make(self._logits[row])
        return self._row


class Uniforms:
    """Uniform draws in [0, 1) from a NumPy Generator or from given numbers; every random decision asks it.

    >>> Uniforms([0.3]).choose(np.array([1.0, 0.0, 3.0]))
    2
    """

    def __init__(self, source: np.random.Generator | Iterable[float]) -> None:
        self._draws: Iterator[float] | None = None
        if isinstance(source, np.random.Generator):
            self._next = source.random
        else:
            self._draws = iter(source)
            self._next = lambda: next(self._draws)

    def __iter__(self) -> Iterator[float]:
        """The draws one after another."""
        return iter(self._next, None)

    def accept(self, probability: float) -> bool:
        """True with the given probability (values above 1 count as 1)."""
        return self._next() < probability

    def choose(self, weights: np.ndarray) -> int:
        """Index drawn with probability proportional to `weights` (N,), non-negative and not all zero."""
        return locate(weights, self._next())
