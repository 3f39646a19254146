"""Our own pass in PyTorch: transformers' logits on every way through a text; what does not fit is left alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from test_transformers_model import KINDS, PIECES, SIZES, TransformersModel, random_model, saved  # noqa: E402

from omnidraft.engine import loading as models  # noqa: E402
from omnidraft.engine import transformers_pass  # noqa: E402
from omnidraft.learning.training_torch import copied, filled  # noqa: E402

NEAR = 1e-5  # transformers computes norms and angles in float32, whatever the weights are
LONG = {**SIZES, "max_position_embeddings": 400}
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 100, "factor": 4.0}
FITTING = {
    "llama": ("LlamaForCausalLM", LONG),
    "llama, wide heads, one for keys": ("LlamaForCausalLM", {**LONG, "head_dim": 16, "num_key_value_heads": 1}),
    "llama, a key per head, tied": ("LlamaForCausalLM", {**LONG, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama, long waves slowed": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {
        "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
    "llama, yarn": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {"rope_type": "yarn"}}),
    "llama, linear": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {"rope_type": "linear"}}),
    "mistral": ("MistralForCausalLM", {**LONG, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", LONG),
    "qwen3": ("Qwen3ForCausalLM", {**LONG, "head_dim": 16}),
}
OTHERS = {
    "windows": ("MistralForCausalLM", {**LONG, "sliding_window": 7}),
    "windows in some layers": KINDS["qwen2, window in some layers"][:2],
    "another architecture": KINDS["gpt-2"][:2],
    "like it, but with more": KINDS["gemma 2, window in some layers"][:2],
    "biases": ("LlamaForCausalLM", {**LONG, "attention_bias": True}),
    "another activation": ("LlamaForCausalLM", {**LONG, "hidden_act": "gelu"}),
    "angles that change": ("LlamaForCausalLM", {**LONG, "rope_parameters": ROPE | {"rope_type": "dynamic"}}),
}


def made(kind: str, dtype: torch.dtype = torch.float64, own_pass: bool | None = None) -> TransformersModel:
    model = random_model(*(FITTING | OTHERS)[kind], PIECES.size)
    with torch.no_grad():  # norms and biases that can be told from none
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += torch.linspace(-0.5, 0.5, len(parameter))
    return TransformersModel(model.to(dtype), PIECES, own_pass=own_pass)


def whole(model: TransformersModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model.model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("kind", FITTING)
def test_logits_are_those_of_transformers_on_every_way_through_a_text(kind: str, columns: bool, monkeypatch):
    monkeypatch.setattr(transformers_pass, "streams", lambda model: columns)
    model, rng, ids = made(kind), random.Random(1), []
    assert model.own_pass and model.cache_kind == "cut" and "our own pass" in model.kernel
    cache, seen = model.new_cache(), 0
    while len(ids) < 300:  # room for 256 at first
        if rng.random() < 0.3:
            ids = ids[:rng.randint(max(0, len(ids) - 9), len(ids))]
            cache.rewind(len(ids))
        new = [rng.randrange(PIECES.size) for _ in range(rng.choice([1, 1, 1, 2, 4, 5, 13, 16, 40]))]
        rows, ids = rng.randint(1, len(new)), ids + new
        logits = model.forward(new, cache, rows)
        assert isinstance(cache.state, transformers_pass.Pass) and cache.state.get_seq_length() == len(ids)
        np.testing.assert_allclose(logits, whole(model, ids)[-rows:], atol=NEAR)
        seen += 1
    assert seen > 20 and logits.std() > 0.3
    assert ("W x^T" in model.kernel) == columns


@pytest.mark.parametrize("kind", OTHERS)
def test_what_it_does_not_fit_is_left_to_transformers(kind: str):
    model = made(kind)
    assert not model.own_pass and "our own pass" not in model.kernel
    cache, ids = model.new_cache(), [5, 1, 8, 3, 9, 2, 2, 7, 4, 6]
    for token in ids:
        logits = model.forward([token], cache)
    np.testing.assert_allclose(logits, whole(model, ids)[-1:], atol=NEAR)


def test_matrices_of_another_kind_are_left_to_transformers():
    class Quantized(torch.nn.Linear):
        pass

    model = random_model(*FITTING["llama"], PIECES.size)
    assert transformers_pass.runs(model)
    model.model.layers[1].mlp.up_proj.__class__ = Quantized
    assert not transformers_pass.runs(model)


def test_a_pass_that_differs_is_not_used(monkeypatch):
    attend = transformers_pass.Pass._attend
    monkeypatch.setattr(transformers_pass.Pass, "_attend", lambda self, q, keys, values: attend(self, q, keys * 1.1, values))
    model = made("llama", torch.float32)
    assert not model.own_pass and model.cache_kind == "cut"
    monkeypatch.setattr(transformers_pass.Pass, "_attend", lambda self, q, keys, values: 1 / 0)
    assert not made("llama").own_pass


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(kind: str, dtype: torch.dtype):
    assert not made(kind, dtype).own_pass  # unless it is asked for, as for drafters
    one, other, exact = made(kind, dtype, True), made(kind, dtype, False), made(kind, torch.float32, False)
    assert one.own_pass and not other.own_pass
    ids = list(range(1, 30))
    caches = [model.new_cache() for model in (one, other)]
    expected = whole(exact, ids)[-1]
    errors = []
    for model, cache in zip((one, other), caches, strict=True):
        model.forward(ids[:-1], cache)
        errors.append(np.abs(model.forward(ids[-1:], cache)[0] - expected).mean())
    assert errors[0] < 1.5 * errors[1] + 1e-3


def test_what_the_head_reads(tmp_path):
    """What stop rules with an acceptance head are given: the NumPy engine's up to a scale."""
    folder = saved(tmp_path / "model", PIECES)
    found = []
    for model in (models.load(folder, "float64"), models.load(folder, "float64", "torch", "cpu", own_pass=True)):
        cache = model.new_cache()
        cache.keeps_hidden = True
        model.forward([1, 5, 7], cache)
        model.forward([9, 4], cache, rows=2)
        hidden = np.asarray(cache.hidden)
        found.append(hidden / np.linalg.norm(hidden, axis=1, keepdims=True))
    assert model.own_pass
    np.testing.assert_allclose(found[1], found[0], atol=NEAR)


