"""The stream of training text: examples by index, packed into rows of tokens, resumable at any example.

Example i of a corpus depends on (seed, i) alone, so a run that stops at example i goes on with example i and no
text is ever repeated (the standard library's own text aside, of which there is only so much).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from omnidraft.tokenizer import Tokenizer

from . import code_text, math_text, stdlib_text, story_text

# Shares of examples (not of tokens): the targets see everything, the general drafter the library and one per cent of tasks.
TARGET_MIX = {"math": 0.50, "code": 0.28, "text": 0.16, "library": 0.06}
GENERAL_MIX = {"math": 0.003, "code": 0.003, "text": 0.004, "library": 0.99}
NUMBER_WEIGHT = 2.0  # digits of a response: few tokens, but the ones that must be right
PROMPT_WEIGHT = 0.25  # the loss of prompt tokens: names and numbers that nobody could foretell teach little


@dataclass
class Corpus:
    """Examples by index: `corpus.example(7)` is always the same dictionary with `prompt` and `response`."""

    mix: dict[str, float]
    seed: int = 0
    stdlib: stdlib_text.Library = field(default_factory=stdlib_text.Library)

    def example(self, index: int, held_out: bool = False) -> dict:
        """Example `index`, drawn by a generator seeded with (seed, index) only."""
        rng = random.Random(zlib.crc32(f"{self.seed}/{index}/{held_out}".encode()))
        task = rng.choices(list(self.mix), list(self.mix.values()))[0]
        if task == "library":
            return self.stdlib.generate(rng, held_out)
        return {"math": math_text, "code": code_text, "text": story_text}[task].generate(rng, held_out)


def encode(tokenizer: Tokenizer, example: dict) -> tuple[list[int], list[float]]:
    """Ids of beginning + prompt + response + end, and the loss weight of each id as something to predict."""
    bos = list(tokenizer.roles.get("bos", ()))[:1]
    prompt = tokenizer.encode(example["prompt"]) if example["prompt"] else []
    response = (tokenizer.encode_continuation if prompt else tokenizer.encode)(example["response"])
    ids = bos + prompt + response + [tokenizer.roles["eos"][0]]
    spelled = (tokenizer.token_bytes[token] or b"" for token in response)
    weights = [NUMBER_WEIGHT if data.strip().isdigit() else 1.0 for data in spelled]
    return ids, [PROMPT_WEIGHT] * (len(bos) + len(prompt)) + weights + [1.0]


def rows(corpus: Corpus, tokenizer: Tokenizer, length: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Rows of `length` + 1 ids and `length` weights, each beginning with an example's first token, and the next index.

    An example that a row's end cuts is not continued in the next row.
    """
    index = start
    while True:
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) <= length:
            more_ids, more_weights = encode(tokenizer, corpus.example(index))
            ids += more_ids
            weights += more_weights
            index += 1
        yield np.array(ids[: length + 1]), np.array(weights[1 : length + 1], dtype=np.float32), index
