"""The decoding loop: the same greedy text as plain decoding, the exact distribution in the whole loop, consistent records."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from fakes import FakeModel, byte_level, sentence_piece

from omnidraft.decoding import plain, speculative
from omnidraft.drafting import Draft, Drafter
from omnidraft.exactness import World, distribution_of, total_variation
from omnidraft.ngram_cache import NGramCache
from omnidraft.options import Options
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Sampler, Uniforms
from omnidraft.stopping import Confidence, FixedLength
from omnidraft.text.errors import OmnidraftError
from omnidraft.text.tokenizer import Tokenizer
from omnidraft.translation import Direct, respelled
from omnidraft.verification import RULES

PIECES = sentence_piece([("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b"), ("b", "b")])
BYTES = byte_level([(" ", "a"), ("a", "b"), ("b", "a"), (" a", "ba"), ("ab", "ab")])
SMALL_PIECES = sentence_piece([("▁", "a"), ("a", "b")])
SMALL_BYTES = byte_level([("a", "b"), ("b", "ab")])
PROMPT = "ab ba a"


def models(direction: str, seed: int, **options):
    a, b = FakeModel(PIECES, seed, padding=3), FakeModel(BYTES, seed + 1, padding=5, **options)
    if direction == "pieces to bytes":
        return a, b
    return FakeModel(BYTES, seed, padding=3), FakeModel(PIECES, seed + 1, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("direction", ["pieces to bytes", "bytes to pieces"])
def test_greedy_text_equals_plain_decoding(rule, direction):
    for seed in range(6):
        draft, target = models(direction, 10 * seed)
        pair = Pair(draft, target)
        ids = target.tokenizer.encode(PROMPT, bos=True)
        for k in (1, 2, 3, 5, 8, 12):
            options = Options(verify=rule, stop=FixedLength(k), max_new_tokens=40, learn=bool(k % 2))
            expected = [t for r in plain(target, ids, options, Uniforms([])) for t in r.emitted]
            rounds = list(speculative(pair, PROMPT, options, Uniforms([])))
            assert [t for r in rounds for t in r.emitted] == expected
            assert rounds[-1].done and not any(r.done for r in rounds[:-1])


class Same(FakeModel):
    """A model that writes the same text with any tokenizer: its rows depend only on the text's length."""

    def row(self, ids):
        text = self.tokenizer.decode_bytes(ids).lstrip(b" ")
        wanted = (b"ab bab ab a bb ab aba b" * 40)[len(text):]
        logits = np.full(self.vocab_size, -5.0)
        for token in range(self.tokenizer.size):
            spelled = self.tokenizer.token_bytes[token]
            if spelled and wanted.startswith(spelled):
                logits[token] = len(spelled)
        return logits


@pytest.mark.parametrize("rule", ["lossless", "slem"])
def test_models_that_agree_accept_whole_drafts(rule):
    draft, target = Same(PIECES, 0), Same(BYTES, 0)
    rounds = list(speculative(Pair(draft, target), "ab ", Options(verify=rule, stop=FixedLength(8), max_new_tokens=60),
                              Uniforms([])))
    assert sum(len(r.emitted) for r in rounds) / len(rounds) > 3
    assert all(kind in ("accepted", "merged", "recovered", "bonus") for r in rounds for kind in r.kinds)


@pytest.mark.parametrize("rule", ["lossless", "tli", "slem"])
@pytest.mark.parametrize("direction", ["pieces to bytes", "bytes to pieces"])
@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"top_p": 0.6}])
def test_the_whole_loop_is_exact(rule, direction, sampling):
    drafted = set()
    for seed, threshold in ((0, 0.3), (1, 0.9)):  # with the higher threshold some rounds draft nothing
        tokenizers = (SMALL_PIECES, SMALL_BYTES) if direction == "pieces to bytes" else (SMALL_BYTES, SMALL_PIECES)
        draft, target = FakeModel(tokenizers[0], seed), FakeModel(tokenizers[1], seed + 50)
        pair = Pair(draft, target)
        options = Options(verify=rule, stop=Confidence(3, threshold), temperature=0.9, max_new_tokens=4, **sampling)

        def two_tokens(draws, pair=pair, options=options):
            written: list[int] = []
            for record in speculative(pair, "ab a", options, draws):
                drafted.add(len(record.draft_tokens))
                written += record.emitted
                if len(written) >= 2 or record.done:
                    return tuple(written[:2])

        def truth(draws, target=target, options=options):
            ids, written = target.tokenizer.encode("ab a", bos=True), []
            for record in plain(target, ids, options, draws):
                written += record.emitted
                if len(written) == 2 or record.done:
                    return tuple(written)

        assert total_variation(distribution_of(two_tokens), distribution_of(truth)) < 1e-12
    assert drafted >= {0, 2, 3}


