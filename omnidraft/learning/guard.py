"""The guard of online learning, against instability on new data (arXiv 2507.02659, limitation 1).

Only weights that were found better draft (this project's own): at first the untouched ones, then
those that expected more acceptance on texts which neither had learned from. Both read the same
texts, so the error of the difference is that of paired samples, and much smaller than theirs.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..losses import Example

WINDOW = 8  # latest updates whose new texts decide
SURE = 3.0  # standard errors that a difference of two weights must have: many looks, few lucky ones
SPREAD = 0.03  # of the difference on a text, where there are too few texts to estimate it


class Guard:
    """Keeps a trainer's best weights, which draft; asked before every update, with its new texts.

    patience: updates without better weights after which those that are no better are rolled back.
    """

    def __init__(self, trainer: Any, patience: int) -> None:
        self.trainer, self.patience, self.asked = trainer, patience, 0
        self.best: dict[str, np.ndarray] | None = None
        self.compared: deque[Any] = deque(maxlen=WINDOW)  # (2, texts): present weights, best ones

    def look(self, pair: Any, texts: Sequence[Example], now: dict[str, np.ndarray]) -> bool | None:
        """Compare the present weights, of state `now`, with the best ones on texts new to both.

        True: they are better beyond the error, and the best from now on. False: they are much
        worse, or no better for too long, and the best ones are restored. None: not decided yet.
        """
        if self.best is None:
            self.best = now
            return None
        found = []
        for state in self.best, now:
            self.trainer.restore(state)
            found.append([self.trainer.expected_acceptance(pair, [text]) for text in texts])
        found = np.array(found)[:, np.isfinite(found[0])]  # elsewhere nothing could be compared
        if not found.size:
            return None
        self.compared.append(np.nan_to_num(found))  # weights without a finite value accept nothing
        self.asked += 1
        before, after = np.concatenate(self.compared, axis=1)
        gain, sure = (after - before).mean(), SURE * error(after - before)
        if abs(gain) <= sure and (gain > 0 or self.asked < self.patience):
            return None
        self.compared.clear()
        self.asked = 0
        if gain > 0:
            self.best = now
        else:
            # not Adam's moments: its first steps are large and rough, and need not be made again
            moments = {k: v for k, v in now.items() if k.startswith("optimizer.")}
            self.trainer.restore(self.best | moments)
        return bool(gain > 0)


def error(differences: np.ndarray) -> float:
    """The standard error of the mean of paired differences (n,), of which there may be few.

    Over n - 3 where n - 1 is usual: that is the spread of Student's t, whose own error is counted.
    """
    n = len(differences)
    return (differences.std() / math.sqrt(n - 3)) if n > 3 else SPREAD / math.sqrt(n)
