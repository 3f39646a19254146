"""Online learning: labels, the acceptance head, the learner, and adapters that survive any interruption of the process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_cli import LETTERS, own_caches, run, write_model  # noqa: F401 (a fixture)
from vocabularies import byte_level, sentencepiece

from omnidraft import losses
from omnidraft.cli.prompts import read_prompts
from omnidraft.decoding import plain
from omnidraft.engine.load import load
from omnidraft.learning import adapters, lora, online
from omnidraft.learning.adapters import Adapters
from omnidraft.learning.guard import Guard
from omnidraft.learning.online import Learner, Schedule, Statistics, is_held_out, learn
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.lifting import Lifting
from omnidraft.ngram_cache import NGramCache
from omnidraft.options import Options
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms, mask, process
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.text.errors import OmnidraftError
from omnidraft.verification import acceptances

PROMPTS = ["the thing", "in the house", "a thin line", "and then the other", "ten things", "on the inside", "this",
           "that is it"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    pieces = sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft")
    data = byte_level("Ġ t, h e, Ġt he, i n, in g, Ġ a", name="target")
    return {"draft": str(write_model(base / "tiny-draft", pieces, 1)),
            "target": str(write_model(base / "tiny-target", data, 2)),
            "second": str(write_model(base / "second", data, 3)),
            "other": str(write_model(base / "other", pieces, 4))}


def paired(folders, draft="draft", target="target") -> Pair:
    return Pair(load(folders[draft]), load(folders[target]))


def learner_of(pair: Pair, schedule: Schedule | None = None, head: AcceptanceHead | None = None, **recipe) -> Learner:
    rng = np.random.default_rng(0)
    return Learner(pair, Trainer(pair.draft, Recipe(**{"rank": 0, "rate": 3e-3} | recipe), rng), rng,
                   schedule or Schedule(every=2), head)


def serve(learner: Learner, prompts=PROMPTS, **options) -> list:
    options = Options(**{"temperature": 1.0, "max_new_tokens": 24, "stop": FixedLength(4)} | options)
    return list(learn(learner, prompts, options, Uniforms(np.random.default_rng(0))))


# ------------------------------------------------------------------------------------------------ labels and head

def test_acceptances_average_to_the_overlap_of_the_two_laws():
    """The mean label over draws from q is sum_x min(p(x), q(x)): alpha of Leviathan et al."""
    rng = np.random.default_rng(0)
    lifting = Lifting({t: (t,) for t in range(5)}, {}, 5)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    mean = sum(q[d] * acceptances([d], [(q, ())], lifting, np.stack([p, p]))[0] for d in range(5))
    assert mean == pytest.approx(np.minimum(p, q).sum(), abs=1e-12)


def test_an_atom_in_two_comparisons_has_the_product_of_both():
    # Target tokens 0 = (0,), 1 = (0, 1), 2 = (1,), 3 = (2,): after atom 0 an atom 2 first proposes *stop*, then token 3.
    lifting = Lifting({0: (0,), 1: (0, 1), 2: (1,), 3: (2,)}, {}, 3)
    p = np.array([0.3, 0.2, 0.1, 0.4])
    first, second = np.array([0.8, 0.1, 0.1]), np.array([0.0, 0.2, 0.8])
    labels = acceptances([0, 2], [(first, ()), (second, ())], lifting, np.stack([p] * 3))
    stop = min(1, (0.3 / 0.5) / 0.8)
    # After stop, atom 2 has Q = 0.8 / 0.8 = 1 among the atoms that are not children, and P = 0.4.
    assert labels == pytest.approx([min(1, 0.5 / 0.8), stop * 0.4])


@pytest.mark.parametrize("learn_ngrams", [False, True])
def test_the_stored_rows_are_those_of_the_emitted_tokens(folders, learn_ngrams):
    """Row i is the target's distribution for response token i; also with rejections, bonus tokens and a cut at the end."""
    pair = paired(folders)
    learner = learner_of(pair, Schedule(every=100, guard=0))
    for one in serve(learner, PROMPTS[:3], learn=learn_ngrams):
        example = learner.batch.pop(0)
        assert example.target_ids == [token for record in one.rounds for token in record.emitted]
        assert any(record.accepted < len(record.proposals) for record in one.rounds)
        ids = pair.target.tokenizer.encode(one.prompt, bos=True) + example.target_ids
        logits = pair.target.forward(ids, pair.target.new_cache(), rows=len(ids))
        rows = process(mask(logits, pair.target.tokenizer.size))[-len(example.target_ids) - 1:-1]
        np.testing.assert_allclose(example.target_probs, rows, atol=1e-5)


