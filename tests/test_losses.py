"""Distillation losses: by hand; gradients against central differences; tv against enumerated acceptance; all kinds of text."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from itertools import takewhile
from math import log
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import RoundWorld
from vocabularies import byte_level, sentencepiece, snow_drafter, snow_target

import omnidraft
from omnidraft import losses, verification
from omnidraft.engine.load import folder
from omnidraft.lifting import ROOT, Lifting
from omnidraft.losses import DIVERGENCES, LOSSES, Example, make_example
from omnidraft.ngram_cache import NGramCache
from omnidraft.pairs.pair import Pair
from omnidraft.text.errors import OmnidraftError
from omnidraft.text.tokenizer import Tokenizer

CASES = [("dm", {}), ("hybrid", {}), ("hybrid", {"weight": "dynamic"}),
         *(("lifted", {"divergence": divergence}) for divergence in DIVERGENCES)]
PADDING = 2  # logits without a token


# ---- small pairs and texts ----------------------------------------------------------------------------------------------
def small_pair(lifting, draft_to_target, target_size: int, splits: dict, size: int):
    """The parts of a Pair that the losses use, without tokenizers."""
    width = len(lifting.paths)
    to_target = np.full(width, -1)
    to_target[:len(draft_to_target)] = draft_to_target
    to_draft = np.full(target_size, -1)
    for draft_token in reversed(range(len(draft_to_target))):
        if draft_to_target[draft_token] >= 0:
            to_draft[draft_to_target[draft_token]] = draft_token
    tokenizer = SimpleNamespace(size=size)
    return SimpleNamespace(
        lifting=lifting, alignment=SimpleNamespace(draft_to_target=to_target, target_to_draft=to_draft),
        cache=SimpleNamespace(split_of=lambda token: splits[token] if len(splits.get(token, ())) > 1 else None),
        draft=SimpleNamespace(tokenizer=tokenizer, vocab_size=width))


def world_pair(world: RoundWorld, padding: int = 0):
    size = len(world.draft)
    lifting = Lifting(world.splits, world.spellings, size + padding)
    return small_pair(lifting, world.draft_to_target, len(world.target), world.splits, size)


def starts_of(draft_texts: list[str], target_texts: list[str]) -> list[int]:
    """Where each target token begins, for draft ids that have one context token before the text."""
    offsets = np.cumsum([0, *map(len, draft_texts)])[:-1].tolist()
    return [offsets.index(at) + 1 if at in offsets else -1 for at in np.cumsum([0, *map(len, target_texts)])[:-1].tolist()]


def random_text(world: RoundWorld, rng: np.random.Generator) -> Example | None:
    """A text of a few target tokens, spelled by their splits or by any draft tokens; None if the drafter cannot spell it."""
    target_ids = rng.integers(len(world.target), size=7).tolist()
    pieces, draft = "", []
    for token in target_ids:
        pieces += world.target[token]
        if rng.random() < 0.7:  # otherwise this token is spelled together with the next one
            ways = list(world.cuts(pieces, world.draft))
            if token in world.splits and pieces == world.target[token] and rng.random() < 0.7:
                ways = [world.splits[token]]
            if not ways:
                return None
            draft += ways[int(rng.integers(len(ways)))]
            pieces = ""
    draft += next(world.cuts(pieces, world.draft), ())
    starts = starts_of([world.draft[d] for d in draft], [world.target[t] for t in target_ids])
    return Example([0, *draft], target_ids, rng.dirichlet(np.full(len(world.target), 0.7), len(target_ids)), starts)


def walked_text(world: RoundWorld, rng: np.random.Generator, length: int = 6):
    """A text that the walk spells completely (draft tokens, their rows, the Example), or None."""
    draft, rows = [], []
    for _ in range(length):
        rows.append(world.row("q", tuple(draft)))
        draft.append(int(rng.choice(len(world.draft), p=rows[-1])))
        if world.lifting.paths[draft[-1]] is None:
            return None
    atoms, _ = world.lifting.reveal(draft, rows)
    target_ids, lengths = world.lifting.walk(atoms)
    if sum(lengths) < len(atoms):
        return None
    starts = starts_of([world.draft[d] for d in draft], [world.target[t] for t in target_ids])
    return draft, rows, Example([0, *draft], target_ids, world.target_rows(target_ids)[:-1], starts)


@functools.cache
def worlds(count: int = 60) -> list[tuple[RoundWorld, Example]]:
    """Worlds with one text each; every other text comes from the walk, so that expansions occur."""
    found, seed = [], 0
    while len(found) < count:
        world, rng = RoundWorld(seed), np.random.default_rng([1, seed])
        example = random_text(world, rng) if len(found) % 2 else (walked_text(world, rng) or [None])[-1]
        seed += 1
        if example is not None:
            found.append((world, example))
    return found


def logits_of(*rows) -> np.ndarray:
    return np.log(np.maximum(np.array(rows), 1e-300))


# ---- by hand ------------------------------------------------------------------------------------------------------------
# target a, b, c, aba; draft A = a, B = b, Z = no pair; aba is the n-gram A Z
A, B, Z = range(3)
HAND = small_pair(Lifting({0: (A,), 1: (B,), 3: (A, Z)}, {}, 3), [0, 1, -1], 4, {3: (A, Z)}, 3)


def test_dm_by_hand():
    example = Example([Z, A], [0], np.array([[0.6, 0.3, 0.1, 0.0]]), [1])
    value, gradient, count = losses.dm(logits_of([0.4, 0.4, 0.2], [1, 0, 0]), example, HAND)
    assert count == 1 and value == pytest.approx(log(9 / 8) / 2)
    assert gradient[0].tolist() == pytest.approx([-log(2) / 4, log(2) / 4, 0]) and not gradient[1].any()


def test_hybrid_by_hand():
    p = np.array([[0.2, 0.3, 0.1, 0.4]])
    logits = logits_of([0.5, 0.3, 0.2], [0.5, 0.25, 0.25], [0, 0, 1])
    value, gradient, count = losses.hybrid(logits, Example([Z, A, Z], [3], p, [1]), HAND)
    assert count == 2 and value == pytest.approx(0.2 * log(8))
    assert gradient[:2] == pytest.approx(0.2 * np.array([[-0.5, 0.3, 0.2], [0.5, 0.25, -0.75]]))
    assert losses.hybrid(logits, Example([Z, A, Z], [3], p, [1]), HAND, weight="dynamic")[0] == pytest.approx(0.4 * log(8))
    both = Example([Z, A, Z, B], [3, 1], np.repeat(p, 2, 0), [1, 3])  # with a direct token after it
    third = np.array([0.6, 0.2, 0.2])
    value, _, count = losses.hybrid(logits_of(*np.exp(logits[:2]), third), both, HAND, 1.0)
    shared = 0.75 * log(0.75 / 0.4) + 0.25 * log(0.25 / 0.6)
    assert count == 3 and value == pytest.approx(log(8) + shared)


def test_lifted_by_hand():
    p = np.array([[0.1, 0.3, 0.1, 0.5]])  # c is uncovered
    example, q = Example([Z, A, Z], [3], p, [1]), [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]
    tv, _, count = losses.lifted(logits_of(*q), example, HAND, "tv")
    # At the root (a.., b, uncovered): P = 0.6, 0.3, 0.1, Q = 0.5, 0.3, and Z begins nothing. Inside a: go on or stop.
    assert count == 2 and tv == pytest.approx((1 - 0.5 - 0.3) + (1 - 0.6 - 1 / 6))
    forward, _, _ = losses.lifted(logits_of(*q), example, HAND)
    root, inside = [(2 / 3, 5 / 8), (1 / 3, 3 / 8)], [(5 / 6, 0.6), (1 / 6, 0.4)]
    assert forward == pytest.approx(sum(p * log(p / q) for p, q in root + inside))
    reverse, _, _ = losses.lifted(logits_of(*q), example, HAND, "reverse")
    assert reverse == pytest.approx(sum(q * log(q / p) for p, q in root + inside))


def test_lifted_after_a_stop_leaves_out_the_children():
    p = np.array([[0.1, 0.3, 0.1, 0.5], [0.2, 0.6, 0.0, 0.2]])
    pair = small_pair(Lifting({0: (A,), 1: (B,), 3: (A, B)}, {}, 3), [0, 1, -1], 4, {3: (A, B)}, 3)
    q = [[0.5, 0.3, 0.2], [0.7, 0.2, 0.1]]
    found = [*losses.lifted_terms((2, 3), Example([Z, A, A], [0, 0], p, [1, 2]), pair, "forward")]
    assert [c.row for c in found] == [0, 1, 1]
    assert found[1].categories.tolist() == [1, 0, 1] and found[1].target[:2].tolist() == pytest.approx([5 / 6, 1 / 6])
    assert found[2].categories.tolist() == [0, -1, -1]  # B is a child of the node that was left; Z begins no token
    exact = [*losses.lifted_terms((2, 3), Example([Z, A, A], [0, 0], p, [1, 2]), pair, "tv")][2]
    assert exact.categories.tolist() == [0, -1, 2] and exact.target.tolist() == pytest.approx([0.4, 0.6, 0, 0])
    value, _, count = losses.lifted(logits_of(*q), Example([Z, A, A], [0, 0], p, [1, 2]), pair, "tv")
    assert count == 3 and value == pytest.approx(0.2 + (1 - 1 / 6 - 0.2) + (1 - 0.4))


def test_a_text_that_the_walk_would_read_differently_begins_anew():
    pair = small_pair(Lifting({0: (A,), 1: (B,), 3: (A, B)}, {}, 3), [0, 1, -1], 4, {3: (A, B)}, 3)
    p = np.repeat([[0.1, 0.3, 0.1, 0.5]], 2, 0)
    found = [*losses.lifted_terms((3, 3), Example([Z, A, B], [0, 1], p, [1, 2]), pair, "forward")]
    assert [(c.row, c.categories.tolist()) for c in found] == [(0, [0, 1, -1]), (1, [1, 0, 1]), (1, [0, 1, -1])]


# ---- gradients ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, options", CASES)
def test_gradient_is_that_of_central_differences(name, options):
    counted, step = 0, 1e-5
    for seed, (world, example) in enumerate(worlds()):
        pair, rng = world_pair(world, PADDING), np.random.default_rng(seed)
        logits = rng.standard_normal((len(example.draft_ids), len(world.draft) + PADDING))
        value, gradient, count = LOSSES[name](logits, example, pair, **options)
        directions = rng.standard_normal((3, *logits.shape))
        if seed < 3:  # for a few seeds, every single logit
            directions = np.eye(logits.size).reshape(-1, *logits.shape)
        for direction in directions:
            ahead, behind = (LOSSES[name](logits + s * direction, example, pair, **options)[0] for s in (step, -step))
            slope = float((gradient * direction).sum())
            assert abs((ahead - behind) / (2 * step) - slope) <= 1e-6 * max(abs(slope), np.abs(gradient).max(), 1e-2)
        assert value >= -1e-9 and not gradient[:, len(world.draft):].any()
        assert np.abs(gradient.sum(-1)).max() < 1e-9 * max(1, np.abs(gradient).max())  # constants have no effect
        counted += count
    assert counted > 50


def test_worlds_have_every_kind_of_comparison():
    kinds = dict.fromkeys(("root", "inside", "left", "expansion"), 0)
    seen = []
    for world, example in worlds():
        seen += [place[1:4] for place in losses.places(example, world_pair(world).lifting)]
    for prefix, node, left in seen:
        kinds["root"] += node == ROOT
        kinds["inside"] += node != ROOT
        kinds["left"] += left != ROOT
        kinds["expansion"] += len(prefix) > 0
    assert min(kinds.values()) >= 10, kinds


# ---- lifted against verification ----------------------------------------------------------------------------------------
def comparisons_for(world: RoundWorld, draft, rows) -> tuple[list, Iterator]:
    """The atoms of drawn tokens, and verification's comparisons for them as long as all are accepted."""
    atoms, laws = world.lifting.reveal(draft, rows)
    target_rows = world.target_rows(world.lifting.walk(atoms)[0])
    # One row more than the walk needs: if a draft stops inside a token, this helper makes one comparison too many.
    return atoms, verification.comparisons(atoms, laws, world.lifting, np.vstack([target_rows, target_rows[-1:]]))


