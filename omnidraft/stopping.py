"""When to stop drafting: a fixed length, the drafter's confidence, and not drafting at all where it does not pay.

A stop may depend on the tokens drawn so far only, and the token that triggers it is still proposed: dropping it would
bias the output (arXiv 2405.19715, section 3; arXiv 2507.02659, section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FixedLength:
    """Draft `limit` tokens in every round.

    >>> FixedLength(2)([0.9, 0.1])
    False
    """

    limit: int = 4

    def __call__(self, confidences: list[float]) -> bool:
        """Never stop before `limit`."""
        return False


@dataclass(frozen=True)
class Confidence:
    """Stop once the product of the drafted tokens' probabilities falls below `threshold`, at `limit` tokens at the latest.

    The product estimates how likely it is that every token drafted so far will be kept.

    >>> stop = Confidence(threshold=0.4)
    >>> stop([0.9]), stop([0.9, 0.4])
    (False, True)
    """

    limit: int = 12
    threshold: float = 0.4

    def __call__(self, confidences: list[float]) -> bool:
        """True once the token drafted last should be the round's last; `confidences` has one probability per token."""
        product = 1.0
        for confidence in confidences:
            product *= confidence
        return product < self.threshold


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
