"""When to stop drafting: after a fixed length, by confidence, or by measured throughput.

The token that triggers a stop is still proposed: dropping it would bias the output (arXiv
2405.19715, section 3). Whether a round drafts at all may depend on earlier rounds and on the row of
its first token, which is known before that token is drawn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np

from .errors import OmnidraftError


class Stop(Protocol):
    """A stop rule: given the confidence of every token drafted so far, true to draft no more."""

    limit: int  # most draft tokens in the coming round; 0: do not draft

    def __call__(self, confidences: list[float]) -> bool:
        """Never, unless a rule says otherwise."""
        return False

    def record(self, record: Any) -> None:
        """Take a finished `Round` into account; a fixed rule learns nothing from it."""


@dataclass(frozen=True)
class FixedLength(Stop):
    """Draft `limit` tokens in every round."""

    limit: int = 4
    looks: ClassVar[bool] = False  # does not look at what was drafted


@dataclass(frozen=True)
class Confidence(Stop):
    """Stop once the product of the drafted tokens' confidences falls below `threshold`.

    A token's confidence is the drafter's probability of it, or the acceptance that a `head`
    predicts; threshold = 1 - gamma of arXiv 2507.02659, section 3.3. A round drafts nothing where
    the likeliest first token promises less (this project's own): a pass over two tokens costs the
    target more than a pass over one.

    >>> stop = Confidence(threshold=0.4)
    >>> stop.starts(0.3), stop([0.9]), stop([0.9, 0.4])
    (False, False, True)
    """

    limit: int = 12
    threshold: float = 0.4
    head: AcceptanceHead | None = None

    def starts(self, confidence: float) -> bool:
        """Should the round draft, given the confidence of the likeliest first token?"""
        return not confidence < self.threshold  # NaN drafts on; the error is raised later

    def __call__(self, confidences: list[float]) -> bool:
        """True if the token drafted last is the round's last."""
        return prod(confidences) < self.threshold


@dataclass
class Throughput:
    """The confidence rule with a measured threshold, which rests where drafting does not pay.

    This project's own. *How far to draft*: one more draft token costs c seconds and brings
    a * prod_i P_i tokens, where a is how often a confident token is kept. A second is worth r
    tokens, so another token pays while a * prod_i P_i > r c (the marginal value theorem, Charnov
    1976). r, c and a are running means; c is the slope of a round's seconds over its draft tokens.

    *Whether to draft*: where a token of the drafting rounds takes more seconds than a plain step,
    `limit` reads 0 while the target writes the next 32, 64, ... 256 tokens alone. After each rest 4
    drafting rounds decide again. Only past rounds count, so the clock cannot bias the text.

    >>> Throughput(12)([0.9, 0.5])  # nothing is measured yet: threshold 0.4
    False
    """

    longest: int = 12  # most draft tokens in a round
    head: AcceptanceHead | None = None
    threshold: float = 0.4
    _sums: Counter[str] = field(default_factory=Counter)  # over drafting rounds, fading
    _pace: tuple[float, float] = 0.0, 0.0  # seconds and tokens since the last rest, fading
    _plain: float | None = None  # seconds of a plain step
    _untried: int = 8  # drafting rounds before the first decision
    _rest: int = 0  # tokens to write without drafting
    _pause: int = 32  # the next rest

    starts = Confidence.starts
    __call__ = Confidence.__call__

    @property
    def limit(self) -> int:
        """Most draft tokens in the coming round, 0 during a rest."""
        return 0 if self._rest else self.longest

    def record(self, record: Any) -> None:
        """Take a finished `Round` into account."""
        seconds = sum(record.seconds[part] for part in ("draft", "target", "other"))
        tokens = len(record.emitted)
        if self._rest:
            self._plain = seconds if self._plain is None else 0.8 * self._plain + 0.2 * seconds
            self._rest = max(0, self._rest - tokens)
            return
        self._tune(record, seconds)
        self._pace = 0.9 * self._pace[0] + seconds, 0.9 * self._pace[1] + tokens
        self._untried -= 1
        if self._plain is None:
            self._rest = int(self._untried <= 6)  # after two rounds one plain step is measured
        elif self._untried <= 0 and self._pace[0] > self._plain * self._pace[1]:
            self._rest, self._pause = self._pause, min(256, 2 * self._pause)
            self._pace, self._untried = (0.0, 0.0), 4
        elif self._untried <= 0:
            self._pause = 32

    def _tune(self, record: Any, seconds: float) -> None:
        """Set the threshold to r c / a."""
        drafted, s = len(record.draft_tokens), self._sums
        new = {"rounds": 1, "tokens": len(record.emitted), "seconds": seconds, "drafted": drafted,
               "kept": record.draft_kept, "examined": min(drafted, record.draft_kept + 1),
               "draft": record.seconds["draft"], "squares": drafted * drafted,
               "product": drafted * seconds}
        for name, value in new.items():
            s[name] = 0.98 * s[name] + value
        if s["rounds"] < 8 or not s["drafted"] or not s["kept"]:
            return
        cost = 0.5 * s["draft"] / s["drafted"]  # at least half of the drafter's step
        spread = s["squares"] - s["drafted"] ** 2 / s["rounds"]
        if spread > 1e-9:  # least squares; rounds of one length have no slope
            cost = max(cost, (s["product"] - s["drafted"] * s["seconds"] / s["rounds"]) / spread)
        self.threshold = min(0.95, s["tokens"] / s["seconds"] * cost * s["examined"] / s["kept"])


class AcceptanceHead:
    """Predicts whether a drafted token will be accepted (arXiv 2405.19715): one sigmoid layer.

    It reads the drafter's hidden state before the token, the token's embedding (both (width,)) and
    the logit of its probability. Only that logit's weight begins at 1, the others at 0, so a fresh
    head predicts the drafter's own confidence. Hidden layers overfit the few labels of a stream.

    >>> head = AcceptanceHead(4); round(head(head.features(np.ones(4), np.ones(4), 0.9)), 2)
    0.9
    """

    def __init__(self, width: int) -> None:
        self.parameters = {"out.weight": np.zeros(2 * width + 1, np.float32),
                           "out.bias": np.zeros(1, np.float32)}
        self.parameters["out.weight"][-1] = 1.0

    @classmethod
    def of(cls, parameters: dict[str, np.ndarray]) -> AcceptanceHead:
        """A head with given parameters; OmnidraftError where they are not those of one layer."""
        if parameters.keys() != {"out.weight", "out.bias"}:
            raise OmnidraftError("this acceptance head has hidden layers: learn a new one")
        head = cls((len(parameters["out.weight"]) - 1) // 2)
        head.parameters = parameters
        return head

    @staticmethod
    def features(hidden: np.ndarray, embedding: np.ndarray, probability: float) -> np.ndarray:
        """The input (2 width + 1,): both vectors at root mean square 1, and log(q / (1 - q))."""
        scaled = [v * (len(v) ** 0.5 / (np.linalg.norm(v) + 1e-9)) for v in (hidden, embedding)]
        q = min(max(probability, 1e-4), 1 - 1e-4)
        return np.concatenate([*scaled, [np.log(q / (1 - q))]]).astype(np.float32)

    def __call__(self, features: np.ndarray) -> float:
        """P(accepted) of one token."""
        return float(self._predict(features)[0])

    def loss(self, features: np.ndarray, labels: np.ndarray,
             rejected_weight: float = 6.0) -> tuple[float, dict[str, np.ndarray]]:
        """Weighted binary cross-entropy, mean over tokens, and its gradients by name.

        features: (n, 2 width + 1); labels: (n,) probabilities of acceptance. Rejections weigh
        `rejected_weight` (6 in arXiv 2405.19715; 1 predicts without bias).
        """
        p = np.clip(self._predict(features), 1e-7, 1 - 1e-7)  # (n,)
        up, down = labels, rejected_weight * (1 - labels)
        value = -(up * np.log(p) + down * np.log(1 - p)).mean()
        slope = ((up + down) * p - up) / len(labels)  # along the logits
        return float(value), {"out.weight": slope @ features, "out.bias": slope.sum(keepdims=True)}

    def _predict(self, features: np.ndarray) -> np.ndarray:
        """P (n,) of inputs (n, F), or (1,) of (F,)."""
        logit = features @ self.parameters["out.weight"] + self.parameters["out.bias"]
        return 0.5 * (1 + np.tanh(logit / 2))