def test_labels_belong_to_the_lifting_that_verified_the_round(folders):
    """N-grams learned from a round change the lifting only for the next round; so this round's labels stay the same."""
    labels = []
    for learn_ngrams in (False, True):
        pair = Pair(load(folders["draft"]), load(folders["target"]), NGramCache())
        head = AcceptanceHead(pair.draft.config.width)
        learner = learner_of(pair, Schedule(every=100, guard=0), head)
        before = pair.lifting
        serve(learner, PROMPTS[1:2], stop=Confidence(4, 0.0, head), learn=learn_ngrams, max_new_tokens=60)
        labels.append([label for _, label in learner.labelled])
        assert (pair.lifting is not before) == learn_ngrams
    assert labels[0] == labels[1] and len(labels[0]) > 20


def test_a_head_may_learn_while_the_drafter_stays_as_it_is(folders):
    pair = paired(folders)
    base, head = pair.draft, AcceptanceHead(pair.draft.config.width)
    before = {name: array.copy() for name, array in head.parameters.items()}
    learner = learner_of(pair, Schedule(every=2, steps=0, head="joint"), head=head)
    learned = serve(learner, stop=Confidence(6, 0.01, head))
    assert pair.draft is base and not learner.batch and all(np.isnan(one.loss) for one in learned)
    assert any((before[name] != array).any() for name, array in head.parameters.items())


# --------------------------------------------------------------------------------------------------------- learner

def test_the_drafter_learns_its_target(folders):
    pair = paired(folders)
    base, learner = pair.draft, learner_of(pair, Schedule(every=2, replay=1), rate=1e-2)
    before = {name: array.copy() for name, array in learner.trainer.tensors.items()}
    learned = serve(learner, PROMPTS * 4)
    assert sum(one.updated for one in learned) == 16 and learner.statistics.prompts == 32
    values = [one.loss for one in learned if one.updated]
    assert np.mean(values[-4:]) < np.mean(values[:4])
    examples = list(learner.memory)
    untouched = Trainer(base, Recipe(rank=0), np.random.default_rng(0))
    assert learner.trainer.expected_acceptance(pair, examples) > untouched.expected_acceptance(pair, examples) + 0.02
    assert pair.draft is not base and all((before[k] == v).all() for k, v in learner.trainer.tensors.items())


def test_learning_never_changes_a_greedy_text(folders):
    pair = paired(folders)
    learned = serve(learner_of(pair, rank=4), temperature=0.0)
    for one in learned:
        ids = pair.target.tokenizer.encode(one.prompt, bos=True)
        alone = [t for r in plain(pair.target, ids, Options(max_new_tokens=24), Uniforms([])) for t in r.emitted]
        assert [t for r in one.rounds for t in r.emitted] == alone


def test_expected_acceptance_is_what_decoding_measures(folders):
    """The mean of 1 - tv over the target's texts is the acceptance rate of one-token drafts on these texts."""
    pair = paired(folders)
    learner = learner_of(pair, Schedule(every=1000, guard=0))
    learned = serve(learner, PROMPTS * 16, stop=FixedLength(1), heal=False)
    rounds = [r for one in learned for r in one.rounds if r.draft_tokens]
    measured = sum(r.draft_kept for r in rounds) / len(rounds)
    assert learner.trainer.expected_acceptance(pair, learner.batch) == pytest.approx(measured, abs=0.05)


def test_a_harmful_update_is_rolled_back_and_never_drafts(folders):
    pair = paired(folders)
    base, learner = pair.draft, learner_of(pair, Schedule(every=1, replay=1), rate=30.0)  # destroys the weights
    (first, second) = serve(learner, PROMPTS[:2])
    assert first.updated and not first.note and pair.draft is base  # one update was made, but its weights did not draft
    assert "rolled back; now at 1/4" in second.note and learner.rollbacks == 1 and learner.statistics.rate_share == 1 / 4
    serve(learner, PROMPTS)
    untouched = Trainer(base, Recipe(rank=0), np.random.default_rng(0))
    texts = list(learner.memory)
    learner.trainer.restore(learner.guard.best)
    assert learner.trainer.expected_acceptance(pair, texts) >= untouched.expected_acceptance(pair, texts)


def test_what_drafts_is_what_the_guard_found_better(folders):
    pair = paired(folders)
    learner, drafters = learner_of(pair, rate=1e-2), []
    for _ in learn(learner, PROMPTS * 2, Options(temperature=1.0, max_new_tokens=24), Uniforms(np.random.default_rng(0))):
        drafters.append(pair.draft)
    assert drafters[1] is learner.trainer.base is not drafters[-1]  # after two prompts there is one update, not yet tested
    learner.trainer.restore(learner.guard.best)
    ids = pair.draft.tokenizer.encode("the thing")
    tested = learner.trainer.model()
    np.testing.assert_array_equal(pair.draft.forward(ids, pair.draft.new_cache()), tested.forward(ids, tested.new_cache()))


