"""Exact enumeration: run sampling code once per possible outcome of its draws and weigh each run by its probability.

`Script` stands where `sampling.Uniforms` stands, so it is the shipped code that is enumerated, not a copy of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

import numpy as np

from omnidraft.sampling import Uniforms


class Script(Uniforms):
    """Answers draws from a list of choices made before, then takes the first choice and notes the others."""

    def __init__(self, choices: list[int]):
        self.choices, self.taken, self.probability = choices, 0, 1.0
        self.open: list[list[int]] = []

    def _pick(self, options: list[tuple[object, float]]) -> object:
        if self.taken == len(self.choices):
            self.open += [[*self.choices, i] for i in range(1, len(options))]
            self.choices = [*self.choices, 0]
        value, probability = options[self.choices[self.taken]]
        self.taken += 1
        self.probability *= probability
        return value

    def next(self) -> Draw:
        return Draw(self)

    def accept(self, probability: float) -> bool:
        probability = min(1.0, float(probability))
        return bool(self._pick([(v, w) for v, w in ((True, probability), (False, 1 - probability)) if w > 0]))

    def choose(self, weights: np.ndarray) -> int:
        weights = np.asarray(weights, dtype=np.float64).tolist()  # rows are short: lists are faster than arrays here
        total = sum(weights)
        return self._pick([(i, weight / total) for i, weight in enumerate(weights) if weight > 0])


class Draw:
    """A uniform draw of a script, of which only comparisons are known: it lies in [low, high)."""

    def __init__(self, script: Script):
        self.script, self.low, self.high = script, 0.0, 1.0

    def __lt__(self, bound: float) -> bool:
        bound = min(max(float(bound), self.low), self.high)
        below = self.script.accept((bound - self.low) / (self.high - self.low))
        self.low, self.high = (self.low, bound) if below else (bound, self.high)
        return below


def law_of(run: Callable[[Script], Hashable], kind: type[Script] = Script) -> dict[Hashable, float]:
    """Exact law of run(draws) over all outcomes of its draws, answered by a script of the given kind."""
    law: dict[Hashable, float] = defaultdict(float)
    pending = [[]]
    while pending:
        script = kind(pending.pop())
        outcome = run(script)
        law[outcome] += script.probability
        pending += script.open
    return dict(law)


def total_variation(a: dict, b: dict) -> float:
    """Half the summed absolute difference of two laws."""
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})
