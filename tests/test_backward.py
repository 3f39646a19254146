"""Training in NumPy: every gradient against central differences, the training pass against the engine, LoRA and its
files, AdamW by hand. test_backward_torch.py compares with PyTorch."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from omnidraft.engine.config import ModelConfig
from omnidraft.engine.llama import Llama
from omnidraft.engine.matmul import Layout
from omnidraft.engine.weights import read_safetensors, save_tensors
from omnidraft.learning import backward
from omnidraft.learning.backward import gradients, run
from omnidraft.learning.lora import LoRA
from omnidraft.learning.training import AdamW, fill
from omnidraft.text.errors import OmnidraftError

TINY = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 29, "max_position_embeddings": 64}
CASES = {
    "llama, grouped heads, own head": ("LlamaForCausalLM", {}),
    "llama, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama, every bias, wide heads": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "mistral, one key": ("MistralForCausalLM", {"num_key_value_heads": 1}),
    "qwen2, bias, tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 6}),
    "gemma 3, one window of two": ("Gemma3ForCausalLM", {"head_dim": 6, "sliding_window": 4, "sliding_window_pattern": 2}),
}
IDS = [3, 11, 11, 28, 0, 7, 3, 19, 11]  # some more than once: their gradients add up in the embedding
every_case = pytest.mark.parametrize("case", CASES)


def random_model(architecture: str = "LlamaForCausalLM", sizes: dict | None = None, dtype=np.float64, seed: int = 0):
    config = ModelConfig.parse({"architectures": [architecture], **TINY, **(sizes or {})})
    rng = np.random.default_rng(seed)
    return config, {name: (rng.standard_normal(shape) * 0.3 + ("norm" in name)).astype(dtype)
                    for name, shape in config.tensor_shapes().items()}


def random_loss(config: ModelConfig, n: int, seed: int = 1):
    """A linear function of the logits; its gradient is the array of its coefficients."""
    rng = np.random.default_rng(seed)
    dlogits = rng.standard_normal((n, config.vocab_size))
    dlogits[[0, 4]] = 0  # positions that the loss does not count

    def loss(tensors: dict[str, np.ndarray]) -> float:
        trace = run(config, tensors, IDS[:n])
        return float((trace.logits * dlogits).sum())
    return loss, dlogits


def slope(loss, arrays: dict[str, np.ndarray], name: str, direction: np.ndarray, step: float = 1e-5) -> float:
    """The loss' derivative along a direction by central differences."""
    ends = [loss(arrays | {name: arrays[name] + sign * step * direction}) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * step)