def guard_of(differences, patience) -> tuple[Guard, list]:
    """A guard for which the present weights' expected acceptance exceeds the best weights' by each of `differences`: a number
    for both texts of an update, or one for each. Also the list of what it restored."""
    values = iter([0.6 + more for one in differences for more in (0, 0, *np.broadcast_to(one, 2))])
    restored = []
    trainer = SimpleNamespace(restore=restored.append, expected_acceptance=lambda pair, texts: next(values))
    guard = Guard(trainer, patience)
    guard.best = state(-1)
    return guard, restored


def test_texts_that_cannot_be_compared_decide_nothing():
    values = iter([np.nan, np.nan, 0.9, 0.1, np.nan, 0.6, 0.1, 0.5])  # two texts: best weights, then present ones
    guard = Guard(SimpleNamespace(restore=lambda state: None, expected_acceptance=lambda pair, texts: next(values)), 1)
    guard.best = state(-1)
    assert guard.look(None, ["one", "two"], state(0)) is None and not guard.asked  # a look without any value does not count
    assert guard.look(None, ["one", "two"], state(1)) is False and guard.best == state(-1)  # the other text: 0.1 < 0.6


def test_the_guard_reads_new_texts_and_learning_goes_on_from_the_present_weights(folders, monkeypatch):
    learner = learner_of(paired(folders), Schedule(every=2, replay=1, held_out=0), rate=1e-2)
    read, learned, began = [], [], []
    trainer, look = learner.trainer, learner.guard.look
    expected, step = trainer.expected_acceptance, trainer.step

    def looked(pair, texts, now):
        assert len(texts) == 2 and not any(text is old for text in texts for old in learned)
        decided = look(pair, texts, now)
        began.append((decided, now))
        return decided

    def stepped(pair, texts):
        decided, now = began[-1]
        assert decided is False or all((now[name] == array).all() for name, array in trainer.state().items())
        learned.extend(texts)
        return step(pair, texts)

    monkeypatch.setattr(learner.guard, "look", looked)
    monkeypatch.setattr(trainer, "step", stepped)
    monkeypatch.setattr(trainer, "expected_acceptance", lambda pair, texts: (read.extend(texts), expected(pair, texts))[1])
    serve(learner, PROMPTS * 2)
    assert len(began) == 8 and any(decided for decided, _ in began) and len(read) == 28 and len(learned) == 16 + 7


def state(number: int, steps: int | None = None) -> dict:
    return {"parameters.a": number, "optimizer.steps": number if steps is None else steps}


@pytest.mark.parametrize(("differences", "decisions"), [
    ([0.1], [True]), ([-0.1], [False]),  # a clear difference is decided after two texts
    ([0.005] * 3, [None, None, True]), ([-0.015] * 3, [None, None, False]),  # a small one after six texts that agree
    ([(0.04, -0.02)] * 5, [None] * 5),  # better on average, but not certain: the texts disagree
    ([(0.8, -0.6)] * 2 + [0.1] * 8, [None] * 10),  # few texts that disagree by far more than is assumed
    ([0.1, (0.09, -0.03), *[0.03] * 5], [True, *[None] * 5, True]),  # texts that disagree: more are needed
    ([-0.001, 0.0, -0.001, -0.001], [None, None, False, None]),  # no gain in 3 looks, then counted again
    ([np.nan], [False]), ([0.001, (0.001, np.nan)], [None, False]),  # NaN, even on only one text
])
def test_the_guard_decides_when_it_is_sure(differences, decisions):
    guard, restored = guard_of(differences, 3)
    for i, decision in enumerate(decisions):
        best, tried, n = guard.best, guard.tried or state(i), len(restored)
        assert guard.look(None, ["one", "two"], state(i)) is decision and restored[n:n + 2] == [best, tried]
        kept = state(best["parameters.a"], i)  # the optimizer's moments are not restored
        assert restored[-1] == (kept if decision is False else state(i)) and guard.best == (tried if decision else best)


def test_one_state_is_tried_at_a_time_until_it_is_decided_or_for_16_looks():
    guard, restored = guard_of([(0.04, -0.03)] * 16 + [0.1], 10 ** 9)
    for i in range(17):
        decided = guard.look(None, ["one", "two"], state(i))
    tried = [one["parameters.a"] for one in restored[1::3]]
    assert decided is True and tried == [0] * 16 + [16] and guard.best == state(16) and guard.tried is None


def test_a_small_loss_is_no_failure():
    """After the first rough steps the weights are surely worse, but by little: later ones are tried."""
    guard, restored = guard_of([-0.009] * 32, 48)
    assert [guard.look(None, ["one", "two"], state(i)) for i in range(32)] == [None] * 32
    assert [one["parameters.a"] for one in restored[1::3]] == [0] * 16 + [16] * 16


