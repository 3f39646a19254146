"""Exact enumeration: run sampling code once per outcome of its draws, weighted by probability.

`Draws` takes the place of `sampling.Uniforms`, so the shipped code itself is enumerated. Nothing is
assumed about how a rule uses its draws: a uniform number is an interval, and every comparison with
a bound inside it forks, so that one number may decide several questions.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..sampling import Uniforms
from ..text.errors import OmnidraftError


class Draws(Uniforms):
    """Replays given `decisions`, then takes the first possible one; `open` collects the others.

    >>> draws = Draws([])
    >>> draws.choose([0.0, 0.25, 0.75]), draws.accept(0.5), draws.probability, draws.open
    (1, True, 0.125, [[2], [1, 1]])
    """

    def __init__(self, decisions: Sequence[int], given: int = 0, share: float = 1.0) -> None:
        self.decisions, self.taken, self.probability = [*decisions], 0, share
        self.given, self.pauses = given, 0  # `share`: the probability of the first `given` ones
        self.open: list[list[int]] = []
        self.state: Hashable = None

    def pause(self, state: Any) -> bool:
        """Must the run end here? Runs with equal `state` continue as one; earlier draws expire."""
        self.pauses += 1
        if self.taken > self.given:
            self.state = json.dumps(state, default=vars)
        return self.state is not None

    def choose(self, weights: Any) -> int:
        """An index of weights (N,) with a weight above 0; OmnidraftError if there is none."""
        weights = weights.tolist() if hasattr(weights, "tolist") else weights
        if self.taken == len(self.decisions):
            possible = [i for i, weight in enumerate(weights) if weight > 0]
            if not possible:
                raise OmnidraftError("a draw has no possible outcome: the weights are NaN or all 0")
            self.open += [[*self.decisions, other] for other in possible[1:]]
            self.decisions.append(possible[0])
        made = self.decisions[self.taken]
        self.taken += 1
        if self.taken > self.given:
            self.probability *= weights[made] / sum(weights)
        return made

    def next(self) -> "Draw":
        """The next draw, about which nothing is known yet."""
        return Draw(self)


class Draw:
    """A uniform number, known to be in [low, high) from the comparisons so far."""

    __array_ufunc__ = None  # so that comparisons with NumPy scalars are handled here

    def __init__(self, draws: Draws) -> None:
        self.draws, self.low, self.high, self.made = draws, 0.0, 1.0, draws.pauses

    def __lt__(self, bound: float) -> bool:
        if self.made != self.draws.pauses:
            raise OmnidraftError("a draw made before a pause is compared after it")
        if bound <= self.low or bound >= self.high:  # NaN is neither: `choose` then raises
            return bool(bound >= self.high)
        below = self.draws.choose((bound - self.low, self.high - bound)) == 0
        self.low, self.high = (self.low, bound) if below else (bound, self.high)
        return below

    def __ge__(self, bound: float) -> bool:
        return not self < bound

    __le__, __gt__ = __lt__, __ge__  # a single number has probability 0


def distribution_of(run: Callable[[Draws], Hashable]) -> dict[Hashable, float]:
    """The exact distribution of run(draws), which must depend only on the draws.

    >>> distribution_of(lambda draws: draws.accept(0.25) or draws.accept(0.5))
    {True: 0.625, False: 0.375}
    """
    found: dict[Hashable, float] = defaultdict(float)
    states: dict[Any, Any] = {None: ([], 1.0)}
    while states:  # at one pause: state -> the first way to it, the probability of all ways to it
        now, states = states, {}
        for way, share in now.values():
            pending = [way]
            while pending:
                draws = Draws(pending.pop(), len(way), share)
                outcome = run(draws)
                pending += draws.open
                if draws.state is None:
                    found[outcome] += draws.probability
                else:
                    states.setdefault(draws.state, [draws.decisions, 0.0])[1] += draws.probability
    return dict(found)


def total_variation(one: dict[Any, float], other: dict[Any, float]) -> float:
    """Half the sum of |p - q| over all outcomes of two distributions: 0 if they are equal."""
    return float(sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other}) / 2)
