"""Stop rules: lengths, confidence with and without a head; a rule never changes a text."""

from __future__ import annotations

import numpy as np
import pytest
from test_learning import folders, learner_of, paired, serve  # noqa: F401 (a fixture)

from omnidraft.decoding import plain, speculative
from omnidraft.drafting import Drafter
from omnidraft.learning.training import AdamW
from omnidraft.options import Options
from omnidraft.sampling import Sampler, Uniforms, process
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.text.errors import OmnidraftError


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
        AcceptanceHead(1, {"blocks.0.weight": np.zeros((3, 3)), "out.weight": np.zeros(3), "out.bias": np.zeros(1)})
    with pytest.raises(OmnidraftError, match="another width"):
        AcceptanceHead(1, {})  # a damaged file, not a fresh head


def test_a_head_decides_the_draft_length_and_leaves_the_text_alone(folders):  # noqa: F811
    pair, rng = paired(folders), np.random.default_rng(0)
    head = AcceptanceHead(pair.draft.config.width)
    head.parameters["out.weight"][:] = 0  # predicts 1/2 for every token
    ids = pair.target.tokenizer.encode("the thing", bos=True)
    options = Options(max_new_tokens=32, stop=Confidence(8, 0.2, head))
    rounds = list(speculative(pair, "the thing", options, Uniforms(rng)))
    assert max(len(r.draft_tokens) for r in rounds) == 3  # 1/2, 1/4, 1/8 < 0.2: the third is still proposed
    alone = [token for r in plain(pair.target, ids, options, Uniforms(rng)) for token in r.emitted]
    assert [token for r in rounds for token in r.emitted] == alone
    for temperature in (0.0, 1.0):  # for the likeliest first token it also predicts 1/2: too low for any draft
        unsure = Options(max_new_tokens=12, temperature=temperature, stop=Confidence(8, 0.6, head), heal=False)
        rounds = list(speculative(pair, "the thing", unsure, Uniforms(np.random.default_rng(0))))
        alone = list(plain(pair.target, ids, unsure, Uniforms(np.random.default_rng(0))))
        assert [r.emitted for r in rounds] == [r.emitted for r in alone] and not any(r.draft_tokens for r in rounds)
    learned = serve(learner_of(pair, head=head), stop=Confidence(8, head=head))
    assert all(len(one.rounds) for one in learned)


class LeastProbability(FixedLength):
    """A rule that reads the whole row: it stops if the largest probability is below one half."""

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
    assert len(stop.rows) <= sum(len(r.draft_tokens) for r in rounds)  # a healed token has no row


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_confidence_is_the_tokens_own_probability_or_what_is_known_of_its_row(folders, temperature):  # noqa: F811
    """At T > 0 the L2 norm of the row: the same for every token that could be drawn from it."""
    pair, seen = paired(folders), []

    class Watch(Confidence):
        def __call__(self, confidences):
            seen.append(confidences[-1])
            return False

    options = Options(max_new_tokens=24, temperature=temperature, stop=Watch(3, 0.0), heal=False, adaptive=False)
    drafter = Drafter(pair, "the thing", options, Sampler(Uniforms(np.random.default_rng(0)), temperature))
    draft = drafter.draft(None, 3)
    ids = pair.draft.tokenizer.encode_possible("the thing")
    logits = pair.draft.forward([*ids, *draft.tokens[:-1]], pair.draft.new_cache(), rows=len(draft.tokens))
    rows = process(logits, 1.0)
    if temperature:
        assert seen == pytest.approx([float(np.linalg.norm(row)) for row in rows], rel=1e-5)
    else:
        assert seen == pytest.approx([float(row.max()) for row in rows], rel=1e-5)
