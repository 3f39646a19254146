"""Losslessness by exact enumeration: the whole loop in random worlds, single rounds in more general worlds than tokenizers
make, and the enumeration itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import comb
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from rounds import RoundWorld
from typer.testing import CliRunner

from omnidraft import decoding, verification
from omnidraft.cli import app
from omnidraft.exactness import Draws, World, check, distribution_of, total_variation
from omnidraft.exactness.worlds import STOPS
from omnidraft.sampling import Uniforms
from omnidraft.text.errors import OmnidraftError

ROUNDS = 320
CONDITIONS = {*(f"stop rule: {rule}" for rule in STOPS), "T = 0", "T other than 0 and 1", "context cut", "duplicated bytes",
              "empty token", "expansion kept", "healing", "learning on", "merge accepted", "not UTF-8", "nothing drafted",
              "several end tokens", "top-k", "top-p", "uncovered token"}


# ---- the whole loop --------------------------------------------------------------------------------------------------
def test_the_loop_is_exact_and_every_condition_occurs():
    found = check("lifted", 180)
    assert found.worst < 1e-12 and len(found.distances) == 180 and found.runs > 3000
    assert found.conditions.keys() == CONDITIONS
    assert found.conditions["merge accepted"] > 30 and min(found.conditions.values()) > 2, found.conditions


def test_a_probability_that_rounds_to_above_1_leaves_no_proposal_unjudged():
    assert check("lifted", 1, seed=10633).worst < 1e-12  # a bound just below r: a draw between them kept everything


@pytest.mark.parametrize("rule", ["tli", "slem"])
def test_the_loop_is_exact_under_other_rules(rule):
    assert check(rule, 60, seed=1000).worst < 1e-12


def test_the_papers_rule_is_biased_at_temperature_above_zero():
    found = check("omnidraft", 60)
    assert found.worst > 0.1 and found.mean > 0.01
    assert type(found.worst) is float  # prints as a plain number
    cold = [distance for seed, distance in enumerate(found.distances)
            if World(seed, "omnidraft").options.temperature == 0]
    assert len(cold) > 4 and not any(cold)


def test_worlds_are_the_same_every_time():
    one, other = (World(7) for _ in range(2))
    assert distribution_of(one.run) == distribution_of(other.run) and one.conditions() == other.conditions()
    again = check("lifted", 2, seed=7)
    assert again.distances[0] == total_variation(distribution_of(one.run), one.truth())


# ---- the enumeration detects errors ----------------------------------------------------------------------------------
def shows(run=World.run, seeds=range(60)) -> bool:
    """Is a world biased, or does it fail with an assertion or a draw without outcome?"""
    for world in map(World, seeds):
        try:
            distance = total_variation(distribution_of(partial(run, world)), world.truth())
        except (AssertionError, OmnidraftError):
            return True
        if distance > 1e-3:
            return True
    return False


def test_a_dropped_last_token_shows(monkeypatch):
    """If the token that stopped the draft is dropped, the text is biased."""
    draft = decoding.Drafter.draft

    def cut(self, lifting, room):
        made = draft(self, lifting, room)
        if made.probs and made.probs[-1][made.tokens[-1]] < 0.5:
            del made.tokens[-1], made.probs[-1]
        return made

    monkeypatch.setattr(decoding.Drafter, "draft", cut)
    assert shows(unchecked)


def unchecked(world: World, draws: Draws) -> tuple[int, ...]:
    """`World.run` without its assertions."""
    written: list[int] = []
    for record in decoding.speculative(world.pair, world.prompt, replace(world.options, learn=False), draws):
        written += record.emitted
        if len(written) >= world.count or record.done:
            break
    return tuple(written[:world.count])


@pytest.mark.parametrize(("module", "name", "wrong"), [
    (verification, "residual", lambda p, q, *_: p),
    (verification, "ratio", lambda p, q: 1.0),
    (decoding, "until_end", lambda tokens, ends: tokens),
])
def test_a_broken_rule_shows(monkeypatch, module, name, wrong):
    monkeypatch.setattr(module, name, wrong)
    assert shows()


# ---- single rounds ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def worlds() -> list[RoundWorld]:
    return [RoundWorld(seed) for seed in range(ROUNDS)]


def distance(world: RoundWorld, **how) -> float:
    return total_variation(world.two_tokens(partial(world.lossless, **how)), world.truth())


def test_a_round_is_exact(worlds):
    assert all(distance(world) < 1e-12 for world in worlds)  # `all` stops at the first failure, which is faster for mutants
    for condition in ("merge accepted", "expansion", "uncovered token", "draft token without path"):
        assert sum(condition in world.seen for world in worlds) > 60, condition


def test_a_round_is_exact_where_there_is_room_for_one_proposal(worlds):
    assert max(distance(world, limit=1) for world in worlds) < 1e-12


def test_a_round_is_exact_with_healing(worlds):
    healed = [(world, context) for world in worlds for context in range(len(world.draft)) if world.lifting.longer(context)]
    assert all(distance(world, context=context) < 1e-12 for world, context in healed) and len(healed) > 60
    assert sum("healing" in world.seen for world in worlds) > 60


def test_a_round_without_its_last_token_is_biased(worlds):
    def cut(world, draws):
        tokens, rows = world.draw(draws)
        keep = len(tokens) - (rows[-1][tokens[-1]] < 0.2)
        return tuple(world.verify(draws, tokens[:keep], rows[:keep]).emitted)

    assert any(total_variation(w.two_tokens(partial(cut, w)), w.truth()) > 1e-3 for w in worlds[:60])


def test_what_cannot_have_been_drawn_is_refused():
    assert verification.ratio(0.5, 0.0) == 0 and verification.ratio(0.5, 0.25) == 1 and verification.ratio(0.25, 0.5) == 0.5
    verdict = verification.rejection_sampling([0], [np.array([0.0, 1.0])], np.array([[0.9, 0.1]] * 2), Draws([]))
    assert verdict.emitted == [0] and verdict.last == "recovered"


# ---- the draws -------------------------------------------------------------------------------------------------------
def test_one_draw_may_decide_several_questions():
    def run(draws):
        draw = draws.next()
        return next((bound for bound in (0.25, 0.5, np.float64(0.75)) if draw < bound), draw >= 0.8), bool(draw < 0.9)

    assert distribution_of(run) == pytest.approx({
        (0.25, True): 0.25, (0.5, True): 0.25, (0.75, True): 0.25, (False, True): 0.05, (True, True): 0.1, (True, False): 0.1})


def test_draws_are_those_of_uniforms():
    """The frequencies of real draws agree with the enumerated probabilities."""
    weights = np.array([0.0, 2.0, 1.0, 0.0, 5.0])

    def run(draws):
        first = draws.choose(weights)
        return first, draws.accept(0.3) and draws.accept(0.9), 0.5 > draws.next()

    exact = distribution_of(run)
    assert sum(exact.values()) == pytest.approx(1) and exact[4, True, True] == pytest.approx(5 / 8 * 0.27 / 2)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(exact, 0)
    for _ in range(20_000):
        counts[run(Uniforms(rng))] += 1
    assert total_variation(exact, {key: n / 20_000 for key, n in counts.items()}) < 0.02


@pytest.mark.parametrize("bad", [lambda draws: draws.choose(np.zeros(3)), lambda draws: draws.choose(np.array([np.nan])),
                                 lambda draws: draws.accept(float("nan"))])
def test_a_draw_without_outcome_is_an_error(bad):
    with pytest.raises(OmnidraftError, match="no possible outcome"):
        distribution_of(bad)


def test_runs_that_pause_in_one_state_are_one_from_there_on():
    runs = []

    def run(draws, forget=False):
        runs.append(1)
        heads = 0
        for _ in range(10):
            heads += draws.accept(0.25)
            if draws.pause(None if forget else heads):
                return None
        return heads

    found = distribution_of(run)
    assert len(runs) < 140 and found == pytest.approx({n: comb(10, n) * 0.25**n * 0.75**(10 - n) for n in range(11)})
    assert distribution_of(partial(run, forget=True)) != pytest.approx(found)  # an incomplete state is noticed


def test_no_draw_from_before_a_pause_counts_after_it():
    def run(draws):
        draw = draws.next()
        return draw < 0.5 if draws.accept(0.5) and not draws.pause("") else None

    with pytest.raises(OmnidraftError, match="before a pause"):
        distribution_of(run)


def merged_and_whole(rule: str, monkeypatch) -> list[tuple[World, World, float]]:
    """Worlds whose runs pause, the same worlds without pauses, and the distance between their distributions."""
    seeds, found = range(2, 30), []
    merged = [(world, distribution_of(world.run)) for world in (World(seed, rule) for seed in seeds)]
    with monkeypatch.context() as patched:
        patched.setattr(Draws, "pause", lambda self, state: False)
        for seed, (world, written) in zip(seeds, merged, strict=True):
            whole = World(seed, rule)
            found.append((world, whole, total_variation(distribution_of(whole.run), written)))
    return found


@pytest.mark.parametrize("rule", verification.RULES)
def test_the_state_of_a_world_at_a_pause_is_all_that_decides_how_it_goes_on(rule, monkeypatch):
    found = merged_and_whole(rule, monkeypatch)
    assert all(apart < 1e-14 and world.conditions() == whole.conditions() for world, whole, apart in found)
    assert sum(world.runs for world, *_ in found) < sum(whole.runs for _, whole, _ in found)


@pytest.mark.parametrize("hidden", [False, True])
def test_state_that_is_kept_elsewhere_would_be_noticed(hidden, monkeypatch):
    """A drafter that uses a random bit from the round before, under the only rule whose text depends on it."""
    draft, elsewhere = decoding.Drafter.draft, WeakKeyDictionary()

    def remember(self, lifting, room):
        coins = elsewhere.setdefault(self, {}) if hidden else vars(self)
        made = draft(self, lifting, room if coins.get("coin", False) else 1)
        coins["coin"] = self.sampler.uniforms.accept(0.5)
        return made

    monkeypatch.setattr(decoding.Drafter, "draft", remember)
    assert (max(apart for *_, apart in merged_and_whole("omnidraft", monkeypatch)) > 1e-3) == hidden


# ---- the command -----------------------------------------------------------------------------------------------------
def test_the_command_reports_and_fails_where_a_rule_is_not_exact(monkeypatch):
    run = partial(CliRunner().invoke, app)
    done = run(["check", "exactness", "--worlds", "6"])
    assert done.exit_code == 0 and all(rule in done.output for rule in verification.RULES)
    assert done.output.count(" exact") == 3 and "biased" in done.output and "stop rule: " in done.output
    one = run(["check", "exactness", "--worlds", "6", "--rule", "lossless", "--seed", "3"])
    assert one.exit_code == 0 and "lifted" in one.output and "slem" not in one.output
    for wrong in (["speed"], ["exactness", "--rule", "guess"], ["exactness", "--worlds", "0"], ["exactness", "--seed", "-1"]):
        failed = run(["check", *wrong])
        assert failed.exit_code == 1 and failed.stderr.strip().count("\n") == 0, failed.stderr
    monkeypatch.setattr(verification, "residual", lambda p, q, *_: p)
    failed = run(["check", "exactness", "--worlds", "6", "--rule", "lifted"])
    assert failed.exit_code == 1 and "NOT EXACT" in failed.output and "not exact: lifted" in failed.stderr
