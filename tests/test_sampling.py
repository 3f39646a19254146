"""Sampling: temperature, top-k, top-p, and draws from given uniforms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnidraft.sampling import (
    NO_FILTERS,
    Rows,
    Sampler,
    Uniforms,
    best,
    fast_locate,
    fast_softmax,
    locate,
    mask,
    process,
)
from omnidraft.text.errors import OmnidraftError

rows = st.lists(st.floats(-20, 20), min_size=2, max_size=12).map(np.array)


@given(rows, st.floats(0.05, 5))
def test_softmax_of_the_scaled_logits(logits, temperature):
    expected = np.exp(logits / temperature - np.max(logits / temperature))
    assert np.abs(process(logits, temperature) - expected / expected.sum()).max() < 1e-12


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 0.01, 1, 3.0, 1e30])
def test_float32_logits_give_the_law_of_float64_ones(temperature):
    logits = 5 * np.random.default_rng(3).standard_normal((40, 300)).astype(np.float32)
    logits[:, 7] = -np.inf
    kept = logits.copy()
    found, expected = process(logits, temperature), process(logits.astype(np.float64), temperature)
    assert (found.dtype, expected.dtype) == (np.float32, np.float64) and np.array_equal(logits, kept)
    assert np.abs(found - expected).max() < 1e-6 and not found[:, 7].any()
    assert np.abs(found.sum(-1, dtype=np.float64) - 1).max() < 1e-6


@given(rows)
def test_temperature_zero_is_the_first_argmax(logits):
    probs = process(logits, 0)
    assert probs.sum() == 1 and probs[np.argmax(logits)] == 1


@given(rows, st.integers(1, 12), st.floats(0.05, 1))
def test_top_k_and_top_p_keep_the_likeliest(logits, top_k, top_p):
    full, cut = process(logits, 1.0), process(logits, 1.0, top_k, top_p)
    assert abs(cut.sum() - 1) < 1e-12
    kept = cut > 0
    assert kept.any() and (not (~kept).any() or full[kept].min() >= full[~kept].max())
    assert np.allclose(cut[kept], full[kept] / full[kept].sum())
    if len(set(full)) == len(full):
        assert kept.sum() <= top_k


def test_top_p_keeps_the_token_that_crosses_the_bound():
    logits = np.log([0.5, 0.3, 0.2])
    assert (process(logits, 1.0, top_p=0.6) > 0).tolist() == [True, True, False]
    assert (process(logits, 1.0, top_p=0.5) > 0).tolist() == [True, False, False]


def test_several_rows_are_processed_alike():
    logits = np.random.default_rng(0).standard_normal((3, 7))
    together = process(logits, 0.8, 4, 0.9)
    assert np.allclose(together, [process(row, 0.8, 4, 0.9) for row in logits])


@pytest.mark.parametrize("choose", [process, lambda row: process(row, 0.0), lambda row: next(best(row[None]))])
@pytest.mark.parametrize(("row", "says"), [
    ([np.nan, 1.0], "NaN or infinite"), ([np.inf, 0.0], "NaN or infinite"), ([-np.inf, np.nan], "NaN or infinite"),
    ([-np.inf, -np.inf], "ruled out every token")])
def test_broken_logits_are_told(row, says, choose):
    with pytest.raises(OmnidraftError, match=says):
        choose(np.array(row))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-9), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_inverse_of_the_cumulative_sum(weights, uniform):
    weights = np.array(weights)
    drawn = Uniforms([uniform]).choose(weights)
    before = weights[:drawn].sum()
    assert weights[drawn] > 0
    assert before <= uniform * weights.sum() * (1 + 1e-9) and uniform * weights.sum() <= before + weights[drawn] + 1e-9


@pytest.mark.parametrize("locate", [locate, fast_locate], ids=["plain", "fast"])
def test_a_draw_from_many_weights_is_that_of_their_running_sum(locate):
    rng = np.random.default_rng(0)
    for size in (1, 127, 128, 129, 1000, 1024, 70_016, 70_100):
        for kept in (0.01, 0.6, 1.0):
            weights = rng.exponential(size=size) * (rng.random(size) < kept)
            weights[rng.integers(size)] = 1.0
            running = np.cumsum(weights)
            for draw in (0.0, *rng.random(20), 1 - 2**-53):
                drawn = locate(weights, draw)
                before, after = running[drawn] - weights[drawn], running[drawn]
                assert weights[drawn] > 0 and before - 1e-9 <= draw * running[-1] <= after + 1e-9
                assert abs(locate(weights.astype(np.float32), draw) - drawn) <= 1 / kept
    assert locate(np.zeros(600), 0.5) == 600 and locate(np.array([0.5, np.nan]), 0.5) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_fast_forms_equal_the_plain_ones(dtype):
    rng, at = np.random.default_rng(5), 0
    for size in (1, 5, 128, 300, 32_000, 32_127):
        logits = (6 * rng.standard_normal(size)).astype(dtype)
        found, expected = fast_softmax(logits), process(logits)
        if found is None:  # the sum of the exponentials is below 1
            assert np.exp(logits.astype(float)).sum() < 1 + 1e-6
            continue
        at += 1
        assert found.dtype == expected.dtype == dtype and np.abs(found - expected).max() < 4 * np.finfo(dtype).eps
        assert np.array_equal(Sampler.process(logits, 1.0, *NO_FILTERS), found)
        draws = rng.random(200)
        pairs = [(fast_locate(expected, draw), locate(expected, draw)) for draw in draws]
        edges = np.cumsum(expected, dtype=float)
        for (one, other), draw in zip(pairs, draws, strict=True):  # different only where the draw is at an edge
            assert one == other or abs(edges[min(one, other)] - draw * edges[-1]) < 1e-6
        assert np.mean([one == other for one, other in pairs]) > 0.9
    assert at > 3


@pytest.mark.parametrize("shift", [-100.0, 100.0, 800.0, -np.inf, np.nan])
def test_where_exp_would_be_inexact_or_overflow_the_fast_form_leaves_it_to_the_plain_one(shift):
    logits = np.array([0.0, 1.0, 2.0], np.float32 if shift == 100 else float) + shift
    assert fast_softmax(logits) is None
    if np.isfinite(shift):
        assert np.allclose(Sampler.process(logits, 1.0, *NO_FILTERS), process(logits - logits.dtype.type(shift)))
    else:
        with pytest.raises(OmnidraftError):
            Sampler.process(logits, 1.0, *NO_FILTERS)


def test_rows_are_made_when_they_are_asked_for():
    asked = []
    made = Rows(np.arange(6).reshape(3, 2), lambda row: asked.append(row.tolist()) or row + 1)
    assert len(made) == 3 and not asked
    assert made[1].tolist() == made[1].tolist() == [3, 4] and asked == [[2, 3]]


def test_accepting():
    assert Uniforms([0.3]).accept(0.31) and not Uniforms([0.3]).accept(0.3) and Uniforms([0.999]).accept(7.0)


def test_padding_is_ruled_out():
    assert mask(np.zeros((2, 5)), 3).argmax(-1).tolist() == [0, 0]
    assert np.isneginf(mask(np.zeros((2, 5)), 3)[:, 3:]).all()