def test_after_the_patience_one_unlucky_look_rolls_nothing_back():
    guard, restored = guard_of([(0.04, -0.03)] * 16 + [(0.03, -0.04)] * 32, 20)  # later states are worse, but not surely
    decisions = [guard.look(None, ["one", "two"], state(i)) for i in range(32)]
    assert decisions == [None] * 31 + [False] and restored[-1] == state(-1, 31)
    assert not any(guard.look(None, ["one", "two"], state(i)) is False for i in range(16))  # patience begins again


def test_equal_weights_are_found_better_in_few_of_many_runs():
    """Differences of mean zero, 100 runs of 120 looks: 7 find a gain (with 2 errors 46, with n - 3 for n - 5 18)."""
    rng, found = np.random.default_rng(1), 0
    for _ in range(100):
        guard, _ = guard_of(rng.normal(0, 0.004, (120, 2)), 10 ** 9)
        found += any(guard.look(None, ["one", "two"], state(i)) for i in range(120))
    assert found < 12


def test_the_first_look_takes_the_weights_that_draft():
    """Of a trainer that continues, the latest ones have not proved better: no failure may bring them back."""
    guard, restored = guard_of([], 3)
    guard.best, now = None, state(2) | {"served.a": 1}
    assert guard.look(None, ["one"], now) is None and guard.best == now | {"parameters.a": 1} and not restored


def test_the_rate_grows_back_while_weights_are_found_better(folders, monkeypatch):
    better, worse = [0.5, 0.5, 0.6, 0.6], [0.6, 0.6, 0.5, 0.5]  # two texts with the best weights, then with the present ones
    learner, expected = learner_of(paired(folders), Schedule(every=2, held_out=0)), iter(better * 2 + worse * 2 + better * 3)
    monkeypatch.setattr(learner.trainer, "expected_acceptance", lambda pair, texts: next(expected))
    rates = []
    for step in range(1, 9):
        serve(learner, PROMPTS[:2])
        rates.append(learner.trainer.optimizer.rate / 3e-3 / (step / 10))  # it still rises
    assert np.allclose(rates, [1, 1, 1, 1 / 4, 1 / 16, 1 / 4, 1, 1]) and learner.rollbacks == 2


@pytest.mark.parametrize(("rate", "full"), [(None, 1e-3), (0.5, 0.5)])
def test_a_guarded_rate_rises_in_ten_steps(folders, monkeypatch, rate, full):
    learner = learner_of(paired(folders), Schedule(every=1, held_out=0), rate=rate)
    monkeypatch.setattr(learner.trainer, "expected_acceptance", lambda pair, texts: 0.5)
    rates = []
    for _ in range(12):
        serve(learner, PROMPTS[:1])
        rates.append(learner.trainer.optimizer.rate / full)
    assert np.allclose(rates, [*(np.arange(10) + 1) / 10, 1, 1])


def test_held_out_prompts_are_served_both_ways_and_never_learned(folders):
    pair = paired(folders)
    learner = learner_of(pair, Schedule(every=2, replay=1, guard=0, held_out=3))
    options, uniforms = Options(temperature=1.0, max_new_tokens=24, stop=FixedLength(4)), Uniforms(np.random.default_rng(0))
    apart = [prompt for prompt in PROMPTS if sum(ascii(prompt).encode()) % 3 == 0]  # the same whenever they come
    rest = [prompt for prompt in PROMPTS if prompt not in apart]
    assert len(apart) > 1 and len(rest) > 3
    stream = [apart[0], *rest, *apart, *rest, *apart]
    every = learned_tokens = 0
    for i, one in enumerate(learn(learner, stream, options, uniforms), 1):
        size = sum(len(record.emitted) for record in one.rounds)
        every, learned_tokens = every + size, learned_tokens + size * (one.prompt in rest)
        s, known, changed = learner.statistics, stream[:i], pair.draft is not learner.trainer.base
        served = [prompt for prompt in known[1:] if prompt in apart]  # the first came before the drafter had changed
        texts = [learner.pair.draft.tokenizer.decode(text.draft_ids) for text in [*learner.memory, *learner.batch]]
        assert s.held_out == len(served) and len(texts) == sum(prompt in rest for prompt in known)
        assert not [text for text in texts for prompt in apart if text.startswith(prompt)]
        assert changed == (i > 1)
        if i == 2:  # both texts were drafted by the untouched drafter, which the second one then changed
            assert s.learned_tokens == 0
        if len(served) == 1 and one.prompt == served[0]:
            tokens = sum(len(record.emitted) for record in one.rounds)
            assert s.held_out_rounds == pytest.approx(len(one.rounds) / tokens) and s.untouched_rounds > 0
    assert sum(len(text.target_ids) for text in [*learner.memory, *learner.batch]) == learned_tokens
    assert s.learned_tokens < s.tokens == every


