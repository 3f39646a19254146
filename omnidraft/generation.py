"""Texts by a pair: `generate` returns one, `stream` its pieces."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from .decoding import Round, speculative
from .errors import OmnidraftError
from .options import Options
from .pairing import Pairing
from .sampling import Uniforms


@dataclass(frozen=True)
class Generation:
    """A text that a pair wrote, without the prompt, its target `tokens`, and the `rounds`."""

    text: str
    tokens: list[int]
    rounds: list[Round]


class Pair(Pairing):
    """A pairing that writes texts; `omnidraft.pair` makes one."""

    def generate(self, prompt: str, options: Options | None = None, *, seed: int = 0,
                 **settings: Any) -> Generation:
        """Continue `prompt`; `settings` are those of `Options.of` (max_new_tokens, ...)."""
        rounds: list[Round] = []
        text = "".join(self.stream(prompt, options, seed=seed, rounds=rounds, **settings))
        return Generation(text, [token for record in rounds for token in record.emitted], rounds)

    def stream(self, prompt: str, options: Options | None = None, *, seed: int = 0,
               rounds: list[Round] | None = None, **settings: Any) -> Iterator[str]:
        """The text of `generate` piece by piece, never cut inside a character.

        `rounds` collects the rounds. Raises OmnidraftError for a setting that will not do.
        """
        options = options or Options.of(**settings)
        if not isinstance(seed, Integral) or seed < 0:
            raise OmnidraftError(f"seed is {seed!r}, but must be a whole number of 0 or more")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for record in speculative(self, prompt, options, Uniforms(np.random.default_rng(seed))):
            if rounds is not None:
                rounds.append(record)
            written = self.target.tokenizer.decode_bytes(record.emitted)
            if piece := decoder.decode(written, final=record.done):
                yield piece
