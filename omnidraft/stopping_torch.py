"""Torch twin of `stopping.py`: the acceptance head as a module, on any device and by autograd.

The stop rules compare plain numbers and have no twin. The head has the same parameters,
"out.weight" and "out.bias", so each twin continues what the other has learned. A drafter on a GPU
can stop by this one, which reads its hidden states there; `learning` trains NumPy's.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from . import stopping


class AcceptanceHead(nn.Module, stopping.AcceptanceHead):
    """As in NumPy: one sigmoid layer; a fresh head predicts q of the token.

    >>> head = AcceptanceHead(4)
    >>> optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    >>> features = head.features(torch.ones(2, 4), torch.ones(2, 4), torch.tensor([0.9, 0.2]))
    >>> loss = head.loss(features, torch.tensor([1.0, 0.0]))
    >>> loss.backward(); optimizer.step()
    """

    on_host = False

    def __init__(self, width: int, parameters: dict[str, np.ndarray] | None = None) -> None:
        super().__init__()
        start = stopping.AcceptanceHead(width, parameters).parameters  # also checks the shapes
        self.out = nn.Module()
        self.out.weight = nn.Parameter(torch.tensor(start["out.weight"]))  # (2 width + 1,)
        self.out.bias = nn.Parameter(torch.tensor(start["out.bias"]))  # (1,)

    @staticmethod
    def features(hidden: Tensor, embedding: Tensor, probability: float | Tensor) -> Tensor:
        """The input (2 width + 1,) for a token, or (n, 2 width + 1) for n, as in the NumPy twin."""
        parts = []
        for vector in (hidden.float(), embedding.float()):
            norm = (vector * vector).sum(-1, keepdim=True) + 1e-9
            parts.append(vector * (vector.shape[-1] / norm).sqrt())
        q = torch.as_tensor(probability, device=hidden.device).float().clamp(1e-4, 1 - 1e-4)
        return torch.cat([*parts, q.logit()[..., None]], -1)

    def forward(self, features: Tensor) -> Tensor:
        """P(accepted): () for features (F,), or (n,) for (n, F)."""
        return self._logits(features).sigmoid()

    def loss(self, features: Tensor, labels: Tensor, rejected_weight: float = 6.0) -> Tensor:
        """Mean weighted cross-entropy (), to differentiate, of features (n, F) and labels (n,)."""
        logits = self._logits(features)
        up, down = labels, rejected_weight * (1 - labels)
        # softplus(-x) = -log sigmoid(x), also where the sigmoid rounds to 0
        return (up * softplus(-logits) + down * softplus(logits)).mean()

    def _logits(self, features: Tensor) -> Tensor:
        return features @ self.out.weight + self.out.bias[0]