def test_an_unsure_drafter_drafts_nothing_and_is_asked_before_the_draw():
    """At threshold 1 no row is confident enough: nothing is drafted, and the drafter uses no uniform number."""
    target = FakeModel(BYTES, 2)
    for temperature in (0.0, 1.0):
        options = Options(stop=Confidence(6, 1.0), temperature=temperature, heal=False, max_new_tokens=12)
        rounds = list(speculative(Pair(FakeModel(PIECES, 1), target), PROMPT, options, Uniforms(np.random.default_rng(0))))
        alone = plain(target, target.tokenizer.encode(PROMPT, bos=True), options, Uniforms(np.random.default_rng(0)))
        assert [r.emitted for r in rounds] == [r.emitted for r in alone] and not any(r.draft_tokens for r in rounds)


def test_the_whole_loop_heals():
    """The exactness test above includes healing: some drafts of this pair take back a context token."""
    taken = 0
    for seed in range(3):
        pair = Pair(FakeModel(SMALL_PIECES, seed), FakeModel(SMALL_BYTES, seed + 50))
        drafter = Drafter(pair, "ab a ", Options(temperature=0.9), Sampler(Uniforms(np.random.default_rng(seed)), 0.9))
        for _ in range(20):
            draft = drafter.draft(pair.lifting, 3)
            taken += draft.taken_back is not None
            assert draft.taken_back in (None, drafter.ids[-1])
    assert taken > 5


def test_an_end_token_in_mid_block_ends_the_text():
    draft, target, kept = FakeModel(PIECES, 3, end=2.5), FakeModel(BYTES, 3, end=2.5), 0
    for seed in range(20):
        rounds = list(speculative(Pair(draft, target), PROMPT, Options(temperature=1.0, stop=FixedLength(6), max_new_tokens=50),
                                  Uniforms(np.random.default_rng(seed))))
        written = [t for r in rounds for t in r.emitted]
        ends = [i for i, token in enumerate(written) if token in target.eos_ids]
        assert not ends or ends == [len(written) - 1]
        assert all(r.accepted <= len(r.emitted) for r in rounds)
        assert not any({*r.draft_tokens[:-1]} & {*draft.eos_ids} for r in rounds)  # nothing is drafted after an end token
        last = rounds[-1]
        if ends and last.kinds[-1] == "accepted" and last.draft_tokens[-1] in draft.eos_ids:
            kept += 1
            assert last.draft_kept == len(last.draft_tokens)  # the end token, which the target wrote too, counts as kept
    assert kept > 3


def test_what_was_kept_after_an_end_token_does_not_count():
    draft, target = Same(PIECES, 0), Same(BYTES, 0)
    options = Options(stop=FixedLength(8), max_new_tokens=60)
    written = [r.emitted for r in speculative(Pair(draft, target), "ab ", options, Uniforms([]))]
    target.eos_ids = written[1][1],  # only the target knows that this token ends a text
    *_, last = speculative(Pair(draft, target), "ab ", options, Uniforms([]))
    assert len(written[1]) > 3 and last.done and last.emitted == written[1][:2]
    assert last.accepted == len(last.kinds) == 2 < len(last.proposals)


