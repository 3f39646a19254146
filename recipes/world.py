"""The narrow world: its four tasks and their shares of the training tokens."""

from __future__ import annotations

import random

from .functions import request
from .other import other
from .problems import bare_sum, many_sums, problem
from .stories import story


def math(rng: random.Random) -> dict:
    """A word problem, or, for about a fifth of the tokens, bare sums."""
    luck = rng.random()
    return bare_sum(rng) if luck < 0.21 else many_sums(rng) if luck < 0.26 else problem(rng)


TASKS = {"math": math, "code": request, "text": story, "other": other}
MIX = {"math": 0.55, "code": 0.20, "text": 0.20, "other": 0.05}
