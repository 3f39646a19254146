"""Torch twin of `translation.Translated`: the rows of q' (arXiv 2507.02659, Eq. 1 and 2) stay on the device, nothing is copied.

What is left of `translation.py` deals with ids and bytes, and `merge` takes either kind of row.
"""

from __future__ import annotations

import torch

from . import translation
from .lifting_torch import upload


class Translated(translation.Translated):
    """A row q' (V_p,) from a tensor q (V_q,) on any device, see `translation.Translated`.

    >>> import numpy as np
    >>> row = Translated(torch.tensor([0.5, 0.25, 0.25]), translation.Direct(np.array([1, 1, -1])))
    >>> row[1], (torch.ones(3) - row).tolist()
    (tensor(0.7500), [1.0, 0.25, 1.0])
    """

    def __rsub__(self, target_probs: torch.Tensor) -> torch.Tensor:
        device = target_probs.device
        q = self.q.to(device, target_probs.dtype).index_select(0, upload(self.direct.drafts, device))
        left = target_probs.index_add(0, upload(self.direct.targets, device), q, alpha=-1)
        for token, probability in self.changed.items():
            left[token] = target_probs[token] - probability
        return left
