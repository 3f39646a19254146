"""Losses by autograd: NumPy's values and gradients, in both widths, with nothing copied from the device."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
from test_losses import BYTES, CASES, PADDING, PAIRS, embedded_example, fake_pair, rows_for, world_pair, worlds

torch = pytest.importorskip("torch")

from test_torch_twins import copies  # noqa: E402, F401 (a fixture)

from omnidraft import losses, losses_torch  # noqa: E402
from omnidraft.losses import Example, make_example  # noqa: E402
from omnidraft.text.errors import OmnidraftError  # noqa: E402

cases = pytest.mark.parametrize("name, options", CASES)


def both(name: str, options: dict, logits: np.ndarray, example: Example, pair) -> tuple[tuple, tuple]:
    """(value, gradient, count) of NumPy and of autograd."""
    expected = losses.LOSSES[name](logits, example, pair, **options)
    leaf = torch.from_numpy(logits).requires_grad_()
    value, count = losses_torch.LOSSES[name](leaf, example, pair, **options)
    value.backward()
    assert not count.requires_grad and leaf.grad.dtype == leaf.dtype
    return expected, (float(value.detach()), leaf.grad.numpy(), int(count))


def close(found: tuple, expected: tuple, tolerance: float) -> None:
    assert found[2] == expected[2]
    assert found[0] == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    assert np.abs(found[1] - expected[1]).max(initial=0.0) < tolerance * max(1.0, np.abs(expected[1]).max(initial=0.0))


def test_names_and_signatures_are_equal():
    assert losses.LOSSES.keys() == losses_torch.LOSSES.keys() == {"dm", "hybrid", "lifted"}
    for name, plain in losses.LOSSES.items():
        one, other = (inspect.signature(function).parameters.values() for function in (plain, losses_torch.LOSSES[name]))
        assert [(p.name, p.kind, p.default) for p in one] == [(p.name, p.kind, p.default) for p in other]
        assert getattr(losses_torch, name) is losses_torch.LOSSES[name]


@pytest.mark.parametrize("kind", losses.DIVERGENCES)
def test_where_the_target_has_hardly_any_mass_the_divergence_is_bounded_as_in_numpy(kind):
    logits, categories = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0, 1])
    for P in ([1.0, 0.0], [1.0, 1e-20]):
        [value], _ = losses_torch._divergence(torch.tensor([P], dtype=torch.float64), logits, categories, kind)
        assert float(value) == pytest.approx(losses._divergence(np.array(P), np.array([0.5, 0.5]), kind)[0])


@cases
def test_random_worlds_with_merges_and_expansions(name, options):
    counted = 0
    for seed, (world, example) in enumerate(worlds()):
        pair, rng = world_pair(world, PADDING), np.random.default_rng(seed)
        logits = 2 * rng.standard_normal((len(example.draft_ids), len(world.draft) + PADDING))
        expected, found = both(name, options, logits, example, pair)
        close(found, expected, 1e-11)
        counted += found[2]
        single = both(name, options, logits.astype(np.float32), example, pair)
        close(single[1], single[0], 2e-5)
    assert counted > 50


@cases
@pytest.mark.parametrize("number", range(len(PAIRS) + 1))
def test_texts_of_one_vocabulary_and_of_two(name, options, number):
    pair = [*PAIRS, fake_pair(BYTES, BYTES)][number]
    assert pair.one_vocabulary == (number == len(PAIRS))
    ids = [*pair.target.tokenizer.encode_continuation("abba ab é aab.")[:12], pair.target.eos_ids[0]]
    example = make_example(pair, "a ba", ids, rows_for(pair, ids))
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), pair.draft.vocab_size))
    expected, found = both(name, options, logits, example, pair)
    close(found, expected, 1e-11)
    assert found[2] > 0 or name == "dm"


@cases
def test_embedded_vocabularies_in_every_type_of_rows(name, options):
    pair, example = embedded_example()
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), pair.draft.vocab_size))
    expected, found = both(name, options, logits, example, pair)
    close(found, expected, 1e-11)
    tensors = replace(example, target_probs=torch.from_numpy(example.target_probs))
    value, _ = losses_torch.LOSSES[name](torch.from_numpy(logits), tensors, pair, **options)
    assert float(value) == pytest.approx(expected[0], rel=1e-12)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        leaf = torch.from_numpy(logits).to(dtype).requires_grad_()
        value, count = losses_torch.LOSSES[name](leaf, example, pair, **options)
        (value / count).backward()
        assert value.dtype == torch.float32 and leaf.grad.dtype == dtype and int(count) == expected[2]
        assert float(value.detach()) == pytest.approx(expected[0], rel=tolerance)


@cases
def test_a_text_without_comparisons_has_no_gradient(name, options):
    pair, example = embedded_example()
    for text in (replace(example, starts=[-1] * len(example.starts)),
                 replace(example, target_probs=0 * example.target_probs)):  # no P anywhere
        leaf = torch.zeros(len(text.draft_ids), pair.draft.vocab_size, requires_grad=True)
        value, count = losses_torch.LOSSES[name](leaf, text, pair, **options)
        value.backward()
        if text.starts != example.starts or name != "hybrid":  # an n-gram has P = 1 for its next token
            assert not leaf.grad.any() and float(value.detach()) == float(count) == 0


@cases
def test_nothing_is_copied_from_the_device(copies, name, options):  # noqa: F811
    pair, example = embedded_example()
    example = replace(example, target_probs=torch.from_numpy(example.target_probs))
    leaf = torch.randn(len(example.draft_ids), pair.draft.vocab_size, requires_grad=True)

    def learn():
        value, count = losses_torch.LOSSES[name](leaf, example, pair, **options)
        (value / count).backward()

    assert copies(learn)[1] == 0 and leaf.grad.any()


def test_bad_input_is_refused_in_the_same_words():
    pair, example = embedded_example()
    logits = torch.zeros(len(example.draft_ids), pair.draft.vocab_size)
    with pytest.raises(OmnidraftError, match="unknown divergence 'js'"):
        losses_torch.lifted(logits, example, pair, "js")
    with pytest.raises(OmnidraftError, match="n-gram weight is 'auto'"):
        losses_torch.hybrid(logits, example, pair, "auto")
