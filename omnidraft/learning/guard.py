"""The guard of online learning: what answers the paper's limitation 1, instability on new data (arXiv 2507.02659).

Texts are new when they arrive, so the first of every update serve as a test before they are learned from. The acceptance that
is expected on them decides two things.

*Are these weights still the best?* Where the present weights expect much less on them than the best ones so far (at first those
that learning began with), or a little less time after time, these come back and learning goes on at a quarter of the rate,
which so finds its way down to what a good drafter bears (but not to nothing, for what the stream brings may change slowly).

*Are the texts still of the same kind?* Where even the better of the two weights expect much less on the latest than they did
before, it is not the weights that have become worse: the stream has turned to something else, and texts from before the turn
would only slow the drafter down. They are no longer replayed, and the rate is the whole one again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..losses import Example

SLOWER, SLOWEST = 1 / 4, 1 / 64  # of the rate: what a roll-back leaves of it, and all of them together
PATIENCE = 5  # decisions in a row that find the present weights no better; between equals, one run of so many in 62 decisions
LATEST, BEFORE = 4, 8  # updates that are compared to find a turn of the stream
ERRORS = 5.0  # standard errors of the difference that make it one; on texts of one kind one update in 5,000 does


class Guard:
    """Keeps the best weights of a trainer; asked before every update with its new texts.

    every: updates between two decisions about the weights. tolerance: by which the expected acceptance may fall.

    >>> guard = Guard(trainer, every=4, tolerance=0.01)
    >>> note = guard.look(pair, texts, trainer.state())  # before the trainer's step on these texts  # doctest: +SKIP
    """

    def __init__(self, trainer: Any, every: int, tolerance: float) -> None:
        self.trainer, self.every, self.tolerance = trainer, every, tolerance
        self.best: dict[str, np.ndarray] | None = None
        self.worse = 0  # decisions in a row that found the present weights no better
        self.compared: list[tuple[float, float]] = []  # expected acceptance of new texts, with the present and the best weights
        self.latest: deque[float] = deque(maxlen=BEFORE + LATEST)  # the larger of the two for each update, since the last turn

    def look(self, pair: Any, texts: Sequence[Example], now: dict[str, np.ndarray]) -> str:
        """Compare the present weights, of state `now`, with the best ones on texts that neither has learned from, and keep the
        better; a note where the best came back."""
        if self.best is None:
            self.best = now
            return ""
        after = self.trainer.expected_acceptance(pair, texts)
        self.trainer.restore(self.best)
        before = self.trainer.expected_acceptance(pair, texts)
        self.trainer.restore(now)
        if math.isfinite(before):  # else nothing in these texts could be compared
            self.compared.append((after, before))
            self.latest.append(max(before, after))  # `before` where `after` is no number
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
        """Whether the latest texts are of another kind than those before (a t-test of two means); said once."""
        if len(self.latest) < BEFORE + LATEST:
            return False
        before, latest = np.split(np.array(self.latest), [BEFORE])
        variance = (BEFORE * before.var() + LATEST * latest.var()) / (BEFORE + LATEST - 2)
        error = math.sqrt(variance * (1 / BEFORE + 1 / LATEST))
        if before.mean() - latest.mean() <= max(ERRORS * error, self.tolerance):
            return False
        self.latest = deque(latest, self.latest.maxlen)
        return True
