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
    """A pairing that writes texts; `omnidraft.pair` makes one from names, folders or loaded models.

    >>> pair = omnidraft.pair("draft-tasks", "qwen-like")  # doctest: +SKIP
    >>> pair.generate("Once upon a time", max_new_tokens=8).text  # doctest: +SKIP
    ', there was a little fox who'
    """

    def generate(self, prompt: str, options: Options | None = None, *, seed: int = 0,
                 **settings: Any) -> Generation:
        """Continue `prompt`; `settings` are those of `Options.of` (max_new_tokens, do_sample, ...).

        >>> pair.generate("def area(", do_sample=True, temperature=0.8, seed=1)  # doctest: +SKIP
        """
        rounds: list[Round] = []
        pieces = self.stream(prompt, options, seed=seed, rounds=rounds, **settings)
        text = "".join(pieces)
        return Generation(text, [token for one in rounds for token in one.emitted], rounds)

    def stream(self, prompt: str, options: Options | None = None, *, seed: int = 0,
               rounds: list[Round] | None = None, **settings: Any) -> Iterator[str]:
        """The text of `generate` piece by piece, never cut inside a character.

        `rounds` collects the rounds. Raises OmnidraftError for a setting that will not do.
        """
        options = Options.of(**settings) if options is None else options
        if not isinstance(seed, Integral) or seed < 0:
            raise OmnidraftError(f"seed is {seed!r}, but must be a whole number of 0 or more")
        uniforms = Uniforms(np.random.default_rng(seed))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for record in speculative(self, prompt, options, uniforms):
            if rounds is not None:
                rounds.append(record)
            written = self.target.tokenizer.decode_bytes(record.emitted)
            if piece := decoder.decode(written, final=record.done):
                yield piece
