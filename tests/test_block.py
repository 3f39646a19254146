"""Block verification on atoms: exact with accepted merges, correct probabilities, never worse than token by token."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from rounds import RoundWorld

from omnidraft import verification
from omnidraft.exactness import distribution_of, total_variation
from omnidraft.lifting import ROOT, Lifting
from omnidraft.sampling import Rows

WORLDS = 40


class Merging(RoundWorld):
    """The drafter writes a and b, the target also longer tokens; they mostly agree, so merges are accepted."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.k, self.counts = 2 + seed % 2, Counter()
        self.draft = ["a", "b"] + ["ba"] * (seed % 4 == 0)
        self.target = ["a", "b", "ab", "ba", "abb"][:3 + seed % 3]
        self.splits = {t: tuple("ab".index(c) for c in text) for t, text in enumerate(self.target)}
        self.lifting = Lifting(self.splits, {2: (1, 0)} if len(self.draft) > 2 else {}, len(self.draft))
        self._rows.clear()

    def row(self, side: str, before: tuple[int, ...]) -> np.ndarray:
        """As in `RoundWorld`, but half of the drafter's row is the distribution of p's first letter."""
        row = super().row(side, before)
        if side == "q":
            p = super().row("p", ())
            first = [sum(p[t] for t, text in enumerate(self.target) if text[0] == c) for c in "ab"]
            row = 0.5 * row + 0.5 * np.append(first, np.zeros(len(row) - 2)) / sum(first)
        return row

    def lossless(self, draws, limit=None, context=None) -> tuple[int, ...]:
        """As in `RoundWorld`, and counts merges that were accepted."""
        tokens, rows = self.draw(draws)
        atoms, origins = self.lifting.reveal(tokens, rows)
        walked, lengths = self.lifting.walk(atoms)
        rows = Rows(self.target_rows(walked), lambda row: row)
        given = atoms, origins, self.lifting, rows
        verdict = verification.lifted(*given, draws)
        self.counts["unread"] += len(rows) - len(rows._made)
        self.counts["merged"] += any(length > 1 for length in lengths[:verdict.accepted])
        alone, ended = 1.0, 0
        for step in verification.comparisons(*given):
            alone *= verification.ratio(step.target_prob, step.draft_prob)
            ended += step.ends >= 0
            self.counts["rescued"] += step.ends >= 0 and ended <= verdict.accepted and alone < step.after - 1e-9
            assert step.after >= alone - 1e-12
        return tuple(verdict.emitted)


@pytest.fixture(scope="module")
def worlds() -> list[Merging]:
    return [Merging(seed) for seed in range(WORLDS)]


def test_exact_where_merges_are_kept_and_blocks_rescued(worlds):
    assert max(total_variation(w.two_tokens(w.lossless), w.truth()) for w in worlds) < 1e-12
    assert sum(w.counts["merged"] > 0 for w in worlds) > 0.9 * WORLDS
    assert sum(w.counts["rescued"] > 0 for w in worlds) > WORLDS / 2, [w.counts for w in worlds]


def test_r_is_the_probability_that_what_was_drafted_so_far_is_kept(worlds):
    """Over everything that may be drafted after it; also with expansions and with a stop rule that sees the draws."""
    compared = 0
    for world in worlds[:12]:
        def run(draws, world=world):
            tokens, rows = world.draw(draws)
            atoms, origins = world.lifting.reveal(tokens, rows)
            probs = world.target_rows(world.lifting.walk(atoms)[0])
            steps = [*verification.comparisons(atoms, origins, world.lifting, probs)]
            kept = len(verification.keep(steps, origins, world.lifting, probs, draws)[0])
            # What is known at a comparison: the atoms so far, and where the draft tokens begin among them.
            seen = [(tuple(atoms[:s.place + 1]), tuple(prefix for _, prefix in origins[:s.place + 1]), i, s.after)
                    for i, s in enumerate(steps)]
            return tuple(seen), kept

        drafted, held = defaultdict(float), defaultdict(float)
        for (seen, kept), weight in distribution_of(run).items():
            for i, place in enumerate(seen):
                drafted[place] += weight
                held[place] += weight * (i < kept)
        for *_, r in drafted:
            compared += 0 < r < 1
        assert all(held[place] == pytest.approx(place[-1] * weight, abs=1e-12) for place, weight in drafted.items())
    assert compared > 50


def test_a_draft_that_is_too_likely_first_and_too_unlikely_then_is_kept_whole():
    # Target and drafter have the tokens 0 and 1: the pair (1, 0) has p = 0.2 · 0.8 > q = 0.4 · 0.3.
    lifting = Lifting({0: (0,), 1: (1,)}, {}, 2)
    p = np.array([[0.8, 0.2]] * 3)
    atoms, origins = lifting.reveal([1, 0], [np.array([0.6, 0.4]), np.array([0.3, 0.7])])
    steps = [*verification.comparisons(atoms, origins, lifting, p)]
    assert [step.after for step in steps] == pytest.approx([0.5, 1.0]) and [step.node for step in steps] == [ROOT, ROOT]
    assert verification.acceptances(atoms, origins, lifting, p) == pytest.approx([0.5, 1.0])
    written = distribution_of(lambda draws: tuple(verification.lifted(atoms, origins, lifting, p, draws).emitted))
    assert {tokens[:2] for tokens in written} == {(1, 0)}


def test_labels_multiply_to_the_least_r_so_far(worlds):
    below = 0
    for world in worlds:
        tokens, rows = world.draw(verification.Uniforms(np.random.default_rng(world.k)))
        atoms, origins = world.lifting.reveal(tokens, rows)
        given = atoms, origins, world.lifting, world.target_rows(world.lifting.walk(atoms)[0])
        after = {step.place: step.after for step in verification.comparisons(*given)}
        labels = verification.acceptances(*given)
        assert all(0 <= label <= 1 for label in labels)
        assert np.cumprod(labels) == pytest.approx(np.minimum.accumulate([*after.values()]))
        below += labels[-1:] > [0.999999] and [*after.values()][-1] > min(after.values())
    assert below
