"""The NumPy engine: equal to transformers on tiny random models of each kind and on real ones; passes, rewinding,
layouts, and one clear line for every fault of a folder."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omnidraft.engine import cpu
from omnidraft.engine import load as models
from omnidraft.engine.config import ModelConfig, frequencies
from omnidraft.engine.llama import LONGEST_PASS, Llama
from omnidraft.engine.matmul import Layout, Linear, choose_layout, decide
from omnidraft.engine.weights import load_tensors, read_safetensors
from omnidraft.text.errors import OmnidraftError

REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", Path(__file__).parent.parent.parent / "shared" / "real")) / "models"
TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 67, "max_position_embeddings": 64}
PLAIN = Layout(alone=3, multiple=4)


def random_model(architecture: str = "LlamaForCausalLM", dtype=np.float64, layout: Layout | None = PLAIN, **sizes) -> Llama:
    config = ModelConfig.parse({"architectures": [architecture], **TINY, **sizes})
    rng = np.random.default_rng(0)
    shapes = config.tensor_shapes()
    tensors = {name: rng.standard_normal(shape) * 0.3 + ("norm" in name) for name, shape in shapes.items()}
    return Llama(config, tensors, dtype, layout=layout)


# ------------------------------------------------------------------------------------------- parity with transformers

def saved(folder: Path, architecture: str, dtype: str = "float32", shard: str = "1GB", rewrite: dict | None = None,
          **sizes):
    """A random transformers model, saved to `folder`, read back in float32; `rewrite` changes config.json."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = getattr(transformers, architecture).config_class(**{**TINY, **sizes})
    model = getattr(transformers, architecture)(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # biases included; norms around 1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + ("norm" in name))
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    if rewrite:
        config = json.loads((folder / "config.json").read_text()) | rewrite
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def engine(folder: Path, dtype=np.float32) -> Llama:
    """Like Llama.load, for folders without a tokenizer."""
    return Llama(ModelConfig.load(folder), load_tensors(folder), dtype, name=folder.name, layout=PLAIN)


def reference(model, ids: list[int]) -> np.ndarray:
    import torch
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


LINEAR = {"rope_type": "linear", "rope_theta": 99.0, "factor": 3.0}
GEMMA = {"head_dim": 12, "sliding_window": 9, "query_pre_attn_scalar": 20, "pad_token_id": None,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
CASES = {
    "llama grouped": ("LlamaForCausalLM", {}),
    "llama tied, all heads": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama biases, wide heads": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "mistral window": ("MistralForCausalLM", {"sliding_window": 50}),
    "mistral no window": ("MistralForCausalLM", {"sliding_window": None, "num_key_value_heads": 1}),
    "qwen2 tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 12}),
    "qwen3 tied, biases": ("Qwen3ForCausalLM", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "gemma 3": ("Gemma3ForCausalLM", GEMMA),
    "gemma 3, own head, slowed down": ("Gemma3ForCausalLM", {
        **GEMMA, "tie_word_embeddings": False, "sliding_window": 40, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 99.0, "factor": 3.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}}}),
    "old gemma 3": ("Gemma3ForCausalLM", {
        **GEMMA, "rope_parameters": {
            "full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}},
        "rewrite": {"rope_parameters": None, "layer_types": None, "sliding_window_pattern": 2, "rope_theta": 99.0,
                    "rope_local_base_freq": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}}),
    "rope theta": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}}),
    "rope linear": ("LlamaForCausalLM", {"rope_parameters": LINEAR}),
    "rope llama3": ("LlamaForCausalLM", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 99.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}}),
    "float16": ("LlamaForCausalLM", {"dtype": "float16"}),
    "bfloat16": ("Qwen2ForCausalLM", {"dtype": "bfloat16"}),
    "shards": ("MistralForCausalLM", {"shard": "20KB"}),
    "old rope_scaling": ("LlamaForCausalLM", {
        "rope_parameters": LINEAR,
        "rewrite": {"rope_parameters": None, "rope_theta": 99.0, "rope_scaling": {"type": "linear", "factor": 3.0}}}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path):
    architecture, options = CASES[case]
    other, ids = saved(tmp_path, architecture, **options), list(np.random.default_rng(1).integers(0, 67, 45))
    expected = reference(other, ids)
    model = engine(tmp_path)
    logits = model.forward(ids, model.new_cache(), rows=len(ids))
    assert expected.std() > 0.5  # with equal logits the test would prove nothing
    assert np.abs(logits - expected).max() < 1e-4
    cache = model.new_cache()  # and in pieces, as in decoding
    pieces = [model.forward(ids[i:j], cache, rows=j - i) for i, j in ((0, 20), (20, 21), (21, 23), (23, 31), (31, 45))]
    assert np.abs(np.concatenate(pieces) - expected).max() < 1e-4
    if case == "shards":
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert model.parameters == sum(parameter.numel() for parameter in other.parameters())


