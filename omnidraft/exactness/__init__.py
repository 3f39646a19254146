"""Is what a rule writes the target's own distribution? By enumeration, without a single sample.

>>> from omnidraft.exactness import check
>>> check("lifted", 300).worst < 1e-12  # total variation; within a minute
"""

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from .enumerate import Draws, distribution_of, total_variation
from .worlds import World

__all__ = ["Draws", "Finding", "World", "check", "distribution_of", "total_variation"]

TOLERANCE = 1e-12  # of an exact rule, total variation: what the rounding of float64 leaves


@dataclass(frozen=True)
class Finding:
    """What the enumeration of many worlds under one rule found."""

    rule: str
    distances: list[float]  # total variation, per world
    worst: float  # of the distances
    mean: float
    runs: int  # of the loop; two that a round leaves in one state go on as one
    conditions: Counter[str]  # in how many worlds each occurred


def check(rule: str, worlds: int, seed: int = 0) -> Finding:
    """Enumerate the loop under one of `verification.RULES` in 1 or more random worlds.

    The worlds are those of `seed`, `seed` + 1, ...; every rule sees the same ones.
    """
    distances, runs, conditions = [], 0, Counter()
    for number in range(seed, seed + worlds):
        world = World(number, rule)
        distances.append(total_variation(distribution_of(world.run), world.truth()))
        runs += world.runs
        conditions.update(sorted(world.conditions()))
    return Finding(rule, distances, max(distances), fmean(distances), runs, conditions)
