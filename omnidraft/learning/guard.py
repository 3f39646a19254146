"""The guard of online learning, against instability on new data (arXiv 2507.02659, limitation 1).

Only weights that were found better draft (this project's own): at first the untouched ones, then
those that expected more acceptance on texts which neither had learned from. It also finds a change
of the stream: texts on which even the better weights expect much less acceptance than before.
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
SURE = 2.0  # standard errors that a difference of two weights must have
SPREAD = 0.01  # least standard deviation of the difference on a text: two texts may agree by chance
LATEST, BEFORE = 4, 8  # updates that are compared to find a change of the stream
ERRORS = 5.0  # standard errors of the difference; reached by one update in 5,000 without a change


class Guard:
    """Keeps a trainer's best weights, which draft; asked before every update, with its new texts.

    patience: updates without better weights after which those that are no better are rolled back.
    """

    def __init__(self, trainer: Any, patience: int) -> None:
        self.trainer, self.patience = trainer, patience
        self.best: dict[str, np.ndarray] | None = None
        self.compared: deque[Any] = deque(maxlen=patience)  # (2, texts): present weights, best ones
        self.latest: deque[float] = deque(maxlen=BEFORE + LATEST)  # the larger mean, per update

    def look(self, pair: Any, texts: Sequence[Example], now: dict[str, np.ndarray]) -> bool | None:
        """Compare the present weights, of state `now`, with the best ones on texts new to both.

        True: they are better beyond the error, and the best from now on. False: they are worse, or
        not better for too long, and the best ones are restored. None: not decided yet.
        """
        if self.best is None:
            self.best = now
            return None
        found = []
        for state in now, self.best:
            self.trainer.restore(state)
            found.append([self.trainer.expected_acceptance(pair, [text]) for text in texts])
        self.trainer.restore(now)
        found = np.array(found)[:, np.isfinite(found[1])]  # elsewhere nothing could be compared
        if not found.size:
            return None
        found = np.nan_to_num(found)  # weights without a finite value accept nothing
        self.compared.append(found)
        self.latest.append(found.mean(axis=1).max())
        after, before = np.concatenate(self.compared, axis=1)
        gain = (after - before).mean()
        sure = SURE * max(SPREAD, (after - before).std()) / math.sqrt(len(after))
        if abs(gain) <= sure and (gain > 0 or len(self.compared) < self.patience):
            return None
        self.compared.clear()
        if gain > 0:
            self.best = now
        else:
            self.trainer.restore(self.best)
        return bool(gain > 0)

    def turned(self) -> bool:
        """Is this the first update since the stream has changed (a t-test of two means)?"""
        if len(self.latest) < BEFORE + LATEST:
            return False
        before, latest = np.split(np.array(self.latest), [BEFORE])
        variance = (BEFORE * before.var() + LATEST * latest.var()) / (BEFORE + LATEST - 2)
        error = math.sqrt(variance * (1 / BEFORE + 1 / LATEST))
        if before.mean() - latest.mean() <= max(ERRORS * error, SPREAD):
            return False
        self.latest = deque(latest, self.latest.maxlen)
        return True