@pytest.mark.parametrize("rule", RULES)
def test_no_more_is_drafted_than_there_is_room_for(rule):
    for seed in range(10):
        options, left = Options(verify=rule, temperature=1.0, stop=FixedLength(8), max_new_tokens=6), 6
        for r in speculative(Pair(*models("pieces to bytes", seed)), PROMPT, options, Uniforms(np.random.default_rng(seed))):
            assert len(r.draft_tokens) < left
            left -= len(r.emitted)


def test_an_end_token_is_proposed_as_the_targets_own_of_that_name():
    for pair in (World(seed).pair for seed in range(200)):
        for end in pair.draft.eos_ids:
            same = int(pair.alignment.draft_to_target[end])
            if same not in (-1, pair.target.eos_ids[0]):
                assert respelled(pair, Draft([end]), [0]).tokens == [same]
                return
    raise AssertionError("no world has such a token")


def test_an_end_token_without_counterpart_is_proposed_as_the_targets_first_end_token():
    pair = next(pair for pair in (World(seed).pair for seed in range(200)) if pair.draft.eos_ids and pair.target.eos_ids)
    end = pair.draft.eos_ids[0]
    pair.alignment.draft_to_target[end] = -1
    assert respelled(pair, Draft([end]), [0]).tokens == [pair.target.eos_ids[0]]


def test_contexts_are_respected():
    draft, target = FakeModel(PIECES, 1, context_size=24), FakeModel(BYTES, 2, context_size=60)
    rounds = list(speculative(Pair(draft, target), PROMPT, Options(max_new_tokens=500), Uniforms([])))
    assert sum(len(r.emitted) for r in rounds) + len(BYTES.encode(PROMPT)) == 60
    with pytest.raises(OmnidraftError, match="at most"):
        next(speculative(Pair(draft, FakeModel(BYTES, 2, context_size=4)), PROMPT, Options(), Uniforms([])))
    with pytest.raises(OmnidraftError, match="empty"):
        next(speculative(Pair(draft, target), "", Options(), Uniforms([])))


def test_the_drafter_is_fed_only_what_changed():
    draft, target = Same(PIECES, 0), Same(BYTES, 0)
    pair = Pair(draft, target)
    list(speculative(pair, "ab bab ab a" * 1, Options(stop=FixedLength(6), max_new_tokens=60), Uniforms([])))
    assert max(draft.passes[1:]) <= 4 and max(target.passes[1:]) <= 16


def test_no_drafting_is_plain_decoding():
    draft, target = models("pieces to bytes", 4, end=-30.0)
    rounds = list(speculative(Pair(draft, target), PROMPT, Options(stop=FixedLength(0), max_new_tokens=10), Uniforms([])))
    assert [len(r.emitted) for r in rounds] == [1] * 10 and not any(r.draft_tokens for r in rounds)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"verify": "guess"}, {"stop": FixedLength(-1)}, {"top_p": 0.0},
                                   {"max_new_tokens": 0}, {"top_k": -2}, {"temperature": float("nan")},
                                   {"temperature": float("inf")}])
