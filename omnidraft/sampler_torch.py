"""Torch twin of `sampler.py`: rows and drawn tokens stay on the models' device.

Only `settle`, `read`, `best` and `to_numpy` copy to the host.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import lifting_torch, sampler, vocabulary_torch
from .sampling import BROKEN, RULED_OUT, Rows, Uniforms
from .sampling_torch import best, locate, process, to_host, wrapped
from .text.errors import OmnidraftError
from .translation import until_end


class Device(sampler.Device):
    """As in `sampler`, for tensors on the models' device."""

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


class Sampler(Device, sampler.Sampler):
    """How logits become tokens, as in `sampler`: rows and drawn tokens stay on the models' device.

    Each round copies to the host: the drafted tokens, once, when the draft is complete; a healed
    token; what verification compares and draws; with a rule that looks, every token's probability
    and its row's norm.
    """

    draws_ids = False  # reading a drawn token waits for the device: only if the stop rule looks
    process = staticmethod(process)
    best = staticmethod(lambda logits: to_host(best(logits), logits.shape[-1]))  # one copy

    def __init__(self, uniforms: Uniforms, temperature: float = 1.0, top_k: int = 0,
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

    def read(self, token: Tensor, rows: Sequence[Tensor]) -> tuple[int, float, float]:
        row = rows[0]
        probability = row.index_select(0, token.clamp(0, len(row) - 1))
        square = (row @ row).reshape(1)
        drawn, probability, square = torch.cat([token.to(row.dtype), probability, square]).tolist()
        if not 0 <= drawn < len(row):
            raise OmnidraftError(f"{BROKEN}, or {RULED_OUT}")
        return int(drawn), probability, square**0.5

    def settle(self, drawn: list[Tensor], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token, in one copy; later draws are given back."""
        tokens = until_end([*to_host(torch.cat(drawn), self._size)] if drawn else [], ends)
        self.uniforms.give_back(self._used[len(tokens):])
        self._used.clear()
        return tokens
