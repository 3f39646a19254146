"""Figures from rounds, computed by hand."""

from __future__ import annotations

import pytest

from omnidraft.decoding import Round
from omnidraft.metrics import Summary, computed_speedup, speedup, summarize

FIRST = Round(draft_tokens=[1, 2, 3, 4], proposals=[7, 8], spans=[2, 1], accepted=1, emitted=[7, 9],
              kinds=["merged", "recovered"], draft_kept=2,
              seconds={"prefill": 5.0, "draft": 1.0, "target": 2.0, "other": 0.5})
SECOND = Round(draft_tokens=[5, 6], proposals=[5, 6], spans=[1, 1], accepted=2, emitted=[5, 6, 1],
               kinds=["accepted", "accepted", "bonus"], draft_kept=2,
               seconds={"draft": 0.5, "target": 2.0, "other": 0.5})
UNDRAFTED = Round(emitted=[3], kinds=["bonus"], seconds={"target": 3.5}, done=True)
PLAIN = [Round(emitted=[t], kinds=["bonus"], seconds={"target": 3.0, "other": 1.0}) for t in range(5)]


def test_sums_and_ratios():
    summary = summarize(iter([FIRST, SECOND, UNDRAFTED]))
    assert (summary.tokens, summary.rounds, summary.drafted, summary.draft_kept) == (6, 3, 6, 4)
    assert (summary.proposed, summary.accepted, summary.merges) == (4, 3, 1)
    assert summary.seconds == 10.0  # without the prefill
    assert summary.tokens_per_second == pytest.approx(0.6)
    assert summary.block_efficiency == 2
    assert summary.acceptance_draft == pytest.approx(4 / 6)
    assert summary.acceptance_proposed == pytest.approx((1 / 2 + 2 / 2) / 2)  # only rounds that proposed
    assert summary.drafted_per_round == 2
    assert summary.overhead == pytest.approx(1.0 / 10)


def test_speedups():
    fast, slow = summarize([FIRST, SECOND, UNDRAFTED]), summarize(PLAIN)
    assert slow.block_efficiency == 1 and slow.acceptance_draft == slow.acceptance_proposed == 0
    assert speedup(fast, slow) == pytest.approx(0.6 / 0.25)
    assert computed_speedup(fast, slow) == pytest.approx(2 / ((9 / 3) / 3))  # tau / (round latency / step latency)


def test_nothing_gives_zeros_and_json_gets_every_figure():
    empty = summarize([])
    figures = vars(empty)
    assert set(figures.values()) == {0}
    assert set(Summary.__dataclass_fields__) == set(figures) and "tokens_per_second" in figures
    assert speedup(empty, empty) == computed_speedup(empty, empty) == 0
