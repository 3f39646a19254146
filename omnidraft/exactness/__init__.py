"""Does a rule write the target's own distribution? Checked by enumeration, without any sampling.

>>> omnidraft.exactness.check("lifted", 300).worst < 1e-12  # total variation; under a minute
True
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from .enumerate import Draws, distribution_of, total_variation
from .worlds import World

__all__ = ["Draws", "Finding", "World", "check", "distribution_of", "total_variation"]

TOLERANCE = 1e-12  # largest total variation of an exact rule: rounding errors of float64


@dataclass(frozen=True)
class Finding:
    """The result of enumerating many worlds under one rule."""

    rule: str
    distances: list[float]  # total variation, per world
    worst: float  # of the distances
    mean: float
    runs: int  # of the loop; runs that are in the same state after a round continue as one
    conditions: Counter[str]  # in how many worlds each occurred


def check(rule: str, worlds: int, seed: int = 0, track: Callable = iter) -> Finding:
    """Enumerate the loop under one of `verification.RULES` in 1 or more random worlds.

    The worlds are those of `seed`, `seed` + 1, ...; every rule sees the same ones. Their range goes
    through `track`, which may show the progress.
    """
    distances, runs, conditions = [], 0, Counter()
    for number in track(range(seed, seed + worlds)):
        world = World(number, rule)
        distances.append(total_variation(distribution_of(world.run), world.truth()))
        runs += world.runs
        conditions.update(sorted(world.conditions()))
    return Finding(rule, distances, max(distances), fmean(distances), runs, conditions)
