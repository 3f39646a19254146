"""From logits to the distribution that is sampled from, and the draws behind every random decision.

Verification needs exactly the distribution that a token was drawn from: it is computed only here.
`process` and `locate` are the reference. Below them stand the fast forms that the loop uses: the
same results, up to rounding, with fewer passes over a row of up to 262,144 entries.
`Sampler` is all that the loop knows of logits; `sampling_torch` has the same for a device.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .text.errors import OmnidraftError

NO_FILTERS = 0, 1.0, 0.0  # top_k, top_p, min_p
BELOW_ONE = 1 - 2**-52  # the largest draw: times a total, it stays below the total after rounding
BLOCK = 128  # weights that are summed at once
ONES_32 = np.ones(BLOCK, np.float32)
ONES_64 = np.ones(BLOCK)
LEAST = -6e4  # fits float16; least logit of an allowed token, even if the model rules it out
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
    goal = running[-1] * min(draw, BELOW_ONE)
    return int(running.searchsorted(goal, "right"))  # right of equal sums: never a zero weight


# ---- fast forms ---------------------------------------------------------------------------------
@np.errstate(over="ignore")  # high logits overflow: then the sum says so
def fast_softmax(logits: np.ndarray) -> np.ndarray | None:
    """`process` of float logits (V,) at temperature 1; None where exp needs the shift."""
    if logits.dtype not in (np.float32, np.float64):
        return None
    probs = np.exp(logits)
    total = block_sums(probs).sum()
    if not 1 <= total < np.inf:  # also NaN
        return None
    probs /= total
    return probs


def block_sums(weights: np.ndarray) -> np.ndarray:
    """Sums of each BLOCK of weights (N,): a third of sum()'s time, a tenth of cumsum()'s."""
    whole = len(weights) // BLOCK * BLOCK
    blocks = weights[:whole].reshape(-1, BLOCK)
    ones = ONES_32 if weights.dtype == np.float32 else ONES_64
    sums = blocks @ ones  # (whole / BLOCK,): a product is the fastest sum
    if whole == len(weights):
        return sums
    return np.append(sums, weights[whole:].sum())


def fast_locate(weights: np.ndarray, draw: float) -> int:
    """`locate`: first the block, then the index in it."""
    sums = block_sums(weights).cumsum(dtype=float)
    goal = sums.item(-1) * min(draw, BELOW_ONE)
    block = int(sums.searchsorted(goal, "right"))  # right of equal sums, so never a zero weight
    if block == len(sums):
        return len(weights)
    if block:
        goal -= sums.item(block - 1)
    first = block * BLOCK
    inside = weights[first:first + BLOCK].cumsum(dtype=float)
    goal = min(goal, inside.item(-1) * BELOW_ONE)  # subtle: the two totals may round differently
    return first + int(inside.searchsorted(goal, "right"))


# ---- draws and rows -----------------------------------------------------------------------------
class Rows(Sequence):
    """Lazy rows: make(item) is computed on demand, so that rows after a rejection cost nothing."""

    def __init__(self, items: Any, make: Callable[[Any], Any], none_zero: bool = False) -> None:
        self.items = items
        self.make = make
        self.none_zero = none_zero  # is every token possible, as without filters?
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
        return fast_locate(weights, self.next())

    def samples(self, rows: Sequence[np.ndarray]) -> Iterator[int]:
        """One index drawn from each row (V,), one after another."""
        return map(self.choose, rows)


class Sampler:
    """How the models' logits become tokens for one text: temperature, filters, and the draws.

    Temperature 0 takes the argmax; its rows are the probabilities at temperature 1.
    """

    to_numpy = staticmethod(np.asarray)
    draws_ids = True  # does `draw` return ids? The twin's are tensors: reading them takes time
    best = staticmethod(best)

    def __init__(self, uniforms: Uniforms, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0) -> None:
        self.uniforms = uniforms
        self.temperature = temperature
        self.settings = (1.0, *NO_FILTERS)  # at temperature 0
        if temperature:
            self.settings = (temperature, top_k, top_p, min_p)

    @staticmethod
    def process(logits: np.ndarray, *settings: float) -> np.ndarray:
        """Like the function `process`; without a filter, at temperature 1, by the fast form."""
        if settings == (1.0, *NO_FILTERS):
            probs = fast_softmax(logits)
            if probs is not None:  # None: these logits need the shift
                return probs
        return process(logits, *settings)

    def rows(self, logits: np.ndarray, size: int) -> Sequence[np.ndarray]:
        """The distributions (n, V) for logits (n, V), over a tokenizer's `size` ids."""
        none_zero = self.settings[1:] == NO_FILTERS
        return Rows(mask(logits, size), lambda row: self.process(row, *self.settings), none_zero)

    def choices(self, logits: np.ndarray, size: int) -> Iterable[int]:
        """The token that the model itself chooses for each row of logits (n, V)."""
        if self.temperature:
            return self.uniforms.samples(self.rows(logits, size))
        return self.best(mask(logits, size))

    def draw(self, rows: Rows, likeliest: bool = False) -> int:
        """A token from the first of `rows`: drawn, or the argmax (temperature 0 or `likeliest`)."""
        if likeliest or not self.temperature:  # needs no probabilities
            return next(best(rows.items[:1]))
        return self.uniforms.choose(rows[0])

    def read(self, token: int, rows: Rows) -> tuple[int, float, float]:
        """A drawn token, its probability in the first row (V,), and that row's L2 norm."""
        row = rows[0]
        return token, float(row[token]), float(row @ row) ** 0.5

    def settle(self, drawn: list[int], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token (here nothing follows it: each was read)."""
        return drawn

    # ---- what else depends on where the rows are ------------------------------------------------
    def new_cache(self, model: Any) -> Any:
        """A cache with which `model.forward` returns logits of this kind."""
        return model.new_cache()

    def allow(self, ids: Sequence[int], model: Any) -> np.ndarray:
        """(2, V): a lower bound for logits, then what to add to them: 0 for `ids`, else -inf."""
        made = np.full((2, model.vocab_size), [[LEAST], [-np.inf]], np.float32)
        made[1, ids] = 0.0
        return made

    @staticmethod
    def spread(row: np.ndarray, direct: Any, size: int) -> np.ndarray:
        """Map a drafter's row (V_q,) to the target's tokens (V_p = size,) by the direct map."""
        return direct.spread(row, size)

    def lifting(self, lifting: Any, model: Any) -> Any:
        """The lifting for rows of this kind, on the model's device."""
        return lifting

    def finished(self, array: np.ndarray) -> np.ndarray:
        """Wait until the array is computed, so that a model's time ends with its own work."""
        return array
