"""Torch twin of `sampling.py`, and of what sums rows by index: `Direct.spread` and `Lifting`.

Rows and drawn tokens stay on the models' device. Only `to_host`, `read` and `to_numpy` copy from
it, so bad logits are reported late: a row that `sampling` would reject becomes NaN, and `to_host`
rejects what was drawn from it. Which tokens are the same, and how they are split, is decided once,
on the host, from bytes (`vocabulary`, `lifting`): here it is index tensors.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import lifting, sampling
from .lifting import Origin, Split
from .sampling import BROKEN, NO_FILTERS, RULED_OUT, Rows
from .text.errors import OmnidraftError
from .translation import until_end
from .vocabulary import Direct

Device = torch.device | str


def process(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
            min_p: float = 0.0) -> Tensor:
    """Probabilities (..., V) of logits (..., V) after temperature, top-k (0: off), top-p and min-p.

    float64 stays float64, anything else becomes float32. A row whose maximum is not finite becomes
    NaN.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
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
        probs = _nucleus(probs, top_p)
    if min_p > 0:
        least = min_p * probs.amax(-1, keepdim=True)
        probs = torch.where(probs < least, 0.0, probs)
    return probs / probs.sum(-1, keepdim=True)


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """The likeliest of weights (..., V) that together reach `top_p` of the sum; 0 for the rest."""
    ordered, order = torch.sort(weights, dim=-1, descending=True, stable=True)
    running = ordered.cumsum(-1)
    goal = max(top_p, 1e-30) * running[..., -1:]
    ordered.masked_fill_(running - ordered >= goal, 0.0)
    return torch.zeros_like(weights).scatter_(-1, order, ordered)


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
    greatest = 1 - torch.finfo(widest).eps  # times a total, it stays below the total
    draws = running.new_tensor(draw).clamp(max=greatest)
    goal = running[..., -1:] * draws[..., None]
    return torch.searchsorted(running, goal, right=True)  # never lands on a zero weight


def to_host(indices: Tensor, size: int) -> Iterator[int]:
    """Indices from `locate` or `best`, in one copy; OmnidraftError at one out of range (NaN)."""
    for index in indices.reshape(-1).tolist():
        if not 0 <= index < size:
            raise OmnidraftError(f"{BROKEN}, or {RULED_OUT}")
        yield index


# ---- sums by index ------------------------------------------------------------------------------
def upload(ids: np.ndarray | Sequence[int], device: Device) -> Tensor:
    """Ids (n,) as an index tensor on the device, without waiting for it."""
    made = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))
    return made.to(device, non_blocking=torch.device(device).type == "cuda")


def spread(row: Tensor, direct: Direct, size: int) -> Tensor:
    """`direct.spread` for a row (V_q,), or rows (..., V_q) at once: (..., V_p = size).

    >>> spread(torch.tensor([0.0, 0.5, 0.25, 0.25]), Direct(np.array([1, -1, 0, 1])), 3)
    tensor([0.2500, 0.2500, 0.0000])
    """
    name = f"index on {row.device}"  # kept by the map, once per device, for all texts
    if name not in vars(direct):
        vars(direct)[name] = [upload(ids, row.device) for ids in (direct.drafts, direct.targets)]
    drafts, targets = vars(direct)[name]
    made = row.new_zeros(*row.shape[:-1], size)
    return made.index_add_(-1, targets, row.index_select(-1, drafts))


class Lifting(lifting.Lifting):
    """The NumPy lifting `host` for tensors on `device`; sums over whole rows are computed there."""

    def __init__(self, host: lifting.Lifting, device: Device = "cpu") -> None:
        vars(self).update(vars(host), host=host, device=device)  # shared, not copied
        self.is_atom = torch.from_numpy(host.is_atom).to(device)
        # subtle: index tensors are kept by the host's lifting, once per device, for all texts
        self.index = vars(host).setdefault(f"index on {device}", cache(self.index))

    def index(self, ids: Callable[..., np.ndarray], *of: Any) -> Tensor:
        return upload(ids(*of), self.device)

    def added(self, index: Tensor, values: Tensor, size: int, made: Any = None) -> Tensor:
        if made is None:
            made = values.new_zeros(size)
        return made.index_add_(0, index, values)

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[Tensor],
               in_text: Split = ()) -> tuple[list[int | None], list[Origin]]:
        rows = [row.to(self.device) for row in draft_probs]
        return super().reveal(draft_tokens, rows, in_text)


