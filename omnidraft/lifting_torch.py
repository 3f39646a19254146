"""Torch twin of `lifting.py`: the same trie and paths, for rows of either model on any device."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import lifting
from .lifting import Origin, Split
from .vocabulary_torch import upload


class Lifting(lifting.Lifting):
    """The NumPy lifting `host` for tensors on `device`; sums over whole rows are computed there."""

    def __init__(self, host: lifting.Lifting, device: torch.device | str = "cpu") -> None:
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
