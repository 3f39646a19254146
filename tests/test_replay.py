"""The texts kept for replay: little memory, and next to nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_learning import PROMPTS, folders, learner_of, paired, serve  # noqa: F401 (a fixture)
from test_losses import embedded_example

from omnidraft import losses
from omnidraft.learning.online import LEAST, Memory, Schedule


def gradients_of(learner, texts) -> tuple[float, int, np.ndarray]:
    value, count, found = learner.trainer._gradients(learner.pair, texts)
    return value, count, np.concatenate([one.ravel() for one in found.values()])


def test_of_a_large_vocabulary_what_is_probable_is_kept():
    logits = 3 * np.random.default_rng(0).standard_normal((2, 150_000))
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = (p / p.sum(-1, keepdims=True)).astype(np.float32)
    memory = Memory(2, 1 << 30, np.asarray)
    memory.add(losses.Example([0], [0, 0], p, [-1, -1]))
    rows = memory[0].target_probs
    kept = p > LEAST
    assert 0.99 < (p * kept).sum(-1).min() and kept.mean() < 0.8 and memory.nbytes == 12 * kept.sum()
    assert (rows[kept] == p[kept]).all() and (0 < rows[~kept]).all() and (rows[~kept] < LEAST).all()
    assert rows.dtype == np.float32 and rows.sum(-1) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("name", "error"), [("lifted", 1e-4), ("dm", 0.15), ("hybrid", 0.15)])
def test_losses_of_replayed_texts_hardly_change(name, error):
    """`dm` and `hybrid` divide by the target's probability, and 200 of 4,096 are 0 here."""
    pair, example = embedded_example()
    memory = Memory(1, 0, np.asarray)
    memory.add(example)
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), pair.draft.vocab_size))
    value, slope, count = losses.LOSSES[name](logits, example, pair)
    again, other, counted = losses.LOSSES[name](logits, memory[0], pair)
    assert counted == count and again == pytest.approx(value, rel=error)
    assert np.linalg.norm(other - slope) < error * np.linalg.norm(slope)


def test_learning_from_the_memory_hardly_changes(folders):  # noqa: F811
    learner = learner_of(paired(folders), Schedule(every=100, replay=1, guard=0))
    serve(learner, PROMPTS)
    texts = list(learner.batch)
    for text in texts:
        learner.memory.add(text)
    replayed = list(learner.memory)
    assert [replace(text, target_probs=None) for text in replayed] == [replace(text, target_probs=None) for text in texts]
    (value, count, slope), (again, counted, other) = (gradients_of(learner, some) for some in (texts, replayed))
    assert counted == count and again == pytest.approx(value, rel=1e-4)
    assert np.linalg.norm(other - slope) < 2 ** -9 * np.linalg.norm(slope)
    before = learner.trainer.state()
    reached = []
    for some in (texts, replayed):
        learner.trainer.restore(before)
        values = [learner.trainer.step(learner.pair, some) for _ in range(12)]
        reached.append([*values, learner.trainer.expected_acceptance(learner.pair, texts)])
        assert values[-1] < 0.9 * values[0]
    assert reached[1] == pytest.approx(reached[0], rel=2e-3)


def test_a_learner_replays_within_its_bytes(folders):  # noqa: F811
    learner = learner_of(paired(folders), Schedule(every=2, replay=3))
    serve(learner, PROMPTS)
    rows = learner.memory[-1].target_probs
    assert 1 < len(learner.memory) <= len(PROMPTS)
    assert rows.dtype == np.float32 and rows.sum(-1) == pytest.approx(np.ones(len(rows)), abs=1e-3)
    one, small = Memory(1, 0, np.asarray), Memory(99, 0, np.asarray)
    one.add(learner.memory[-1])
    small.size = int(2.5 * one.nbytes)
    for _ in range(5):
        small.add(learner.memory[-1])
    assert len(small) == 2 and small.nbytes == 2 * one.nbytes
