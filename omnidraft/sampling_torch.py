"""Torch twin of `sampling.py`: the same functions on tensors of any device and dtype.

Only `to_host`, `read`, `floats` and `to_numpy` copy from the device, so bad logits are reported
late: a row that `sampling` would reject becomes NaN, and `to_host` rejects what was drawn from it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import lifting_torch, sampling, vocabulary_torch
from .sampling import BROKEN, NO_FILTERS, RULED_OUT, Rows
from .text.errors import OmnidraftError
from .translation import until_end


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

    def floats(self, pairs: Iterable[tuple[Any, Any]]) -> Iterable[tuple[float, float]]:
        pairs = [torch.stack([p, torch.as_tensor(q, device=p.device)]) for p, q in pairs]
        return torch.stack(pairs).tolist() if pairs else []


def wrapped(uniforms: sampling.Uniforms) -> Uniforms:
    """The same draws, for weights that stay on the device."""
    return uniforms if isinstance(uniforms, Uniforms) else Uniforms(iter(uniforms.next, None))


class Device(sampling.Device):
    """As in `sampling`, for tensors on the models' device."""

    _direct: vocabulary_torch.Direct | None = None  # set by the first `spread`

    def new_cache(self, model: Any) -> Any:
        return model.new_cache(on_device=True)

    def allow(self, ids: Sequence[int], model: Any) -> Tensor:
        return torch.from_numpy(super().allow(ids, model)).to(model.device)

    def spread(self, row: Tensor, direct: Any, size: int) -> Tensor:
        if self._direct is None:
            self._direct = vocabulary_torch.Direct(direct, row.device)
        return self._direct.spread(row, size)

    def lifting(self, lifting: Any, model: Any) -> lifting_torch.Lifting:
        return lifting_torch.Lifting(lifting, model.device)

    @staticmethod
    def to_numpy(array: Tensor | np.ndarray) -> np.ndarray:
        """A tensor as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
        if isinstance(array, np.ndarray):
            return array
        array = array.float() if array.dtype == torch.bfloat16 else array
        return array.detach().cpu().numpy()

    def finished(self, array: Tensor) -> Tensor:
        if array.is_cuda:
            torch.cuda.synchronize(array.device)
        return array


class Sampler(Device, sampling.Sampler):
    """How logits become tokens, as in `sampling`: rows and drawn tokens stay on the models' device.

    Each round copies to the host: the drafted tokens, once, when the draft is complete; a healed
    token; what verification compares and draws; with a rule that looks, every token's probability.
    """

    draws_ids = False  # reading a drawn token waits for the device: only if the stop rule looks
    process = staticmethod(process)
    best = staticmethod(lambda logits: to_host(best(logits), logits.shape[-1]))  # one copy

    def __init__(self, uniforms: sampling.Uniforms, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0) -> None:
        super().__init__(wrapped(uniforms), temperature, top_k, top_p, min_p)
        self._used: list[float] = []  # the draws behind tokens that are not settled yet
        self._size = 0  # length V of the rows that were asked for last

    def rows(self, logits: Tensor, size: int) -> Sequence[Tensor]:
        """The distributions (n, V) for logits (n, V); computed at once if they are drawn from."""
        self._size, rows = logits.shape[-1], super().rows(logits, size)
        return self.process(rows.items, *self.settings) if self.temperature else rows

    def draw(self, rows: Sequence[Tensor], likeliest: bool = False) -> Tensor:
        if likeliest or not self.temperature:
            return best(rows.items[:1] if isinstance(rows, Rows) else rows[:1])
        self._used.append(self.uniforms.next())
        return locate(rows[0], self._used[-1])

    def read(self, token: Tensor, rows: Sequence[Tensor]) -> tuple[int, float]:
        row = rows[0]
        probability = row.index_select(0, token.clamp(0, len(row) - 1))
        drawn, probability = torch.cat([token.to(row.dtype), probability]).tolist()
        if not 0 <= drawn < len(row):
            raise OmnidraftError(f"{BROKEN}, or {RULED_OUT}")
        return int(drawn), probability

    def settle(self, drawn: list[Tensor], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token, in one copy; later draws are given back."""
        tokens = until_end([*to_host(torch.cat(drawn), self._size)] if drawn else [], ends)
        self.uniforms.give_back(self._used[len(tokens):])
        self._used.clear()
        return tokens
