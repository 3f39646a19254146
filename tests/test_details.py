"""Details in which a change had gone unnoticed: each is a mutant of tests/mutants.py too."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from fakes import FakeModel
from fakes import byte_level as small_bytes
from test_cli import own_caches  # noqa: F401 (a fixture)
from test_learning import PROMPTS, folders, learner_of, paired, resumed, serve  # noqa: F401 (a fixture)
from test_losses import small_pair
from vocabularies import byte_level, sentencepiece

from omnidraft.decoding import speculative
from omnidraft.drafting import Draft
from omnidraft.learning import online
from omnidraft.learning.adapters import Adapters
from omnidraft.learning.online import Learner, Schedule
from omnidraft.lifting import ROOT, Lifting
from omnidraft.losses import Example, _divergence, hybrid, make_example, places
from omnidraft.ngram_cache import NGramCache
from omnidraft.options import Options
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms, process
from omnidraft.stopping import FixedLength
from omnidraft.text.tokenizer import Tokenizer
from omnidraft.translation import Proposals, common_prefix
from omnidraft.verification import exact_match
from omnidraft.vocabulary import align, canonical_ids

# ---------------------------------------------------------------------------------------------------- one round

def test_the_token_in_place_of_the_last_proposal_is_recovered():
    assert exact_match([1, 2], [1, 3, 9]) == ([1, 3], "recovered")
    assert exact_match([1, 2], [1, 2, 9]) == ([1, 2, 9], "bonus")


def test_with_one_vocabulary_a_draft_is_kept_up_to_where_it_differs():
    tokenizer = small_bytes([("a", "b"), (" ", "a")])
    pair = Pair(FakeModel(tokenizer, 1), FakeModel(tokenizer, 2))
    assert pair.one_vocabulary
    options = Options(stop=FixedLength(4), temperature=1.0, max_new_tokens=60)
    rounds = [one for seed in range(3)
              for one in speculative(pair, "ab a", options, Uniforms(np.random.default_rng(seed)))]
    assert [one.draft_kept for one in rounds] == [common_prefix(one.draft_tokens, one.emitted) for one in rounds]
    assert any(0 < one.draft_kept < len(one.draft_tokens) for one in rounds)


def test_a_target_token_of_many_draft_tokens_is_learned_in_the_round_that_wrote_it():
    """The n-gram is looked for among the last 8 draft tokens per token that was written."""
    draft, target = small_bytes([], "ab"), small_bytes([("a", "b"), ("ab", "ab"), ("abab", "ab")], "ab")
    long = target.strings.index("ababab")

    class Writer(FakeModel):
        def row(self, ids):
            return np.eye(self.vocab_size)[long] * 9.0

    pair = Pair(FakeModel(draft, 1), Writer(target, 2), NGramCache())
    next(speculative(pair, "ab", Options(stop=FixedLength(0), learn=True, max_new_tokens=4), Uniforms([])))
    assert pair.cache.split_of(long) == tuple(draft.encode("ababab"))


def test_min_p_of_1_keeps_the_likeliest_tokens_only():
    logits = np.log([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])
    assert process(logits, min_p=1.0).tolist() == [[0, 1, 0], [0.5, 0, 0.5]]


# ------------------------------------------------------------------------------------------------- vocabularies

def test_of_two_tokens_with_the_same_bytes_byte_fallback_comes_last():
    """An added token "\\t" is written by the tokenizer; the model alone would spell it <0x09>, which has a lower id."""
    raw = sentencepiece("▁ab").raw
    raw.add_tokens(["\t"])
    tokenizer = Tokenizer(raw)
    added, fallback = raw.token_to_id("\t"), raw.token_to_id("<0x09>")
    assert tokenizer.encode_continuation("a\t")[-1] == added > fallback and tokenizer.split(b"\t") == (fallback,)
    assert canonical_ids(tokenizer, tokenizer.token_bytes)[b"\t"] == added


def test_compared_as_strings_only_a_leading_mark_is_a_space():
    """As in the paper, whose Table 8 the strings reproduce."""
    draft, target = sentencepiece("▁ab", "▁ a, ▁a ▁, b ▁"), byte_level("Ġ a, Ġa Ġ, b Ġ")
    mapped = align(draft, target, strings=True).draft_to_target
    assert mapped[draft.raw.token_to_id("▁a")] == target.raw.token_to_id("Ġa")
    assert mapped[draft.raw.token_to_id("▁a▁")] == mapped[draft.raw.token_to_id("b▁")] == -1
    assert align(draft, target).draft_to_target[draft.raw.token_to_id("▁a▁")] == target.raw.token_to_id("ĠaĠ")


def test_of_entries_used_equally_often_the_one_used_longest_ago_goes():
    cache = NGramCache(capacity=2, eviction="lfu")
    cache.insert((1, 2), 10)
    cache.insert((3, 4), 11)
    assert cache.touch((3, 4)) and cache.touch((1, 2))
    cache.insert((5, 6), 12)
    assert cache.hits((1, 2)) == 1 and cache.hits((3, 4)) == 0


def test_prefill_pairs_an_ngram_with_the_written_token_and_not_with_its_twin():
    target = byte_level("Ġ a, Ġa b", added=(" ab",))  # the added token has the bytes of "Ġab"
    draft = sentencepiece("▁ab")
    written, twin = target.raw.token_to_id("Ġab"), target.raw.token_to_id(" ab")
    assert target.token_bytes[written] == target.token_bytes[twin] and written != twin
    cache = NGramCache()
    cache.prefill(draft, target, align(draft, target))
    assert cache.split_of(written) == tuple(draft.encode_continuation(" ab")) and cache.split_of(twin) is None


# ------------------------------------------------------------------------------------------------------- losses

def test_a_text_spelled_by_an_other_split_has_no_comparisons_inside_that_trie_node():
    """Token 7 has the split (3,), but the text spells it 1, 2, which lead to the node of token 8."""
    lifting = Lifting({7: (3,), 8: (1, 2, 1), 9: (1,)}, {}, 4)
    example = Example([0, 1, 2], [7], np.full((1, 10), 0.1), [1])
    assert [(at, node) for at, _, node, _, _ in places(example, lifting)] == [(1, ROOT)]
    inside = Example([0, 1, 2, 1], [8], np.full((1, 10), 0.1), [1])
    assert [node for _, _, node, _, _ in places(inside, lifting)] == [ROOT, (1,), (1, 2)]


def test_where_no_mass_is_on_the_shared_tokens_there_is_no_term():
    """The target's row may rule out every shared token, also the one that was written (a processor, top-k)."""
    pair = small_pair(Lifting({0: (0,), 1: (1,)}, {}, 2), [0, 1], 3, {}, 2)
    rows = np.array([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    both = Example([0, 0, 1], [0, 1], rows, [1, 2])
    value, gradient, number = hybrid(np.zeros((2, 2)), both, pair)
    assert number == 1 and np.isfinite(value) and np.isfinite(gradient).all() and not gradient[1].any()


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_where_the_target_has_hardly_any_mass_the_loss_is_bounded(kind):
    """P counts as 1e-12 at least, so a term is at most log 1e12; the derivative by Q is that of the bounded term."""
    P, Q = np.array([1.0, 1e-20]), np.array([0.5, 0.5])
    value, slope = _divergence(P, Q, kind)
    if kind == "reverse":
        assert value == pytest.approx(0.5 * np.log(0.5) + 0.5 * np.log(0.5e12))
        assert slope == pytest.approx([np.log(0.5) + 1, np.log(0.5e12) + 1])
    else:
        assert value == pytest.approx(np.log(2)) and slope == pytest.approx([-2, 0])


def test_an_end_token_that_has_bytes_is_an_ordinary_token_of_an_example():
    """A model's folder may name a line break, say, as an end token: the drafter's own end token does not stand for it."""
    target = byte_level("Ġ a, a b")
    pair = Pair(FakeModel(sentencepiece("▁ab."), 1), FakeModel(target, 2))
    ids = target.encode_continuation(" ab.")
    pair.target.eos_ids = ids[-1:]
    example = make_example(pair, "b", ids, np.full((len(ids), pair.target.vocab_size), 0.1))
    assert pair.draft.tokenizer.decode_bytes(example.draft_ids) == b" b ab."
    assert example.starts[-1] == len(example.draft_ids) - 1


# ----------------------------------------------------------------------------------------------------- learning

def test_a_of_lora_learns_at_a_sixteenth_of_the_rate_of_b(folders):  # noqa: F811
    """The first step moves each number by its rate (arXiv 2402.12354: long runs diverge at equal rates)."""
    trainer = learner_of(paired(folders), rank=2, rate=1e-3, decay=0.0).trainer
    before = deepcopy(trainer.parameters)
    trainer.optimizer.step({name: np.ones_like(array) for name, array in before.items()})
    for name, array in trainer.parameters.items():
        step = 1e-3 / 16 if ".lora_A." in name else 1e-3
        np.testing.assert_allclose(before[name] - array, step, rtol=1e-2)


def test_the_untouched_run_of_a_held_out_prompt_teaches_the_cache_nothing(folders, monkeypatch):  # noqa: F811
    pair = paired(folders)
    learner = learner_of(pair, Schedule(every=9, guard=0, held_out=1))
    pair.draft = learner.trainer.model()  # it has changed, so held-out prompts are answered twice
    run, learns = online.speculative, []

    def observed(pair, prompt, options, *more):
        learns.append(options.learn)
        return run(pair, prompt, options, *more)

    monkeypatch.setattr(online, "speculative", observed)
    serve(learner, PROMPTS[:1], learn=True)
    assert learns == [True, False]


@pytest.mark.parametrize("done", [False, True])
def test_labels_of_a_draft_that_the_text_s_end_cut_off(done):
    """With a rule without atoms: what follows the end of a text was not rejected."""
    draft = Draft(tokens=[1, 2, 3])
    assert Learner._labels(None, draft, Proposals(), None, 1, done) == ([1.0] if done else [1.0, 0.0])
    assert Learner._labels(None, draft, Proposals(), None, 3, done) == [1.0] * 3


def test_what_is_kept_are_the_weights_that_proved_better(folders, tmp_path):  # noqa: F811
    """With a guard the trainer goes on from weights that are still being tried: they must not draft, now or later."""
    store = Adapters(tmp_path)
    learner = resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    best = learner.trainer.state()
    serve(learner, PROMPTS[2:4])
    learner.guard.best = best
    store.keep(learner)
    kept = store.load(paired(folders)).lora.parameters
    now = learner.trainer.state()
    for name, array in kept.items():
        np.testing.assert_array_equal(array, best[f"served.{name}"])
    assert any((array != now[f"served.{name}"]).any() for name, array in kept.items())


def test_an_adapter_goes_on_with_its_own_alpha(folders, tmp_path):  # noqa: F811
    learner = resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    learner.trainer.lora.alpha = alpha = 3.5 * learner.trainer.lora.alpha
    Adapters(tmp_path).keep(learner)
    again = resumed(folders, tmp_path)
    assert again.trainer.lora.alpha == alpha
    text = learner.pair.draft.tokenizer.encode("the thing")
    ours, theirs = (one.forward(text, one.new_cache(), len(text)) for one in (learner.trainer.model(), again.pair.draft))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_given_rate_does_not_take_the_share_of_the_rate_that_the_guard_had_found(folders, tmp_path):  # noqa: F811
    learner = resumed(folders, tmp_path)
    serve(learner, PROMPTS[:2])
    learner.statistics.rate_share = 0.25
    Adapters(tmp_path).keep(learner)
    usual, given = resumed(folders, tmp_path), resumed(folders, tmp_path, rate=1e-3)
    assert usual.trainer.optimizer.rate == pytest.approx(learner.trainer.recipe.step_size(learner.trainer.base) / 4)
    assert given.trainer.optimizer.rate == pytest.approx(1e-3) and given.statistics.rate_share == 1
