"""The package's own pass in PyTorch: transformers' logits in every order of passes; other models do not use it."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from test_transformers_model import KINDS, PIECES, SIZES, TransformersModel, random_model, saved  # noqa: E402

from omnidraft.engine import loading as models  # noqa: E402
from omnidraft.engine import transformers_pass  # noqa: E402
from omnidraft.engine.transformers_pass import NEVER, Pass, choose  # noqa: E402
from omnidraft.learning.training_torch import copied, filled  # noqa: E402

LONG = {**SIZES, "max_position_embeddings": 400}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 100, "factor": 4.0}
FITTING = {
    "llama": ("LlamaForCausalLM", LONG),
    "llama, wide heads, one for keys": ("LlamaForCausalLM", {**LONG, "head_dim": 16, "num_key_value_heads": 1}),
    "llama, a key per head, tied": ("LlamaForCausalLM", {**LONG, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama, biases": ("LlamaForCausalLM", {**LONG, "attention_bias": True, "mlp_bias": True}),
    "llama, long waves slowed": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {
        "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
    "llama, yarn": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {"rope_type": "yarn"}}),
    "llama, linear": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {"rope_type": "linear"}}),
    "mistral": ("MistralForCausalLM", {**LONG, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", LONG),
}
OTHERS = {
    "windows": ("MistralForCausalLM", {**LONG, "sliding_window": 7}),
    "windows in some layers": KINDS["qwen2, window in some layers"][:2],
    "another architecture": KINDS["gpt-2"][:2],
    "like it, but with more": KINDS["gemma 2, window in some layers"][:2],
    "another activation": ("LlamaForCausalLM", {**LONG, "hidden_act": "gelu"}),
    "angles that change": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {"rope_type": "dynamic"}}),
}


def made(kind: str, dtype: torch.dtype = torch.float64) -> TransformersModel:
    model = random_model(*(FITTING | OTHERS)[kind], PIECES.size)
    with torch.no_grad():  # norms and biases with an effect
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.linspace(-0.5, 0.5, len(parameter))
    return TransformersModel(model.to(dtype), PIECES)


def whole(model: TransformersModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model.model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("columns_from", [1, 2, NEVER])
@pytest.mark.parametrize("kind", FITTING)
def test_logits_are_those_of_transformers_on_every_way_through_a_text(kind: str, columns_from: int):
    model, rng, ids, seen = made(kind), random.Random(1), [], 0
    assert model._columns_from is not None and model.can_cut and "own pass" in model.kernel
    model._columns_from, cache = columns_from, model.new_cache()
    assert ("W x^T" in model.kernel) == (columns_from < NEVER)
    while len(ids) < 300:  # the cache first has room for 256
        if rng.random() < 0.3:
            ids = ids[:rng.randint(max(0, len(ids) - 9), len(ids))]
            cache.rewind(len(ids))
        new = [rng.randrange(PIECES.size) for _ in range(rng.choice([1, 1, 1, 2, 3, 4, 5, 13, 16, 40]))]
        rows, ids = rng.randint(1, len(new)), ids + new
        logits = model.forward(new, cache, rows)
        assert isinstance(cache.state, Pass) and cache.state.length == len(ids)
        np.testing.assert_allclose(logits, whole(model, ids)[-rows:], atol=1e-5)  # transformers' rotations are float32
        seen += 1
    assert seen > 20 and logits.std() > 0.3


@pytest.mark.parametrize("kind", OTHERS)
def test_what_it_does_not_fit_is_left_to_transformers(kind: str):
    model = made(kind)
    assert model._columns_from is None and "own pass" not in model.kernel
    cache, ids = model.new_cache(), [5, 1, 8, 3, 9, 2, 2, 7, 4, 6]
    for token in ids:
        logits = model.forward([token], cache)
    np.testing.assert_allclose(logits, whole(model, ids)[-1:], atol=1e-5)


def test_what_is_added_to_a_model_afterwards_takes_part():
    for change in ("hook", "before", "forward", "module"):
        model, ids = made("llama"), [5, 1, 8, 3]
        before = model.forward(ids, model.new_cache())
        part = model.model.model.layers[0].mlp.up_proj
        if change == "hook":
            part.register_forward_hook(lambda module, given, made: made + 1.0)
        elif change == "before":
            part.register_forward_pre_hook(lambda module, given: (given[0] + 1.0,))
        elif change == "forward":  # as accelerate's hooks do
            part.forward = lambda x, forward=part.forward: forward(x) + 1.0
        else:  # as an adapter does
            other = type("Adapted", (torch.nn.Linear,), {"forward": lambda self, x: torch.nn.Linear.forward(self, x) + 1.0})
            part.__class__ = other
        logits = model.forward(ids, model.new_cache())
        assert abs(logits - before).max() > 1e-3
        np.testing.assert_allclose(logits, whole(model, ids)[-1:], atol=1e-5)


def test_matrices_and_numbers_of_another_kind_are_left_to_transformers():
    assert made("llama", torch.bfloat16)._columns_from is None
    model = random_model(*FITTING["llama"], PIECES.size)
    model.model.layers[1].mlp.up_proj.__class__ = type("Quantized", (torch.nn.Linear,), {})
    assert TransformersModel(model, PIECES)._columns_from is None


def test_a_pass_that_differs_is_not_used(monkeypatch):
    attend = Pass._attend
    monkeypatch.setattr(Pass, "_attend", lambda self, queries, kept: attend(self, queries * 1.1, kept))
    model = made("llama", torch.float32)
    assert model._columns_from is None and model.can_cut
    monkeypatch.setattr(Pass, "_attend", lambda self, queries, kept: queries.no_such_thing)
    assert made("llama")._columns_from is None


def test_what_the_head_reads(tmp_path):
    """The hidden states for an acceptance head equal the NumPy engine's up to a scale, with both kinds of pass."""
    folder, found = saved(tmp_path / "model", PIECES), []
    own, plain = (models.load(folder, "float64", "torch", "cpu") for _ in range(2))
    own._columns_from, plain._columns_from = 1, None
    for model in (models.load(folder, "float64"), own, plain):
        cache = model.new_cache()
        cache.keeps_hidden = True
        model.forward([1, 5, 7], cache)
        model.forward([9, 4], cache, rows=2)
        hidden = np.asarray(cache.hidden)
        found.append(hidden / np.linalg.norm(hidden, axis=1, keepdims=True))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
    np.testing.assert_allclose(found[1], found[2], atol=1e-5)


