"""When to stop drafting: a fixed length, the drafter's confidence or entropy, and not drafting at all where it does not pay.

A stop may depend on the tokens drawn so far only, and the token that triggers it is still proposed: dropping it would
bias the output (arXiv 2405.19715, section 3; arXiv 2507.02659, section 3.3). Whether a round drafts at all may depend on the
row of its first token, which is there before that token is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Protocol

import numpy as np


class Stop(Protocol):
    """A stop rule: called with the confidence of every token drafted so far, true once the last one should be the last."""

    limit: int  # most draft tokens in a round

    def __call__(self, confidences: list[float]) -> bool: ...

    def record(self, record: Any) -> None:
        """Take a finished round into account; a rule that is fixed learns nothing from it."""


@dataclass(frozen=True)
class FixedLength(Stop):
    """Draft `limit` tokens in every round.

    >>> FixedLength(2)([0.9, 0.1])
    False
    """

    limit: int = 4
    looks: ClassVar[bool] = False  # at what was drafted

    def __call__(self, confidences: list[float]) -> bool:
        """Never stop before `limit`."""
        return False


@dataclass(frozen=True)
class Confidence(Stop):
    """Stop once the product of the drafted tokens' confidences falls below `threshold`, at `limit` tokens at the latest.

    A token's confidence is the drafter's probability of it, or with a `head` the acceptance that the head predicts; the
    product estimates how likely it is that every token drafted so far will be kept. The paper's rule, stop once
    1 - prod_i P_i > gamma, is threshold = 1 - gamma (arXiv 2507.02659, section 3.3). Nothing is drafted where the likeliest
    first token promises less (this project's own): a pass of two tokens costs the target more than a token alone.

    >>> stop = Confidence(threshold=0.4)
    >>> stop.starts(0.3), stop([0.9]), stop([0.9, 0.4])
    (False, False, True)
    """

    limit: int = 12
    threshold: float = 0.4
    head: AcceptanceHead | None = None

    def starts(self, confidence: float) -> bool:
        """Should the round draft, where `confidence` is that of the likeliest token of its first row?"""
        return not confidence < self.threshold  # drafts where it is no number, and that is told

    def __call__(self, confidences: list[float]) -> bool:
        """True once the token drafted last should be the round's last; `confidences` has one probability per token."""
        return prod(confidences) < self.threshold


@dataclass(frozen=True)
class EntropyBound(Stop):
    """Stop once 1 - sqrt(weight * H(q)), a bound from below on the acceptance, falls below `threshold` (arXiv 2410.18351).

    H is the entropy of the last token's row q (V_q,); the paper's AdaEDL moves the threshold with the acceptance rate.

    >>> stop = EntropyBound(threshold=0.4, weight=0.2)
    >>> stop([stop.bound(np.array([0.9, 0.1]))]), stop([stop.bound(np.full(8, 1 / 8))])
    (False, True)
    """

    limit: int = 12
    threshold: float = 0.4
    weight: float = 0.2

    def bound(self, row: np.ndarray) -> float:
        """A token's confidence from the entropy in nats of its row (V,)."""
        entropy = float(-(row * np.log(np.maximum(row, 1e-30))).sum())
        return 1.0 - (self.weight * max(0.0, entropy)) ** 0.5

    def __call__(self, confidences: list[float]) -> bool:
        """True where the last token's bound is below the threshold."""
        return confidences[-1] < self.threshold


@dataclass
class Throughput:
    """The confidence rule with its threshold measured while it runs: draft on as long as it pays. This project's own.

    One more draft token costs c seconds (a drafter's step, and one more token in the target's pass) and brings on average
    prod_i P_i a tokens, a being how often a confident token is kept. Time is worth r tokens per second, so drafting on pays
    while prod_i P_i a > r c (the marginal value theorem: Charnov 1976). All of r, c and a are running means over past rounds,
    c the slope of a round's seconds over its draft tokens, so the rule cannot bias the text, though it depends on the clock.

    >>> Throughput(12)([0.9, 0.5])  # nothing is measured yet: threshold 0.4
    False
    """

    limit: int = 12
    head: AcceptanceHead | None = None
    threshold: float = 0.4
    fade: float = 0.98
    _sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    starts = Confidence.starts  # the first token costs about the same: its row is there, but not its place in the target's pass

    def __call__(self, confidences: list[float]) -> bool:
        """True once another token would cost more than it brings."""
        return prod(confidences) < self.threshold

    def record(self, record: Any) -> None:
        """Take a finished round into account."""
        seconds = sum(record.seconds[part] for part in ("draft", "target", "other"))
        drafted = len(record.draft_tokens)
        new = {"rounds": 1, "tokens": len(record.emitted), "seconds": seconds, "drafted": drafted, "kept": record.draft_kept,
               "examined": min(drafted, record.draft_kept + 1), "draft": record.seconds["draft"],
               "squares": drafted * drafted, "product": drafted * seconds}
        for name, value in new.items():
            self._sums[name] = self.fade * self._sums[name] + value
        s = self._sums
        if s["rounds"] < 8 or not s["drafted"] or not s["kept"]:
            return
        spread = s["squares"] - s["drafted"] ** 2 / s["rounds"]  # least squares; where all are equally long, the drafter's step
        slope = (s["product"] - s["drafted"] * s["seconds"] / s["rounds"]) / spread if spread > 1e-9 else 0.0
        cost = max(slope, 0.5 * s["draft"] / s["drafted"])
        self.threshold = min(0.95, s["tokens"] / s["seconds"] * cost * s["examined"] / s["kept"])


class AcceptanceHead:
    """Predicts whether a drafted token will be accepted: residual blocks with SiLU, then one logit (arXiv 2405.19715).

    By default there are no blocks: on the few thousand labels of an online stream they overfit, and they take time.
    It reads the drafter's hidden state before the token (width,), the token's embedding (width,) and the logit of its
    probability. `parameters` holds W, b of each block and the last w, b; all begin at zero but for a weight of 1 on that
    logit, so that a fresh head predicts the drafter's own confidence (shifted by `bias`).

    >>> head = AcceptanceHead(4); round(head(head.features(np.ones(4), np.ones(4), 0.9)), 2)
    0.9
    """

    def __init__(self, width: int, blocks: int = 0, bias: float = 0.0) -> None:
        size = 2 * width + 1
        self.parameters: dict[str, np.ndarray] = {}
        for i in range(blocks):
            self.parameters |= {f"blocks.{i}.weight": np.zeros((size, size), np.float32),
                                f"blocks.{i}.bias": np.zeros(size, np.float32)}
        self.parameters |= {"out.weight": np.zeros(size, np.float32), "out.bias": np.full(1, bias, np.float32)}
        self.parameters["out.weight"][-1] = 1.0
        self.blocks = blocks

    @classmethod
    def of(cls, parameters: dict[str, np.ndarray]) -> AcceptanceHead:
        """A head with given parameters."""
        head = cls((len(parameters["out.weight"]) - 1) // 2, len(parameters) // 2 - 1)
        head.parameters = parameters
        return head

    @staticmethod
    def features(hidden: np.ndarray, embedding: np.ndarray, probability: float) -> np.ndarray:
        """The input (2 width + 1,): both vectors at root mean square 1, and log(q / (1 - q)) of the token, within ± 9."""
        scaled = [v * (len(v) ** 0.5 / (np.linalg.norm(v) + 1e-9)) for v in (hidden, embedding)]
        q = min(max(probability, 1e-4), 1 - 1e-4)
        return np.concatenate([*scaled, [np.log(q / (1 - q))]]).astype(np.float32)

    def __call__(self, features: np.ndarray) -> float:
        """P(accepted) of one token."""
        return float(_sigmoid(self._run(features)[0])[0])

    def loss(self, features: np.ndarray, labels: np.ndarray,
             rejected_weight: float = 6.0) -> tuple[float, dict[str, np.ndarray]]:
        """Weighted binary cross-entropy, mean over tokens, and its gradients by name.

        features: (n, 2 width + 1); labels: (n,) in [0, 1], the probability that the token is accepted; the part of a rejection
        weighs `rejected_weight` (arXiv 2405.19715: 6; 1 predicts unbiased probabilities).
        """
        logit, inputs = self._run(features)
        p = np.clip(_sigmoid(logit), 1e-7, 1 - 1e-7)
        up, down = labels, rejected_weight * (1 - labels)  # (n,)
        value = -(up * np.log(p) + down * np.log(1 - p)).mean()
        flow = ((up + down) * p - up) / len(labels)  # d value / d logit
        gradients = {"out.weight": flow @ inputs[-1], "out.bias": flow.sum(keepdims=True)}
        flow = flow[:, None] * self.parameters["out.weight"]
        for i in reversed(range(self.blocks)):
            x, weight = inputs[i], self.parameters[f"blocks.{i}.weight"]
            z = x @ weight.T + self.parameters[f"blocks.{i}.bias"]
            s = _sigmoid(z)
            inner = flow * (s * (1 + z * (1 - s)))  # through silu(z) = z sigmoid(z)
            gradients |= {f"blocks.{i}.weight": inner.T @ x, f"blocks.{i}.bias": inner.sum(0)}
            flow = flow + inner @ weight
        return float(value), gradients

    def _run(self, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Logits (n,) of inputs (n, F), or (1,) of (F,), and the input of every block and of the last layer."""
        inputs = [x]
        for i in range(self.blocks):
            z = x @ self.parameters[f"blocks.{i}.weight"].T + self.parameters[f"blocks.{i}.bias"]
            x = x + z * _sigmoid(z)
            inputs.append(x)
        return x @ self.parameters["out.weight"] + self.parameters["out.bias"], inputs


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))


@dataclass
class Payoff:
    """Tells when to stop drafting altogether: measured seconds per token of drafting rounds against plain steps.

    After `warmup` drafting rounds and one plain step the cheaper way goes on; plain decoding is interrupted by a trial of
    `trial` drafting rounds after 32, 64, 128, ... tokens. The rule sees past rounds only, so it cannot bias the text,
    but its decisions depend on the clock.
    """

    warmup: int = 8
    trial: int = 4
    drafted: list[float] = field(default_factory=lambda: [0.0, 0.0])  # seconds and tokens, fading
    plain_step: float | None = None
    _rounds: int = 0
    _rest: int = 0
    _pause: int = 32

    def drafts(self) -> bool:
        """Should the next round draft?"""
        if self._rest > 0:
            return False
        return not (self.plain_step is None and self._rounds == 2)  # the third round measures a plain step

    def record(self, drafted: bool, seconds: float, tokens: int) -> None:
        """Take a finished round into account."""
        self._rounds += 1
        if not drafted:
            self.plain_step = seconds if self.plain_step is None else 0.8 * self.plain_step + 0.2 * seconds
            self._rest = max(0, self._rest - tokens)
            return
        self.drafted = [0.9 * self.drafted[0] + seconds, 0.9 * self.drafted[1] + tokens]
        if self.plain_step is None or self._rounds < self.warmup:
            return
        if self.drafted[0] > self.plain_step * self.drafted[1]:
            self._rest, self._pause = self._pause, min(256, 2 * self._pause)
            self._rounds = self.warmup - self.trial
            self.drafted = [0.0, 0.0]
        else:
            self._pause = 32
