"""The NumPy backward pass and AdamW against PyTorch: autograd through transformers' own models, in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors.torch")  # it looks up types at import, so import it before a test replaces torch.float32

from omnidraft.engine.config import ModelConfig  # noqa: E402
from omnidraft.learning.backward import gradients, run  # noqa: E402
from omnidraft.learning.lora import LoRA  # noqa: E402
from omnidraft.learning.training import AdamW  # noqa: E402

TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 67, "max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
GEMMA = {"head_dim": 12, "sliding_window": 9, "query_pre_attn_scalar": 20,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
CASES = {
    "llama grouped": ("LlamaForCausalLM", {}),
    "llama tied, all heads": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama biases, wide heads": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama, rope of llama 3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "mistral window": ("MistralForCausalLM", {"sliding_window": 60}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2 tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 12}),
    "gemma 3": ("Gemma3ForCausalLM", GEMMA),
}


@pytest.fixture
def exact(monkeypatch):
    """transformers computes norms and angles in float32 for every dtype; here its float32 means float64."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def random_pair(case: str):
    """A random transformers model, our configuration of it, and its tensors."""
    architecture, sizes = CASES[case]
    settings = getattr(transformers, architecture).config_class(**{**TINY, **sizes})
    model = getattr(transformers, architecture)(settings).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3 + ("norm" in name))
    config = ModelConfig.parse(settings.to_dict() | {"architectures": [architecture]})
    return model, config, {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


def random_loss(config: ModelConfig, n: int):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, config.vocab_size, n)
    dlogits = rng.standard_normal((n, config.vocab_size))
    dlogits[:n // 3] = 0
    return ids, dlogits


def autograd(model, ids, dlogits) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The logits, and the gradients of Σ logits · dlogits."""
    hidden = model.model(torch.from_numpy(ids)[None]).last_hidden_state[0]
    logits = model.lm_head(hidden)
    (logits * torch.from_numpy(dlogits)).sum().backward()
    return logits.detach().numpy(), {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_autograd_through_transformers(case: str, exact):
    model, config, tensors = random_pair(case)
    ids, dlogits = random_loss(config, 24)
    logits, expected = autograd(model, ids, dlogits)
    trace = run(config, tensors, ids)
    assert np.abs(trace.logits - logits).max() < 1e-10
    found = gradients(trace, dlogits)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert np.abs(gradient - expected[name]).max() < 1e-8, name
    assert min(np.abs(gradient).max() for gradient in expected.values()) > 1e-3


def test_adamw_equals_torch(exact):
    rng = np.random.default_rng(0)
    for clip in (None, 2.0):
        ours = {name: rng.standard_normal(shape) for name, shape in {"a": (3, 4), "b": (5,)}.items()}
        theirs = {name: torch.tensor(array, requires_grad=True) for name, array in ours.items()}
        optimizer = AdamW(ours, rate=0.03, betas=(0.8, 0.99), eps=1e-6, decay=0.1, clip=clip)
        other = torch.optim.AdamW(theirs.values(), lr=0.03, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)
        for _ in range(5):
            gradient = {name: rng.standard_normal(array.shape) for name, array in ours.items()}
            for name, tensor in theirs.items():
                tensor.grad = torch.tensor(gradient[name])
            if clip:
                torch.nn.utils.clip_grad_norm_(theirs.values(), clip)
            optimizer.step(gradient)
            other.step()
            for name, tensor in theirs.items():
                # torch divides by the norm + 1e-6 when it clips
                assert np.abs(ours[name] - tensor.detach().numpy()).max() < (1e-7 if clip else 1e-14)


@pytest.mark.parametrize("low_rank", [False, True])
def test_a_training_step_equals_torch(low_rank: bool, exact):
    model, config, tensors = random_pair("llama tied, all heads")
    ids, dlogits = random_loss(config, 16)
    settings = {"lr": 1e-2, "weight_decay": 0.05}
    if not low_rank:
        autograd(model, ids, dlogits)
        torch.optim.AdamW(model.parameters(), **settings).step()
        expected = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        found = {name: array.copy() for name, array in tensors.items()}
        AdamW(found, rate=1e-2, decay=0.05).step(gradients(run(config, tensors, ids), dlogits))
    else:
        matrices = {name: shape for name, shape in config.tensor_shapes().items() if "_proj.weight" in name}
        lora = LoRA.fresh(matrices, np.random.default_rng(0), rank=4, dtype=np.float64)
        lora.alpha = 8
        for name, array in lora.parameters.items():
            array += 0.1 * ("lora_B" in name)
        theirs = {name: torch.tensor(array, requires_grad=True) for name, array in lora.parameters.items()}
        merged = {name: torch.from_numpy(tensors[name]) + 2 * theirs[b] @ theirs[a] for name, (a, b) in lora.targets.items()}
        hidden = torch.func.functional_call(model.model, {name.removeprefix("model."): array for name, array in merged.items()},
                                            (torch.from_numpy(ids)[None],)).last_hidden_state[0]
        (model.lm_head(hidden) * torch.from_numpy(dlogits)).sum().backward()
        torch.optim.AdamW(theirs.values(), **settings).step()
        full = gradients(run(config, lora.merged(tensors), ids), dlogits, lora.targets)
        AdamW(lora.parameters, rate=1e-2, decay=0.05).step(lora.gradients(full))
        expected, found = {name: array.detach().numpy() for name, array in theirs.items()}, lora.parameters
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() < 1e-8, name