def test_learning_has_paid_off_only_beyond_the_error():
    figures = {"held_out": 4, "untouched_rounds": 2.4, "held_out_rounds": 2.0, "squared_rounds": 0.0401, "updates": 1,
               "untouched_seconds": 0.4, "held_out_seconds": 0.3, "squared_seconds": 0.00251, "learned_tokens": 1000}
    assert Statistics(**figures).saved("rounds") == pytest.approx((0.1, 2 * 0.000025 ** 0.5))
    assert Statistics(held_out=3).saved("rounds") == (0.0, np.inf) == Statistics().saved("seconds")
    assert Statistics.from_json({"held_out": 4}).saved("rounds") == (0.0, 0.0)  # a file may not have the sums
    for changes, paid in (({}, True), ({"learning_seconds": 24.0}, False), ({"squared_rounds": 0.2}, False),
                          ({"squared_seconds": 0.01}, False), ({"learned_tokens": 100}, False),
                          ({"held_out_rounds": 2.5}, False)):
        statistics = Statistics(**{"learning_seconds": 20.0, "tokens": 2000, "paid_after_tokens": 1500} | figures | changes)
        statistics.note_payoff()
        assert statistics.paid_after_tokens == (1500 if paid else None), changes


def test_a_loss_that_is_not_finite_is_skipped(folders, monkeypatch):
    learner = learner_of(paired(folders), Schedule(every=1))
    serve(learner, PROMPTS[:2])
    before = learner.trainer.state()
    lifted = losses.LOSSES["lifted"]
    monkeypatch.setitem(losses.LOSSES, "lifted", lambda *given, **more: (np.nan, *lifted(*given, **more)[1:]))
    (one,) = serve(learner, PROMPTS[2:3])
    assert np.isnan(one.loss) and "not finite" in one.note and learner.skipped == 1
    assert all((before[k] == v).all() for k, v in learner.trainer.state().items())
    monkeypatch.setitem(losses.LOSSES, "lifted", lifted)
    (one,) = serve(learner, PROMPTS[3:4])
    assert np.isfinite(one.loss) and not one.note


def test_prompts_that_do_not_fit_are_passed_over(folders):
    learned = serve(learner_of(paired(folders)), ["the thing", "x " * 2000, "in"])
    assert [bool(one.rounds) for one in learned] == [True, False, True] and "prompt skipped" in learned[1].note


@pytest.mark.parametrize("mode", ["joint", "interleaved"])
def test_heads_learn_along(folders, mode):
    pair = paired(folders)
    head = AcceptanceHead(pair.draft.config.width)
    features = head.features(np.ones(pair.draft.config.width), np.ones(pair.draft.config.width), 0.9)
    assert head(features) == pytest.approx(0.9)  # the drafter's own confidence
    learner = learner_of(pair, Schedule(every=4, head=mode), head=head)
    learner.head_optimizer.rate = 1e-2
    serve(learner, PROMPTS * 2, stop=Confidence(6, 0.01, head))
    seen, labels = (np.array(part, np.float32) for part in zip(*learner.labelled, strict=True))
    assert head.loss(seen, labels)[0] < AcceptanceHead(pair.draft.config.width).loss(seen, labels)[0] - 0.01


def test_settings_that_make_no_sense_are_one_line(folders):
    assert Recipe(rank=0, decay=0, weight=0) and Recipe(weight="dynamic")
    for make in (lambda: Recipe(loss="mse"), lambda: Recipe(divergence="x"), lambda: Recipe(rank=-1), lambda: Recipe(rank=4.0),
                 lambda: Recipe(rate=np.nan), lambda: Recipe(rate=0), lambda: Recipe(decay=-1), lambda: Recipe(weight="x"),
                 lambda: Recipe(weight=-1), lambda: Schedule(every=0), lambda: Schedule(memory=-1), lambda: Schedule(head="x")):
        with pytest.raises(OmnidraftError) as error:
            make()
        assert "\n" not in str(error.value)


# -------------------------------------------------------------------------------------------------------- adapters

def resumed(folders, root, **recipe) -> Learner:
    return Adapters(root).resume(paired(folders), Recipe(**{"rank": 4} | recipe), Schedule(every=2, guard=0),
                                 np.random.default_rng(0))


