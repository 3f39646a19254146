"""AdamW (arXiv 1711.05101, Algorithm 2) over named arrays or tensors, changed in place."""

import math
from typing import Any

import numpy as np

from ..text.errors import OmnidraftError


class AdamW:
    """Steps along -m / √v, the running mean of gradients over their running size, and weight decay.

    In step t, elementwise, with β1, β2 = betas: m ← β1 m + (1 − β1) g, v ← β2 v + (1 − β2) g²,
    w ← w − rate · (m̂ / (√v̂ + eps) + decay · w), where m̂ = m / (1 − β1^t) and v̂ = v / (1 − β2^t)
    correct for the start at zero. So the first step moves each weight by `rate`. A gradient with a
    norm above `clip` is scaled down to it; `shares` scale the rate by name (default 1).
    """

    def __init__(self, parameters: dict[str, Any], rate: float = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, decay: float = 0.01,
                 clip: float | None = None, shares: dict[str, float] | None = None) -> None:
        self.parameters, self.shares, self.steps = parameters, shares or {}, np.zeros(1)
        self.rate, self.betas, self.eps, self.decay, self.clip = rate, betas, eps, decay, clip
        self.moments = {f"{kind}.{name}": 0 * array
                        for name, array in parameters.items() for kind in ("mean", "square")}

    def step(self, gradients: dict[str, Any]) -> float:
        """One step; returns the gradient's norm before clipping. If not finite, nothing changes."""
        flat = (gradients[name].reshape(-1) for name in self.parameters)
        norm = math.sqrt(sum(float(gradient @ gradient) for gradient in flat))
        if not math.isfinite(norm):
            return norm
        shrink = min(1.0, self.clip / norm) if self.clip and norm else 1.0
        self.steps += 1
        (one, two), t = self.betas, self.steps.item()
        unbiased, root = 1 / (1 - one ** t), math.sqrt(1 - two ** t)
        for name, weights in self.parameters.items():
            mean, square = self.moments[f"mean.{name}"], self.moments[f"square.{name}"]
            gradient = gradients[name] * shrink
            mean += (1 - one) * (gradient - mean)
            square += (1 - two) * (gradient * gradient - square)
            rate = self.rate * self.shares.get(name, 1.0)
            weights *= 1 - rate * self.decay
            weights -= rate * unbiased * mean / (square ** 0.5 / root + self.eps)
        return norm

    def state(self) -> dict[str, Any]:
        """What training needs to continue besides the parameters, as live arrays for `fill`."""
        return {"steps": self.steps, **self.moments}


def fill(live: dict[str, Any], state: dict[str, Any]) -> None:
    """Copy saved arrays into the live ones; raises OmnidraftError if their shapes differ."""
    if {k: v.shape for k, v in live.items()} != {k: v.shape for k, v in state.items()}:
        raise OmnidraftError("the state belongs to other parameters: use its drafter and rank")
    for name, array in live.items():
        array[...] = state[name]