def unit(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    direction = rng.standard_normal(shape)
    return direction / np.sqrt((direction ** 2).sum())


# ------------------------------------------------------------------------------------------------- the training pass

@every_case
@pytest.mark.parametrize(("dtype", "within"), [(np.float64, 1e-10), (np.float32, 1e-4)])
def test_logits_equal_the_engine(case: str, dtype, within: float):
    config, tensors = random_model(*CASES[case], dtype)
    model = Llama(config, tensors, dtype, layout=Layout())
    ids = np.random.default_rng(2).integers(0, config.vocab_size, 40).tolist()
    trace = run(config, tensors, ids)
    assert trace.logits.dtype == trace.hidden.dtype == dtype
    assert np.abs(trace.logits - model.forward(ids, model.new_cache(), rows=40)).max() < within
    assert np.abs(trace.logits - trace.hidden @ tensors.get("lm_head.weight", tensors[backward.EMBEDDING]).T).max() < within


@every_case
def test_gradients_equal_central_differences(case: str):
    config, tensors = random_model(*CASES[case])
    loss, dlogits = random_loss(config, len(IDS))
    found = gradients(run(config, tensors, IDS), dlogits)
    assert {name: array.shape for name, array in found.items()} == config.tensor_shapes()
    rng = np.random.default_rng(3)
    for name, gradient in found.items():
        assert np.abs(gradient).max() > 1e-3
        for direction in (unit(gradient.shape, rng), unit(gradient.shape, rng)):
            assert slope(loss, tensors, name, direction) == pytest.approx((gradient * direction).sum(), abs=1e-7, rel=1e-7)


def test_one_number_of_each_tensor_at_a_time():
    config, tensors = random_model("Qwen2ForCausalLM")
    loss, dlogits = random_loss(config, len(IDS))
    found = gradients(run(config, tensors, IDS), dlogits)
    rng = np.random.default_rng(4)
    for name, gradient in found.items():
        at = tuple(rng.integers(0, gradient.shape)) if "embed" not in name else (11, 5)
        one = np.zeros_like(gradient)
        one[at] = 1
        assert slope(loss, tensors, name, one) == pytest.approx(gradient[at], abs=1e-7, rel=1e-7)


def test_float32_gradients_stay_float32_and_close():
    config, tensors = random_model()
    _, dlogits = random_loss(config, len(IDS))
    exact = gradients(run(config, tensors, IDS), dlogits)
    single = gradients(run(config, {name: array.astype("f4") for name, array in tensors.items()}, IDS), dlogits)
    for name, gradient in single.items():
        assert gradient.dtype == np.float32
        assert np.abs(gradient - exact[name]).max() <= 1e-4 * np.abs(exact[name]).max()


def test_no_token_learns_from_later_ones():
    config, tensors = random_model()
    dlogits = np.zeros((len(IDS), config.vocab_size))
    dlogits[3] = np.random.default_rng(0).standard_normal(config.vocab_size)
    whole = gradients(run(config, tensors, IDS), dlogits)
    part = gradients(run(config, tensors, IDS[:4]), dlogits[:4])
    assert all(np.abs(whole[name] - part[name]).max() < 1e-12 for name in whole)
    nothing = gradients(run(config, tensors, IDS), np.zeros_like(dlogits))
    assert not any(gradient.any() for gradient in nothing.values())


def test_only_wanted_gradients_and_nothing_given_is_changed():
    config, tensors = random_model()
    before = {name: array.copy() for name, array in tensors.items()}
    _, dlogits = random_loss(config, len(IDS))
    given = dlogits.copy()
    trace = run(config, tensors | {"model.more": np.zeros(3, "i4")}, IDS)
    whole = gradients(trace, dlogits)
    wanted = ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
    some = gradients(trace, dlogits, wanted)  # the same trace can be used again
    assert list(some) == wanted and all((some[name] == whole[name]).all() for name in wanted)
    assert all((tensors[name] == before[name]).all() for name in before)
    assert (given == dlogits).all()


def test_the_examples_of_the_docstrings():
    y, back = backward.linear(np.ones((1, 2)), {"a.weight": np.array([[3.0, 4.0]])}, "a")
    grads = {"a.weight": None}
    assert (y, back(np.array([[2.0]]), grads).tolist(), grads["a.weight"].tolist()) == ([[7.0]], [[6.0, 8.0]], [[2.0, 2.0]])
    assert backward.turn(np.array([[[1.0, 0.0]]]), np.zeros((1, 1, 1)), np.ones((1, 1, 1))).tolist() == [[[0.0, 1.0]]]
    config, _ = random_model(sizes={"rms_norm_eps": 0})
    norm, _ = backward.rms_norm(np.array([[3.0, 4.0]]), config, {"n.weight": np.ones(2)}, "n")
    assert norm.round(3).tolist() == [[0.849, 1.131]]


@pytest.mark.parametrize(("ids", "dtype", "words"), [
    ([], np.float64, "cannot train on 0 tokens"), ([1] * 65, np.float64, "takes 1 to 64 with"),
    ([29], np.float64, "ids from 0 to 28"), ([-1, 2], np.float64, "ids from 0 to 28"),
    ([1], np.float16, "needs float32 or float64 tensors, not float16")])
def test_what_cannot_be_trained_is_told(ids: list[int], dtype, words: str):
    config, tensors = random_model(dtype=dtype)
    with pytest.raises(OmnidraftError, match=words):
        run(config, tensors, ids)


# --------------------------------------------------------------------------------------------------------------- LoRA

def matrices(config: ModelConfig, parts: str = "_proj") -> dict[str, tuple[int, int]]:
    return {name: shape for name, shape in config.tensor_shapes().items()
            if re.search(rf"({parts})\.weight", name)}


def trained(config: ModelConfig, seed: int = 5, parts: str = "_proj", **options) -> LoRA:
    """Adapters whose B is no longer zero."""
    rng = np.random.default_rng(seed)
    lora = LoRA.fresh(matrices(config, parts), rng, **{"dtype": np.float64, **options})
    lora.alpha *= 2
    for name, array in lora.parameters.items():
        array += 0.2 * rng.standard_normal(array.shape) * ("lora_B" in name)
    return lora


def test_a_fresh_adapter_or_one_of_rank_zero_changes_nothing():
    config, tensors = random_model()
    for lora in (LoRA.fresh(matrices(config), np.random.default_rng(0), dtype=np.float64), LoRA({}, 0, 0)):
        merged = lora.merged(tensors)
        assert merged.keys() == tensors.keys() and all((merged[name] == tensors[name]).all() for name in tensors)
    assert len(LoRA.fresh(matrices(config), np.random.default_rng(0)).parameters) == 2 * 7 * config.layers


def test_a_rank_that_no_weight_can_have_is_refused():
    config, _ = random_model(sizes={"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1})
    shapes = matrices(config)
    assert max(map(min, shapes.values())) == LoRA.fresh(shapes, np.random.default_rng(0), rank=48).rank == 48
    with pytest.raises(OmnidraftError, match="rank is 49, above that of any matrix: give at most 48$"):
        LoRA.fresh(shapes, np.random.default_rng(0), rank=49)


def test_merging_copies_what_it_changes_and_nothing_else():
    config, tensors = random_model()
    before = {name: array.copy() for name, array in tensors.items()}
    lora = trained(config, rank=3, parts="v_proj|down_proj")
    parts = "self_attn.v_proj", "mlp.down_proj"
    assert set(lora.targets) == {f"model.layers.{i}.{part}.weight" for i in (0, 1) for part in parts}
    merged = lora.merged(tensors)
    for name, array in tensors.items():
        assert (array == before[name]).all()
        assert (merged[name] is array) == (name not in lora.targets)
    for name, (a, b) in lora.targets.items():
        expected = tensors[name] + 2 * lora.parameters[b] @ lora.parameters[a]
        assert np.abs(merged[name] - expected).max() < 1e-12
        assert np.linalg.matrix_rank(merged[name] - tensors[name]) == 3


def test_the_start_has_the_variance_of_peft():
    config, _ = random_model(sizes={"hidden_size": 512, "num_hidden_layers": 1})
    a = LoRA.fresh(matrices(config, "q_proj"), np.random.default_rng(0)).parameters[
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    assert a.shape == (32, 512) and a.dtype == np.float32
    assert a.var() == pytest.approx(1 / (3 * 512), rel=0.05)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_gradients_of_the_adapters_equal_central_differences(architecture: str):
    config, tensors = random_model(architecture)
    lora = trained(config, rank=2)
    loss, dlogits = random_loss(config, len(IDS))
    full = gradients(run(config, lora.merged(tensors), IDS), dlogits, wanted=lora.targets)
    found = lora.gradients(full)
    assert found.keys() == lora.parameters.keys() and full.keys() == lora.targets.keys()
    rng = np.random.default_rng(6)
    for name, gradient in found.items():
        assert gradient.shape == lora.parameters[name].shape
        direction = unit(gradient.shape, rng)
        expected = slope(lambda arrays: loss(LoRA(arrays, 2, 4).merged(tensors)), lora.parameters, name, direction)
        assert (gradient * direction).sum() == pytest.approx(expected, abs=1e-7, rel=1e-7)


@pytest.mark.parametrize("kind", ["projections", "all", "rank 0"])
def test_adapters_are_saved_and_loaded(kind: str, tmp_path):
    config, tensors = random_model()
    lora = {"projections": lambda: trained(config, rank=3, parts="q_proj|up_proj"), "all": lambda: trained(config),
            "rank 0": lambda: LoRA({}, 0, 0.0)}[kind]()
    lora.save(tmp_path / "new" / "adapter", base="draft-general")
    again = LoRA.load(tmp_path / "new" / "adapter")
    assert (again.rank, again.alpha) == (lora.rank, lora.alpha) and again.parameters.keys() == lora.parameters.keys()
    assert all((again.parameters[name] == lora.parameters[name]).all() for name in lora.parameters)
    assert all((array == lora.merged(tensors)[name]).all() for name, array in again.merged(tensors).items())
    assert sorted(path.name for path in (tmp_path / "new" / "adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors"]
    halves = {name: array.astype(np.float16) for name, array in lora.parameters.items()}
    LoRA(halves, lora.rank, lora.alpha).save(tmp_path / "new" / "adapter")  # over the old one
    half = LoRA.load(tmp_path / "new" / "adapter")
    for name, array in half.parameters.items():
        assert array.dtype == np.float32 and array.flags.writeable
        assert np.abs(array - lora.parameters[name]).max() < 1e-3
    stored = read_safetensors(tmp_path / "new" / "adapter" / "adapter_model.safetensors")
    assert all(array.dtype == np.float16 for array in stored.values())


def test_adapters_load_in_peft_and_peft_s_here(tmp_path):
    peft = pytest.importorskip("peft")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config, tensors = random_model(dtype=np.float32)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    lora = trained(config, rank=3, parts="q_proj|down_proj", dtype=np.float32)
    lora.save(tmp_path / "ours")
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "ours")
    with torch.no_grad():
        theirs = adapted(torch.tensor([IDS])).logits[0].numpy()
    ours = run(config, lora.merged(tensors), IDS).logits
    assert np.abs(ours - theirs).max() < 1e-4 < np.abs(run(config, tensors, IDS).logits - ours).max()
    adapted.save_pretrained(tmp_path / "theirs")
    again = LoRA.load(tmp_path / "theirs")
    assert (again.rank, again.alpha, again.parameters.keys()) == (3, 6, lora.parameters.keys())
    assert all((again.parameters[name] == lora.parameters[name]).all() for name in lora.parameters)


def test_wrong_adapters_are_told(tmp_path):
    config, tensors = random_model()
    lora = trained(config, rank=2)
    with pytest.raises(OmnidraftError, match="belongs to another model"):
        lora.merged(random_model(sizes={"hidden_size": 32})[1])
    with pytest.raises(OmnidraftError, match="is missing"):
        LoRA.load(tmp_path)
    settings = tmp_path / "adapter_config.json"
    for change in ({"use_rslora": True}, {"peft_type": "IA3"}, {"r": 3}, {"rank_pattern": {"q_proj": 4}}, {"r": None},
                   {"lora_alpha": "much"}):
        lora.save(tmp_path)
        settings.write_text(json.dumps(json.loads(settings.read_text()) | change))
        with pytest.raises(OmnidraftError, match="holds no complete plain LoRA"):
            LoRA.load(tmp_path)
    for text in ("{", "[]", None):
        settings.write_text(text) if text else settings.unlink()
        with pytest.raises(OmnidraftError, match="holds no complete plain LoRA"):
            LoRA.load(tmp_path)
    lora.save(tmp_path)
    for arrays in ({name: array for name, array in lora.parameters.items() if "layers.0.mlp.up_proj.lora_B" not in name},
                   lora.parameters | {"base_model.model.lm_head.lora_A.weight": np.ones((2, 16))}):
        save_tensors(tmp_path / "adapter_model.safetensors", arrays)
        with pytest.raises(OmnidraftError, match="holds no complete plain LoRA"):
            LoRA.load(tmp_path)
    empty = {name: array[:0] if ".lora_A." in name else array[:, :0] for name, array in lora.parameters.items()}
    LoRA(empty, 0, 4.0).save(tmp_path)  # alpha / rank would be a division by zero
    with pytest.raises(OmnidraftError, match="holds no complete plain LoRA"):
        LoRA.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OmnidraftError, match="cannot write"):
        lora.save(tmp_path / "file")


# -------------------------------------------------------------------------------------------------------------- AdamW

def test_adamw_by_hand():
    weights = {"w": np.array([1.0, -2.0])}
    optimizer = AdamW(weights, rate=0.1, betas=(0.5, 0.75), eps=0.0, decay=0.2)
    assert optimizer.step({"w": np.array([4.0, -3.0])}) == 5
    # m̂ = g and √v̂ = |g|: a step of `rate` along −sign(g), after each weight lost the share 0.1 · 0.2
    assert weights["w"] == pytest.approx([1 * 0.98 - 0.1, -2 * 0.98 + 0.1])
    optimizer.step({"w": np.array([0.0, 1.0])})
    # m = 2, −1.5 → 1, −0.25 over 1 − 0.5²; v = 4, 2.25 → 3, 1.9375 over 1 − 0.75²
    steps = [0.1 * m / 0.75 / math.sqrt(v / 0.4375) for m, v in ((1, 3), (-0.25, 1.9375))]
    assert weights["w"] == pytest.approx([0.88 * 0.98 - steps[0], -1.86 * 0.98 - steps[1]])


def test_adamw_changes_in_place_and_only_what_is_finite():
    weights = {"a": np.ones(3, "f4"), "b": np.ones((2, 2), "f4")}
    arrays = dict(weights)
    optimizer = AdamW(weights, rate=0.5, decay=0.0)
    for bad in (np.nan, np.inf):
        assert not math.isfinite(optimizer.step({"a": np.full(3, bad, "f4"), "b": np.ones((2, 2), "f4")}))
    assert optimizer.steps == 0 and all((array == 1).all() for array in weights.values())
    optimizer.step({name: np.full_like(array, 2) for name, array in weights.items()})
    for name, array in weights.items():
        assert array is arrays[name] and array.dtype == np.float32 and array == pytest.approx(0.5)


def test_clipping_shortens_the_whole_gradient():
    gradient = {"a": np.array([3.0]), "b": np.array([0.0, 4.0])}
    for clip, shrink in ((1.0, 0.2), (5.0, 1.0), (50.0, 1.0), (None, 1.0)):
        optimizer = AdamW({"a": np.zeros(1), "b": np.zeros(2)}, clip=clip)
        assert optimizer.step(gradient) == 5
        assert optimizer.moments["mean.a"] == pytest.approx(0.1 * 3 * shrink)
        assert optimizer.moments["square.b"] == pytest.approx([0, 0.001 * (4 * shrink) ** 2])
    assert AdamW({"a": np.zeros(1)}, clip=1.0).step({"a": np.zeros(1)}) == 0


def test_training_goes_on_from_a_file_as_if_never_stopped(tmp_path):
    rng = np.random.default_rng(0)
    steps = [{"a": rng.standard_normal((2, 3)), "b": rng.standard_normal(4)} for _ in range(6)]
    whole = {"a": np.ones((2, 3)), "b": np.ones(4)}
    optimizer = AdamW(whole, rate=0.1)
    for step in steps[:3]:
        optimizer.step(step)
    save_tensors(tmp_path / "state.safetensors", optimizer.state())
    later = {name: array.copy() for name, array in whole.items()}
    again = AdamW(later, rate=0.1)
    fill(again.state(), read_safetensors(tmp_path / "state.safetensors"))
    for step in steps[3:]:
        optimizer.step(step)
        again.step(step)
    assert all((whole[name] == later[name]).all() for name in whole) and again.steps == 6
    for other in ({"a": np.ones((2, 3))}, {"a": np.ones((3, 2)), "b": np.ones(4)}):
        with pytest.raises(OmnidraftError, match="belongs to other parameters"):
            fill(AdamW(other).state(), optimizer.state())


# ------------------------------------------------------------------------------------------------------------ together

def test_a_few_steps_teach_a_text_to_the_adapter_alone():
    config, tensors = random_model()
    before = {name: array.copy() for name, array in tensors.items()}
    lora = LoRA.fresh(matrices(config), np.random.default_rng(0), rank=8, dtype=np.float64)
    optimizer, losses = AdamW(lora.parameters, rate=0.02, decay=0.0), []
    for _ in range(40):
        trace = run(config, lora.merged(tensors), IDS[:-1])
        probs = np.exp(trace.logits - trace.logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        losses.append(-np.log(probs[np.arange(len(IDS) - 1), IDS[1:]]).mean())
        dlogits = (probs - np.eye(config.vocab_size)[IDS[1:]]) / (len(IDS) - 1)
        optimizer.step(lora.gradients(gradients(trace, dlogits, wanted=lora.targets)))
    assert losses[-1] < 0.2 * losses[0]
    assert all((tensors[name] == before[name]).all() for name in tensors)