def test_stopping_and_going_on_is_as_if_nothing_had_happened(folders, tmp_path):
    once = resumed(folders, tmp_path / "once")
    serve(once, temperature=0.0)
    twice = resumed(folders, tmp_path / "twice")
    serve(twice, PROMPTS[:4], temperature=0.0)
    Adapters(tmp_path / "twice").keep(twice)
    again = resumed(folders, tmp_path / "twice")
    serve(again, PROMPTS[4:], temperature=0.0)
    assert again.statistics.prompts == 8 and again.statistics.updates == once.statistics.updates
    for name, array in once.trainer.state().items():
        np.testing.assert_allclose(again.trainer.state()[name], array, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rank, other", [(4, 8), (4, 0), (0, 4)])
def test_another_rank_than_the_saved_one_is_named(folders, tmp_path, rank, other):
    learner = resumed(folders, tmp_path, rank=rank)
    serve(learner, PROMPTS[:2])
    place = Adapters(tmp_path).keep(learner)
    with pytest.raises(OmnidraftError) as error:
        resumed(folders, tmp_path, rank=other)
    assert str(error.value) == (f"{place} has rank {rank}, not {other}: give rank {rank} to continue it, "
                                "or choose another folder")
    again = Adapters(tmp_path).resume(paired(folders), Recipe(rank=other), Schedule(), np.random.default_rng(0), shipped=True)
    # without --rank, the saved one is continued
    assert again.trainer.recipe.rank == rank and again.follows == Adapters(tmp_path).load(paired(folders)).checksum


def test_a_crash_leaves_the_old_version_or_the_new_one(folders, tmp_path, monkeypatch):
    store, learner = Adapters(tmp_path), resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    store.keep(learner)
    old = store.load(learner.pair).lora.parameters
    serve(learner, PROMPTS[2:4])
    for name in ("save_tensors", "write_text"):  # stops while writing the version, or just before making it current
        with monkeypatch.context() as patch:
            def die(*_):
                raise KeyboardInterrupt

            patch.setattr(lora if name == "save_tensors" else adapters, name, die)
            with pytest.raises(KeyboardInterrupt):
                store.keep(learner)
        assert all((old[k] == v).all() for k, v in store.load(learner.pair).lora.parameters.items())
    store.keep(learner)
    assert any((old[k] != v).any() for k, v in store.load(learner.pair).lora.parameters.items())
    assert len(list(store.folder(learner.pair).glob("v*"))) == 1


def test_damaged_and_foreign_adapters_are_refused_and_others_stay_usable(folders, tmp_path):
    store = Adapters(tmp_path)
    first, second = paired(folders), paired(folders, target="second")
    for pair in (first, second):
        learner = store.resume(pair, Recipe(rank=4), Schedule(every=2), np.random.default_rng(0))
        serve(learner, PROMPTS[:2])
        store.keep(learner)
    weights = next(store.folder(first).glob("v*/adapter_model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    with pytest.raises(OmnidraftError, match="damaged"):
        store.load(first)
    assert store.load(second).lora is not None and set(store.all()) == {"tiny-draft--tiny-target", "tiny-draft--second"}
    foreign = Pair(load(folders["other"]), second.target)
    place = store.folder(second).rename(store.folder(foreign))
    assert store.load(foreign) is None  # known by its models, not by its folder's name
    with pytest.raises(OmnidraftError, match="learned with another draft"):
        store.load(foreign, place.name)
    (place / "current.json").write_text("{")
    with pytest.raises(OmnidraftError, match="damaged"):
        store.load(foreign)


def test_one_drafter_serves_two_targets_and_switching_is_exact(folders, tmp_path):
    store, base = Adapters(tmp_path), load(folders["draft"])
    models = {}
    for target in ("target", "second"):
        pair = Pair(base, load(folders[target]))
        learner = store.resume(pair, Recipe(rank=4, rate=1e-2), Schedule(every=2, guard=0), np.random.default_rng(0))
        serve(learner, PROMPTS)
        store.keep(learner)
        models[target] = pair.draft
    ids = base.tokenizer.encode("the thing")
    for target, trained in models.items():
        switched = store.load(Pair(base, load(folders[target]))).drafter(base)
        np.testing.assert_allclose(switched.forward(ids, switched.new_cache()), trained.forward(ids, trained.new_cache()),
                                   rtol=1e-4, atol=1e-5)
    assert len({model.forward(ids, model.new_cache()).tobytes() for model in (base, *models.values())}) == 3


# ----------------------------------------------------------------------------------------------------- command line

def adapt(folders, *arguments, input=None):
    return run("adapt", "-d", folders["draft"], "-t", folders["target"], "-n", "16", "--every", "2", "--rank", "4",
               "--adapters", "kept", *arguments, input=input)


def test_adapt_learns_saves_and_goes_on(folders, tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    first = adapt(folders, "prompts.txt", "--limit", "4", "--json")
    assert first.exit_code == 0, first.output
    *each, last = [json.loads(line) for line in first.stdout.splitlines()]
    assert len(each) == 4 and last["prompts"] == 4 and last["updates"] == 2 and "saved to" in first.stderr
    second = adapt(folders, "prompts.txt", "--json")
    assert json.loads(second.stdout.splitlines()[-1])["prompts"] == 8
    third = adapt(folders, "prompts.txt", "--json")  # everything was served already: it starts from the beginning
    assert third.exit_code == 0 and json.loads(third.stdout.splitlines()[-1])["prompts"] == 16


def test_few_prompts_hold_out_a_larger_share_and_the_command_says_how_many_are_needed(folders, tmp_path):
    """With one in 8 of 40 prompts it held out one, by chance, and could say nothing."""
    texts = [f"{PROMPTS[number % 8]} {number}" for number in range(64)]
    few = [text for text in texts if not is_held_out(text, 8)][:36] + [text for text in texts if is_held_out(text, 8)][:1]
    (tmp_path / "few.txt").write_text("\n".join(few))
    said = adapt(folders, "few.txt", "--no-save", "--paper", "--every", "8", "--rank", "32", "-n", "4").stderr
    share = next(share for share in (4, 2) if sum(is_held_out(text, share) for text in few) >= 6)
    assert f"one in {share} prompts is held out to measure the gain: 6 of them ({share * 6} prompts) say something" in said
    assert re.search(r"^(\d+) held-out prompts, decoded with both drafters: \d", said, re.M) and "too few" not in said
    assert "one in 8 prompts" in adapt(folders, "math", "--no-save", "-n", "2", "--limit", "99").stderr


def test_generate_drafts_with_the_adapter_and_it_is_listed(folders, tmp_path):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    generate = ["generate", "the thing", "-d", folders["draft"], "-t", folders["target"], "-n", "12"]
    without = run(*generate, "--adapter", "auto", "--adapters", "kept")
    assert without.exit_code == 0 and "adapter" not in without.stderr
    assert adapt(folders, "prompts.txt", "--head", "interleaved").exit_code == 0
    adapted = run(*generate, "--adapter", "auto", "--adapters", "kept")
    assert adapted.exit_code == 0 and adapted.stdout == run(*generate).stdout  # greedy: the same text
    listed = run("adapters", "list", "--adapters", "kept").stdout
    assert "tiny-draft--tiny-target" in listed and "fingerprint" in listed
    next((tmp_path / "kept").glob("*/current.json")).write_text("{")
    assert "is damaged" in run("adapters", "list", "--adapters", "kept").stdout


def test_adapt_reads_jsonl_and_pipes(folders, tmp_path):
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in PROMPTS[:3]))
    assert adapt(folders, "prompts.jsonl", "--no-save", "--head", "interleaved").exit_code == 0
    assert adapt(folders, "-", "--no-save", "--head", "joint", "--loss", "hybrid",
                 input="the thing\n\nin the house\n").exit_code == 0
    assert not (tmp_path / "kept").exists()


FORMATS = {  # how data sets name the prompt of a line
    "gsm8k": [{"question": p, "answer": "no"} for p in PROMPTS[:3]], "own": [{"text": "no", "prompt": p} for p in PROMPTS[:3]],
    "alpaca": [{"instruction": p, "input": "", "output": "no"} for p in PROMPTS[:3]],
    "xsum": [{"document": p, "summary": "no", "id": 1} for p in PROMPTS[:3]],
    "stories": [{"source": "a", "text": p} for p in PROMPTS[:3]]}


@pytest.mark.parametrize("name", FORMATS)
def test_adapt_finds_the_prompts_of_usual_data_sets(folders, tmp_path, name):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, FORMATS[name])) + "\n\n")
    prompts, count = read_prompts(str(path))
    assert list(prompts) == PROMPTS[:3] and count == 3
    path.write_text(json.dumps({"instruction": "add", "input": "1 and 2"}) + '\n["prompt"]')
    prompts, _ = read_prompts(str(path))
    assert next(prompts) == "add\n1 and 2"
    with pytest.raises(OmnidraftError, match="prompt, instruction, question, document, text"):
        next(prompts)


