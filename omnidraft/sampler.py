"""How the models' logits become tokens for one text, and what depends on where their rows are.

The loop asks only this; with `sampler_torch` in its place everything stays on the models' device.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import sampling_fast
from .sampling import NO_FILTERS, Rows, Uniforms, best, mask, process

LEAST = -6e4  # fits float16; least logit of an allowed token, even if the model rules it out


class Device:
    """What else depends on where the rows are: in arrays here, on a device in the twin."""

    to_numpy = staticmethod(np.asarray)

    def new_cache(self, model: Any) -> Any:
        """A cache with which `model.forward` returns logits of this kind."""
        return model.new_cache()

    def allow(self, ids: Sequence[int], model: Any) -> np.ndarray:
        """(2, V): a lower bound for logits, then what to add to them: 0 for `ids`, else -inf."""
        made = np.full((2, model.vocab_size), [[LEAST], [-np.inf]], np.float32)
        made[1, ids] = 0.0
        return made

    def spread(self, row: np.ndarray, direct: Any, size: int) -> np.ndarray:
        """Map a drafter's row (V_q,) to the target's tokens (V_p = size,) by the direct map."""
        return direct.spread(row, size)

    def lifting(self, lifting: Any, model: Any) -> Any:
        """The lifting for rows of this kind, on the model's device."""
        return lifting

    def finished(self, array: np.ndarray) -> np.ndarray:
        """Wait until the array is computed, so that a model's time ends with its own work."""
        return array


class Sampler(Device):
    """How the models' logits become tokens for one text: temperature, filters, and the draws.

    Temperature 0 takes the argmax; its rows are the probabilities at temperature 1.
    """

    draws_ids = True  # does `draw` return ids? The twin's are tensors: reading them takes time
    best = staticmethod(best)

    def __init__(self, uniforms: Uniforms, temperature: float = 1.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0) -> None:
        self.uniforms = uniforms
        self.temperature = temperature
        self.settings = (1.0, *NO_FILTERS)  # at temperature 0
        if temperature:
            self.settings = (temperature, top_k, top_p, min_p)

    @staticmethod
    def process(logits: np.ndarray, *settings: float) -> np.ndarray:
        """Like the function `process`; without a filter, at temperature 1, by the fast form."""
        if settings == (1.0, *NO_FILTERS):
            probs = sampling_fast.softmax(logits)
            if probs is not None:  # None: these logits need the shift
                return probs
        return process(logits, *settings)

    def rows(self, logits: np.ndarray, size: int) -> Sequence[np.ndarray]:
        """The distributions (n, V) for logits (n, V), over a tokenizer's `size` ids."""
        return Rows(mask(logits, size), lambda row: self.process(row, *self.settings))

    def choices(self, logits: np.ndarray, size: int) -> Iterable[int]:
        """The token that the model itself chooses for each row of logits (n, V)."""
        if self.temperature:
            return self.uniforms.samples(self.rows(logits, size))
        return self.best(mask(logits, size))

    def draw(self, rows: Rows, likeliest: bool = False) -> int:
        """A token from the first of `rows`: drawn, or the argmax (temperature 0 or `likeliest`)."""
        if likeliest or not self.temperature:  # needs no probabilities
            return next(best(rows.items[:1]))
        return self.uniforms.choose(rows[0])

    def read(self, token: int, rows: Rows) -> tuple[int, float, float]:
        """A drawn token, its probability in the first row (V,), and that row's L2 norm."""
        row = rows[0]
        return token, float(row[token]), float(row @ row) ** 0.5

    def settle(self, drawn: list[int], ends: Sequence[int]) -> list[int]:
        """The drawn tokens up to the first end token (here nothing follows it: each was read)."""
        return drawn
