"""Losslessness by exact enumeration on random small vocabularies: the law of the first two tokens against the target's.

Vocabularies have merges (target tokens that are several draft tokens), expansions (draft tokens that are several target
tokens), partial coverage, unmappable tokens, two tokens with one split, and contexts to heal.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from enumeration import law_of, total_variation

from omnidraft import verification
from omnidraft.lifting import build_lifting
from omnidraft.translation import Direct, merge

VOCABULARIES = 320
TEXTS = [part for n in (1, 2, 3) for part in map("".join, itertools.product("ab", repeat=n))]


class World:
    """Two random vocabularies over the alphabet {a, b}, with random next-token laws for both models."""

    def __init__(self, seed: int):
        rng = self.rng = np.random.default_rng(seed)
        self.k = 1 + seed % 3
        size = int(rng.integers(3, 6)), int(rng.integers(3, 7))
        weights = np.array([{1: 6.0, 2: 2.0, 3: 1.0}[len(text)] for text in TEXTS])  # short tokens make long ones spellable
        self.draft = sorted(rng.choice(len(TEXTS), size[0], replace=False, p=weights / weights.sum()))
        self.target = sorted(rng.choice(len(TEXTS), size[1], replace=False, p=weights / weights.sum()))
        self.draft = [TEXTS[i] for i in self.draft]
        self.target = [TEXTS[i] for i in self.target] + ["a"]  # one byte string twice
        self.draft_to_target = np.array([self.target.index(s) if s in self.target else -1 for s in self.draft])
        self.splits = {}
        for token, text in enumerate(self.target):
            ways = [(self.draft.index(text),)] if text in self.draft else list(self.cuts(text, self.draft))
            if ways and (len(ways[0]) == 1 or rng.random() < 0.8):
                self.splits[token] = ways[int(rng.integers(len(ways)))]
        self.spellings = {}
        for token, text in enumerate(self.draft):
            ways = list(self.cuts(text, self.target))
            if text not in self.target and ways and rng.random() < 0.8:
                self.spellings[token] = ways[int(rng.integers(len(ways)))]
        self.lifting = build_lifting(self.splits, self.spellings, len(self.draft))
        self.rows: dict = {}
        self.stacked: dict = {}
        self.proposed: dict = {}

    def cuts(self, text: str, vocabulary: list[str]):
        """All ways to write `text` with tokens of the vocabulary (first of each spelling)."""
        if not text:
            yield ()
        for token in {vocabulary.index(part) for part in vocabulary if text.startswith(part)}:
            for rest in self.cuts(text[len(vocabulary[token]):], vocabulary):
                yield (token, *rest)

    def law(self, side: str, prefix: tuple[int, ...]) -> np.ndarray:
        """A fixed random row for each prefix, some entries zero."""
        if (side, prefix) not in self.rows:
            size = len(self.draft if side == "q" else self.target)
            row = self.rng.dirichlet(np.full(size, 0.7)) * (self.rng.random(size) < 0.9)
            self.rows[side, prefix] = row / row.sum() if row.sum() > 0 else np.full(size, 1 / size)
        return self.rows[side, prefix]

    def draw(self, draws, allowed: np.ndarray | None = None):
        """Up to k draft tokens and their rows; drafting ends early after a token that depends on the draws so far."""
        tokens, rows = [], []
        for step in range(self.k):
            row = self.law("q", tuple(tokens))
            if allowed is not None and (step == 0 or allowed.ndim == 1):
                row = np.where(allowed if allowed.ndim == 1 else allowed[0], row, 0.0)
                if row.sum() == 0:
                    break
                row = row / row.sum()
            tokens.append(draws.choose(row))
            rows.append(row)
            if row[tokens[-1]] < 0.2:  # the confidence stop: the token that triggers it is kept
                break
        return tokens, rows

    def target_rows(self, tokens) -> np.ndarray:
        tokens = tuple(tokens)
        if tokens not in self.stacked:
            self.stacked[tokens] = np.array([self.law("p", tokens[:i]) for i in range(len(tokens) + 1)])
        return self.stacked[tokens]

    def truth(self) -> dict:
        first = self.law("p", ())
        return {(a, b): first[a] * self.law("p", (a,))[b] for a in range(len(first)) for b in range(len(first))}

    def two_tokens(self, round_) -> dict:
        """Law of the first two tokens; the second comes from p where the round wrote one only (a new round is as exact)."""
        law: dict = defaultdict(float)
        for emitted, weight in law_of(round_).items():
            if len(emitted) >= 2:
                law[emitted[:2]] += weight
            else:
                for second, p in enumerate(self.law("p", emitted)):
                    law[emitted[0], second] += weight * p
        return law

    def lossless(self, draws) -> tuple[int, ...]:
        tokens, rows = self.draw(draws)
        atoms, drawn = self.lifting.reveal(tokens, rows)
        walked, _ = self.lifting.walk(atoms)
        return tuple(verification.lifted(atoms, drawn, self.lifting, self.target_rows(walked), draws).emitted)

    def cut(self, draws, limit: int) -> tuple[int, ...]:
        """As `lossless`, with room for `limit` proposals only."""
        tokens, rows = self.draw(draws)
        atoms, drawn = self.lifting.reveal(tokens, rows)
        walked, _ = self.lifting.walk(atoms)
        return tuple(verification.lifted(atoms, drawn, self.lifting, self.target_rows(walked[:limit]), draws, limit).emitted)

    def healed(self, draws, context: int) -> tuple[int, ...]:
        """As `lossless`, but the draft begins with draft token `context`, which the text already holds."""
        allowed = np.isin(np.arange(len(self.draft)), [context, *self.lifting.longer(context)])[None]
        tokens, rows = self.draw(draws, allowed)
        if not tokens:
            tokens, rows = [context], [np.eye(len(self.draft))[context]]
        atoms, drawn = self.lifting.reveal(tokens, rows, self.lifting.paths[context])
        walked, _ = self.lifting.walk(atoms)
        return tuple(verification.lifted(atoms, drawn, self.lifting, self.target_rows(walked), draws).emitted)

    def translated(self, draws, rule: str) -> tuple[int, ...]:
        tokens, rows = self.draw(draws, self.draft_to_target >= 0 if rule == "tli" else None)
        ngrams = {} if rule == "tli" else {s: t for t, s in self.splits.items() if len(s) > 1}

        def longest(drafted, start):
            fits = [(t, len(s)) for s, t in ngrams.items() if tuple(drafted[start:start + len(s)]) == s]
            return max(fits, key=lambda fit: fit[1], default=None)

        direct = Direct(self.draft_to_target)
        made = merge(tokens, rows, direct, longest, {} if rule == "tli" else self.spellings,
                     lambda q: np.bincount(direct.targets, q[direct.drafts], len(self.target)))
        return tuple(verification.rejection_sampling(made.tokens, made.rows, self.target_rows(made.tokens), draws).emitted)

    def slem(self, draws) -> tuple[int, ...]:
        text = "".join(self.draft[token] for token in self.draw(draws)[0])
        if text not in self.proposed:
            self.proposed[text] = next(iter(self.cuts(text, self.target)), ())
        proposals = self.proposed[text]
        return tuple(verification.exact_match(proposals, draws.samples(self.target_rows(proposals))).emitted)


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [World(seed) for seed in range(VOCABULARIES)]


def test_worlds_hold_every_case(worlds):
    merges = sum(any(len(s) > 1 for s in w.splits.values()) for w in worlds)
    expansions = sum(any(len(p or ()) > 1 for p in w.lifting.paths) for w in worlds)
    unmappable = sum(any(p is None for p in w.lifting.paths) for w in worlds)
    partial = sum(len(w.lifting.order) < len(w.target) for w in worlds)
    healing = sum(any(w.lifting.longer(d) for d in range(len(w.draft))) for w in worlds)
    assert min(merges, expansions, unmappable, partial, healing) > 60, (merges, expansions, unmappable, partial, healing)


def test_lossless_is_exact(worlds):
    worst = max(total_variation(w.two_tokens(w.lossless), w.truth()) for w in worlds)
    assert worst < 1e-12


def test_lossless_is_exact_where_there_is_room_for_one_proposal(worlds):
    assert max(total_variation(w.two_tokens(lambda draws, w=w: w.cut(draws, 1)), w.truth()) for w in worlds) < 1e-12


def test_lossless_is_exact_with_healing(worlds):
    worst, cases = 0.0, 0
    for w in worlds:
        for context in range(len(w.draft)):
            if w.lifting.longer(context):
                worst = max(worst, total_variation(w.two_tokens(lambda draws, w=w, c=context: w.healed(draws, c)), w.truth()))
                cases += 1
    assert worst < 1e-12 and cases > 60


def test_tli_and_slem_are_exact(worlds):
    worst = max(total_variation(w.two_tokens(lambda draws, w=w: w.translated(draws, "tli")), w.truth())
                for w in worlds if (w.draft_to_target >= 0).any())
    assert worst < 1e-12
    assert max(total_variation(w.two_tokens(w.slem), w.truth()) for w in worlds) < 1e-12


def test_the_papers_rule_is_biased_at_temperature_above_zero(worlds):
    merging = [w for w in worlds if any(len(s) > 1 for s in w.splits.values()) and w.k > 1]
    gaps = [total_variation(w.two_tokens(lambda draws, w=w: w.translated(draws, "omnidraft")), w.truth()) for w in merging]
    assert np.mean(gaps) > 0.01 and max(gaps) > 0.1


def test_the_enumeration_sees_a_broken_rule(worlds):
    """Dropping the token that triggered the stop, or revealing a later atom's law, must show."""

    def broken(w, draws):
        tokens, rows = w.draw(draws)
        if rows[-1][tokens[-1]] < 0.2:
            tokens, rows = tokens[:-1], rows[:-1]
        atoms, drawn = w.lifting.reveal(tokens, rows)
        walked, _ = w.lifting.walk(atoms)
        return tuple(verification.lifted(atoms, drawn, w.lifting, w.target_rows(walked), draws).emitted)

    gaps = [total_variation(w.two_tokens(lambda draws, w=w: broken(w, draws)), w.truth()) for w in worlds[:60]]
    assert max(gaps) > 1e-3