def test_a_list_in_json_is_a_list_of_prompts(folders, tmp_path):
    path = tmp_path / "list.json"
    path.write_text(json.dumps([*PROMPTS[:2], {"question": PROMPTS[2]}], indent=1))
    prompts, count = read_prompts(str(path))
    assert list(prompts) == PROMPTS[:3] and count == 3
    assert json.loads(adapt(folders, "list.json", "--no-save", "--json").stdout.splitlines()[-1])["prompts"] == 3
    path.write_text('["the thing"')
    with pytest.raises(OmnidraftError, match="list.json is not readable JSON"):
        read_prompts(str(path))


def test_adapt_passes_over_prompts_that_leave_no_room(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    (tmp_path / "long.txt").write_text("the thing\n" + "and then the other " * 400 + "ends é so\nin the house\n")
    done = adapt(folders, "long.txt", "--no-save", "--json", "--seed", "1")
    assert done.exit_code == 0 and done.stderr.count("prompt skipped: the prompt has") == 1
    assert next(line for line in done.stderr.splitlines() if "skipped" in line).endswith("shorten it")  # not wrapped
    assert [json.loads(line)["tokens"] for line in done.stdout.splitlines()[:3]] == [16, 0, 16]


REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", Path(__file__).resolve().parents[2] / "shared" / "real"))


@pytest.mark.skipif(not (REAL / "data").is_dir(), reason="the real data sets are not here")
def test_adapt_serves_real_data(folders, monkeypatch):
    """One or two prompts of every data set; stories with the pair that was trained on them."""
    for path in sorted((REAL / "data").glob("*.jsonl")):
        done = adapt(folders, str(path), "--limit", "2", "--no-save")
        assert done.exit_code == 0 or f"no prompt in {path} could be served (prompt skipped: the prompt" in done.stderr, path
    stories = [str(REAL / "models" / name) for name in ("babyllama-tok361", "stories260K")]
    done = run("adapt", str(REAL / "data" / "tinystories1000.jsonl"), "-d", stories[0], "-t", stories[1], "-n", "24", "--limit",
               "4", "--no-save", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout.splitlines()[-1])["updates"] == 2


def test_adapt_is_stopped_without_loss(folders, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    served = online.learn

    def interrupted(*arguments):
        for count, learned in enumerate(served(*arguments)):
            yield learned
            if count == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(online, "learn", interrupted)
    stopped = adapt(folders, "prompts.txt")
    assert stopped.exit_code == 0 and "stopped" in stopped.stderr and "saved to" in stopped.stderr
    monkeypatch.setattr(online, "learn", served)
    assert json.loads(adapt(folders, "prompts.txt", "--json").stdout.splitlines()[-1])["prompts"] == 8


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_what_was_learned_is_saved_when_nobody_reads_the_figures(folders, tmp_path, monkeypatch, error):
    """As in `omnidraft adapt - --json | head -3`."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    written = []

    def emit(record):
        written.append(record)
        if len(written) > 3:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr("omnidraft.cli.adapt.emit", emit)
        assert adapt(folders, "prompts.txt", "--json").exit_code == 1
    resumed = adapt(folders, "prompts.txt", "--json")
    assert json.loads(resumed.stdout.splitlines()[-1])["prompts"] == 8 and "skipping the first 4 prompts" in resumed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes differ there")
def test_what_was_learned_is_saved_when_nobody_reads_the_remarks(folders, tmp_path):
    """As in `omnidraft adapt math 2>&1 | tee log`, where Ctrl-C ends tee as well."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "omnidraft", "adapt", "prompts.txt", "-d", folders["draft"], "-t", folders["target"],
               "-n", "4", "--rank", "4", "--adapters", "kept"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}, stderr=writer)
    os.close(writer)
    assert done.returncode == 1 and (tmp_path / "kept" / "tiny-draft--tiny-target" / "current.json").exists()