@np.errstate(divide="ignore", invalid="ignore")  # in distributions without mass
def test_lifted_tv_is_one_minus_the_acceptance_probability():
    """At each comparison for the text: enumerate the draft tokens that lead there, with verification's acceptance of each."""
    compared = inside = expanded = 0
    for seed in range(160):
        world = RoundWorld(seed)
        text = walked_text(world, np.random.default_rng([2, seed]))
        if text is None:
            continue
        draft, rows, example = text
        logits, pair = logits_of(*rows), world_pair(world)
        atoms, judged = comparisons_for(world, draft, rows)
        judged = list(judged)
        comparisons = [*losses.lifted_terms(logits.shape, example, pair, "tv")]
        assert len(comparisons) == len(judged) or judged[-1].target_prob == 0  # verification stops there
        for number, (comparison, step) in enumerate(zip(comparisons, judged, strict=False)):
            accepted = possible = 0.0
            for token, q in enumerate(rows[comparison.row]):
                drawn = [*draft[:comparison.row], token]
                others, theirs = comparisons_for(world, drawn, rows[:len(drawn)])
                led = [*takewhile(lambda made: made[0].place == made[1].place and made[0].node == made[1].node,
                                  zip(judged[:number + 1], theirs, strict=False))]
                if len(led) > number and others[:step.place] == atoms[:step.place]:
                    possible += q
                    accepted += q * verification.ratio(led[number][1].target_prob, led[number][1].draft_prob)
            value = losses._total(logits, [comparison])[0]
            assert value == pytest.approx(1 - accepted / possible, abs=1e-12)
            compared += 1
            inside += step.node != ROOT
            expanded += len(world.lifting.paths[draft[comparison.row]]) > 1
    assert compared > 200 and inside > 40 and expanded > 20, (compared, inside, expanded)


