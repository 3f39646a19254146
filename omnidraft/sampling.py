"""From logits to the distribution that is sampled from, and the draws behind every random decision.

Verification needs exactly the distribution that a token was drawn from: it is computed only here.
`process` and `locate` are the reference; the loop uses the forms of `sampling_fast`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from . import sampling_fast
from .text.errors import OmnidraftError

NO_FILTERS = 0, 1.0, 0.0  # top_k, top_p, min_p
BROKEN = "logits are NaN or infinite: check any logits processors, the weights and the dtype"
RULED_OUT = "the logits processors ruled out every token: let them allow at least one"


@np.errstate(over="ignore")  # a tiny temperature gives -inf, as it should
def process(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
            min_p: float = 0.0) -> np.ndarray:
    """Probabilities (..., V) of logits (..., V) after temperature, top-k (0: off), top-p and min-p.

    float32 stays float32, anything else becomes float64. Temperature 0 gives a one-hot row at the
    argmax. Raises OmnidraftError for a row whose maximum is not finite (-inf, inf or NaN).

    >>> process(np.log([0.5, 0.3, 0.2]), top_p=0.6).round(3).tolist()
    [0.625, 0.375, 0.0]
    """
    logits = _as_floats(logits)
    highest = logits.max(-1, keepdims=True)  # (..., 1)
    _check(highest)
    if temperature == 0:
        probs = np.zeros_like(logits)
        np.put_along_axis(probs, logits.argmax(-1)[..., None], 1.0, -1)
        return probs
    # Without the shift, which changes nothing, exp could overflow.
    probs = np.exp((logits - highest) / max(float(temperature), 1e-30))
    if 0 < top_k < probs.shape[-1]:
        least = np.sort(probs, -1)[..., [-top_k]]  # (..., 1): the k-th largest
        probs[probs < least] = 0.0
    if top_p < 1:
        probs = _nucleus(probs, top_p)
    if min_p > 0:
        probs[probs < min_p * probs.max(-1, keepdims=True)] = 0.0
    return probs / probs.sum(-1, keepdims=True)


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The likeliest of weights (..., V) that together reach `top_p` of the sum; 0 for the rest."""
    order = np.argsort(-weights, -1, kind="stable")
    ordered = np.take_along_axis(weights, order, -1)
    running = np.cumsum(ordered, -1, dtype=np.float64)
    before = running - ordered  # the sum of the likelier tokens
    # subtle: the token that crosses the bound stays
    ordered[before >= top_p * running[..., -1:]] = 0.0
    kept = np.empty_like(weights)
    np.put_along_axis(kept, order, ordered, -1)
    return kept


def _as_floats(logits: np.ndarray) -> np.ndarray:
    """float32 logits as they are, any others as float64."""
    logits = np.asarray(logits)
    if logits.dtype == np.float32:
        return logits
    return logits.astype(np.float64)


def _check(highest: np.ndarray) -> None:
    """Raise OmnidraftError unless the maximum of every row is finite."""
    if (highest == -np.inf).any():
        raise OmnidraftError(RULED_OUT)
    if not np.isfinite(highest).all():
        raise OmnidraftError(BROKEN)


def mask(logits: np.ndarray, size: int) -> np.ndarray:
    """Rule out, in place, the ids of logits (..., V) beyond the tokenizer's `size` (padding)."""
    logits[..., size:] = -np.inf
    return logits


def best(logits: np.ndarray) -> Iterator[int]:
    """The argmax of each row of logits (n, V), in turn; OmnidraftError where it is not finite."""
    places = logits.argmax(-1).tolist()
    for row, place in zip(logits, places, strict=True):
        _check(row[place])  # subtle: rows that nobody asks for may be broken
        yield place


def locate(weights: np.ndarray, draw: float) -> int:
    """Inverse transform sampling: where the running sum of weights (N,) first exceeds draw * total.

    N for NaN, and where all weights are zero.

    >>> locate(np.array([1.0, 0.0, 3.0]), 0.25)
    2
    """
    running = weights.cumsum(dtype=float)  # (N,)
    goal = running[-1] * min(draw, sampling_fast.BELOW_ONE)
    return int(running.searchsorted(goal, "right"))  # right of equal sums: never a zero weight


class Rows(Sequence):
    """Lazy rows: make(item) is computed on demand, so that rows after a rejection cost nothing."""

    def __init__(self, items: Any, make: Callable[[Any], Any]) -> None:
        self.items = items
        self.make = make
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        if row not in self._made:
            self._made[row] = self.make(self.items[row])
        return self._made[row]


class Uniforms:
    """Uniform draws in [0, 1) for every random decision, from a NumPy Generator or given numbers.

    >>> Uniforms([0.3]).choose(np.array([1.0, 0.0, 3.0]))
    2
    """

    def __init__(self, source: np.random.Generator | Iterable[float]) -> None:
        if isinstance(source, np.random.Generator):
            source = iter(source.random, None)  # calls it for each draw; it never returns None
        if not isinstance(source, Iterable):
            raise OmnidraftError(f"draws are made by a NumPy generator, not by {source!r}: give "
                                 "np.random.default_rng(0)")
        self._draws = iter(source)

    def next(self) -> float:
        """The next draw."""
        return next(self._draws)

    def accept(self, probability: float) -> bool:
        """True with the given probability (values above 1 count as 1)."""
        return self.next() < probability

    def choose(self, weights: np.ndarray) -> int:
        """An index drawn in proportion to `weights` (N,): non-negative and not all zero."""
        return sampling_fast.locate(weights, self.next())

    def samples(self, rows: Sequence[np.ndarray]) -> Iterator[int]:
        """One index drawn from each row (V,), one after another."""
        return map(self.choose, rows)
