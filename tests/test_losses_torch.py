"""The losses in PyTorch: the same values, gradients and signatures as in NumPy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from test_losses import CASES, PADDING, embedded_example, world_pair, worlds

torch = pytest.importorskip("torch")

from omnidraft import losses, losses_torch  # noqa: E402


def both(name, options, logits, example, pair):
    """(value, gradient, count) of either module."""
    tensor = torch.tensor(logits, requires_grad=True)
    value, nothing, count = losses_torch.LOSSES[name](tensor, example, pair, **options)
    value.backward()
    assert nothing is None and value.shape == ()
    return losses.LOSSES[name](logits, example, pair, **options), (value.item(), tensor.grad.numpy(), count)


@pytest.mark.parametrize("name, options", CASES)
def test_values_and_gradients_are_equal(name, options):
    texts = [(world_pair(world, PADDING), example) for world, example in worlds()[:30]] + [embedded_example()]
    for seed, (pair, example) in enumerate(texts):
        shape = len(example.draft_ids) - seed % 3, pair.draft.vocab_size
        logits = 2 * np.random.default_rng(seed).standard_normal(shape)
        ours, theirs = both(name, options, logits, example, pair)
        assert ours[2] == theirs[2] and ours[0] == pytest.approx(theirs[0], rel=1e-10, abs=1e-10)
        assert np.abs(ours[1] - theirs[1]).max() < 1e-8


@pytest.mark.parametrize("name, options", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_are_computed_in_float32(name, options, dtype):
    pair, example = embedded_example()
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), pair.draft.vocab_size))
    tensor = torch.tensor(logits, dtype=dtype, requires_grad=True)
    value, _, count = losses_torch.LOSSES[name](tensor, example, pair, **options)
    value.backward()
    expected, gradient, same = losses.LOSSES[name](tensor.detach().double().numpy(), example, pair, **options)
    assert value.dtype == torch.float32 and tensor.grad.dtype == dtype and count == same
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert np.abs(tensor.grad.double().numpy() - gradient).max() < (1e-5 if dtype == torch.float32 else 1e-2)


def test_nothing_to_compare_gives_zero_with_a_graph():
    pair, example = embedded_example()
    tensor = torch.zeros((0, pair.draft.vocab_size), requires_grad=True)
    for loss in losses_torch.LOSSES.values():
        value, _, count = loss(tensor, example, pair)
        value.backward()
        assert value.item() == 0 and count == 0


def test_signatures_are_equal():
    assert losses.LOSSES.keys() == losses_torch.LOSSES.keys()
    for name, loss in losses.LOSSES.items():
        ours, theirs = (inspect.signature(f).parameters for f in (loss, losses_torch.LOSSES[name]))
        assert [(p.name, p.default, p.kind) for p in ours.values()] == [(p.name, p.default, p.kind) for p in theirs.values()]
    assert losses_torch.make_example is losses.make_example and losses_torch.Example is losses.Example