def test_lifted_vanishes_where_the_two_lifted_laws_are_equal():
    used = 0
    for seed in range(120):
        world = RoundWorld(seed)
        text = walked_text(world, np.random.default_rng([3, seed]))
        if text is None:
            continue
        example, pair = text[2], world_pair(world)
        example.target_probs = 0.9 * example.target_probs + 0.1 / len(world.target)  # q drew the text, so p could be 0
        shape = len(example.draft_ids) - 1, len(world.draft)
        q = np.full(shape, 1 / shape[1])
        for c in losses.lifted_terms(shape, example, pair, "forward"):  # later comparisons divide what earlier ones leave
            row, inside = q[c.row], c.categories >= 0
            total, law = row[inside].sum(), c.target / c.target.sum()
            for category in np.unique(c.categories[inside]):
                tokens = c.categories == category
                row[tokens] *= law[category] * total / row[tokens].sum() if row[tokens].sum() > 0 else 0
        for divergence in ("forward", "reverse"):
            value, gradient, count = losses.lifted(logits_of(*q), example, pair, divergence)
            assert abs(value) < 1e-10 and np.abs(gradient).max() < 1e-10 and count
        used += 1
    assert used > 25


# ---- texts --------------------------------------------------------------------------------------------------------------
def fake_pair(draft: Tokenizer, target: Tokenizer, **options) -> Pair:
    return Pair(FakeModel(draft, 0, padding=3), FakeModel(target, 1, padding=5), **options)


