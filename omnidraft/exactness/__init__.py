"""Is what a rule writes the target's own distribution? By enumeration, without a single sample.

>>> from omnidraft.exactness import check
>>> check("lifted", 300).worst < 1e-12  # total variation; about ten seconds
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .enumerate import Draws, distribution_of, total_variation
from .worlds import World

__all__ = ["Draws", "Finding", "World", "check", "distribution_of", "total_variation"]

TOLERANCE = 1e-12  # of an exact rule, total variation: what the rounding of float64 leaves


@dataclass
class Finding:
    """What the enumeration of many worlds under one rule found."""

    rule: str
    distances: list[float] = field(default_factory=list)  # total variation, per world
    runs: int = 0  # of the loop, one per outcome of its draws
    conditions: Counter[str] = field(default_factory=Counter)  # in how many worlds each occurred

    @property
    def worst(self) -> float:
        """The largest of the distances."""
        return max(self.distances, default=0.0)

    @property
    def mean(self) -> float:
        """Their mean."""
        return sum(self.distances) / max(1, len(self.distances))


def check(rule: str, worlds: int, seed: int = 0) -> Finding:
    """Enumerate the loop under one of `verification.RULES` in that many random worlds.

    The worlds are those of `seed`, `seed` + 1, ...; every rule sees the same ones.
    """
    found = Finding(rule)
    for number in range(seed, seed + worlds):
        world = World(number, rule)
        found.distances.append(total_variation(distribution_of(world.run), world.truth()))
        found.runs += world.runs
        found.conditions.update(world.conditions())
    return found
