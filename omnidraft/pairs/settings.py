"""What a text starts from: its options, as they pay for a target, and its draws."""

from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from ..options import Options
from ..sampling import Uniforms
from ..stopping import FixedLength
from ..text.errors import OmnidraftError


def uniforms_of(seed: int) -> Uniforms:
    """Draws from a seed; OmnidraftError for one that is not a whole number of 0 or more.

    >>> uniforms_of(0).accept(0.7)  # the first draw is 0.637
    True
    """
    if not isinstance(seed, Integral) or seed < 0:
        raise OmnidraftError(f"seed is {seed!r}, but must be a whole number of 0 or more")
    return Uniforms(np.random.default_rng(seed))


def usual(options: Options, target: Any) -> Options:
    """The options, without drafts if drafting cannot pay and `stop` is the default.

    A target whose `drafting_pays` is false reads each proposal in a pass of its own.
    """
    if getattr(target, "drafting_pays", True) or options.stop != type(options).stop:
        return options
    return replace(options, stop=FixedLength(0))