def test_a_drafter_that_has_learned_is_read_with_its_new_weights():
    base = made("llama, a key per head, tied")
    changed = {name: (parameter.detach() + 0.1).numpy() for name, parameter in base.model.named_parameters()}
    for untie in (False, True):
        model = copied(base, untie)
        new = changed | ({"lm_head.weight": changed["model.embed_tokens.weight"] * 2} if untie else {})
        ids, before = [1, 2, 3], model.forward([1, 2, 3], model.new_cache())
        logits = filled(model, new).forward(ids, model.new_cache())
        np.testing.assert_allclose(logits, whole(model, ids)[-1:], atol=1e-5)
        assert np.abs(logits - before).max() > 0.01
        np.testing.assert_allclose(base.forward(ids, base.new_cache()), before, atol=1e-5)


def test_what_is_faster_is_measured(monkeypatch):
    """With a fake clock: a pass with W x^T takes 3, any other pass takes longer with each row."""
    model, now, call = random_model(*FITTING["llama"], PIECES.size), [0.0], Pass.__call__
    ids = torch.tensor([0, 1, 2, 0])
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    monkeypatch.setattr(transformers_pass.time, "perf_counter", lambda: now[0])
    for cost, expected in (({1: 2, 2: 2.5}, NEVER), ({1: 2, 2: 4}, 2), ({1: 3.5, 2: 4}, 1)):
        def timed(self, ids, rows, cost=cost):
            now[0] += 3 if self.columns_from <= len(ids) <= 4 else cost.get(len(ids), 5)
            return call(self, ids, rows)
        monkeypatch.setattr(Pass, "__call__", timed)
        assert choose(model, ids, logits) == expected
