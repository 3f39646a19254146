"""Torch twin of `sampling.py`: the same functions on tensors of any device and dtype.

Only `to_host` copies from the device, so bad logits are reported late: a row that `sampling` would
reject becomes NaN, and `to_host` rejects what was drawn from it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from . import sampling
from .sampling import BROKEN, NO_FILTERS, RULED_OUT
from .text.errors import OmnidraftError


def process(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
            min_p: float = 0.0) -> Tensor:
    """Probabilities (..., V) of logits (..., V) after temperature, top-k (0: off), top-p and min-p.

    float64 stays float64, anything else becomes float32. A row whose maximum is not finite becomes
    NaN.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature == 0:
        highest, place = logits.max(-1, keepdim=True)
        one = highest - highest + 1  # NaN where `highest` is not finite
        return torch.zeros_like(logits).scatter_(-1, place, one)
    if temperature != 1:  # subtract the maximum first: then no quotient overflows
        logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, 1e-30)
    probs = torch.softmax(logits, -1)
    if (top_k, top_p, min_p) == NO_FILTERS:
        return probs
    if 0 < top_k < logits.shape[-1]:
        least = probs.topk(top_k, -1).values[..., -1:]
        probs = torch.where(probs >= least, probs, 0.0)
    if top_p < 1:
        ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
        running = ordered.cumsum(-1)
        ordered.masked_fill_(running - ordered >= max(top_p, 1e-30) * running[..., -1:], 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
    if min_p > 0:
        probs = torch.where(probs < min_p * probs.amax(-1, keepdim=True), 0.0, probs)
    return probs / probs.sum(-1, keepdim=True)


def best(logits: Tensor) -> Tensor:
    """The argmax (n,) of each row (n, V); -1 for a broken row, which `to_host` rejects."""
    highest, places = logits.max(-1)
    return torch.where(highest.isfinite(), places, -1)


def locate(weights: Tensor, draw: float | Sequence[float]) -> Tensor:
    """The first index (1,) at which the running sum of weights (N,) exceeds `draw` of their total.

    By rows for weights (R, N) and R draws: (R, 1). It is N where the weights are NaN or all zero.
    """
    widest = torch.float32 if weights.is_mps else torch.float64  # the widest type of the device
    running = weights.cumsum(-1, dtype=widest)
    greatest = 1 - torch.finfo(running.dtype).eps  # times a total, it stays below the total
    goal = running[..., -1:] * running.new_tensor(draw).clamp(max=greatest)[..., None]
    return torch.searchsorted(running, goal, right=True)  # never lands on a zero weight


def to_host(indices: Tensor, size: int) -> Iterator[int]:
    """Indices from `locate` or `best`, in one copy; OmnidraftError at one out of range (NaN)."""
    for index in indices.reshape(-1).tolist():
        if not 0 <= index < size:
            raise OmnidraftError(f"{BROKEN}, or {RULED_OUT}")
        yield index


class Uniforms(sampling.Uniforms):
    """Uniform draws in [0, 1), made on the host, for weights that stay on the device."""

    def __init__(self, source: np.random.Generator | Iterable[float]) -> None:
        super().__init__(source)
        self._back: list[float] = []  # draws that were given back, the next one last

    def next(self) -> float:
        """The next draw; draws that were given back come first."""
        return self._back.pop() if self._back else super().next()

    def give_back(self, draws: Sequence[float]) -> None:
        """Return draws that were not used: they are the next ones again."""
        self._back += reversed(draws)

    def choose(self, weights: Tensor) -> int:
        return next(to_host(locate(weights, self.next()), len(weights)))

    def samples(self, rows: Tensor) -> Iterator[int]:
        """One index drawn from each row of (n, V), in order; one copy from the device for all."""
        draws = list(islice(iter(self.next, None), len(rows)))
        self.give_back(draws)
        for index in to_host(locate(rows[:len(draws)], draws), rows.shape[1]):
            self.next()  # draws for rows that nobody asks for are not used up
            yield index


def wrapped(uniforms: sampling.Uniforms) -> Uniforms:
    """The same draws, for weights that stay on the device."""
    return uniforms if isinstance(uniforms, Uniforms) else Uniforms(iter(uniforms.next, None))
