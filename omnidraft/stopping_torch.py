"""The acceptance head of `stopping` in PyTorch: the same network, inputs and loss, differentiated by autograd, on any device.

Public names, arguments and order are those of `stopping` (arXiv 2405.19715; arXiv 2507.02659, section 3.3).
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, logsigmoid, silu


class AcceptanceHead:
    """Predicts whether a drafted token will be accepted: residual blocks with SiLU, then one logit (arXiv 2405.19715).

    `parameters` has the names and shapes that it has in NumPy, and begins as it does there.

    >>> head = AcceptanceHead(4); round(head(head.features(torch.ones(4), torch.ones(4), 0.9)), 2)
    0.9
    """

    def __init__(self, width: int, blocks: int = 0, bias: float = 0.0) -> None:
        size = 2 * width + 1
        shapes = {name: shape for i in range(blocks)
                  for name, shape in ((f"blocks.{i}.weight", (size, size)), (f"blocks.{i}.bias", (size,)))}
        self.parameters = {name: torch.zeros(shape) for name, shape in shapes.items()} | {
            "out.weight": torch.zeros(size), "out.bias": torch.full((1,), bias)}
        self.parameters["out.weight"][-1] = 1.0
        self.blocks = blocks
        for tensor in self.parameters.values():
            tensor.requires_grad_()

    @classmethod
    def of(cls, parameters: dict[str, torch.Tensor]) -> AcceptanceHead:
        """A head with given parameters."""
        head = cls((len(parameters["out.weight"]) - 1) // 2, len(parameters) // 2 - 1)
        head.parameters = parameters
        return head

    @staticmethod
    def features(hidden: torch.Tensor, embedding: torch.Tensor, probability: float) -> torch.Tensor:
        """The input (2 width + 1,): both vectors at root mean square 1, and log(q / (1 - q)) of the token, within ± 9."""
        scaled = [v * (len(v) ** 0.5 / (v.norm() + 1e-9)) for v in (hidden, embedding)]
        return torch.cat([*scaled, hidden.new_tensor([probability]).clamp(1e-4, 1 - 1e-4).logit()]).float()

    def __call__(self, features: torch.Tensor) -> float:
        """P(accepted) of one token."""
        return self._run(features[None]).sigmoid().item()

    def loss(self, features: torch.Tensor, labels: torch.Tensor, rejected_weight: float = 6.0) -> tuple[torch.Tensor, None]:
        """Weighted binary cross-entropy, mean over tokens; None instead of the gradients (call `value.backward()`).

        features: (n, 2 width + 1); labels: (n,) in [0, 1], the probability that the token is accepted; the part of a rejection
        weighs `rejected_weight` (arXiv 2405.19715: 6; 1 predicts unbiased probabilities).
        """
        logit = self._run(features)
        return -(labels * logsigmoid(logit) + rejected_weight * (1 - labels) * logsigmoid(-logit)).mean(), None

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n,) of inputs (n, F)."""
        for i in range(self.blocks):
            x = x + silu(linear(x, self.parameters[f"blocks.{i}.weight"], self.parameters[f"blocks.{i}.bias"]))
        return x @ self.parameters["out.weight"] + self.parameters["out.bias"]
