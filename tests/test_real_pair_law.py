"""The distribution of the written tokens for two published models: 20,000 texts against the target's exact distribution.

Every text is written by the package's own loop; only the logits after a text are cached, so that the models run once for each.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from vocabularies import REAL

from omnidraft import translation, verification
from omnidraft.decoding import speculative
from omnidraft.engine import load as models
from omnidraft.exactness.tables import Cache
from omnidraft.options import Options
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms, mask, process
from omnidraft.stopping import FixedLength

TEXTS, FEW, PROMPT = 20_000, 2_000, 'She said, "'
OPTIONS = Options(verify="lossless", stop=FixedLength(2), temperature=1.0, max_new_tokens=3)
DIRECTIONS = [("stories260K", "babyllama-tok361"), ("babyllama-tok361", "stories260K")]

BROKEN = {"residual": lambda p, q, scale=1.0: p,  # faults: the token after a rejection; how often tokens are kept
          "ratio": lambda p, q: max(0.9, min(1.0, p / q)) if p > 0 < q else 0.0}


class Remembered:
    """A model that computes the logits after each text only once."""

    def __init__(self, name: str):
        self.model = models.load(REAL / "models" / name)
        for attribute in ("tokenizer", "name", "vocab_size", "context_size", "eos_ids"):
            setattr(self, attribute, getattr(self.model, attribute))
        self.rows: dict[tuple[int, ...], np.ndarray] = {}
        self.cache, self.fed = self.model.new_cache(), ()

    def new_cache(self) -> Cache:
        return Cache()

    def forward(self, ids: list[int], cache: Cache, rows: int = 1) -> np.ndarray:
        cache.ids += ids
        return np.stack([self.row(tuple(cache.ids[:len(cache.ids) - back])) for back in range(rows - 1, -1, -1)])

    def row(self, ids: tuple[int, ...]) -> np.ndarray:
        """Logits (V,) after `ids`."""
        if ids not in self.rows:
            kept = min(translation.common_prefix(self.fed, ids), len(ids) - 1)
            self.cache.rewind(kept)
            self.fed, self.rows[ids] = ids, self.model.forward(list(ids[kept:]), self.cache)[0]
        return self.rows[ids]

    def probs(self, ids: list[int]) -> np.ndarray:
        """The exact distribution (V,) of the token after `ids`."""
        return process(mask(self.row(tuple(ids)).copy(), self.tokenizer.size))


@pytest.fixture(scope="module")
def real() -> dict[str, Remembered]:
    if not (REAL / "models").is_dir():
        pytest.skip("no real models here")
    return {name: Remembered(name) for name in DIRECTIONS[0]}


def first_two(pair: Pair, count: int, seed: int) -> Counter:
    """How often each pair of first tokens was written in `count` texts."""
    uniforms, found = Uniforms(np.random.default_rng(seed)), Counter()
    for _ in range(count):
        written: list[int] = []
        for record in speculative(pair, PROMPT, OPTIONS, uniforms):
            written += record.emitted
            if len(written) >= 2:
                break
        found[tuple(written[:2])] += 1
    return found


def p_value(found: Counter, exact: dict[tuple[int, ...], float], seed: int = 0) -> float:
    """p of a chi-squared test, by simulation; cells expected less than 5 times are merged into one."""
    total, big = found.total(), [cell for cell, p in exact.items() if p * found.total() >= 5]
    probs = np.array([exact[cell] for cell in big] + [max(0.0, 1 - sum(exact[cell] for cell in big))])
    seen = np.array([found[cell] for cell in big] + [total - sum(found[cell] for cell in big)])
    expected = probs / probs.sum() * total

    def statistic(counts: np.ndarray) -> np.ndarray:
        return ((counts - expected)**2 / np.maximum(expected, 1e-9)).sum(-1)

    drawn = statistic(np.random.default_rng(seed).multinomial(total, probs / probs.sum(), 4000))
    return float((1 + (drawn >= statistic(seen)).sum()) / (1 + len(drawn)))


def exact_laws(target: Remembered) -> tuple[dict, dict]:
    """The distribution of the first token, and of the first two."""
    ids = target.tokenizer.encode(PROMPT, bos=True)
    first = {(token,): p for token, p in enumerate(target.probs(ids).tolist()) if p > 0}
    both = {}
    for (token,), p in first.items():
        if token in target.eos_ids:
            both[token,] = p
        elif p > 1e-6:
            both |= {(token, after): p * q for after, q in enumerate(target.probs([*ids, token]).tolist())}
    return first, both


@pytest.mark.parametrize("draft, target", DIRECTIONS)
def test_lossless_writes_the_targets_law_and_broken_rules_are_found(monkeypatch, real, draft: str, target: str):
    pair, (first, both) = Pair(real[draft], real[target]), exact_laws(real[target])

    def tested(count: int) -> tuple[float, float]:
        """p-values for the first token and for the first two."""
        found, ones = first_two(pair, count, seed=1), Counter()
        for tokens, times in found.items():
            ones[tokens[:1]] += times
        return p_value(ones, first), p_value(found, both)

    assert min(tested(TEXTS)) > 0.01
    for name, broken in BROKEN.items():
        with monkeypatch.context() as patch:
            patch.setattr(verification, name, broken)
            assert max(tested(FEW)) < 0.001, name
