"""When to stop drafting: after a fixed length, or by confidence.

The token that stops a draft is still proposed: without it the text would be biased (arXiv
2405.19715, section 3). Whether a round drafts at all depends only on what precedes its first draw.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .errors import OmnidraftError


@dataclass(frozen=True)
class FixedLength:
    """Draft `limit` tokens in every round: the plainest stop rule, and what others build on.

    A rule is called with the confidence of every token drafted so far: draft no more?
    """

    limit: int = 4  # most draft tokens in a round; 0: do not draft
    looks = False  # at every drafted token's probability
    head = None  # or what predicts acceptance from more than that

    def starts(self, confidence: float) -> bool:
        """Should the round draft, given the confidence of the likeliest first token?"""
        return True

    def __call__(self, confidences: list[float]) -> bool:
        return False


@dataclass(frozen=True)
class Confidence(FixedLength):
    """Stop once the product of the drafted tokens' confidences falls below `threshold`.

    A token's confidence is the drafter's probability of it, or what a `head` predicts; threshold =
    1 - gamma of arXiv 2507.02659, section 3.3. A round drafts nothing where the likeliest first
    token promises less (this project's own): it would cost the target a wider pass.

    >>> stop = Confidence(threshold=0.4)
    >>> stop.starts(0.3), stop([0.9]), stop([0.9, 0.4])
    (False, False, True)
    """

    limit: int = 12
    threshold: float = 0.4
    head: "AcceptanceHead | None" = None
    looks = True

    def starts(self, confidence: float) -> bool:
        return not confidence < self.threshold  # subtle: NaN drafts, and the error is raised later

    def __call__(self, confidences: list[float]) -> bool:
        return prod(confidences) < self.threshold


class AcceptanceHead:
    """Predicts whether a drafted token will be accepted (arXiv 2405.19715): one sigmoid layer.

    Only the weight of log(q / (1 - q)) begins at 1, the others at 0, so a fresh head predicts the
    drafter's own confidence. Hidden layers overfit the few labels of a stream; OmnidraftError for
    parameters that have some, or another width.

    >>> head = AcceptanceHead(4); round(float(head(head.features(np.ones(4), np.ones(4), 0.9))), 2)
    0.9
    """

    def __init__(self, width: int, parameters: dict[str, np.ndarray] | None = None) -> None:
        weight = np.append(np.zeros(2 * width, np.float32), np.float32(1))
        fresh = {"out.weight": weight, "out.bias": np.zeros(1, np.float32)}
        self.parameters = fresh if parameters is None else parameters
        if {k: v.shape for k, v in self.parameters.items()} != {
                k: v.shape for k, v in fresh.items()}:
            raise OmnidraftError("this acceptance head has another width or hidden layers: learn a "
                                 "new one")

    @staticmethod
    def features(hidden: np.ndarray, embedding: np.ndarray, probability: float) -> np.ndarray:
        """The input (2 width + 1,) of a token: the hidden state (width,) before it, its embedding
        (width,), both at root mean square 1, and log(q / (1 - q)) of its probability q."""
        scaled = [v * (len(v) / (v @ v + 1e-9)) ** 0.5 for v in (hidden, embedding)]
        q = min(max(probability, 1e-4), 1 - 1e-4)
        return np.concatenate([*scaled, [np.log(q / (1 - q))]], dtype=np.float32)

    def __call__(self, features: np.ndarray) -> Any:
        """P(accepted): a number for one token (F,), or (n,) for (n, F)."""
        logit = features @ self.parameters["out.weight"] + self.parameters["out.bias"][0]
        return 0.5 * (1 + np.tanh(logit / 2))

    def loss(self, features: np.ndarray, labels: np.ndarray,
             rejected_weight: float = 6.0) -> tuple[float, dict[str, np.ndarray]]:
        """Mean weighted cross-entropy of features (n, F) and labels (n,), and its gradients.

        Labels are probabilities. Rejections weigh 6 in arXiv 2405.19715; 1 predicts without bias.
        """
        p = np.clip(self(features), 1e-7, 1 - 1e-7)  # (n,)
        up, down = labels, rejected_weight * (1 - labels)
        value = -(up * np.log(p) + down * np.log(1 - p)).mean()
        slope = ((up + down) * p - up) / len(labels)  # along the logits
        return float(value), {"out.weight": slope @ features, "out.bias": slope.sum(keepdims=True)}
