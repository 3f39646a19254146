"""Torch twin of `sampling.py`: the same functions on tensors of any device and dtype.

Nothing here copies from the device but `to_host`. So bad logits are told late: a row that `sampling` would refuse becomes
NaN here, and `to_host` refuses what was drawn from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from .errors import OmnidraftError
from .sampling import locate


def process(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Probabilities (..., V) of logits (..., V) after temperature, top-k and top-p; 0 switches top-k off.

    float64 stays float64, anything else becomes float32. Rows without a finite logit or with a NaN become NaN.

    >>> process(torch.tensor([0.0, 1.0, 1.0]), temperature=0)
    tensor([0., 1., 0.])
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature == 0:
        best, place = logits.max(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, place, best - best + 1)  # 1, or NaN where `best` is not finite
    if temperature != 1:
        logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # the best first: no quotient overflows
    probs = torch.softmax(logits, -1)
    if 0 < top_k < logits.shape[-1]:
        least = probs.topk(top_k, -1).values[..., -1:]
        probs = torch.where(probs >= least, probs, 0.0)
        probs /= probs.sum(-1, keepdim=True)
    if top_p < 1:
        ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
        # A token stays while the tokens before it hold less than top_p, so the one that crosses the bound stays.
        ordered.masked_fill_(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
        probs /= probs.sum(-1, keepdim=True)
    return probs


def mask(logits: Tensor, size: int) -> Tensor:
    """Logits (..., V) with all beyond the tokenizer's `size` ids ruled out, in place (a model's: in inference mode only).

    >>> mask(torch.tensor([1.0, 2.0, 3.0]), 2)
    tensor([1., 2., -inf])
    """
    if logits.shape[-1] > size:
        logits.narrow(-1, size, logits.shape[-1] - size).fill_(-torch.inf)
    return logits


def on_host(tensor: Tensor) -> bool:
    """Whether reading a number of it makes nobody wait."""
    return tensor.is_cpu


def in_place(tensor: Tensor) -> np.ndarray:
    """A tensor on the CPU as NumPy sees it: nothing is copied, and for a few numbers or an argmax NumPy is faster."""
    return tensor.numpy()


def widest(device: torch.device) -> torch.dtype:
    """The type for running sums and draws: float64 wherever the device has it (MPS has not)."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_host(drawn: Tensor, size: int) -> list[int]:
    """Indices drawn by `Uniforms.choose` from `size` weights, in one copy; raises OmnidraftError where these were NaN.

    >>> to_host(torch.tensor([3, 4]), 5)
    [3, 4]
    """
    indices = drawn.reshape(-1).tolist()
    if min(indices, default=0) < 0 or max(indices, default=0) >= size:
        raise OmnidraftError("the model's logits are NaN or infinite: its weights are broken or the number type too small")
    return indices


class Uniforms:
    """Uniform draws in [0, 1), from a torch.Generator or from given numbers, used in the same order as in `sampling`.

    The numbers are made on the host, so that only what is chosen by them stays on the device.

    >>> Uniforms([0.3]).choose(torch.tensor([1.0, 0.0, 3.0]))
    tensor([2])
    """

    def __init__(self, source: torch.Generator | Iterable[float]) -> None:
        self._draws = _endless(source) if isinstance(source, torch.Generator) else iter(source)
        self._back: list[float] = []  # draws given back, the next one last
        self._taken: deque[float] = deque(maxlen=4096)  # the latest draws

    def take(self, count: int) -> list[float]:
        """The next draws (count,), fewer where given numbers come to their end."""
        back = [self._back.pop() for _ in range(min(count, len(self._back)))]
        taken = back + list(islice(self._draws, count - len(back)))
        self._taken += taken
        return taken

    def give_back(self, count: int) -> None:
        """Make the `count` draws taken last the next ones again."""
        self._back += [self._taken.pop() for _ in range(count)]

    def next(self) -> float:
        """The next draw."""
        draw = self._back.pop() if self._back else next(self._draws)
        self._taken.append(draw)
        return draw

    def accept(self, probability: float) -> bool:
        """True with the given probability (values above 1 count as 1)."""
        return self.next() < probability

    def choose(self, weights: Tensor) -> Tensor:
        """Index (1,) drawn with probability proportional to `weights` (N,), or (R, 1) by rows (R, N).

        It is N where the weights are NaN or all zero.
        """
        if weights.dim() == 1 and on_host(weights):
            return torch.from_numpy(np.array([locate(in_place(weights), self.next())]))
        running = weights.cumsum(-1, dtype=widest(weights.device))
        # Below 1 when rounded, too; and right=True never lands on a zero weight.
        draws = [min(draw, 1 - torch.finfo(running.dtype).eps) for draw in self.take(weights.shape[:-1].numel())]
        goal = running[..., -1:] * (draws[0] if weights.dim() == 1 else running.new_tensor(draws)[:, None])
        return torch.searchsorted(running, goal, right=True)


def _endless(generator: torch.Generator) -> Iterator[float]:
    while True:  # a block at once, so that a generator on a device costs a copy in 64 draws
        yield from torch.rand(64, generator=generator, device=generator.device, dtype=widest(generator.device)).tolist()
