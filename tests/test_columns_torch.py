"""Linear layers that multiply a few tokens as columns: the same logits, on the same weights, where they pay."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from test_transformers_model import KINDS, PIECES, SIZES, TransformersModel, random_model, saved  # noqa: E402

from omnidraft.engine import columns_torch  # noqa: E402
from omnidraft.engine import loading as models  # noqa: E402
from omnidraft.engine.columns_torch import Columns, pays, with_columns  # noqa: E402
from omnidraft.learning.training_torch import copied, filled  # noqa: E402

MODELS = {
    "llama, biases": ("LlamaForCausalLM", {**SIZES, "attention_bias": True}),
    "llama, tied": ("LlamaForCausalLM", {**SIZES, "tie_word_embeddings": True}),
    **{kind: KINDS[kind][:2] for kind in ("qwen2", "mistral, window", "gemma 2, window in some layers", "phi",
                                          "convolution and attention")},
}


def made(kind: str) -> TransformersModel:
    model = random_model(*MODELS[kind], PIECES.size)
    with torch.no_grad():  # norms and biases that can be told from none
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.linspace(-0.5, 0.5, len(parameter))
    return TransformersModel(model.double(), PIECES)


def whole(model: TransformersModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model.model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("bias", [False, True])
def test_products_are_the_same(bias: bool):
    layer = torch.nn.Linear(7, 5, bias=bias).double()
    columns = Columns(7, 5, bias=bias).double()
    columns.load_state_dict(layer.state_dict())
    for shape in [(m,) for m in (0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 40)] + [(), (1, 6), (2, 3), (3, 2, 4)]:
        x = torch.randn(*shape, 7, dtype=torch.float64)
        for given in (x, x.flip(-1), torch.randn(*shape, 14, dtype=torch.float64)[..., ::2]):
            assert columns(given).shape == layer(given).shape
            torch.testing.assert_close(columns(given), layer(given))


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_transformers(kind: str):
    model, rng, ids, seen = made(kind), random.Random(1), [], 0
    model._columns, cache = True, model.new_cache()
    while len(ids) < 100:
        if rng.random() < 0.3:
            ids = ids[:rng.randint(max(0, len(ids) - 9), len(ids))]
            cache.rewind(len(ids))
        new = [rng.randrange(PIECES.size) for _ in range(rng.choice([1, 1, 1, 2, 4, 5, 13, 16]))]
        rows, ids = rng.randint(1, len(new)), ids + new
        logits = model.forward(new, cache, rows)
        np.testing.assert_allclose(logits, whole(model, ids)[-rows:], atol=1e-5)
        seen += 1
    assert seen > 10 and logits.std() > 0.3 and "W x^T" in model.kernel


def test_the_model_stays_as_it_is_and_its_weights_are_shared():
    model = random_model("LlamaForCausalLM", {**SIZES, "tie_word_embeddings": True}, PIECES.size)
    model.model.layers[1].mlp.up_proj.__class__ = type("Quantized", (torch.nn.Linear,), {})
    other = with_columns(model)
    assert not any(isinstance(part, Columns) for part in model.modules())
    assert {id(one) for one in model.parameters()} == {id(one) for one in other.parameters()}
    kinds = {type(part).__name__ for part in other.modules() if isinstance(part, torch.nn.Linear)}
    assert kinds == {"Columns", "Quantized"}  # what is no plain Linear is left alone
    assert other.lm_head.weight is other.model.embed_tokens.weight is model.lm_head.weight


def test_a_drafter_that_has_learned_is_read_with_its_new_weights():
    base = made("llama, tied")
    base._columns = True
    changed = {name: (parameter.detach() + 0.1).numpy() for name, parameter in base.model.named_parameters()}
    for untie in (False, True):
        model = copied(base, untie)
        new = changed | ({"lm_head.weight": changed["model.embed_tokens.weight"] * 2} if untie else {})
        ids, before = [1, 2, 3], model.forward([1, 2, 3], model.new_cache())
        logits = filled(model, new).forward(ids, model.new_cache())
        np.testing.assert_allclose(logits, whole(model, ids)[-1:], atol=1e-5)
        assert np.abs(logits - before).max() > 0.01
        np.testing.assert_allclose(base.forward(ids, base.new_cache()), before, atol=1e-5)


def test_what_the_head_reads(tmp_path):
    """What stop rules with an acceptance head are given: the NumPy engine's up to a scale."""
    folder, found = saved(tmp_path / "model", PIECES), []
    for model in (models.load(folder, "float64"), models.load(folder, "float64", "torch", "cpu")):
        cache = model.new_cache()
        cache.keeps_hidden = True
        model.forward([1, 5, 7], cache)
        model.forward([9, 4], cache, rows=2)
        hidden = np.asarray(cache.hidden)
        found.append(hidden / np.linalg.norm(hidden, axis=1, keepdims=True))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_what_is_faster_is_measured(monkeypatch):
    """With a clock that finds either way slower; small models and other number types than float32 are not tried."""
    model = random_model("LlamaForCausalLM", SIZES, PIECES.size)
    assert not pays(model)  # too small to be tried
    monkeypatch.setattr(columns_torch, "CACHED", 1)
    for slow in (Columns, torch.nn.Linear):
        now = [0.0]
        for kind in (Columns, torch.nn.Linear):
            monkeypatch.setattr(kind, "forward", lambda self, x, kind=kind, slow=slow, now=now: now.__setitem__(
                0, now[0] + (2 if kind is slow else 1)))
        monkeypatch.setattr(columns_torch.time, "perf_counter", lambda now=now: now[0])
        assert pays(model) == (slow is torch.nn.Linear)
    assert not pays(model.double())
