"""Torch twin of `vocabulary.py`: the direct map as index tensors, on any device.

Which tokens are the same is decided once, on the host, from bytes (`vocabulary.align`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from . import vocabulary


def upload(ids: np.ndarray | Sequence[int], device: torch.device | str) -> Tensor:
    """Ids (n,) as an index tensor on the device, without waiting for it."""
    made = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))
    return made.to(device, non_blocking=torch.device(device).type == "cuda")


class Direct(vocabulary.Direct):
    """The NumPy map `host` for rows on `device`: n pairs of index tensors.

    >>> direct = Direct(vocabulary.Direct(np.array([1, -1, 0, 1])))
    >>> direct.spread(torch.tensor([[0.0, 0.5, 0.25, 0.25]]), 3)
    tensor([[0.2500, 0.2500, 0.0000]])
    """

    def __init__(self, host: vocabulary.Direct, device: torch.device | str = "cpu") -> None:
        vars(self).update(vars(host), host=host)  # shared, not copied
        self.from_draft, self.to_target = upload(host.drafts, device), upload(host.targets, device)

    def spread(self, row: Tensor, size: int) -> Tensor:
        """As in NumPy; also rows (..., V_q) at once, to (..., V_p = size)."""
        mapped = row.index_select(-1, self.from_draft)  # (..., n)
        made = row.new_zeros(*row.shape[:-1], size)
        return made.index_add_(-1, self.to_target, mapped)
