"""Drafting only while it pays: what the account loses and keeps; plain rounds, in any pattern, keep the distribution."""

from __future__ import annotations

import time
from itertools import islice, pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeModel, byte_level, sentence_piece
from test_state import check_cache

import omnidraft
from omnidraft import Options, Round, decoding, plain, speculative
from omnidraft.decoding import Text
from omnidraft.exactness import distribution_of, total_variation
from omnidraft.exactness.worlds import World
from omnidraft.ngram_cache import NGramCache
from omnidraft.pairs import pace as module
from omnidraft.pairs.conversation import Conversation
from omnidraft.pairs.pace import LONGEST, Pace, paced, why_plain
from omnidraft.pairs.pair import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength

PIECES = sentence_piece([("a", "b"), ("▁", "a"), ("▁a", "b"), ("b", "a")])
BYTES = byte_level([("a", "b"), (" ", "a"), ("ab", "a"), ("b", "a"), (" a", "ba")])


class Scripted:
    """Drafts in the rounds that a pattern names, again and again."""

    def __init__(self, pattern: tuple[bool, ...]) -> None:
        self.pattern, self.rounds = pattern, []

    def drafts(self, text=None) -> bool:
        return self.pattern[len(self.rounds) % len(self.pattern)]

    def observe(self, record: Round, drafted: bool) -> None:
        assert drafted == self.drafts() and {*record.costs} >= {*record.seconds} >= {"target", "other"}
        assert drafted == ("late" in record.costs) and (drafted or not record.draft_tokens)
        self.rounds.append(drafted)

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
    # it reads what it has missed when it drafts again or learns; its cache holds the ids that it says
    follows = learn or pair.pace(options).rounds[-1]
    assert (text.draft_ids is not None) == follows
    text.wake()
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
        learned.append(list(pair.cache.items()))
    assert learned[0] == learned[1] and learned[0][0][2] > 8  # each time that it was written


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
    for other in ({"verify": "slem"}, {"stop": FixedLength(3)}, {"temperature": 0.5, "adaptive": True}, {"heal": False},
                  {"learn": True}, {"processor": lambda ids, row: row}):
        pair.pace(Options())
        assert pair.pace(Options(**other)) is not first, other
        first = pair.pace(Options())
    pair.draft = FakeModel(PIECES, 3)
    assert pair.pace(Options()) is not first


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
        missed = late * (drafts and not before)
        record.costs = {name: seen(seconds) for name, seconds in parts.items()} | {"late": missed}
        pace.observe(record, drafts)
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
    speeds = []
    for seed in range(4):
        pace = Pace()
        simulate(pace, 0.1, 2000, seed)
        speeds.append(simulate(pace, 0.9, 4000, seed)[0])
        assert simulate(pace, 0.1, 2000, seed)[0] > 0.97
        assert not pace.drafts()
    assert np.mean(speeds) > 1.5 and min(speeds) > 1.1


def test_trials_become_rarer_while_they_lose_but_never_stop():
    pace = Pace()
    waits = []
    for _ in range(8):
        while not pace.drafts():
            pace.observe(Round(emitted=[0], costs={"target": 0.99, "other": 0.01}), False)
        while pace.drafts() or not pace._waited:  # a plain round is measured in between
            simulate(pace, 0.0, 1)
        waits.append(pace._wait)
    assert waits[0] >= module.TRIAL / module.SHARE - 1 and waits[-1] == LONGEST
    assert all(after >= min(2 * before, LONGEST) for before, after in pairwise(waits))


def test_a_drafter_as_slow_as_the_target_is_not_tried_nor_given_the_text(monkeypatch):
    pair, clock = fakes(), [0.0]
    monkeypatch.setattr(module, "clock_of", lambda *models: lambda: clock[0])
    monkeypatch.setattr(decoding, "clock_of", lambda *models: lambda: clock[0])
    forward = pair.draft.forward

    def slow(ids, cache, rows=1):
        clock[0] += 1.0
        return forward(ids, cache, rows)

    pair.draft.forward = slow
    rounds = pair.generate("ab a ab a", max_new_tokens=50, eos_token_id=()).rounds
    assert not any(record.draft_tokens for record in rounds) and len(rounds) == 50
    assert pair.draft.passes == [1, 1]

def one(tokens: int, kept: int, target: float = 1.5, draft: float = 0.07, late: float = 0.0, **more: float) -> Round:
    """A round of `tokens` drafted tokens whose first `kept` entered the text; `tokens` = 0: a plain round."""
    costs = {"target": target if tokens else 0.99, "other": 0.05 if tokens else 0.01} | more
    if tokens:
        costs |= {"draft": tokens * draft, "late": late}
    return Round([0] * tokens, [0] * tokens, [1] * tokens, kept, [0] * (kept + 1), costs=costs)


def fed(pace: Pace, *rounds: Round) -> Pace:
    for record in rounds:
        pace.observe(record, bool(record.draft_tokens))
    return pace


