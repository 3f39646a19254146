"""From logits to the distribution that is sampled from, and the draws behind every random decision.

Verification needs exactly the distribution that a token was drawn from: it is computed only here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .text.errors import OmnidraftError

BLOCK = 128  # weights that `locate` sums at once
ONES = np.ones(BLOCK), np.ones(BLOCK, np.float32)  # their products with blocks are the sums
BELOW_ONE = 1 - 2**-52  # the largest draw: times a total, it stays below the total after rounding
NO_FILTERS = 0, 1.0, 0.0  # top_k, top_p, min_p
LEAST = -6e4  # fits float16; least logit of an allowed token, even if the model rules it out
BROKEN = "logits are NaN or infinite: check any logits processors, the weights and the dtype"
RULED_OUT = "the logits processors ruled out every token: let them allow at least one"


@np.errstate(over="ignore")  # high logits overflow; a tiny temperature gives -inf, as it should
def process(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
            min_p: float = 0.0) -> np.ndarray:
    """Probabilities (..., V) of logits (..., V) after temperature, top-k (0: off), top-p and min-p.

    float32 stays float32, anything else becomes float64. Temperature 0 gives a one-hot float64 row
    at the argmax. Raises OmnidraftError for a row whose maximum is not finite (-inf, inf or NaN).
    """
    logits, total = np.asarray(logits), np.zeros(1)  # total 0: not computed yet
    width = np.float32 if logits.dtype == np.float32 else np.float64
    if temperature == 1:  # usually exp needs no shift: it neither overflows nor loses precision
        probs = np.exp(logits, dtype=width)
        total = _block_sums(probs).sum(axis=-1, keepdims=True)  # (..., 1)
    if not all(1 <= one < np.inf for one in total.flat):
        highest = logits.max(axis=-1, keepdims=True)
        if not np.isfinite(highest).all():
            raise OmnidraftError(RULED_OUT if (highest == -np.inf).any() else BROKEN)
        if temperature == 0:
            return (np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]).astype(np.float64)
        probs = np.exp(np.subtract(logits, highest, dtype=width) / width(max(temperature, 1e-30)))
        total = _block_sums(probs).sum(axis=-1, keepdims=True)
    if 0 < top_k < logits.shape[-1]:
        least = np.partition(probs, -top_k, axis=-1)[..., -top_k, None]
        probs[probs < least] = 0.0
    if top_p < 1:
        order = np.argsort(-probs, axis=-1, kind="stable")
        ordered = np.take_along_axis(probs, order, -1)
        # Keep a token if those before it sum to less than top_p: the one that crosses top_p stays.
        running = np.cumsum(ordered, -1, dtype=np.float64)
        ordered[running - ordered >= top_p * running[..., -1:]] = 0.0
        np.put_along_axis(probs, order, ordered, -1)
    if min_p > 0:
        probs[probs < min_p * probs.max(-1, keepdims=True)] = 0.0
    if (top_k, top_p, min_p) != NO_FILTERS:
        total = _block_sums(probs).sum(axis=-1, keepdims=True)
    return np.divide(probs, total, out=probs)


def mask(logits: np.ndarray, size: int) -> np.ndarray:
    """Rule out, in place, the ids of logits (..., V) beyond the tokenizer's `size` (padding)."""
    logits[..., size:] = -np.inf
    return logits


def best(logits: np.ndarray) -> Iterator[int]:
    """The argmax of each row of logits (n, V), in turn; OmnidraftError where it is not finite."""
    for row, place in zip(logits, logits.argmax(-1).tolist(), strict=True):
        if not np.isfinite(row[place]):  # subtle: rows that nobody asks for may be so
            raise OmnidraftError(RULED_OUT if row[place] == -np.inf else BROKEN)
        yield place