PIECES = sentencepiece("▁abé.", "▁ a, ▁ b, a b, ▁a b, b b", config={"bos_token": "<s>", "eos_token": "</s>"})
NO_BYTES = sentencepiece("▁ab.", "▁ a, ▁ b, a b, b b", fallback=False, config={"bos_token": "<s>", "eos_token": "</s>"})
BYTES = byte_level("Ġ a, a b, b a, Ġa ba, ab ab", specials=("<|endoftext|>", "<|mark|>"), config={"eos_token": "<|endoftext|>"})
PAIRS = [fake_pair(PIECES, BYTES), fake_pair(BYTES, PIECES), fake_pair(NO_BYTES, BYTES), fake_pair(PIECES, NO_BYTES),
         fake_pair(PIECES, BYTES, cache=NGramCache())]


def rows_for(pair: Pair, ids: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(pair.target.vocab_size, 0.5), len(ids))


def test_a_snowflake():
    pair = fake_pair(snow_drafter(), snow_target())
    target, draft = pair.target.tokenizer, pair.draft.tokenizer
    ids = [*target.encode_continuation("flake Snow"), *target.roles["eos"][:1], 0, 0]
    example = make_example(pair, "Snow", ids, rows_for(pair, ids))
    assert [draft.strings[d] for d in example.draft_ids] == ["<s>", "▁Snow", "f", "la", "ke", "▁Snow", "</s>"]
    assert (example.target_ids, example.starts, len(example.target_probs)) == (ids[:3], [2, 5, 6], 3)
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), pair.draft.vocab_size))
    assert losses.hybrid(logits, example, pair)[2] == 5  # f la ke, Snow, the end
    assert losses.dm(logits[:5], example, pair)[2] == 1 and losses.hybrid(logits[:3], example, pair)[2] == 0
    inside = [c for c in losses.lifted_terms(logits.shape, example, pair, "tv") if 0 < c.row < 5]
    assert {c.row for c in inside} == {1, 2, 3, 4}