def test_drafting_begins_at_once_and_a_plain_round_is_measured_only_in_doubt():
    assert Pace().drafts() and fed(Pace(), *[one(8, 8)] * 30).drafts()  # drafts that clearly pay
    doubtful = one(4, 1, target=1.2, draft=0.12)
    pace = fed(Pace(), doubtful)
    assert not pace.drafts() and not fed(pace, one(0, 0)).drafts() and fed(pace, one(0, 0)).drafts()
    assert pace.balance == pytest.approx(2 - 1.73)  # booked now that it is known what a plain round takes
    rounds = []
    while len(rounds) < 300:
        rounds.append(pace.drafts())
        fed(pace, doubtful if rounds[-1] else one(0, 0))
    checks = [place for place, drafts in enumerate(rounds) if not drafts]
    assert checks == [8, 73, 202]  # each time one, after 8, 64 and then every 128 rounds since the last


def test_a_pair_that_may_be_slow_is_measured_first_and_one_slow_probe_is_no_verdict():
    small, large = (SimpleNamespace(parameters=count) for count in (24, 100))
    assert Pace.of(small, large).drafts() and not Pace.of(large, small).drafts()
    assert not Pace.of(small, FakeModel(BYTES, 1)).drafts() and not Pace.of(SimpleNamespace(), large).drafts()
    for slow, drafts in (([9.0, 0.1], True), ([0.1, 9.0], True), ([9.0, 0.8], False)):
        ticks = iter([0.0, slow[0], 20.0, 20.0 + slow[1]])
        pace = fed(Pace(lambda ticks=ticks: next(ticks), doubtful=True), one(0, 0), one(0, 0))
        model = SimpleNamespace(forward=lambda ids, cache: None)
        pace.try_out(model, SimpleNamespace(new_cache=lambda model: None, finished=lambda array: None))
        assert pace.drafts() == drafts and drafts == (pace.why_plain() is None)


def test_one_measurement_that_is_far_too_fast_or_slow_changes_little():
    known = [one(4, 1), one(0, 0), one(0, 0)]
    for outlier in (one(0, 0) if speed == 1 else one(0, 0, other=speed) for speed in (1, 1e-9, 9.0)):
        pace = fed(Pace(), *known, outlier, one(4, 1))
        assert pace.step() == pytest.approx(1.0) and pace.cost(one(4, 1)) == pytest.approx(1.83)
    pace = fed(Pace(), *known, one(4, 1, target=1e-9), one(4, 1, target=1e9), one(4, 1, draft=1e-9), one(4, 1, draft=9.0))
    assert pace.cost(one(4, 1)) == pytest.approx(1.83)
    slow = fed(Pace(), one(4, 1), *[Round(emitted=[0], costs={"target": 9.0, "other": 1.0})] * 2)
    assert slow.step() <= 1.55  # no plain round takes longer than a wider pass


def test_what_a_lost_trial_costs_decides_how_long_the_target_writes_alone():
    def lost(pace: Pace, **how: float) -> int:
        while not pace.drafts():
            fed(pace, one(0, 0))
        while pace._wait < 3:
            fed(pace, one(4, 0, **how) if pace.drafts() else one(0, 0))
        return pace._wait

    assert lost(Pace()) == pytest.approx(0.9 / module.SHARE, abs=1)
    assert lost(Pace(), late=1.0) > lost(Pace()) + 0.9 / module.SHARE  # what the drafter had to read counts
    assert lost(Pace(), late=1.0, prefill=1.0) == lost(Pace())  # but not the prompt
    pace = Pace()
    first, second = lost(pace), lost(pace)
    assert second == 2 * first
    while not pace.drafts():
        fed(pace, one(0, 0))
    while pace.balance < module.CREDIT:  # drafts have paid: what was lost before is forgotten
        fed(pace, one(4, 4, late=0.1) if pace.drafts() else one(0, 0))
    assert pace._waited == 0 and pace._late == 0.0


def test_a_drafter_that_is_sure_of_much_may_fail_once():
    plain_rounds = [one(0, 0)] * 2
    assert fed(Pace(), one(2, 0), *plain_rounds)._waited and not fed(Pace(), one(12, 1), *plain_rounds)._waited


def test_the_clock_for_costs_is_that_of_the_thread_unless_a_device_computes():
    on_cpu, on_device = SimpleNamespace(device="cpu"), SimpleNamespace(device="cuda:0")
    assert decoding.clock_of(on_cpu, SimpleNamespace()) is time.thread_time
    assert decoding.clock_of(on_cpu, on_device) is time.perf_counter
    laps = decoding.Laps(time.thread_time)
    time.sleep(0.05)
    laps.end("target")
    assert laps.seconds["target"] >= 0.05 > 0.02 > laps.costs["target"]  # other work takes as a sleep does


def test_a_text_without_drafts_says_why():
    pair, options = fakes(), Options()
    assert why_plain(pair, options).endswith("was not sure of any token")
    assert why_plain(pair, Options(stop=FixedLength(0))).endswith("switched off")
    fed(pair.pace(options), *[one(0, 0)] * 2, *[one(4, 0)] * 3)
    assert "cost more time than they saved" in why_plain(pair, options)
    pair.target.drafting_pays = False
    assert "in a pass of its own" in why_plain(pair, options)


def test_the_default_of_generate_stream_and_chat_keeps_greedy_text():
    pair = omnidraft.pair("draft-general", "qwen-like")
    prompt = "Question: Ann has 3 boxes of 12 pens. How many pens does she have?\nAnswer:"
    for _ in range(3):
        made, always = (pair.generate(prompt, max_new_tokens=60, adaptive=how) for how in (None, False))
        assert made.tokens == always.tokens and made.text == "".join(pair.stream(prompt, max_new_tokens=60))
    assert pair._pace[2] is not None