@pytest.mark.parametrize("name", ["stories260K", "babyllama-tok361"])
def test_real_models_equal_transformers(name: str):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if not (REAL / name).is_dir():
        pytest.skip("the real models are not here")
    other = transformers.AutoModelForCausalLM.from_pretrained(REAL / name, dtype=torch.float32)
    model = engine(REAL / name)
    ids = list(np.random.default_rng(2).integers(3, model.vocab_size, 200))
    assert np.abs(model.forward(ids, model.new_cache(), rows=200) - reference(other, ids)).max() < 1e-3
    if name == "stories260K":
        written = other.generate(torch.tensor([[1]]), do_sample=False, max_new_tokens=200)[0].tolist()
        assert len(written) == 201 and greedy(model, [1], 200) == written[1:]


def greedy(model: Llama, ids: list[int], count: int) -> list[int]:
    cache, written = model.new_cache(), list(ids)
    for _ in range(count):
        written.append(int(model.forward(written[cache.length:], cache)[0].argmax()))
    return written[len(ids):]


@pytest.mark.parametrize("name", [*models.EMBEDDED, "stories260K"])
@pytest.mark.parametrize(("dtype", "within"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_the_plain_pass_and_the_fast_one_agree(name: str, dtype, within: float):
    folder = REAL / name if name not in models.EMBEDDED else Path(models.__file__).parent / "embedded" / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not here")
    model = Llama.load(folder, dtype)
    ids = list(np.random.default_rng(3).integers(3, model.vocab_size, 60))
    tensors = {at: tensor.astype(dtype) for at, tensor in load_tensors(folder).items()}
    textbook = runpy.run_path(str(Path(__file__).parent.parent / "tutorials" / "llama_plain.py"))
    plain, cache = textbook["forward"](model.config, tensors, ids), model.new_cache()
    fast = np.concatenate([model.forward(ids[i:j], cache, rows=j - i) for i, j in ((0, 50), (50, 51), (51, 60))])
    assert plain.shape == fast.shape and plain.dtype == dtype
    # subtle: the norm of all differences, not the largest one. At badly conditioned places (random ids, large
    # activations) the plain pass itself is off from float64 by 7e-6 in float32; in float64 both measures are 1e-14.
    assert np.linalg.norm(plain - fast) < within * np.linalg.norm(plain)


def test_a_real_folder_loads_with_its_tokenizer():
    if not (REAL / "stories260K").is_dir():
        pytest.skip("the real models are not here")
    model = models.load(REAL / "stories260K")
    assert (model.name, model.vocab_size, model.context_size, model.parameters) == ("stories260K", 512, 512, 260032)
    assert 2 in model.eos_ids and "gemv" in model.kernel
    assert model.tokenizer.decode(greedy(model, [1], 20)).startswith("Once upon a time, there was a little")


# --------------------------------------------------------------------------------------------------- passes and cache

@pytest.mark.parametrize("sizes", [{}, {"architecture": "MistralForCausalLM", "sliding_window": 40},
                                   {"architecture": "Gemma3ForCausalLM", "sliding_window": 7, "head_dim": 8},
                                   {"architecture": "Qwen2ForCausalLM", "num_key_value_heads": 4}], ids=str)
def test_a_pass_of_m_tokens_equals_m_single_steps(sizes: dict):
    model = random_model(**sizes)
    ids = list(np.random.default_rng(3).integers(0, 67, 40))
    cache = model.new_cache()
    steps = np.concatenate([model.forward([token], cache) for token in ids])
    for m in range(1, 17):
        cache.rewind(20)
        rows = model.forward(ids[20:20 + m], cache, rows=m)
        assert cache.length == 20 + m
        assert np.abs(rows - steps[20:20 + m]).max() < 1e-10


def test_rewinding_leaves_no_trace():
    model = random_model("MistralForCausalLM", sliding_window=60)
    cache, fresh = model.new_cache(), model.new_cache()
    model.forward([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], cache)
    cache.rewind(4)
    rewound = model.forward([60, 61, 62], cache, rows=3)
    assert np.abs(rewound - model.forward([1, 2, 3, 4, 60, 61, 62], fresh, rows=3)).max() < 1e-10


def test_long_prompts_are_fed_in_pieces_and_the_cache_grows():
    model = random_model(max_position_embeddings=2 * LONGEST_PASS + 50)
    ids = list(np.random.default_rng(4).integers(0, 67, 2 * LONGEST_PASS + 50))
    whole = model.forward(ids, model.new_cache(), rows=len(ids))
    cache = model.new_cache()
    pieces = [model.forward(ids[i:i + 100], cache, rows=len(ids[i:i + 100])) for i in range(0, len(ids), 100)]
    assert np.abs(whole - np.concatenate(pieces)).max() < 1e-10
    assert cache.values.shape[2] == len(ids) and (cache.values[..., -1] == 1).all()


def test_limits_of_a_pass_are_told():
    model = random_model()
    cache = model.new_cache()
    for ids, rows, words in (([], 1, "0 tokens cannot give 1 row"), ([1], 2, "cannot give 2 rows"),
                             ([1] * 65, 1, "65 tokens long, but the model's context holds 64"),
                             ([67], 1, "vocabulary of 67"), ([-1], 1, "vocabulary of 67")):
        with pytest.raises(OmnidraftError, match=words):
            model.forward(ids, cache, rows)
    assert cache.length == 0
    with pytest.raises(OmnidraftError, match="cannot rewind a cache of 0 tokens to 1"):
        cache.rewind(1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["embedding", "layers"])
def test_broken_weights_are_told(broken: float, name: str):
    model = random_model()
    weights = model.embedding if name == "embedding" else model.layers[1][1].matrix
    weights[5] = broken
    with pytest.raises(OmnidraftError, match="NaN or infinite"):
        model.forward([1, 5, 2], model.new_cache())


# ----------------------------------------------------------------------------------------------------------- kernels

@pytest.mark.parametrize("layout", [Layout(), PLAIN, Layout(alone=6), Layout(64), Layout(64, 2, 4), Layout(32, 16),
                                    Layout(alone=0, multiple=2), Layout(64, 0, 2), Layout(alone=0, multiple=4)],
                         ids=str)
@pytest.mark.parametrize("outputs", [128, 150])
def test_every_layout_gives_the_same_product(layout: Layout, outputs: int):
    rng = np.random.default_rng(5)
    weight, bias = rng.standard_normal((outputs, 40)), rng.standard_normal(outputs)
    linear = Linear(weight, bias, layout)
    for m in range(1, 17):
        x = rng.standard_normal((m, 40))
        assert np.abs(linear(x) - (x @ weight.T + bias)).max() < 1e-12


def test_every_layout_gives_the_same_logits():
    single = [random_model(dtype=np.float32, layout=layout) for layout in (PLAIN, Layout(multiple=4, packed=True))]
    plain, fast = (model.forward(list(range(12)), model.new_cache(), rows=12) for model in single)
    assert np.abs(plain - fast).max() < 1e-4
    ids = list(range(12))
    rows = [random_model(layout=layout).forward(ids, cache, rows=12) for layout in (PLAIN, Layout(64), Layout(16, 16))
            for cache in [random_model().new_cache()]]
    assert max(np.abs(rows[0] - other).max() for other in rows[1:]) < 1e-10


def test_the_layout_is_measured_once_and_described():
    shapes = ((64, 128), (64, 64), (64, 256), (128, 64), (64, 300))
    layout = choose_layout(shapes)
    assert layout is choose_layout(shapes) and layout.block in (0, 64) and 0 <= layout.alone <= 6
    assert str(Layout(64, 2, 4)) == "blocks of 64 outputs, gemv per token up to 2, gemm padded to multiples of 4"
    assert str(Layout(multiple=4, packed=True)) == (
        "plain matrices, gemv per token up to 1, gemm on packed weights padded to multiples of 4")
    assert str(Layout(alone=0, multiple=4, packed=True)) == "packed weights, padded to multiples of 4"


@pytest.mark.parametrize(("times", "expected"), [
    # AVX2: one token alone is cheapest, and packed weights are faster
    ({Layout(): [1, 1.8, 2.5, 2.4, 2.6, 3.1], Layout(packed=True): [1, 1.8, 1.3, 1.2, 1.2, 1.9]},
     Layout(alone=1, multiple=4, packed=True)),
    # AVX-512: blocks make two tokens cheaper than one, which is padded to two
    ({Layout(): [1.86, 2.38, 3.5, 3.45, 3.98, 4.66], Layout(64): [2.03, 2.54, 1.5, 1.44, 1.35, 2.06]}, Layout(64, 0, 4)),
    ({Layout(): [1.86, 2.38, 3.5, 3.45, 3.98, 4.66], Layout(64): [2.03, 2.54, 1.4, 1.34, 1.40, 2.06]}, Layout(64, 0, 2)),
    # one token is not padded if padding costs more than a second token
    ({Layout(): [1.04, 2.5, 1.05, 1, 1.3, 1.6], Layout(64): [2, 4, 2, 2, 2, 3]}, Layout(multiple=2)),
    # plain matrices: one token is padded if that costs less
    ({Layout(): [1.2, 2.5, 1.1, 1, 1.3, 1.6], Layout(64): [2, 4, 2, 2, 2, 3]}, Layout(alone=0, multiple=2)),
    # blocks are used only if they are clearly faster
    ({Layout(): [1, 2.1, 2, 2, 2, 2], Layout(64): [1, 2.1, 1.7, 1.7, 1.7, 1.7]}, Layout(multiple=2)),
    # tokens one by one, as long as one product for all costs more
    ({Layout(): [1, 1.5, 4, 4, 3.9, 4.2], Layout(64): [2, 4, 4, 4, 4, 5]}, Layout(alone=6, multiple=4))])
def test_the_layout_follows_the_times(times: dict, expected: Layout):
    assert decide(times) == expected


def test_plain_weights_next_to_packed_ones_must_save_something():
    def times(one: float, two: float) -> dict:
        return {Layout(): [one, two, 9, 9, 9, 9], Layout(packed=True): [one, two, 1, 1.3, 1.3, 1.4]}

    assert decide(times(0.9, 1.8)) == Layout(alone=1, multiple=4, packed=True)
    for one in (0.98, 1.1, float("inf")):  # infinite: a large model has no plain weights to time
        assert decide(times(one, 2 * one)) == Layout(alone=0, multiple=4, packed=True)


def cost_of_pass(m: int, layout: Layout, times: list[float]) -> float:
    """What a pass of m tokens costs in a layout, given the times that `decide` got for it."""
    one, two, _, *together = times
    if m <= layout.alone:
        return one + (m - 1) * (two - one)
    return float(np.interp(m + -m % layout.multiple, (2, 4, 8), together))


def test_no_pass_costs_more_than_a_longer_one():
    """Whatever the times are; not so before: a gemm of two or four could cost more than one of eight."""
    rng = np.random.default_rng(7)
    for _ in range(2000):
        one, further, single, *gemm = np.exp(rng.normal(size=6))
        times = [one, one + further, single, *gemm]
        kind = [Layout(), Layout(packed=True), Layout(64)][int(rng.integers(3))]
        if kind.packed:  # one kernel, whose cost grows with the tokens
            times[2:] = sorted(times[2:])
        layout = decide({kind: times})
        padded = not (kind.packed or layout.multiple == 2)  # is a single token, too?
        costs = [cost_of_pass(m, layout, times) for m in range(1 if padded else 2, 9)]
        assert all(costs[i] <= 1.05 * min(costs[i:]) for i in range(len(costs))), (times, layout)


def test_blas_is_prepared_before_numpy_and_never_against_the_user(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name : x\nflags\t\t: fpu avx2 avx512f avx512cd avx512bw avx512dq avx512vl\n")
    assert cpu.has_avx512(str(info))
    info.write_text("flags : fpu avx2 avx512f\n")
    assert not cpu.has_avx512(str(info)) and not cpu.has_avx512(str(tmp_path / "none"))
    assert cpu.prepare_blas() == {}  # too late: NumPy is loaded already

    def prepared(**environment: str) -> dict:
        """The environment that OpenBLAS sees after the import of the package, which prepares it."""
        code = ("import json, os, omnidraft;"
                "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('OPENBLAS', 'OMP'))}))")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS", "OMP", "GOTO"))}
        clean["PYTHONPATH"] = str(Path(__file__).parent.parent)
        return json.loads(subprocess.check_output([sys.executable, "-c", code], env=clean | environment))

    assert prepared(OPENBLAS_CORETYPE="Haswell") == {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"}
    own = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "2"}
    assert prepared(**own) == own
    assert prepared().get("OPENBLAS_CORETYPE") == ("SkylakeX" if cpu.has_avx512() else None)
    assert "OPENBLAS_NUM_THREADS" not in prepared(OMP_NUM_THREADS="2")


# ---------------------------------------------------------------------------------------------- configuration, errors

def test_old_and_new_rope_settings_are_read_alike():
    base = {"architectures": ["LlamaForCausalLM"], **TINY}
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    old = ModelConfig.parse({**base, "rope_theta": 99.0, "rope_scaling": {"type": "llama3", **scaling}})
    new = ModelConfig.parse({**base, "rope_parameters": {"rope_type": "llama3", "rope_theta": 99.0, **scaling}})
    turns = [frequencies(config) for config in (old, new, ModelConfig.parse(base))]
    assert np.array_equal(turns[0], turns[1]) and not np.allclose(turns[0], turns[2])


def test_a_sliding_window_ends_the_context():
    windows = {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}
    for architecture, expected in (("Llama", 64), ("Mistral", 7), ("Qwen2", 7)):
        config = ModelConfig.parse({"architectures": [f"{architecture}ForCausalLM"], **TINY, **windows})
        assert config.context_size == expected
    without = {"architectures": ["Qwen2ForCausalLM"], **TINY, **windows, "use_sliding_window": False}
    assert ModelConfig.parse(without).context_size == 64


def test_end_tokens_come_from_both_files_and_the_tokenizer(tmp_path: Path):
    config = {"architectures": ["LlamaForCausalLM"], **TINY, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    config = ModelConfig.load(tmp_path)
    assert config.eos_ids == (5, 2)

    class Spelling:
        roles = {"eos": (2, 9)}

    tensors = {name: np.ones(shape) for name, shape in config.tensor_shapes().items()}
    assert Llama(config, tensors, tokenizer=Spelling(), layout=PLAIN).eos_ids == (5, 2, 9)


def test_another_head_than_the_embedding_is_used_whatever_the_flag_says():
    """As transformers does: a folder may say that the head is tied, and bring another one."""
    own = ModelConfig.parse({"architectures": ["LlamaForCausalLM"], **TINY})
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(shape) for name, shape in own.tensor_shapes().items()}
    found, want = (Llama(config, tensors, layout=PLAIN) for config in (replace(own, tied=True), own))
    assert np.array_equal(*(one.forward([3, 1], one.new_cache(), 2) for one in (found, want)))
    assert found.parameters == want.parameters and not found.config.tied
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()  # the same one: tied, as it says
    assert Llama(replace(own, tied=True), tensors, layout=PLAIN).config.tied
    with pytest.raises(OmnidraftError, match="lm_head.weight is .2, 2., but its config says"):
        Llama(replace(own, tied=True), tensors | {"lm_head.weight": np.ones((2, 2))}, layout=PLAIN)


@pytest.mark.parametrize("change, words", [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported by the NumPy engine .it runs Llama, "),
    ({"architectures": None, "model_type": "mamba"}, "mamba is not supported"),
    ({"hidden_size": None}, "has no 'hidden_size'"),
    ({"vocab_size": "many"}, "vocab_size is 'many', but must be a whole number"),
    ({"num_key_value_heads": 3}, "4 heads must be a multiple of 3 key-value heads"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
    ({"rope_scaling": {"type": "longrope"}}, "RoPE type 'longrope' is not supported"),
    ({"rope_scaling": {"type": "yarn", "factor": 4}}, "RoPE type 'yarn' is not supported .* use --backend torch"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4}}, "RoPE type 'dynamic' is not supported"),
    ({"rope_scaling": {"type": "linear"}}, "has no 'factor'"),
    ({"rope_scaling": {"factor": 4}}, "RoPE has a factor, but no rope_type"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
])
def test_what_the_engine_does_not_run_is_named(change: dict, words: str):
    config = {"architectures": ["LlamaForCausalLM"], **TINY, **change}
    with pytest.raises(OmnidraftError, match=words) as error:
        ModelConfig.parse({key: value for key, value in config.items() if value is not None})
    assert "\n" not in str(error.value)


def test_broken_folders_are_told_in_a_line(tmp_path: Path):
    from safetensors.numpy import save_file

    def fails(words: str) -> None:
        with pytest.raises(OmnidraftError, match=words) as error:
            engine(tmp_path)
        assert "\n" not in str(error.value)

    with pytest.raises(OmnidraftError, match="unknown model 'qwem': not a folder, a GGUF file or a known name .draft-"):
        models.load("qwem")
    with pytest.raises(OmnidraftError, match="unknown model 'None'"):
        models.load(None)
    with pytest.raises(OmnidraftError, match="no such model folder"):
        ModelConfig.load(tmp_path / "nothing")
    fails("has no config.json")
    (tmp_path / "config.json").write_text("{")
    fails("config.json is not readable JSON")
    config = {"architectures": ["LlamaForCausalLM"], **TINY}
    (tmp_path / "config.json").write_text(json.dumps(config))
    fails("has no model.safetensors and no model.safetensors.index.json")
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    fails("is not an index of weights")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "two.safetensors"}}')
    fails("two.safetensors is missing")
    for name in ("/dev/zero", "../two.safetensors", "", 5, "a\0b"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name, "b": name}}))
        fails("is not an index of weights|is missing")
    (tmp_path / "model.safetensors.index.json").unlink()

    tensors = {name: np.ones(shape, np.float32) for name, shape in ModelConfig.parse(config).tensor_shapes().items()}
    file = tmp_path / "model.safetensors"
    save_file(tensors, file)
    model = engine(tmp_path)
    assert model.vocab_size == 67
    assert repr(model) == f"Llama({tmp_path.name!r}: {model.parameters:,} parameters, float32, {model.kernel})"
    whole = file.read_bytes()
    for size in (0, 5, 100, len(whole) - 4):
        file.write_bytes(whole[:size])
        fails("not a complete safetensors file|is missing, empty")
    save_file(tensors | {"model.norm.weight": np.ones(31, np.float32)}, file)
    fails(r"model.norm.weight is \(31,\), but its config says \(32,\)")
    save_file({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, file)
    fails("the weights lack lm_head.weight")
    save_file({"x": np.ones(3, np.int8)}, file)
    with pytest.raises(OmnidraftError, match="x holds I8 numbers"):
        read_safetensors(file)


@pytest.mark.parametrize("change", [
    {"num_attention_heads": 0}, {"hidden_size": -32}, {"num_key_value_heads": "two"}, {"max_position_embeddings": -5},
    {"max_position_embeddings": "long"}, {"rms_norm_eps": None}, {"rope_theta": None}, {"rope_theta": "1e4"},
    {"rope_scaling": [1]}, {"rope_scaling": {"rope_type": "linear", "factor": -2}}, {"rope_scaling": {"rope_type": ["yarn"]}},
    {"rope_scaling": {"rope_type": "linear", "factor": "x"}}, {"hidden_size": 32.5}, {"head_dim": "eight"},
    {"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, {"architectures": {"a": 1}}], ids=str)
def test_a_config_with_a_value_of_the_wrong_kind_is_one_line(change: dict):
    with pytest.raises(OmnidraftError) as caught:
        ModelConfig.parse({"architectures": ["LlamaForCausalLM"], **TINY, **change}, "folder")
    assert "\n" not in str(caught.value)
    for end in ({"a": 1}, [[2]], "2", -1, 99):
        assert ModelConfig.parse({"architectures": ["LlamaForCausalLM"], **TINY, "eos_token_id": end}).eos_ids == ()


def test_texts_that_are_read_together_have_the_logits_of_each_alone():
    model = models.load("qwen-like")
    texts, caches = [[5, 6, 7], [8], [9, 10, 11, 12]], [model.new_cache() for _ in range(3)]
    alone = [model.new_cache() for _ in range(3)]
    for more in range(3):
        together = model.forward_each(list(zip(texts, caches, strict=True)))
        for ids, cache, logits, other in zip(texts, alone, together, caches, strict=True):
            assert model.forward(ids, cache)[0] == pytest.approx(logits, abs=1e-4)
            assert cache.length == other.length
        texts = [[20 + more], [30, 31, more], [40]]
    with pytest.raises(OmnidraftError):
        model.forward_each([([1], caches[0]), ([model.vocab_size], caches[1])])
    assert caches[0].length == alone[0].length
