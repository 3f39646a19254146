"""Drafting only while it pays: what the account loses and keeps; plain rounds, in any pattern, keep the distribution."""

from __future__ import annotations

from itertools import islice, pairwise, product

import numpy as np
import pytest
from fakes import FakeModel, byte_level, sentence_piece
from test_state import check_cache

import omnidraft
from omnidraft import Options, Round, plain, speculative
from omnidraft.decoding import Text
from omnidraft.exactness import distribution_of, total_variation
from omnidraft.exactness.worlds import World
from omnidraft.ngram_cache import NGramCache
from omnidraft.pairs import pace as module
from omnidraft.pairs.conversation import Conversation
from omnidraft.pairs.pace import LONGEST, Pace, paced
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms

PIECES = sentence_piece([("a", "b"), ("▁", "a"), ("▁a", "b"), ("b", "a")])
BYTES = byte_level([("a", "b"), (" ", "a"), ("ab", "a"), ("b", "a"), (" a", "ba")])


class Scripted:
    """Drafts in the rounds that a pattern names, again and again."""

    def __init__(self, pattern: tuple[bool, ...]) -> None:
        self.pattern, self.rounds, self.late = pattern, [], 0.0

    def drafts(self, text=None) -> bool:
        return self.pattern[len(self.rounds) % len(self.pattern)]

    def observe(self, record: Round, drafted: bool, late: float) -> None:
        assert drafted == self.drafts() and set(record.seconds) >= {"target", "other"}
        assert drafted or not record.draft_tokens
        self.rounds.append(drafted)
        self.late += late

    def try_out(self, model, sampler) -> None:
        pass


def draws(seed: int = 0) -> Uniforms:
    return Uniforms(np.random.default_rng(seed))


def fakes(draft=PIECES, target=BYTES) -> Pair:
    return Pair(FakeModel(draft, 1), FakeModel(target, 2))


def scripted(pair, pattern: tuple[bool, ...]) -> None:
    """Let the pattern decide which rounds of this pair draft."""
    pace = Scripted(pattern)
    pair.pace = lambda options: pace


def emitted(rounds) -> list[int]:
    return [token for record in rounds for token in record.emitted]


# ---- exact, whatever the pattern --------------------------------------------------------------------------------------
PATTERNS = [pattern for pattern in product((False, True), repeat=3) if any(pattern) and not all(pattern)]


@pytest.mark.parametrize("rule", ["lifted", "tli", "slem"])
def test_plain_rounds_in_any_pattern_leave_the_distribution_as_it_is(rule):
    seen = 0
    for seed in range(12):
        world = World(seed, rule)
        if world.options.learn or not world.options.temperature:
            continue
        pattern = PATTERNS[seed % len(PATTERNS)]

        def run(outcomes, world=world, pattern=pattern) -> tuple[int, ...]:
            scripted(world.pair, pattern)
            written: list[int] = []
            text = Text(world.pair)
            for record in paced(world.pair, world.prompt, world.options, outcomes, text):
                written += record.emitted
                check_cache(text.target)
                if len(written) >= world.count or record.done:
                    break
            return tuple(written[:world.count])

        assert total_variation(distribution_of(run), world.truth()) < 1e-9, (seed, pattern)
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("sides", [(PIECES, BYTES), (BYTES, PIECES), (BYTES, BYTES)])
@pytest.mark.parametrize("learn", [False, True])
def test_greedy_text_and_the_drafters_text(pattern, sides, learn):
    pair, options = fakes(*sides), Options(max_new_tokens=40, eos_token_id=(), learn=learn)
    scripted(pair, pattern)
    text = Text(pair)
    rounds = list(paced(pair, "ab a ", options, draws(), text))
    alone = list(plain(pair.target, pair.target.tokenizer.encode("ab a ", bos=True), options, draws()))
    assert emitted(rounds) == emitted(alone) and rounds[-1].done and not any(one.done for one in rounds[:-1])
    assert "prefill" in rounds[0].seconds and not any("prefill" in one.seconds for one in rounds[1:])
    # at the end the drafter has the whole text again, and its cache the ids that it says
    written = pair.target.tokenizer.decode_bytes(emitted(rounds))
    assert pair.draft.tokenizer.decode_bytes(text.draft_ids).endswith(written)
    check_cache(text.target)
    check_cache(text.drafter.reader)


def test_the_drafter_does_nothing_in_plain_rounds_and_catches_up_in_one_pass():
    pair = fakes()
    scripted(pair, (False,) * 9 + (True,))
    passes = []
    rounds = paced(pair, "ab a ab a", Options(max_new_tokens=60, eos_token_id=()), draws())
    for place, _ in enumerate(islice(rounds, 19)):
        passes.append(len(pair.draft.passes))
        assert place != 9 or max(pair.draft.passes) > 5  # the prompt and nine tokens
    assert passes[:9] == [0] * 9 and passes[9] > 0 and passes[9:19] == passes[9:10] * 10


def test_learning_sees_what_was_written_plainly():
    learned = []
    for pattern in ((True,), (False,)):
        pair = Pair(FakeModel(PIECES, 1), FakeModel(BYTES, 2))
        pair.cache = NGramCache()
        scripted(pair, pattern)
        list(paced(pair, "ab a ", Options(max_new_tokens=60, eos_token_id=(), learn=True), draws()))
        learned.append({ngram: token for ngram, token, _ in pair.cache.items()})
    assert learned[0] and learned[0].keys() <= learned[1].keys()


