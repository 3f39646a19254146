"""Stop rules: lengths, confidence with and without a head, and the measured throughput; a rule never changes a text."""

from __future__ import annotations

import numpy as np
import pytest
from test_learning import folders, learner_of, paired, serve  # noqa: F401 (a fixture)

from omnidraft.decoding import Round, plain, speculative
from omnidraft.errors import OmnidraftError
from omnidraft.learning.optimizer import AdamW
from omnidraft.options import Options
from omnidraft.sampling import Uniforms
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength, Throughput


# ---- the head ------------------------------------------------------------------------------------
def test_head_gradients_are_the_central_differences():
    rng, head = np.random.default_rng(1), AcceptanceHead(3)
    head.parameters = {name: rng.standard_normal(array.shape) for name, array in head.parameters.items()}
    features, labels = rng.standard_normal((6, 7)), rng.random(6)
    _, gradients = head.loss(features, labels)
    for name, array in head.parameters.items():
        for place in [tuple(rng.integers(n) for n in array.shape) for _ in range(7)]:
            kept = array[place]
            values = []
            for step in (1e-5, -1e-5):
                array[place] = kept + step
                values.append(head.loss(features, labels)[0])
            array[place] = kept
            assert gradients[name][place] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6, abs=1e-9)


def test_head_learns_what_decides_acceptance():
    rng, head = np.random.default_rng(2), AcceptanceHead(4)
    optimizer = AdamW(head.parameters, rate=0.02, decay=0.0)
    features = rng.standard_normal((400, 9)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)
    for _ in range(150):
        optimizer.step(head.loss(features, labels, 1.0)[1])
    predicted = np.array([head(row) for row in features])
    assert ((predicted > 0.5) == labels).mean() > 0.95


def test_a_head_with_hidden_layers_is_refused():
    with pytest.raises(OmnidraftError, match="hidden layers"):
        AcceptanceHead.of({"blocks.0.weight": np.zeros((3, 3)), "out.weight": np.zeros(3), "out.bias": np.zeros(1)}, 1)


def test_a_head_decides_the_draft_length_and_leaves_the_text_alone(folders):  # noqa: F811
    pair, rng = paired(folders), np.random.default_rng(0)
    head = AcceptanceHead(pair.draft.config.width)
    head.parameters["out.weight"][:] = 0  # predicts 1/2 for every token
    ids = pair.target.tokenizer.encode("the thing", bos=True)
    options = Options(max_new_tokens=32, stop=Confidence(8, 0.2, head))
    rounds = list(speculative(pair, "the thing", options, Uniforms(rng)))
    assert max(len(r.draft_tokens) for r in rounds) == 3  # 1/2, 1/4, 1/8 < 0.2: the token that stops is still proposed
    alone = [token for r in plain(pair.target, ids, options, Uniforms(rng)) for token in r.emitted]
    assert [token for r in rounds for token in r.emitted] == alone
    for temperature in (0.0, 1.0):  # asked about the likeliest first token it says 1/2 again: too little for any draft
        unsure = Options(max_new_tokens=12, temperature=temperature, stop=Confidence(8, 0.6, head), heal=False)
        rounds = list(speculative(pair, "the thing", unsure, Uniforms(np.random.default_rng(0))))
        alone = list(plain(pair.target, ids, unsure, Uniforms(np.random.default_rng(0))))
        assert [r.emitted for r in rounds] == [r.emitted for r in alone] and not any(r.draft_tokens for r in rounds)
    learned = serve(learner_of(pair, head=head), stop=Throughput(8, head))
    assert all(len(one.rounds) for one in learned)


class LeastProbability(FixedLength):
    """A rule that reads the whole row: stops where its largest probability is below one half."""

    looks, rows = True, []  # noqa: RUF012

    def bound(self, q):
        self.rows.append(q)
        return float(q.max())

    def __call__(self, confidences):
        return confidences[-1] < 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_rule_may_read_the_rows_which_are_probabilities(folders, temperature):  # noqa: F811
    pair, stop = paired(folders), LeastProbability(6)
    object.__setattr__(stop, "rows", [])
    options = Options(max_new_tokens=24, temperature=temperature, stop=stop)
    rounds = list(speculative(pair, "the thing", options, Uniforms(np.random.default_rng(0))))
    assert stop.rows and all(q.sum() == pytest.approx(1) and 0 < q.max() < 1 for q in stop.rows)
    assert len(stop.rows) <= sum(len(r.draft_tokens) for r in rounds)  # a healed token has none


