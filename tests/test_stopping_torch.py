"""The acceptance head as a module: NumPy's features, predictions, loss, gradients, and the same training."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from omnidraft import stopping, stopping_torch  # noqa: E402
from omnidraft.learning.training import AdamW  # noqa: E402
from omnidraft.text.errors import OmnidraftError  # noqa: E402


def both(width: int, dtype: type = np.float64):
    """The same head with random parameters, in NumPy and in PyTorch."""
    rng = np.random.default_rng(width)
    parameters = {name: rng.standard_normal(array.shape).astype(dtype)
                  for name, array in stopping.AcceptanceHead(width).parameters.items()}
    return stopping.AcceptanceHead(width, parameters), stopping_torch.AcceptanceHead(width, parameters)


def test_methods_and_signatures_are_equal():
    one, other = stopping.AcceptanceHead, stopping_torch.AcceptanceHead
    for name, twin in (("__init__", "__init__"), ("features", "features"), ("loss", "loss"), ("__call__", "forward")):
        ours, theirs = (inspect.signature(getattr(kind, method)).parameters for kind, method in ((one, name), (other, twin)))
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def test_features_are_those_of_numpy():
    rng, (plain, twin) = np.random.default_rng(0), both(6)
    hidden, embedding = rng.standard_normal((2, 5, 6)).astype(np.float32)
    probabilities = np.array([0.0, 0.3, 0.999999, 1.0, 0.5], np.float32)
    expected = np.stack([plain.features(*row) for row in zip(hidden, embedding, probabilities, strict=True)])
    made = twin.features(torch.from_numpy(hidden), torch.from_numpy(embedding), torch.from_numpy(probabilities))
    assert made.dtype == torch.float32 and np.abs(made.numpy() - expected).max() < 1e-3  # 1 - q in float32
    one = twin.features(torch.from_numpy(hidden[1]).bfloat16(), torch.from_numpy(embedding[1]), 0.3)
    assert one.shape == (13,) and np.abs(one.numpy() - expected[1]).max() < 0.02


@pytest.mark.parametrize("weight", [6.0, 1.0])
def test_predictions_loss_and_gradients_are_those_of_numpy(weight):
    rng, (plain, twin) = np.random.default_rng(1), both(3)
    features, labels = rng.standard_normal((20, 7)), rng.random(20)
    value, gradients = plain.loss(features, labels, weight)
    loss = twin.loss(torch.from_numpy(features), torch.from_numpy(labels), weight)
    loss.backward()
    assert loss.item() == pytest.approx(value, rel=1e-12)
    for name, parameter in twin.named_parameters():
        assert parameter.grad.numpy() == pytest.approx(gradients[name], rel=1e-10)
    assert twin(torch.from_numpy(features)).detach().numpy() == pytest.approx(plain(features), rel=1e-12)
    assert twin(torch.from_numpy(features[0])).shape == ()


def test_training_is_that_of_numpy_and_what_one_learned_the_other_continues():
    rng, (plain, twin) = np.random.default_rng(2), both(4)
    features, labels = rng.standard_normal((200, 9)), (rng.random(200) < 0.7).astype(float)
    ours = AdamW(plain.parameters, 0.02, decay=0.0)
    theirs = torch.optim.Adam(twin.parameters(), lr=0.02)
    for _ in range(60):
        ours.step(plain.loss(features, labels, 1.0)[1])
        theirs.zero_grad()
        twin.loss(torch.from_numpy(features), torch.from_numpy(labels), 1.0).backward()
        theirs.step()
    learned = {name: one.detach().numpy() for name, one in twin.state_dict().items()}
    for name, array in stopping.AcceptanceHead(4, learned).parameters.items():
        assert array == pytest.approx(plain.parameters[name], abs=1e-8)
    again = stopping_torch.AcceptanceHead(4, plain.parameters)
    assert again(torch.from_numpy(features)).detach().numpy() == pytest.approx(plain(features), rel=1e-10)


def test_a_fresh_head_predicts_the_confidence():
    head = stopping_torch.AcceptanceHead(4)
    q = torch.tensor([0.05, 0.5, 0.9])
    assert head(head.features(torch.ones(3, 4), torch.ones(3, 4), q)).detach().numpy() == pytest.approx(q.numpy(), abs=1e-6)


def test_a_head_with_hidden_layers_is_refused():
    with pytest.raises(OmnidraftError, match="hidden layers"):
        stopping_torch.AcceptanceHead(1, {"blocks.0.weight": np.zeros((3, 3)), **stopping.AcceptanceHead(1).parameters})