def test_the_prompts_last_token_can_reach_into_the_response():
    pair = fake_pair(PIECES, BYTES)
    ids = BYTES.encode_continuation("b a")
    example = make_example(pair, "a", ids, rows_for(pair, ids))  # "▁a" becomes "▁ab"
    assert [PIECES.strings[d] for d in example.draft_ids] == ["<s>", "▁ab", "▁a"] and example.starts == [-1, 2]


def test_tokens_without_bytes_and_missing_end_tokens():
    pair = fake_pair(PIECES, BYTES)
    mark, end = (BYTES.raw.token_to_id(token) for token in ("<|mark|>", "<|endoftext|>"))
    ids = [*BYTES.encode_continuation("ab"), mark, *BYTES.encode_continuation(" a"), end]
    example = make_example(pair, "b", ids, rows_for(pair, ids))
    assert example.starts[1] == -1 and example.starts[2] > 0 and example.draft_ids[example.starts[3]] == PIECES.roles["eos"][0]
    without = sentencepiece("▁ab", config={"eos_token": None})
    without.roles["eos"] = ()
    example = make_example(fake_pair(without, BYTES), "b", ids, rows_for(pair, ids))
    assert example.starts[-1] == -1 and len(example.target_ids) == len(ids)
    assert make_example(pair, "b", [], np.zeros((0, 9))).starts == []


def test_characters_that_the_drafter_cannot_spell():
    pair = PAIRS[2]
    ids = BYTES.encode_continuation("ab é ab")
    example = make_example(pair, "a", ids, rows_for(pair, ids))
    logits = np.zeros((len(example.draft_ids), pair.draft.vocab_size))
    known = len(BYTES.encode_continuation("ab "))
    assert example.starts[0] > 0 and set(example.starts[known:]) == {-1}
    for loss in LOSSES.values():
        assert np.isfinite(loss(logits, example, pair)[0])


@pytest.mark.parametrize(("prompt", "response", "begins"), [
    (4, 4, 0),  # everything fits
    (4, 40, 0),  # drafting begins with the whole prompt, and so does the example
    (30, 4, 19),  # half a context for the prompt; more if the response is short
    (30, 40, 23),  # <s> and 30 tokens: the last 8 of the prompt remain
])
def test_a_text_longer_than_the_drafters_context_is_learned_from_where_it_is_drafted(prompt, response, begins):
    pair = Pair(FakeModel(PIECES, 0, context_size=16), FakeModel(BYTES, 1))
    text, ids = " a" * prompt, BYTES.encode_continuation(" a" * response)
    example = make_example(pair, text[1:], ids, rows_for(pair, ids))
    whole = [*PIECES.encode(text[1:], bos=True), *PIECES.encode_continuation(" a" * response)]
    assert example.draft_ids == whole[begins:] and len(whole) == 1 + prompt + response
    assert example.starts == [*range(1 + prompt - begins, len(whole) - begins)]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(PAIRS) - 1), st.text("ab é.\n", max_size=6), st.lists(st.integers(0, 400), max_size=12),
       st.integers(0, 20), st.data())
