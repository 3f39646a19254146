"""The guard of online learning, against instability on new data (arXiv 2507.02659, limitation 1).

It tests the weights on each update's first new texts, and finds a change of the stream: texts on
which even the better weights expect much less acceptance than on earlier texts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..losses import Example

SLOWER = 1 / 4  # of the rate, after a roll-back
SLOWEST = 1 / 64  # of the rate, after all roll-backs: the stream may still change slowly
PATIENCE = 5  # decisions in a row for no better weights; equal weights get there once in 62
LATEST, BEFORE = 4, 8  # updates that are compared to find a change of the stream
ERRORS = 5.0  # standard errors of the difference; reached by one update in 5,000 without a change


class Guard:
    """Keeps a trainer's best weights; asked before every update, with its new texts.

    every: updates between two decisions. tolerance: how much the expected acceptance may fall.
    """

    def __init__(self, trainer: Any, every: int, tolerance: float) -> None:
        self.trainer, self.every, self.tolerance = trainer, every, tolerance
        self.best: dict[str, np.ndarray] | None = None
        self.worse = 0  # decisions in a row that found the present weights no better
        self.compared: list[tuple[float, float]] = []  # expected with the present and best weights
        self.latest: deque[float] = deque(maxlen=BEFORE + LATEST)  # the larger one, per update

    def look(self, pair: Any, texts: Sequence[Example], now: dict[str, np.ndarray]) -> str:
        """Compare the present weights, of state `now`, with the best ones, and keep the better.

        Neither has learned from `texts`. The best are restored, and a note (else "") says so, where
        the present ones are worse by the tolerance, or no better PATIENCE times in a row.
        """
        if self.best is None:
            self.best = now
            return ""
        after = self.trainer.expected_acceptance(pair, texts)
        self.trainer.restore(self.best)
        before = self.trainer.expected_acceptance(pair, texts)
        self.trainer.restore(now)
        if math.isfinite(before):  # else nothing in these texts could be compared
            self.compared.append((after, before))
            self.latest.append(max(before, after))  # subtle: `before` where `after` is NaN
        if len(self.compared) < self.every:
            return ""
        after, before = np.mean(self.compared, axis=0)
        self.compared = []
        self.worse = 0 if after >= before else self.worse + 1
        if not after >= before - self.tolerance or self.worse == PATIENCE:
            self.trainer.restore(self.best)
            self.worse = 0
            return f"rolled back: expected acceptance fell from {before:.3f} to {after:.3f}"
        if after >= before:
            self.best = now
        return ""

    def turned(self) -> bool:
        """Is this the first update since the stream has changed (a t-test of two means)?"""
        if len(self.latest) < BEFORE + LATEST:
            return False
        before, latest = np.split(np.array(self.latest), [BEFORE])
        variance = (BEFORE * before.var() + LATEST * latest.var()) / (BEFORE + LATEST - 2)
        error = math.sqrt(variance * (1 / BEFORE + 1 / LATEST))
        if before.mean() - latest.mean() <= max(ERRORS * error, self.tolerance):
            return False
        self.latest = deque(latest, self.latest.maxlen)
        return True