# ---- throughput ----------------------------------------------------------------------------------
def finished(drafted: int, kept: int, tokens: int, draft: float, target: float) -> Round:
    """A round of so many draft tokens and seconds."""
    return Round([0] * drafted, [0] * drafted, [1] * drafted, kept, [1] * tokens, ["bonus"] * tokens, kept,
                 {"draft": draft, "target": target, "other": 0.0})


def run(stop: Throughput, rounds: int, seconds: float, tokens: int) -> int:
    """How many of so many rounds draft: those take `seconds` for `tokens`, a plain step one second."""
    drafting = 0
    for _ in range(rounds):
        drafts = stop.limit > 0
        drafting += drafts
        stop.record(finished(4, tokens - 1, tokens, 0.1, seconds - 0.1) if drafts else finished(0, 0, 1, 0.0, 1.0))
    return drafting


def test_throughput_rests_where_drafting_does_not_pay():
    stop = Throughput()
    assert run(stop, 200, seconds=3.0, tokens=2) < 60
    assert run(Throughput(), 50, seconds=3.0, tokens=5) == 49  # one plain step is measured
    run(stop, 600, seconds=1.0, tokens=2)  # trials from time to time find that it has become cheap
    assert run(stop, 50, seconds=1.0, tokens=2) == 50


def test_the_rests_grow_and_each_is_followed_by_a_trial_of_four_rounds():
    stop, lengths, before = Throughput(12), [], None
    for _ in range(1200):
        drafts = stop.limit > 0
        assert stop.limit in (0, 12)
        lengths = [*lengths[:-1], lengths[-1] + 1] if drafts == before else [*lengths, 1]
        before = drafts
        stop.record(finished(4, 1, 2, 0.1, 2.9) if drafts else finished(0, 0, 1, 0.0, 1.0))
    assert lengths[:11] == [2, 1, 6, 32, 4, 64, 4, 128, 4, 256, 4] and lengths[11] == 256


def test_throughput_in_the_loop_rests_and_leaves_the_text_alone(folders):  # noqa: F811
    pair = paired(folders)
    options = Options(max_new_tokens=80, stop=Throughput(6, threshold=0.0))
    real = options.stop.record

    def slow(record):  # a draft token costs a second
        record.seconds["draft"] += len(record.draft_tokens)
        real(record)

    options.stop.record = slow
    rounds = list(speculative(pair, "the thing", options, Uniforms([])))
    ids = pair.target.tokenizer.encode("the thing", bos=True)
    alone = [t for r in plain(pair.target, ids, options, Uniforms([])) for t in r.emitted]
    assert [t for r in rounds for t in r.emitted] == alone
    assert options.stop.limit == 0 and sum(not r.draft_tokens for r in rounds) > 30


def test_throughput_drafts_nothing_where_it_does_not_pay_and_again_where_it_does():
    stop, generator = Throughput(4, threshold=0.0), np.random.default_rng(0)

    def rounds(count: int, token: float) -> int:
        """How many of so many rounds draft; a pass takes 10 ms and `token` ms more for a draft token, half of them kept."""
        drafting = 0
        for peak in generator.random(count):
            drafted = int(stop.limit > 0 and stop.starts(peak))
            kept = int(generator.random() < 0.5) * drafted
            drafting += drafted
            stop.record(Round([0] * drafted, [0] * drafted, [1] * drafted, kept, [1] * (1 + kept), ["bonus"] * (1 + kept), kept,
                              {"draft": 0.0, "target": 0.010 + token * drafted / 1000, "other": 0.0}))
        return drafting

    assert rounds(100, 0.5) > 80 and rounds(300, 20.0) < 100 and rounds(300, 20.0) < 30
    rounds(1000, 0.5)  # rare trials where it is nearly sure tell that it has become cheap
    assert rounds(100, 0.5) > 80