# ---- draws --------------------------------------------------------------------------------------
class Uniforms(sampling.Uniforms):
    """Uniform draws in [0, 1), made on the host, for weights that stay on the device."""

    def __init__(self, source: np.random.Generator | Iterable[float]) -> None:
        super().__init__(source)
        self._back: list[float] = []  # draws that were given back, the next one last

    def next(self) -> float:
        """The next draw; draws that were given back come first."""
        if self._back:
            return self._back.pop()
        return super().next()

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


class Sampler(sampling.Sampler):
    """As in `sampling`, but rows and drawn tokens stay on the models' device.

    Each round copies to the host: the drafted tokens, once, when the draft is complete; a healed
    token; what verification compares and draws; with a rule that looks, every token's probability
    and its row's norm.
    """

    draws_ids = False  # reading a drawn token waits for the device: only if the stop rule looks
    process = staticmethod(process)
    spread = staticmethod(spread)

    def __init__(self, uniforms: sampling.Uniforms, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0) -> None:
        uniforms = Uniforms(iter(uniforms.next, None))  # the same draws
        super().__init__(uniforms, temperature, top_k, top_p, min_p)
        self._used: list[float] = []  # the draws behind tokens that are not settled yet
        self._size = 0  # length V of the rows that were asked for last

    @staticmethod
    def best(logits: Tensor) -> Iterator[int]:
        return to_host(best(logits), logits.shape[-1])  # one copy

    def rows(self, logits: Tensor, size: int) -> Sequence[Tensor]:
        """The distributions (n, V) for logits (n, V); computed at once if they are drawn from."""
        self._size = logits.shape[-1]
        rows = super().rows(logits, size)
        if not self.temperature:
            return rows
        return self.process(rows.items, *self.settings)

    def draw(self, rows: Sequence[Tensor], likeliest: bool = False) -> Tensor:
        if likeliest or not self.temperature:
            if isinstance(rows, Rows):
                rows = rows.items
            return best(rows[:1])
        self._used.append(self.uniforms.next())
        return locate(rows[0], self._used[-1])

    def read(self, token: Tensor, rows: Sequence[Tensor]) -> tuple[int, float, float]:
        row = rows[0]
        probability = row.index_select(0, token.clamp(0, len(row) - 1))
        square = (row @ row).reshape(1)
        found = torch.cat([token.to(row.dtype), probability, square])
        drawn, probability, square = found.tolist()  # one copy
        if not 0 <= drawn < len(row):
            raise OmnidraftError(f"{BROKEN}, or {RULED_OUT}")
        return int(drawn), probability, square**0.5

    def settle(self, drawn: list[Tensor], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token, in one copy; later draws are given back."""
        if not drawn:
            return []
        tokens = until_end(list(to_host(torch.cat(drawn), self._size)), ends)
        self.uniforms.give_back(self._used[len(tokens):])
        self._used.clear()
        return tokens

    @staticmethod
    def to_numpy(array: Tensor | np.ndarray) -> np.ndarray:
        """A tensor as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
        if isinstance(array, np.ndarray):
            return array
        if array.dtype == torch.bfloat16:
            array = array.float()
        return array.detach().cpu().numpy()

    def new_cache(self, model: Any) -> Any:
        return model.new_cache(on_device=True)

    def allow(self, ids: Sequence[int], model: Any) -> Tensor:
        return torch.from_numpy(super().allow(ids, model)).to(model.device)

    def lifting(self, lifting: Any, model: Any) -> Lifting:
        return Lifting(lifting, model.device)

    def finished(self, array: Tensor) -> Tensor:
        if array.is_cuda:
            torch.cuda.synchronize(array.device)
        return array


class CpuSampler(sampling.Sampler):
    """For models on the CPU: NumPy's sampler with PyTorch's softmax, which takes half the time."""

    to_numpy = staticmethod(Sampler.to_numpy)  # hidden states are tensors

    @staticmethod
    def process(logits: np.ndarray, *settings: float) -> np.ndarray:
        """Like `sampling.process`, for logits (V,)."""
        probs = process(torch.from_numpy(logits), *settings).numpy()
        if probs[0] != probs[0]:  # NaN
            raise OmnidraftError(RULED_OUT if logits.max() == -np.inf else BROKEN)
        return probs

    def lifting(self, lifting: Any, model: Any) -> Any:
        """With PyTorch's sums by index, which take two thirds of the time."""
        def add_at(made: np.ndarray, index: np.ndarray, values: np.ndarray) -> None:
            index, values = map(torch.from_numpy, (index, values))
            torch.from_numpy(made).scatter_add_(0, index, values)

        lifting = copy(lifting)
        lifting.add_at = add_at
        return lifting
