"""The guard of online learning, against instability on new data (arXiv 2507.02659, limitation 1).

Only weights that proved better draft (this project's own): at first the untouched ones, then
weights with a higher expected acceptance on texts that neither had learned from: the same texts, so
the error is that of paired samples. Learning continues from weights that are still being tried.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..losses import Example
from .training import under

WINDOW = 16  # updates whose new texts judge the same weights; after that, later weights are tried
SURE = 3.0  # a difference must exceed so many standard errors: with many looks some are lucky
HARM = 0.01  # a smaller loss is no instability: the first steps, being rough, often cost a little
SPREAD = 0.03  # the least spread of the difference per text, with too few texts to estimate it


class Guard:
    """Keeps a trainer's best weights, which draft; asked before each update, with its new texts.

    patience: updates without better weights until a whole window that is not better rolls back.
    """

    def __init__(self, trainer: Any, patience: int) -> None:
        self.trainer = trainer
        self.patience = patience
        self.asked = 0
        self.best = None  # the state that drafts
        self.tried = None  # the state that is tried on new texts
        self.compared: list[Any] = []  # acceptances (2, texts) of the best and the tried weights

    def look(self, pair: Any, texts: Sequence[Example], now: dict[str, np.ndarray]) -> bool | None:
        """Compare the weights being tried (if there are none, the current ones, `now`) to the best.

        True: better beyond the error, and now the best. None: undecided. False: worse beyond the
        error and `HARM`, NaN, or not better for too long; the best are restored. Texts must be new
        to both.
        """
        if self.best is None:
            # subtle: of a resumed trainer, only the served weights have proved better
            served = under("served.", now)
            self.best = now | {f"parameters.{name}": array for name, array in served.items()}
            return None
        self.tried = self.tried or now
        found = []
        for state in self.best, self.tried:
            self.trainer.restore(state)
            found.append([self.trainer.expected_acceptance(pair, [text]) for text in texts])
        self.trainer.restore(now)
        found = np.array(found)[:, np.isfinite(found[0])]  # drop texts without a comparison
        if not found.size:
            return None
        self.compared.append(found)
        self.asked += 1
        before, after = np.concatenate(self.compared, axis=1)
        gain = (after - before).mean()
        sure = SURE * error(after - before)
        looks = len(self.compared)  # one may be unlucky
        late = self.asked >= self.patience and looks >= min(WINDOW, self.patience)
        better = gain > sure
        worse = not gain >= -max(sure, HARM) or late and gain <= 0  # NaN too
        if better:
            self.best = self.tried
        if worse:
            # keep Adam's moments: its first steps are large and rough, and need not be repeated
            moments = {k: v for k, v in now.items() if k.startswith("optimizer.")}
            self.trainer.restore(self.best | moments)
        decided = better or worse
        if decided or looks == WINDOW:
            self.tried = None
            self.compared = []
        if not decided:
            return None
        self.asked = 0
        return bool(better)


def error(differences: np.ndarray) -> float:
    """The standard error of the mean of paired differences (n,), also for small n.

    It divides by n - 5, not n - 1: many looks are made, and at first a few texts agree by chance.
    For up to 5 texts their spread counts only if it is larger than SPREAD.
    """
    n = len(differences)
    if n > 5:
        return differences.std() / (n - 5) ** 0.5
    return max(SPREAD, differences.std()) / n ** 0.5