# ---- when it is used --------------------------------------------------------------------------------------------------
def test_above_temperature_0_only_on_request_as_measured_times_would_change_a_seeds_text():
    pair = fakes()
    assert pair.pace(Options()) is not None and pair.pace(Options(adaptive=False)) is None
    assert pair.pace(Options(temperature=0.7)) is None and pair.pace(Options(temperature=0.7, adaptive=True)) is not None
    texts = {tuple(pair.generate("ab a", seed=5, do_sample=True, max_new_tokens=30).tokens) for _ in range(3)}
    assert texts == {tuple(emitted(speculative(pair, "ab a", Options(temperature=1.0, max_new_tokens=30), draws(5))))}


def test_one_account_for_texts_of_equal_settings():
    pair = fakes()
    first = pair.pace(Options())
    assert pair.pace(Options(max_new_tokens=3)) is first
    assert pair.pace(Options(verify="slem")) is not first
    again = pair.pace(Options())
    pair.draft = FakeModel(PIECES, 3)
    assert again is not first and pair.pace(Options()) is not again


@pytest.mark.parametrize("pattern", [(False,), (True, False, False), (False, True)])
def test_a_conversation_goes_on_after_plain_rounds(pattern):
    pair = fakes()
    expected = Conversation(fakes())
    scripted(pair, pattern)
    talk = Conversation(pair)
    options = Options(max_new_tokens=12, eos_token_id=(), adaptive=False)
    for message in ("ab a", "a a b", "b"):
        made, same = (emitted(one.ask(message, options, draws())) for one in (talk, expected))
        assert made == same
    assert talk.messages == expected.messages and talk.text.ids == expected.text.ids


# ---- the account ------------------------------------------------------------------------------------------------------
def simulate(pace: Pace, accept: float, count: int, seed: int = 0, noise: float = 0.0, draft: float = 0.07,
             wider: float = 0.5, late: float = 1.0) -> tuple[float, int]:
    """Tokens per plain round's time, and how many rounds drafted: four tokens, each kept with the probability `accept`.

    A drafted token costs `draft` plain rounds, the pass over a draft 1 + `wider`. With the probability `noise` a part of a
    round takes several times as long, which only the account sees.
    """
    rng = np.random.default_rng(seed)
    written = drafted = 0
    spent, before = 0.0, False

    def seen(seconds: float) -> float:
        return seconds * (1 + 0.1 * rng.random() + (rng.random() < noise) * rng.exponential(5))

    while written < count:
        drafts = pace.drafts()
        if drafts:
            kept = 4
            for place in range(4):
                if rng.random() > accept:
                    kept = place
                    break
            parts = {"draft": 4 * draft, "target": 1 + wider, "other": 0.05}
            record = Round([0] * 4, [0] * 4, [1] * 4, kept, [0] * (kept + 1))
        else:
            parts = {"target": 0.99, "other": 0.01}
            record = Round(emitted=[0])
        record.seconds = {name: seen(seconds) for name, seconds in parts.items()}
        missed = late * (drafts and not before)
        pace.observe(record, drafts, missed)
        spent += sum(parts.values()) + missed
        written += len(record.emitted)
        drafted += drafts
        before = drafts
    return written / spent, drafted


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("accept", [0.0, 0.2, 0.4])
def test_what_does_not_pay_costs_three_percent_at_most(accept, noise):
    speeds = [simulate(Pace(), accept, 1024, seed, noise)[0] for seed in range(8)]
    assert np.mean(speeds) > 0.975 and min(speeds) > 0.96
    assert simulate(Pace(), accept, 10_000, 0, noise)[0] > 0.99  # the trials become rarer


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_what_pays_is_kept(noise):
    always = sum(0.8**k for k in range(5)) / 1.83  # tokens per round by their cost
    speeds = [simulate(Pace(), 0.8, 1024, seed, noise)[0] for seed in range(8)]
    assert np.mean(speeds) > 0.94 * always
    assert simulate(Pace(), 0.8, 10_000, 0, noise)[0] > 0.98 * always


def test_it_notices_that_drafts_begin_to_pay_or_cease_to():
    pace = Pace()
    simulate(pace, 0.1, 2000)
    assert simulate(pace, 0.9, 4000)[0] > 1.3
    assert simulate(pace, 0.1, 2000)[0] > 0.97
    assert not pace.drafts()


def test_trials_become_rarer_while_they_lose_but_never_stop():
    pace = Pace()
    waits = []
    for _ in range(8):
        while not pace.drafts():
            pace.observe(Round(emitted=[0], seconds={"target": 0.99, "other": 0.01}), False)
        while pace.drafts():
            simulate(pace, 0.0, 1)
        waits.append(pace._wait)
    assert waits[0] >= module.TRIAL / module.SHARE - 1 and waits[-1] == LONGEST
    assert all(after >= min(2 * before, LONGEST) for before, after in pairwise(waits))


def test_a_drafter_as_slow_as_the_target_is_not_tried_nor_given_the_text(monkeypatch):
    pair, clock = fakes(), [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    forward = pair.draft.forward

    def slow(ids, cache, rows=1):
        clock[0] += 1.0
        return forward(ids, cache, rows)

    pair.draft.forward = slow
    rounds = pair.generate("ab a ab a", max_new_tokens=50, eos_token_id=()).rounds
    assert not any(record.draft_tokens for record in rounds) and len(rounds) == 50
    assert pair.draft.passes == [1, 1]


def test_the_default_of_generate_stream_and_chat_keeps_greedy_text():
    pair = omnidraft.pair("draft-general", "qwen-like")
    prompt = "Question: Ann has 3 boxes of 12 pens. How many pens does she have?\nAnswer:"
    for _ in range(3):
        made, always = (pair.generate(prompt, max_new_tokens=60, adaptive=how) for how in (None, False))
        assert made.tokens == always.tokens and made.text == "".join(pair.stream(prompt, max_new_tokens=60))
    assert pair._pace[2] is not None