def test_bad_options_are_refused_in_one_line(wrong):
    with pytest.raises(OmnidraftError) as caught:
        Options(**wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", RULES)
def test_expansions_stay_inside_the_targets_context(rule):
    """One draft token may spell more target tokens than there is room for; the text still fills the context exactly."""
    for seed in range(10):
        draft = FakeModel(BYTES, seed, end=-30.0)
        target = FakeModel(SMALL_PIECES, seed, end=-30.0, context_size=40)  # FakeModel asserts that it is not fed more
        options = Options(verify=rule, stop=FixedLength(12), temperature=1.0, max_new_tokens=500)
        rounds = list(speculative(Pair(draft, target), "a", options, Uniforms(np.random.default_rng(seed))))
        assert sum(len(r.emitted) for r in rounds) + len(SMALL_PIECES.encode("a", bos=True)) == 40
        assert all(r.accepted <= len(r.proposals) for r in rounds)


def test_an_end_token_that_the_target_refused_leaves_the_drafters_context():
    pair = Pair(FakeModel(PIECES, 0), FakeModel(BYTES, 1))
    drafter, [end] = Drafter(pair, PROMPT, Options(), Sampler(Uniforms([]))), PIECES.roles["eos"]
    before, [a] = list(drafter.ids), PIECES.encode_continuation("a")
    assert drafter.follow(Draft([a, end], [None, None]), b"a b") == 1
    assert drafter.ids[:len(before)] == before and end not in drafter.ids
    assert drafter.follow(Draft([a, end], [None, None]), b"a", silent=1) == 2  # here the target ended the text too


@pytest.mark.parametrize("direction", ["pieces to bytes", "bytes to pieces"])
def test_learning_sees_each_token_once(direction):
    draft, target = models(direction, 4, end=-30.0)
    pair, seen = Pair(draft, target, NGramCache()), []
    observe = pair.cache.observe
    pair.cache.observe = lambda ours, theirs, *both: seen.extend(theirs) or observe(ours, theirs, *both)
    options = Options(stop=FixedLength(3), max_new_tokens=40, learn=True)
    rounds = list(speculative(pair, PROMPT, options, Uniforms([])))
    assert len(rounds) > 10 and len(seen) == 40 and seen == [token for r in rounds for token in r.emitted]


def test_a_prompt_that_one_side_cannot_spell():
    """A vocabulary without begin token, unknown token and byte fallback drops the characters that it does not have."""
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1, " ": 2}, merges=[]))
    poor, rich = FakeModel(Tokenizer(raw, "poor"), 0), FakeModel(BYTES, 1, end=-30.0)
    assert poor.tokenizer.encode("\u4e2d") == []
    prompt = rich.tokenizer.encode("ab"), poor.tokenizer.encode("\u4e2d")  # the ids that each side reads
    options = Options(max_new_tokens=10)
    expected = [t for r in plain(rich, prompt[0], options, Uniforms([])) for t in r.emitted]
    assert [t for r in speculative(Pair(poor, rich), prompt, options, Uniforms([])) for t in r.emitted] == expected
    with pytest.raises(OmnidraftError, match="spells any of the prompt"):
        next(speculative(Pair(rich, poor), "\u4e2d", options, Uniforms([])))


def test_ngrams_of_tokens_that_the_drafter_has_no_logits_for_are_left_out():
    """A tokenizer may have more entries than its model has logits: n-grams with such entries cannot be used."""
    draft, target = FakeModel(PIECES, 0, padding=-1), FakeModel(byte_level([("a", "b"), ("ab", "a")]), 1)
    pair, token = Pair(draft, target, NGramCache()), target.tokenizer.encode("aba")[0]
    assert pair.cache.insert((PIECES.encode_continuation("ab")[0], PIECES.size - 1), token)
    assert all(max(split) < draft.vocab_size for split in pair.lifting.splits.values())
    assert token not in pair.lifting.splits


class Narrow(FakeModel):
    """A model that allows only one token: all others have logit -inf."""

    def row(self, ids):
        logits = np.full(self.vocab_size, -np.inf)
        logits[self.tokenizer.encode("b")[-1]] = 0.0
        return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_healing_draws_among_tokens_that_the_model_rules_out(temperature):
    pair = Pair(Narrow(SMALL_PIECES, 0), FakeModel(SMALL_BYTES, 50))
    drafter = Drafter(pair, "ab a ", Options(temperature=temperature),
                      Sampler(Uniforms(np.random.default_rng(0)), temperature))
    longer = pair.lifting.longer(drafter.ids[-1])
    draft = drafter.draft(pair.lifting, 3)
    assert longer and draft.tokens
    if draft.taken_back is not None:
        assert draft.tokens[0] in longer


def test_tli_says_that_it_has_no_token_to_propose():
    draft = FakeModel(sentence_piece([("a", "b")]), 0)
    pair = Pair(draft, FakeModel(SMALL_BYTES, 50))
    pair.direct = Direct(np.full_like(pair.alignment.draft_to_target, -1))
    with pytest.raises(OmnidraftError, match="no token in common"):
        next(speculative(pair, PROMPT, Options(verify="tli"), Uniforms([])))