def test_a_drafter_that_has_learned_is_read_with_its_new_weights():
    base = made("llama, a key per head, tied")
    changed = {name: (parameter.detach() + 0.1).numpy() for name, parameter in base.model.named_parameters()}
    for untie in (False, True):
        model = copied(base, untie)
        new = changed | ({"lm_head.weight": changed["model.embed_tokens.weight"] * 2} if untie else {})
        ids, before = [1, 2, 3], model.forward([1, 2, 3], model.new_cache())
        logits = filled(model, new).forward(ids, model.new_cache())
        np.testing.assert_allclose(logits, whole(model, ids)[-1:], atol=NEAR)
        assert np.abs(logits - before).max() > 0.01
        np.testing.assert_allclose(base.forward(ids, base.new_cache()), before, atol=NEAR)


def test_what_takes_it(tmp_path):
    folder = saved(tmp_path / "model", PIECES)
    for dtype, taken in (("float32", True), ("float64", True), ("bfloat16", False)):
        draft, target = models.load_two(folder, folder, backend="torch", draft_backend="torch", device="cpu", dtype=dtype)
        assert draft.own_pass and target.own_pass == taken
    draft, _ = models.load_two(folder, target, backend="torch", device="cpu", compile=True)
    assert not draft.own_pass
    assert not models.load(folder, "float32", "torch", "cpu", own_pass=False).own_pass


def test_what_is_faster_is_measured(monkeypatch):
    """With a clock that finds either way slower; small models and other number types than float32 are not tried."""
    model = random_model(*FITTING["llama"], PIECES.size)
    assert not transformers_pass.streams(model)  # too small to be tried
    monkeypatch.setattr(transformers_pass, "CACHED", 1)
    call = transformers_pass.Matrix.__call__
    for slow in (False, True):
        now = [0.0]

        def slowly(self, x, slow=slow, now=now):
            now[0] += 2 if (len(x) in self.few) == slow else 1
            return call(self, x)

        monkeypatch.setattr(transformers_pass.Matrix, "__call__", slowly)
        monkeypatch.setattr(transformers_pass.time, "perf_counter", lambda now=now: now[0])
        assert transformers_pass.streams(model) is not slow
    assert not transformers_pass.streams(model.double())
