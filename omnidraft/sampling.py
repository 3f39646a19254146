"""From logits to the distribution that is sampled from, and the draws behind every random decision.

Every rule of `verification.py` needs exactly the distribution that a token was drawn from, so
processing (temperature, top-k, top-p) happens once, here, for drafter and target alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nextafter
from typing import Any

import numpy as np

from .errors import OmnidraftError

BLOCK = 256
BELOW_ONE = 1 - 2**-52  # the greatest draw: rounded, a product with it stays below the total
BROKEN = ("the model's logits are NaN or infinite: its weights are broken or the number type is "
          "too small")


def process(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0,
            top_p: float = 1.0) -> np.ndarray:
    """Probabilities (..., V) of logits (..., V) after temperature, top-k (0: off) and top-p.

    float32 stays float32, anything else becomes float64. Temperature 0 gives the argmax as a
    one-hot row. Raises OmnidraftError for a row that holds no finite logit or a NaN.

    >>> process(np.array([0.0, 1.0, 1.0]), temperature=0)
    array([0., 1., 0.])
    """
    logits = np.asarray(logits)
    best = logits.max(axis=-1, keepdims=True)  # (..., 1)
    if not np.isfinite(best).all():
        raise OmnidraftError(BROKEN)
    if temperature == 0:
        return (np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]).astype(np.float64)
    width = np.float32 if logits.dtype == np.float32 else np.float64
    probs = np.subtract(logits, best, dtype=width)
    if temperature != 1:
        with np.errstate(over="ignore"):  # a tiny temperature: -inf, which is right
            probs /= max(temperature, 1e-30)  # what float32 can hold
    np.exp(probs, out=probs)
    probs /= probs.sum(-1, keepdims=True)
    if 0 < top_k < logits.shape[-1]:
        least = np.partition(probs, -top_k, axis=-1)[..., -top_k, None]
        probs = np.where(probs >= least, probs, 0.0)
        probs /= probs.sum(-1, keepdims=True)
    if top_p < 1:
        order = np.argsort(-probs, axis=-1, kind="stable")
        ordered = np.take_along_axis(probs, order, -1)
        # A token stays while those before it hold less than top_p: the one that crosses it stays.
        ordered[np.cumsum(ordered, -1, dtype=np.float64) - ordered >= top_p] = 0.0
        np.put_along_axis(probs, order, ordered, -1)
        probs /= probs.sum(-1, keepdims=True)
    return probs


def mask(logits: np.ndarray, size: int) -> np.ndarray:
    """Logits (..., V) with all ids beyond the tokenizer's `size` ruled out, in place.

    Qwen2 pads 151,646 ids to 152,064.

    >>> mask(np.array([1.0, 2.0, 3.0]), 2)
    array([  1.,   2., -inf])
    """
    if logits.shape[-1] > size:
        logits[..., size:] = -np.inf
    return logits


def locate(weights: np.ndarray, draw: float) -> int:
    """The first index at which the running sum of weights (N,) exceeds `draw` of their total.

    It is N where the weights are NaN or all zero.

    >>> locate(np.array([1.0, 0.0, 3.0]), 0.25)
    2
    """
    # Whole blocks first, then one of them: a running sum takes ten times as long as a sum.
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK)).cumsum(dtype=np.float64)
    goal = float(sums[-1]) * min(draw, BELOW_ONE)
    block = int(sums.searchsorted(goal, "right"))  # to the right of equal sums: never a zero weight
    if block == len(sums):
        return len(weights)
    start = block * BLOCK
    goal -= float(sums[block - 1]) if block else 0.0
    running = weights[start:start + BLOCK].cumsum(dtype=np.float64)
    goal = min(goal, nextafter(running[-1], 0.0))  # subtle: the two totals are rounded differently
    return start + int(running.searchsorted(goal, "right"))


class Rows(Sequence):
    """make(item) for each of `items` when it is asked for: rows after a rejection cost nothing.

    >>> Rows(np.zeros((3, 2)), process)[1]
    array([0.5, 0.5])
    """

    def __init__(self, items: Any, make: Callable[[Any], Any]) -> None:
        self.items, self._make = items, make
        self._at, self._row = -1, None

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        if row != self._at:  # one row is kept: they are asked for in order
            self._at, self._row = row, self._make(self.items[row])
        return self._row


class Uniforms:
    """Uniform draws in [0, 1), from a NumPy Generator or given numbers, for every random decision.

    >>> Uniforms([0.3]).choose(np.array([1.0, 0.0, 3.0]))
    2
    """

    def __init__(self, source: np.random.Generator | Iterable[float]) -> None:
        draws = iter(source.random, None) if isinstance(source, np.random.Generator) else source
        self._draws: Iterator[float] = iter(draws)

    def __iter__(self) -> Iterator[float]:
        """The draws one after another."""
        return iter(self.next, None)

    def next(self) -> float:
        """The next draw."""
        return next(self._draws)

    def accept(self, probability: float) -> bool:
        """True with the given probability (values above 1 count as 1)."""
        return self.next() < probability

    def choose(self, weights: np.ndarray) -> int:
        """Index drawn in proportion to `weights` (N,), which are non-negative and not all zero."""
        return locate(weights, self.next())

    def samples(self, rows: Sequence[np.ndarray]) -> Iterator[int]:
        """One index drawn from each row (V,), one after another."""
        return map(self.choose, rows)

    def floats(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[float, float]]:
        """Pairs of numbers read out of rows, one after another."""
        return ((float(p), float(q)) for p, q in pairs)


class Sampler:
    """How the models' logits become tokens for one text: temperature, top-k, top-p, and the draws.

    Rows are always probabilities, computed when they are asked for. Temperature 0 takes the argmax
    of the logits; its rows are those of temperature 1, so that a token's probability can be read
    there, too. The twin in `sampling_torch` does the same with tensors on a device.

    >>> Sampler(Uniforms([]), temperature=0).choices(np.array([[1.0, 2.0], [5.0, 2.0]]), 2)
    [1, 0]
    """

    looks = True  # at each drafted token: free here, while the twin would wait for the device

    def __init__(self, uniforms: Uniforms, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0) -> None:
        self.uniforms, self.temperature = uniforms, temperature
        self.settings = (temperature, top_k, top_p) if temperature else (1.0,)

    def new_cache(self, model: Any) -> Any:
        """A cache with which `model.forward` gives the arrays that this sampler takes."""
        return model.new_cache()

    def rows(self, logits: np.ndarray, size: int) -> Sequence[np.ndarray]:
        """The distributions (n, V) of logits (n, V) over a tokenizer's `size` ids."""
        return Rows(mask(logits, size), self.distribution)

    def distribution(self, logits: np.ndarray) -> np.ndarray:
        """What is sampled from (V,), of logits (V,)."""
        return process(logits, *self.settings)

    def choices(self, logits: np.ndarray, size: int) -> Iterable[int]:
        """The token that the model itself writes after each of n rows of logits (n, V)."""
        if self.temperature:
            return self.uniforms.samples(self.rows(logits, size))
        best = mask(logits, size).argmax(-1)
        if not np.isfinite(logits[np.arange(len(best)), best]).all():
            raise OmnidraftError(BROKEN)
        return best.tolist()

    def draw(self, rows: Rows) -> int:
        """One token of the first of the distributions that `rows` gave."""
        return self.uniforms.choose(rows[0]) if self.temperature else self.likeliest(rows)

    def likeliest(self, rows: Rows) -> int:
        """The token that temperature 0 draws; it needs no probabilities."""
        token = int(rows.items[0].argmax())
        if not np.isfinite(rows.items[0, token]):
            raise OmnidraftError(BROKEN)
        return token

    def read(self, token: int, rows: Rows) -> tuple[int, float]:
        """A drawn token and its probability in the row (V,) that it was drawn from."""
        return token, float(rows[0][token])

    def settle(self, drawn: list[int], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token; on a device nobody has looked at them yet."""
        return drawn

    def allow(self, ids: Sequence[int], model: Any) -> np.ndarray:
        """What to add to logits (n, V) so that all tokens but `ids` are ruled out."""
        row = np.full(model.vocab_size, -np.inf, np.float32)
        row[ids] = 0.0
        return row

    def spread(self, row: np.ndarray, direct: Any, size: int) -> np.ndarray:
        """A drafter's row (V_q,) on the target's tokens (V_p = size,), by the direct map."""
        made = np.zeros(size, row.dtype)
        np.add.at(made, direct.targets, row[direct.drafts])
        return made

    def lifting(self, lifting: Any, model: Any) -> Any:
        """The lifting for rows of this sampler, on the model's device."""
        return lifting

    @staticmethod
    def to_numpy(array: np.ndarray) -> np.ndarray:
        """An array for whoever needs NumPy's."""
        return array

    def finished(self, array: np.ndarray) -> np.ndarray:
        """The array once it is computed, so that a model's seconds are its own."""
        return array
