"""Writing texts, their figures, and timing several ways of writing in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from omnidraft import Options, Pair, Round, plain, speculative
from omnidraft.learning.online import Statistics
from omnidraft.metrics import summarize
from omnidraft.pairs.pace import paced
from omnidraft.sampling import Uniforms


def draws(seed: int | Sequence[int] = 0) -> Uniforms:
    """Seeded draws."""
    return Uniforms(np.random.default_rng(seed))


def write(pair: Pair, text: str, options: Options, seed: int | Sequence[int] = 0, by_default: bool = False) -> list[Round]:
    """The rounds of speculative decoding, which always drafts or, by default, where that pays."""
    way = paced if by_default else speculative
    return list(way(pair, text, options, draws(seed)))


def write_plainly(model: Any, text: str, options: Options) -> list[Round]:
    """The rounds of plain decoding."""
    return list(plain(model, model.tokenizer.encode(text, bos=True), options, draws()))


def emitted(rounds: Iterable[Round]) -> list[int]:
    """The tokens of a text."""
    return [token for record in rounds for token in record.emitted]


def efficiency(rounds: list[Round]) -> dict[str, float]:
    """Block efficiency, its standard error (rounds treated as independent), and both acceptances."""
    s = summarize(rounds)
    error = np.std([len(record.emitted) for record in rounds]) / len(rounds) ** 0.5
    found = {"block_efficiency": s.block_efficiency, "error": float(error),
             "acceptance_draft": s.acceptance_draft, "acceptance_proposed": s.acceptance_proposed}
    return {name: round(value, 3) for name, value in found.items()}


def learning_share(statistics: Statistics) -> float:
    """The share of a learner's time that was not spent on serving."""
    learning = statistics.learning_seconds
    return round(learning / (statistics.seconds + learning), 3)


def take_turns(ways: dict[str, Callable[[str], list[Round]]], texts: Sequence[str],
               repeats: int) -> dict[str, list[list[list[Round]]]]:
    """The rounds of each way of writing, by repeat and text, after one more repeat to warm up.

    The ways take turns at every text, so other work on the machine slows them all.
    """
    found: dict[str, list] = {name: [[] for _ in range(repeats + 1)] for name in ways}
    for repeat in range(repeats + 1):
        for turn, text in enumerate(texts):
            first = turn % len(ways)
            for name in [*ways][first:] + [*ways][:first]:
                found[name][repeat].append(ways[name](text))
    return {name: runs[1:] for name, runs in found.items()}
