"""Training rows: examples packed next to each other, written in chunks that a training run reads one by one.

    python -m recipes.rows FOLDER 7 250000 chunk_00007.npz world      # tokenizer, seed, tokens, corpus

A row holds only whole examples; `group` numbers them, so that no example attends to its neighbours. Of the world's
examples only responses are learned. Digits of sums and the words that a story is about have twice the weight: they
are few, but must be right.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import numpy as np

from omnidraft.text.tokenizer import Tokenizer

from . import general, world

LENGTH = 256  # tokens in a row
OPEN_ROWS = 48  # rows that are filled at the same time
WEIGHT = 2  # weight of a token in such a number or word


def encode(tokenizer: Tokenizer, example: dict) -> tuple[list[int], list[int]]:
    """Ids of an example and the loss weight of each id as something to predict."""
    bos = list(tokenizer.roles.get("bos", ()))[:1]
    prompt = tokenizer.encode(example["prompt"])
    response = tokenizer.encode_continuation(example["response"])
    pieces = [tokenizer.token_bytes[token] or b"" for token in response]
    ends = list(accumulate(len(piece) for piece in pieces))
    weighty = rb"\d+" if example["task"] == "math" else "|".join(example.get("topics", ["$^"])).encode()
    heavy = [match.span() for match in re.finditer(rb"\b(?:" + weighty + rb")\b", b"".join(pieces))]
    weights = [WEIGHT if any(start < end and end - len(piece) < stop for start, stop in heavy) else 1
               for piece, end in zip(pieces, ends, strict=True)]
    ids = bos + prompt + response + [tokenizer.roles["eos"][0]]
    return ids, [0] * len(bos) + [example.get("prompt_weight", 0)] * len(prompt) + weights + [1]


def examples(tokenizer: Tokenizer, rng: random.Random, tokens: int, length: int, corpus: ModuleType
             ) -> Iterator[tuple[list[int], list[int]]]:
    """Encoded examples of at most `length` tokens, until there are about `tokens`; tasks by their share in the mix."""
    spent = dict.fromkeys(corpus.MIX, 0)
    while sum(spent.values()) < tokens:
        task = min(spent, key=lambda name: spent[name] / corpus.MIX[name])
        example = encode(tokenizer, corpus.TASKS[task](rng))
        size = len(example[0])
        if size > length:
            continue
        spent[task] += size
        yield example


def pack(encoded: Iterable[tuple[list[int], list[int]]], length: int, rng: random.Random) -> dict[str, np.ndarray]:
    """Encoded examples in rows: `ids`, `weight` and `group` (0 where a row is empty)."""
    finished: list[list[tuple[list[int], list[int]]]] = []
    unfinished: list[list[tuple[list[int], list[int]]]] = []

    def filled(row: list[tuple[list[int], list[int]]]) -> int:
        return sum(len(ids) for ids, _ in row)

    for example in encoded:
        size = len(example[0])
        row = max((row for row in unfinished if filled(row) + size <= length), key=filled, default=[])
        if not row:
            unfinished.append(row)
        row.append(example)
        if len(unfinished) > OPEN_ROWS:
            unfinished.sort(key=filled)
            finished.append(unfinished.pop())
    finished += unfinished
    rng.shuffle(finished)
    arrays = {name: np.zeros((len(finished), length), dtype)
              for name, dtype in (("ids", np.int16), ("weight", np.int8), ("group", np.int16))}
    for i, row in enumerate(finished):
        at = 0
        for number, (ids, weights) in enumerate(row, 1):
            here = slice(at, at + len(ids))
            arrays["ids"][i, here], arrays["weight"][i, here], arrays["group"][i, here] = ids, weights, number
            at += len(ids)
    return arrays


def build(tokenizer: Tokenizer, seed: int, tokens: int, length: int = LENGTH, corpus: ModuleType = world
          ) -> dict[str, np.ndarray]:
    """About `tokens` tokens of a corpus in rows."""
    rng = random.Random(seed)
    return pack(examples(tokenizer, rng, tokens, length, corpus), length, rng)


if __name__ == "__main__":
    folder, seed, tokens, out, name = sys.argv[1:]
    part = Path(out).with_suffix(".part.npz")  # written completely or not at all
    corpus = {"world": world, "general": general}[name]
    np.savez(part, **build(Tokenizer.load(folder), int(seed), int(tokens), corpus=corpus))
    os.replace(part, out)
