"""`stopping.AcceptanceHead` in PyTorch: differentiated by autograd, on any device.

Public names, arguments and order are those of `stopping` (arXiv 2405.19715; arXiv 2507.02659, 3.3).
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid


class AcceptanceHead:
    """Predicts whether a drafted token will be accepted (arXiv 2405.19715): one sigmoid layer.

    `parameters` has the names, shapes and first values that it has in NumPy.

    >>> head = AcceptanceHead(4); round(head(head.features(torch.ones(4), torch.ones(4), 0.9)), 2)
    0.9
    """

    def __init__(self, width: int) -> None:
        self.parameters = {"out.weight": torch.zeros(2 * width + 1), "out.bias": torch.zeros(1)}
        self.parameters["out.weight"][-1] = 1.0
        for tensor in self.parameters.values():
            tensor.requires_grad_()

    @classmethod
    def of(cls, parameters: dict[str, torch.Tensor]) -> AcceptanceHead:
        """A head with given parameters."""
        head = cls((len(parameters["out.weight"]) - 1) // 2)
        head.parameters = parameters
        return head

    @staticmethod
    def features(hidden: torch.Tensor, embedding: torch.Tensor, probability: float) -> torch.Tensor:
        """The input (2 width + 1,): both vectors at root mean square 1, and log(q / (1 - q))."""
        scaled = [v * (len(v) ** 0.5 / (v.norm() + 1e-9)) for v in (hidden, embedding)]
        q = hidden.new_tensor([probability]).clamp(1e-4, 1 - 1e-4)
        return torch.cat([*scaled, q.logit()]).float()

    def __call__(self, features: torch.Tensor) -> float:
        """P(accepted) of one token."""
        return self._logits(features).sigmoid().item()

    def loss(self, features: torch.Tensor, labels: torch.Tensor,
             rejected_weight: float = 6.0) -> tuple[torch.Tensor, None]:
        """Weighted binary cross-entropy, mean over tokens; None instead of the gradients.

        features: (n, 2 width + 1); labels: (n,) in [0, 1], the probability of acceptance.
        Rejections weigh `rejected_weight` (6 in arXiv 2405.19715; 1 predicts without bias).
        """
        logit = self._logits(features)
        rejected = rejected_weight * (1 - labels) * logsigmoid(-logit)
        return -(labels * logsigmoid(logit) + rejected).mean(), None

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        """Logits (n,) of inputs (n, F), or (1,) of (F,)."""
        return features @ self.parameters["out.weight"] + self.parameters["out.bias"]