def _block_sums(weights: np.ndarray) -> np.ndarray:
    """Sums of each BLOCK of weights (..., V): a third of sum()'s time, a tenth of cumsum()'s."""
    whole = weights.shape[-1] // BLOCK * BLOCK
    blocks = weights[..., :whole].reshape(*weights.shape[:-1], whole // BLOCK, BLOCK)
    sums, rest = blocks @ ONES[weights.dtype == np.float32], weights[..., whole:]
    return np.concatenate([sums, rest.sum(-1, keepdims=True)], -1) if rest.size else sums


def locate(weights: np.ndarray, draw: float) -> int:
    """Where the running sum of weights (N,) first exceeds draw * total; N for NaN or all zero."""
    sums = _block_sums(weights).astype(float).cumsum()  # first the block, then the index in it
    goal = sums.item(-1) * min(draw, BELOW_ONE)
    block = int(sums.searchsorted(goal, "right"))  # right of equal sums, so never a zero weight
    if block == len(sums):
        return len(weights)
    goal -= sums.item(block - 1) if block else 0.0
    running = weights[block * BLOCK:][:BLOCK].astype(float).cumsum()
    goal = min(goal, running.item(-1) * BELOW_ONE)  # subtle: the two totals may round differently
    return block * BLOCK + int(running.searchsorted(goal, "right"))


class Rows(Sequence):
    """Lazy rows: make(item) is computed on demand, so that rows after a rejection cost nothing."""

    def __init__(self, items: Any, make: Callable[[Any], Any]) -> None:
        self.items, self.make, self._made = items, make, {}

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self._made[row] if row in self._made else self._made.setdefault(
            row, self.make(self.items[row]))


class Uniforms:
    """Uniform draws in [0, 1) for every random decision, from a NumPy Generator or given numbers.

    >>> Uniforms([0.3]).choose(np.array([1.0, 0.0, 3.0]))
    2
    """

    def __init__(self, source: np.random.Generator | Iterable[float]) -> None:
        draws = iter(source.random, None) if isinstance(source, np.random.Generator) else source
        self._draws: Iterator[float] = iter(draws)
        self._back: list[float] = []  # draws that `sampling_torch` gave back, the next one last

    def next(self) -> float:
        """The next draw; draws that were given back come first."""
        return self._back.pop() if self._back else next(self._draws)

    def accept(self, probability: float) -> bool:
        """True with the given probability (values above 1 count as 1)."""
        return self.next() < probability

    def choose(self, weights: np.ndarray) -> int:
        """An index drawn in proportion to `weights` (N,): non-negative and not all zero."""
        return locate(weights, self.next())

    def samples(self, rows: Sequence[np.ndarray]) -> Iterator[int]:
        """One index drawn from each row (V,), one after another."""
        return map(self.choose, rows)

    def floats(self, pairs: Iterable[tuple[Any, Any]]) -> Iterable[tuple[float, float]]:
        """Pairs of array elements as floats, one after another (in the twin: in one copy)."""
        return ((float(p), float(q)) for p, q in pairs)


class Sampler:
    """How the models' logits become tokens for one text: temperature, filters, and the draws.

    Temperature 0 takes the argmax; its rows are the probabilities at temperature 1. The twin in
    `sampling_torch` keeps rows and drawn tokens on a device.
    """

    draws_ids = True  # does `draw` return ids? The twin's are tensors: reading them takes time
    process, best, to_numpy = staticmethod(process), staticmethod(best), staticmethod(np.asarray)

    def __init__(self, uniforms: Uniforms, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0) -> None:
        self.uniforms, self.temperature = uniforms, temperature
        self.settings = (temperature, top_k, top_p, min_p) if temperature else (1.0,)

    def new_cache(self, model: Any) -> Any:
        """A cache with which `model.forward` returns arrays of the kind that this sampler takes."""
        return model.new_cache()

    def rows(self, logits: np.ndarray, size: int) -> Sequence[np.ndarray]:
        """The distributions (n, V) for logits (n, V), over a tokenizer's `size` ids."""
        return Rows(mask(logits, size), lambda row: self.process(row, *self.settings))

    def choices(self, logits: np.ndarray, size: int) -> Iterable[int]:
        """The token that the model itself chooses for each row of logits (n, V)."""
        if self.temperature:
            return self.uniforms.samples(self.rows(logits, size))
        return self.best(mask(logits, size))

    def draw(self, rows: Rows, likeliest: bool = False) -> int:
        """A token from the first of `rows`: drawn, or the argmax (temperature 0 or `likeliest`)."""
        greedy = likeliest or not self.temperature  # needs no probabilities
        return next(best(rows.items[:1])) if greedy else self.uniforms.choose(rows[0])

    def read(self, token: int, rows: Rows) -> tuple[int, float]:
        """A drawn token and its probability in the first row (V,), which it was drawn from."""
        return token, float(rows[0][token])

    def settle(self, drawn: list[int], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token (here nothing follows it: each was read)."""
        return drawn

    def allow(self, ids: Sequence[int], model: Any) -> np.ndarray:
        """(2, V): a least logit for all tokens, and what to add so that only `ids` are possible."""
        made = np.full((2, model.vocab_size), [[LEAST], [-np.inf]], np.float32)
        made[1, ids] = 0.0
        return made

    def spread(self, row: np.ndarray, direct: Any, size: int) -> np.ndarray:
        """Map a drafter's row (V_q,) to the target's tokens (V_p = size,) by the direct map."""
        made = np.zeros(size, row.dtype)
        np.add.at(made, direct.targets, row[direct.drafts])
        return made

    def lifting(self, lifting: Any, model: Any) -> Any:
        """The lifting for this sampler's rows, on the model's device."""
        return lifting

    def finished(self, array: np.ndarray) -> np.ndarray:
        """Wait until the array is computed, so that a model's time ends with its own work."""
        return array
