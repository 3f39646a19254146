"""The guard of online learning, against instability on new data (arXiv 2507.02659, limitation 1).

Only weights that were found better draft (this project's own): at first the untouched ones, then
some that expected more acceptance on texts which neither had learned from. Both read the same
texts, so the error of the difference is that of paired samples. While weights are tried, learning
continues from them: what it leads to may be worse, and is tried next.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..losses import Example

WINDOW = 16  # updates whose new texts decide about the same weights; then later ones are tried
SURE = 3.0  # standard errors that a difference of two weights must have: many looks, few lucky ones
SPREAD = 0.03  # of the difference on a text, where there are too few texts to estimate it


class Guard:
    """Keeps a trainer's best weights, which draft; asked before every update, with its new texts.

    patience: updates without better weights after which those that are no better are rolled back.
    """

    def __init__(self, trainer: Any, patience: int) -> None:
        self.trainer, self.patience, self.asked = trainer, patience, 0
        self.best = self.tried = None  # states: the one that drafts, one that is tried on new texts
        self.compared: list[Any] = []  # (2, texts): the best ones, those that are tried

    def look(self, pair: Any, texts: Sequence[Example], now: dict[str, np.ndarray]) -> bool | None:
        """Compare the weights that are tried, if none the present ones `now`, with the best ones.

        The texts are new to both. True: better beyond the error, and the best from now on. False:
        much worse, NaN, or none better for too long; the best ones are restored. None: undecided.
        """
        if self.best is None:
            self.best = now
            return None
        self.tried, found = self.tried or now, []
        for state in self.best, self.tried:
            self.trainer.restore(state)
            found.append([self.trainer.expected_acceptance(pair, [text]) for text in texts])
        self.trainer.restore(now)
        found = np.array(found)[:, np.isfinite(found[0])]  # elsewhere nothing could be compared
        if not found.size:
            return None
        self.compared.append(found)
        self.asked += 1
        before, after = np.concatenate(self.compared, axis=1)
        gain, sure = (after - before).mean(), SURE * error(after - before)
        if abs(gain) <= sure and (gain > 0 or self.asked < self.patience):
            if len(self.compared) == WINDOW:
                self.compared, self.tried = [], None
            return None
        tried, self.tried, self.compared, self.asked = self.tried, None, [], 0
        if gain > 0:
            self.best = tried
        else:
            # not Adam's moments: its first steps are large and rough, and need not be made again
            moments = {k: v for k, v in now.items() if k.startswith("optimizer.")}
            self.trainer.restore(self.best | moments)
        return bool(gain > 0)


def error(differences: np.ndarray) -> float:
    """The standard error of the mean of paired differences (n,), of which there may be few.

    Over n - 3 where n - 1 is usual: that is the spread of Student's t, whose own error is counted.
    """
    return differences.std() / (n - 3) ** 0.5 if (n := len(differences)) > 3 else SPREAD / n ** 0.5
