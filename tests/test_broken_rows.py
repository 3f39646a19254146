"""A broken row of the target (NaN, infinite, every token ruled out) is an error exactly when plain decoding reaches it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from rounds import Judged, RoundWorld

from omnidraft import sampling, verification
from omnidraft.exactness import Draws, distribution_of, total_variation
from omnidraft.lifting import Lifting
from omnidraft.sampling import Rows
from omnidraft.text.errors import OmnidraftError

WORLDS = 12


def numpy_backend(world: RoundWorld, logits: np.ndarray):
    return verification, world.lifting, Rows(logits, sampling.process), lambda row: row


def torch_backend(world: RoundWorld, logits: np.ndarray):
    torch = pytest.importorskip("torch")
    from omnidraft import sampling_torch, verification
    rows = sampling_torch.process(torch.from_numpy(logits))
    return verification, sampling_torch.Lifting(world.lifting), rows, torch.from_numpy


@pytest.mark.parametrize("backend", [numpy_backend, torch_backend])
@pytest.mark.parametrize("broken", [np.nan, -np.inf, np.inf])
def test_lifted_reports_a_broken_row_as_often_as_plain_decoding_reaches_it(backend, broken):
    """Enumerated: the row after one token is broken, so texts that begin with it end in an error, and no other does."""
    errors = 0
    for seed in range(WORLDS):
        world = RoundWorld(seed)
        world.k = min(world.k, 2)
        bad = seed % len(world.target)  # plain decoding fails after this token

        judged: dict[tuple[int, ...], Judged] = {}

        def judge(tokens: tuple[int, ...], rows: list, world=world, bad=bad) -> Judged:
            atoms, origins = world.lifting.reveal(tokens, rows)
            walked = world.lifting.walk(atoms)[0]
            with np.errstate(divide="ignore"):
                logits = np.log(world.target_rows(walked))
            if walked[:1] == [bad]:
                logits[1:] = broken
            rules, lifting, target_rows, tensor = backend(world, logits)
            return Judged((atoms, [(tensor(row), prefix) for row, prefix in origins], lifting, target_rows), None, rules)

        def round_(draws: Draws, world=world, bad=bad, judged=judged, judge=judge) -> tuple:
            drafted, rows = world.draw(draws)
            tokens = tuple(drafted)
            if tokens not in judged:
                judged[tokens] = judge(tokens, rows)
            try:
                emitted = judged[tokens].verdict(draws).emitted
            except OmnidraftError:
                return bad, "error"
            return (bad, "error") if emitted[0] == bad else tuple(emitted[:2])  # the next round raises

        expected, found = defaultdict(float), defaultdict(float)
        for (first, second), probability in world.truth().items():
            expected[(bad, "error") if first == bad else (first, second)] += probability
        for outcome, probability in distribution_of(round_).items():
            for second, p in enumerate(world.row("p", outcome) if len(outcome) == 1 else ()):
                found[(*outcome, second)] += probability * p
            if len(outcome) == 2:
                found[outcome] += probability
        assert total_variation(found, expected) < 1e-12, seed
        errors += expected[bad, "error"] > 0
    assert errors > WORLDS / 2


@pytest.mark.parametrize("backend", [numpy_backend, torch_backend])
def test_labels_end_before_a_broken_row(backend):
    world = RoundWorld(1)
    for tokens in ([0, 1], [1, 0]):
        rows = [world.row("q", tuple(tokens[:i])) for i in range(2)]
        atoms, origins = world.lifting.reveal(tokens, rows)
        walked = world.lifting.walk(atoms)[0]
        logits = np.log(world.target_rows(walked).clip(1e-9))
        logits[1:] = np.nan
        rules, lifting, target_rows, tensor = backend(world, logits)
        given = atoms, [(tensor(row), prefix) for row, prefix in origins], lifting, target_rows
        labels = rules.acceptances(*given)
        assert np.isfinite(labels).all() and len(labels) <= len(atoms)
        assert not any(step.row for step in rules.comparisons(*given))


@pytest.mark.parametrize("backend", [numpy_backend, torch_backend])
def test_a_broken_row_is_noticed_where_the_draft_cannot_be_spelled(backend):
    """Nothing is summed there, yet the row is needed: after what precedes it the target draws from this row."""
    world = RoundWorld(0)
    world.lifting = Lifting({0: (0,), 1: (1,)}, {}, 3)  # the draft token 2 has no path
    rules, lifting, p, tensor = backend(world, np.array([[0.0, 0.0], [np.nan, np.nan]]))
    q = [tensor(np.array([0.9, 0.05, 0.05]))] * 2
    atoms, origins = lifting.reveal([0, 2], q)
    assert [step.after for step in rules.comparisons(atoms, origins, lifting, p)] == pytest.approx([0.5 / 0.9])
