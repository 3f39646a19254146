"""When to stop drafting: after a fixed length, or when confidence is low.

The token that stops a draft is still proposed; dropping it would bias the text (arXiv 2405.19715,
section 3). Whether a round drafts at all depends only on what is known before its first draw.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .text.errors import OmnidraftError, expect_number


@dataclass(frozen=True)
class FixedLength:
    """Draft `limit` tokens in every round: the simplest stop rule, and the base of the others.

    A rule is called with the confidences of all tokens drafted so far; True stops the draft.
    """

    limit: int = 4  # maximum number of draft tokens per round; 0: do not draft
    looks = False  # does the rule need the confidence of every drafted token?
    head = None  # an `AcceptanceHead` that predicts it, if the rule has one
    bound = None  # a function that computes it from the row (V_q,) instead, if the rule has one

    def starts(self, confidence: float) -> bool:
        """Should the round draft, given the confidence in the likeliest first token?"""
        return True

    def __call__(self, confidences: list[float]) -> bool:
        return False


@dataclass(frozen=True)
class Confidence(FixedLength):
    """Stop once the product of the drafted tokens' confidences falls below `threshold`.

    A token's confidence is its draft probability at T = 0; above (this project's own) the L2 norm
    of the row it was drawn from, whichever token that was; with a `head` its prediction. threshold
    = 1 - gamma of arXiv 2507.02659, section 3.3. If the confidence at the first place (in the
    likeliest token) is below `threshold`, the round drafts nothing (this project's own): a draft
    would make the target's pass wider.

    >>> stop = Confidence(threshold=0.4)
    >>> stop.starts(0.3), stop([0.9]), stop([0.9, 0.4])
    (False, False, True)
    """

    limit: int = 12
    threshold: float = 0.4
    head: "AcceptanceHead | None" = None
    looks = True

    def starts(self, confidence: float) -> bool:
        """Is the confidence at the first place at least `threshold`?"""
        return not confidence < self.threshold  # subtle: NaN must draft: the error is raised later

    def __call__(self, confidences: list[float]) -> bool:
        return prod(confidences) < self.threshold


class AcceptanceHead:
    """Predicts whether a drafted token will be accepted: one sigmoid layer.

    The weight of log(q / (1 - q)) starts at 1 and all others at 0, so a fresh head predicts q of
    the token (arXiv 2405.19715 has hidden layers). OmnidraftError for a width below 1, or
    parameters with hidden layers or of another width.

    >>> head = AcceptanceHead(4); round(float(head(head.features(np.ones(4), np.ones(4), 0.9))), 2)
    0.9
    """

    on_host = True  # does it take arrays? The twin takes tensors

    def __init__(self, width: int, parameters: dict[str, np.ndarray] | None = None) -> None:
        expect_number("width", width, "from 1", 1)
        weight = np.append(np.zeros(2 * width, np.float32), np.float32(1))
        fresh = {"out.weight": weight, "out.bias": np.zeros(1, np.float32)}
        self.parameters = fresh if parameters is None else parameters
        if _shapes(self.parameters) != _shapes(fresh):
            raise OmnidraftError("this head has another width or hidden layers: train a new one")

    @staticmethod
    def features(hidden: np.ndarray, embedding: np.ndarray, probability: float) -> np.ndarray:
        """The input (2 width + 1,) for a token: the hidden state (width,) before it, its embedding
        (width,), both scaled to root mean square 1, and log(q / (1 - q)) of its probability q."""
        parts = [v * (len(v) / (v @ v + 1e-9)) ** 0.5 for v in (hidden, embedding)]
        q = min(max(probability, 1e-4), 1 - 1e-4)
        parts.append([np.log(q / (1 - q))])
        return np.concatenate(parts, dtype=np.float32)

    def __call__(self, features: np.ndarray) -> Any:
        """P(accepted): one number for features (F,), or (n,) numbers for (n, F)."""
        logit = features @ self.parameters["out.weight"] + self.parameters["out.bias"][0]
        return 0.5 * (1 + np.tanh(logit / 2))  # the sigmoid, in a form that cannot overflow

    def loss(self, features: np.ndarray, labels: np.ndarray,
             rejected_weight: float = 6.0) -> tuple[float, dict[str, np.ndarray]]:
        """Mean weighted cross-entropy of features (n, F) and labels (n,), and its gradients.

        Labels are probabilities. Rejections weigh 6 in arXiv 2405.19715; a weight of 1 is unbiased.
        """
        p = np.clip(self(features), 1e-7, 1 - 1e-7)  # (n,)
        rejected = rejected_weight * (1 - labels)
        value = -(labels * np.log(p) + rejected * np.log(1 - p)).mean()
        slope = ((labels + rejected) * p - labels) / len(labels)  # (n,) derivative by the logits
        gradients = {"out.weight": slope @ features, "out.bias": slope.sum(keepdims=True)}
        return float(value), gradients


def _shapes(parameters: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in parameters.items()}