def test_any_text_gives_finite_losses_at_the_right_bytes(number, prompt, ids, rows, data):
    pair = PAIRS[number]
    draft, target = pair.draft.tokenizer, pair.target.tokenizer
    likely = target.encode_continuation(data.draw(st.text("ab ", max_size=8)))
    ids = [i % pair.target.vocab_size for i in ids] + likely
    example = make_example(pair, prompt, ids, rows_for(pair, ids))
    before = draft.decode_bytes(draft.encode(prompt, bos=True))
    for i, start in enumerate(example.starts):
        assert -1 <= start < len(example.draft_ids)
        if start >= 0 and example.target_ids[i] not in pair.target.eos_ids:
            assert draft.decode_bytes(example.draft_ids[:start]) == before + target.decode_bytes(example.target_ids[:i])
    logits = np.random.default_rng(rows).standard_normal((min(rows, len(example.draft_ids)), pair.draft.vocab_size))
    for name, options in CASES:
        value, gradient, count = LOSSES[name](logits, example, pair, **options)
        assert np.isfinite(value) and np.isfinite(gradient).all() and gradient.shape == logits.shape
        assert value > -1e-9 and (count > 0 or value == 0)


def test_what_is_beyond_the_last_row_does_not_count():
    for world, example in worlds(20):
        pair = world_pair(world)
        logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), len(world.draft)))
        for name, options in CASES:
            counts = [LOSSES[name](logits[:n], example, pair, **options)[2] for n in range(len(logits) + 1)]
            assert counts == sorted(counts) and counts[0] == 0
    assert losses.hybrid(logits, example, pair, 0.0)[2] == losses.dm(logits, example, pair)[2]


@functools.cache
def embedded_example() -> tuple[Pair, Example]:
    """The tokenizers of an embedded pair, random rows, and a held-out response."""
    models = [FakeModel(Tokenizer.load(folder(name)), seed) for seed, name in enumerate(("draft-general", "qwen-like"))]
    pair = Pair(*models)
    line = (Path(omnidraft.__file__).parent / "data" / "math.jsonl").read_text(encoding="utf-8").splitlines()[0]
    item = json.loads(line)
    ids = [*pair.target.tokenizer.encode_continuation(item["response"])[:60], pair.target.eos_ids[0]]
    return pair, make_example(pair, item["prompt"], ids, rows_for(pair, ids))


@pytest.mark.parametrize("name, options", CASES)
def test_embedded_vocabularies(name, options):
    pair, example = embedded_example()
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), pair.draft.vocab_size))
    value, gradient, count = LOSSES[name](logits, example, pair, **options)
    assert count >= 20 and 0 < value < np.inf and np.isfinite(gradient).all()
    single = LOSSES[name](logits.astype(np.float32), example, pair, **options)
    assert single[1].dtype == np.float32 and single[0] == pytest.approx(value, rel=1e-5)
    assert np.abs(single[1] - gradient).max() < 1e-5
    assert LOSSES[name](logits - 0.1 * gradient, example, pair, **options)[0] < value


def test_bad_input_is_refused_in_one_line():
    pair, example = embedded_example()
    logits = np.zeros((len(example.draft_ids), pair.draft.vocab_size))
    for wrong, line in ((lambda: losses.lifted(logits, example, pair, "js"), "unknown divergence 'js'"),
                        (lambda: losses.hybrid(logits, example, pair, "auto"), "n-gram weight is 'auto'"),
                        (lambda: losses.hybrid(logits, example, pair, -1.0), "n-gram weight is -1.0"),
                        (lambda: make_example(pair, "a", [1, 2], np.ones((1, 9))), "2 target tokens need as many rows, not 1")):
        with pytest.raises(OmnidraftError, match=line):
            wrong()