@pytest.mark.parametrize("arguments, says", [
    (["missing.txt"], "cannot read prompts"), (["empty.txt"], "is empty"), (["broken.jsonl"], "not a JSON object"),
    (["array.json"], "not a JSON object"),
    (["math", "--head", "both"], "unknown head 'both': choose none, joint"), (["math", "--loss", "x"], "unknown loss"),
    (["math", "--rank", "-1"], "rank is -1"),
    (["math", "--rank", "100000"], "rank is 100000, above that of any matrix: give at most 32"),
    (["math", "--every", "0"], "must be a whole number from 1"),
    (["math", "--rate", "-1"], "rate is -1.0, but must be a number above 0"),
    (["math", "--rate", "0"], "rate is 0.0, but must be a number above 0"),
    (["nothing.jsonl"], "no prompt in nothing.jsonl could be served"),
])
def test_adapt_says_what_is_wrong_in_one_line(folders, tmp_path, arguments, says):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "broken.jsonl").write_text("{}\n")
    (tmp_path / "array.json").write_text('[{"prompts": "a"},\n2]')
    (tmp_path / "nothing.jsonl").write_text('{"prompt": ""}')
    result = adapt(folders, *arguments)
    assert result.exit_code == 1 and says in result.stderr and result.stderr.strip().count("error:") == 1
    assert not (tmp_path / "kept" / "tiny-draft--tiny-target" / "current.json").exists()
