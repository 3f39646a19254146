"""How often one wording is preferred to another: what all three text generators share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

FAVOURITE = 0.6  # share of draws in which the first wording is taken without looking at the others

Option = TypeVar("Option")


def favour(rng: random.Random, options: Sequence[Option], share: float = FAVOURITE) -> Option:
    """The first option with probability `share`, else any: language has its usual phrase beside the rarer ones.

    >>> favour(random.Random(1), ["so", "thus", "hence"])
    'so'
    """
    return options[0] if rng.random() < share else rng.choice(options)
