"""A model's config.json as the NumPy engine reads it, and the rotary frequencies it specifies.

Llama, Mistral, Qwen2 and Qwen3 differ in biases, norms, defaults and sliding windows. A window has
no effect until a text is longer than it, so here it limits the context: longer texts need --backend
torch. Gemma 3 is made for short windows, which most of its layers have: these are computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..text.errors import OmnidraftError, expect_number
from ..text.files import read_json
from .model import flat_ids

# what each kind of RoPE needs besides its base
ROPES = {"default": (), "linear": ("factor",),
         "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_context")}
MOST = 2**60  # of any size
MOST_LAYERS = 10_000  # all their tensors are listed before weights are read
SIZES = {"vocab_size": "vocab_size", "hidden_size": "width", "intermediate_size": "hidden",
         "num_hidden_layers": "layers", "num_attention_heads": "heads",
         "num_key_value_heads": "kv_heads", "head_dim": "head_dim",
         "max_position_embeddings": "context_size"}  # config.json's names: ModelConfig's
NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
          "num_attention_heads")
NORMS = ("input_layernorm", "post_attention_layernorm")
GEMMA_NORMS = (*NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
FULL = "full_attention"  # the kind of a layer, in Gemma's config.json
LOCAL = "sliding_attention"


@dataclass(frozen=True)
class Family:
    """A family of models: its name in config.json, its defaults, and what it may switch on."""

    architecture: str
    context: int  # default maximum tokens in a text
    kv_heads: int | None  # default key-value heads; None: one per query head
    qkv_bias: bool = False  # biases of q, k and v, whatever config.json says
    switches: tuple[str, ...] = ()  # of attention_bias and mlp_bias, those it obeys
    window: int | None = None  # default sliding window; None: it has none
    window_switch: str = ""  # the setting without which there is no window
    head_dim: int | None = None  # default; None: the width divided by the heads
    qk_norm: bool = False  # each head's queries and keys have an RMS norm
    gemma: bool = False  # what Gemma alone has (ModelConfig.gemma)
    theta: float = 10000.0  # default base of RoPE
    activations: tuple[str, ...] = ("silu", "swish")  # names of the one that it computes


FAMILIES = {  # by config.json's model_type
    "llama": Family("LlamaForCausalLM", context=2048, kv_heads=None,
                    switches=("attention_bias", "mlp_bias")),
    "mistral": Family("MistralForCausalLM", context=131072, kv_heads=8, window=4096),
    "qwen2": Family("Qwen2ForCausalLM", context=32768, kv_heads=32, qkv_bias=True, window=4096,
                    window_switch="use_sliding_window"),
    "qwen3": Family("Qwen3ForCausalLM", context=32768, kv_heads=32, switches=("attention_bias",),
                    window=4096, window_switch="use_sliding_window", head_dim=128, qk_norm=True),
    "gemma3_text": Family("Gemma3ForCausalLM", context=131072, kv_heads=4,
                          switches=("attention_bias",), head_dim=256, qk_norm=True, gemma=True,
                          theta=1e6, activations=("gelu_pytorch_tanh",)),
}


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and switches of one model."""

    vocab_size: int  # width of the logits
    width: int  # of the residual stream
    hidden: int  # of the feed-forward layer
    layers: int
    heads: int  # query heads
    kv_heads: int  # key-value heads: each is shared by heads // kv_heads query heads
    head_dim: int
    context_size: int  # maximum tokens in a text; a sliding window limits it
    eps: float  # of the RMS norms
    rope: dict[str, Any]  # rope_type, rope_theta and what the type needs
    family: str = "llama"  # one of FAMILIES
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False  # the output head is the embedding
    eos_ids: tuple[int, ...] = ()
    qk_norm: bool = False  # an RMS norm of each head's queries and keys
    gemma: bool = False  # gains of 1 + w, GELU, a norm after each branch, embeddings · sqrt(width)
    scalar: float = 0  # scores are divided by its root; 0: head_dim
    window: int = 0  # tokens that a local layer sees, the last one included
    local: tuple[int, ...] = ()  # the layers that have this window and RoPE with local_theta
    local_theta: float = 10000.0

    @classmethod
    def load(cls, folder: Path) -> "ModelConfig":
        """Read config.json and generation_config.json, whose end tokens come first.

        Raises OmnidraftError if config.json is missing, broken, or of an unsupported model.
        """
        if not folder.is_dir():
            raise OmnidraftError(f"no such model folder: {folder}")
        if not (folder / "config.json").is_file():
            raise OmnidraftError(f"{folder} has no config.json (a Hugging Face model is needed)")
        config = read_json(folder / "config.json")
        ends = read_json(folder / "generation_config.json").get("eos_token_id")
        ends = flat_ids(ends, config.get("eos_token_id"))
        return cls.parse(config | {"eos_token_id": ends}, str(folder))

    @classmethod
    def parse(cls, config: dict[str, Any], name: str = "config") -> "ModelConfig":
        """Read the content of a config.json; `name` is used in OmnidraftErrors."""
        try:
            return _parse(config)
        except KeyError as key:
            reason = f"config.json has no {key}"
        except OmnidraftError as error:
            reason = error
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = f"config.json has a value of the wrong kind ({error})"
        raise OmnidraftError(f"{name}: {reason}")

    @property
    def score_scale(self) -> float:
        """The factor of the attention scores q k."""
        return (self.scalar or self.head_dim) ** -0.5

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(map(math.prod, self.tensor_shapes().values()))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the model's tensors by Hugging Face name."""
        shapes = {"model.embed_tokens.weight": (self.vocab_size, self.width)}
        layer = self._layer_shapes()
        for i in range(self.layers):
            for part, shape in layer.items():
                shapes[f"model.layers.{i}.{part}"] = shape
        shapes["model.norm.weight"] = (self.width,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.width)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one layer's tensors."""
        width = self.width
        q = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        matrices = {  # (out, in, whether there is a bias)
            "self_attn.q_proj": (q, width, self.qkv_bias),
            "self_attn.k_proj": (kv, width, self.qkv_bias),
            "self_attn.v_proj": (kv, width, self.qkv_bias),
            "self_attn.o_proj": (width, q, self.out_bias),
            "mlp.gate_proj": (self.hidden, width, self.mlp_bias),
            "mlp.up_proj": (self.hidden, width, self.mlp_bias),
            "mlp.down_proj": (width, self.hidden, self.mlp_bias)}
        weights = {f"{part}.weight": (out, into) for part, (out, into, _) in matrices.items()}
        biases = {f"{part}.bias": (out,) for part, (out, _, bias) in matrices.items() if bias}
        norms = {f"{part}.weight": (width,) for part in (GEMMA_NORMS if self.gemma else NORMS)}
        if self.qk_norm:
            norms["self_attn.q_norm.weight"] = (self.head_dim,)
            norms["self_attn.k_norm.weight"] = (self.head_dim,)
        return weights | biases | norms

    def with_head_of(self, tensors: Mapping[str, Any]) -> "ModelConfig":
        """The same, but not tied if a file has another head than the embedding."""
        head = tensors.get("lm_head.weight")
        if not self.tied or head is None:
            return self
        same = np.array_equal(head, tensors.get("model.embed_tokens.weight"))
        return replace(self, tied=same)

    def check(self, tensors: Mapping[str, Any], name: str) -> None:
        """Raise OmnidraftError if one of the model's tensors is missing or has another shape."""
        for tensor, shape in self.tensor_shapes().items():
            if tensor not in tensors:
                raise OmnidraftError(f"{name}: the weights lack {tensor}")
            found = tensors[tensor].shape
            if found != shape:
                raise OmnidraftError(f"{name}: {tensor} is {found}, but its config says {shape}")


def _parse(config: dict[str, Any]) -> ModelConfig:
    """Like `ModelConfig.parse`, but raises Python's own errors."""
    name = _family(config)
    family = FAMILIES[name]
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = dict(given.get(FULL) or given)
    if "factor" in rope and not {"rope_type", "type"} & rope.keys():
        raise OmnidraftError("its RoPE has a factor, but no rope_type that says how to use it")
    rope.setdefault("rope_type", rope.get("type", "default"))  # transformers 5; 4
    _check_supported(config, rope, family)

    context = config.get("max_position_embeddings") or family.context
    sizes = _sizes(config, family, context)
    _check_sizes(sizes)

    original = "original_max_position_embeddings"
    rope["original_context"] = config.get(original) or rope.get(original) or context
    rope.setdefault("rope_theta", config.get("rope_theta", family.theta))
    _check_rope(rope)

    switched = {switch for switch in family.switches if config.get(switch)}
    return ModelConfig(
        **{ours: sizes[theirs] for theirs, ours in SIZES.items()},
        family=name,
        eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        qkv_bias=family.qkv_bias or "attention_bias" in switched,
        out_bias="attention_bias" in switched,
        mlp_bias="mlp_bias" in switched,
        tied=bool(config.get("tie_word_embeddings", family.gemma)),
        eos_ids=flat_ids(config.get("eos_token_id"), size=sizes["vocab_size"]),
        qk_norm=family.qk_norm,
        **(_gemma(config, given, sizes["num_hidden_layers"]) if family.gemma else {}))


def _gemma(config: dict[str, Any], rope: dict[str, Any], layers: int) -> dict[str, Any]:
    """What a ModelConfig of Gemma has besides, from both forms of its config.json."""
    for name in ("final_logit_softcapping", "attn_logit_softcapping",
                 "use_bidirectional_attention"):
        if config.get(name):
            raise _unsupported(f"{name} is")
    every = config.get("sliding_window_pattern", 6)  # the last of so many layers sees all tokens
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [LOCAL if (i + 1) % every else FULL for i in range(layers)]
    if len(kinds) != layers or set(kinds) - {FULL, LOCAL}:
        raise OmnidraftError(f"layer_types must name {FULL} or {LOCAL} for each of {layers} layers")
    base = rope.get(LOCAL, {}).get("rope_theta", config.get("rope_local_base_freq", 10000.0))
    _check_number("rope_local_base_freq", base)
    scalar = config.get("query_pre_attn_scalar", 256)
    _check_number("query_pre_attn_scalar", scalar)
    window = config.get("sliding_window", 4096)
    expect_number("sliding_window", window, f"from 1 to {MOST:,}", 1, MOST)
    return {"gemma": True, "scalar": float(scalar),
            "window": window, "local_theta": float(base),
            "local": tuple(i for i, kind in enumerate(kinds) if kind == LOCAL)}


def _family(config: dict[str, Any]) -> str:
    """The name in FAMILIES of the family that the model belongs to."""
    found = (config.get("architectures") or [config.get("model_type")])[0]
    for name, family in FAMILIES.items():
        if found in (family.architecture, name):
            return name
    raise _unsupported(f"{found or 'a model without model_type'} is")


def _unsupported(what: str) -> OmnidraftError:
    names = [family.architecture.removesuffix("ForCausalLM") for family in FAMILIES.values()]
    runs = ", ".join(names)
    return OmnidraftError(f"{what} not supported by the NumPy engine (it runs {runs}); "
                          "use --backend torch")


def _check_supported(config: dict[str, Any], rope: dict[str, Any], family: Family) -> None:
    """Raise OmnidraftError for what only transformers can run."""
    if config.get("quantization_config"):
        raise _unsupported("quantized weights are")
    named = config.get("hidden_activation") or config.get("hidden_act")
    activation = named or family.activations[0]
    if activation not in family.activations:
        raise _unsupported(f"hidden_act {activation!r} is")
    if rope["rope_type"] not in ROPES:
        raise _unsupported(f"RoPE type {rope['rope_type']!r} is")
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    if share not in (None, 1):
        raise _unsupported("partial_rotary_factor is")


def _sizes(config: dict[str, Any], family: Family, context: int) -> dict[str, Any]:
    """All sizes by their names in config.json; a window limits the context."""
    sizes = {name: config[name] for name in NEEDED}
    heads = sizes["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", family.kv_heads)
    sizes["num_key_value_heads"] = kv_heads or heads
    usual = family.head_dim or sizes["hidden_size"] // max(1, heads)
    sizes["head_dim"] = config.get("head_dim") or usual
    window = None
    if family.window and (not family.window_switch or config.get(family.window_switch)):
        window = config.get("sliding_window", family.window)
    sizes["max_position_embeddings"] = min(context, window or context)
    return sizes


def _check_sizes(sizes: dict[str, Any]) -> None:
    for name, size in sizes.items():
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        expect_number(name, size, f"from 1 to {most:,}", 1, most)
    heads = sizes["num_attention_heads"]
    kv_heads = sizes["num_key_value_heads"]
    if heads % kv_heads or sizes["head_dim"] % 2:
        raise OmnidraftError(f"{heads} heads must be a multiple of {kv_heads} key-value "
                             f"heads, and head_dim {sizes['head_dim']} must be even")


def _check_rope(rope: dict[str, Any]) -> None:
    kind = rope["rope_type"]
    for name in ("rope_theta", *ROPES[kind]):
        _check_number(name, rope[name])
    if kind == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
        raise OmnidraftError("low_freq_factor must be below high_freq_factor")


def _check_number(name: str, number: Any) -> None:
    if type(number) not in (int, float) or not 1e-9 < number < 1e18:
        raise OmnidraftError(f"{name} is {str(number)[:40]}, but must be a number above 0")


def frequencies(config: ModelConfig, local: bool = False) -> np.ndarray:
    """The rotation angle per position of each dimension pair of a head: (head_dim / 2,).

    f_i = theta^(-2i / head_dim) (RoPE, arXiv 2104.09864). To extend the trained context, "linear"
    slows down all rotations (arXiv 2306.15595), "llama3" only the slow ones. `local`: in the layers
    with a window, which are never slowed down.
    """
    rope = config.rope
    if local:
        rope = {"rope_type": "default", "rope_theta": config.local_theta}
    if rope["rope_type"] == "frequencies":  # stated one by one, in a GGUF file
        return np.array(rope["frequencies"])
    f = rope["rope_theta"] ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    if rope["rope_type"] == "linear":
        return f / rope["factor"]
    if rope["rope_type"] == "llama3":
        turns = rope["original_context"] * f / (2 * math.pi)  # within the trained context
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0, 1)  # 1: a fast pair, left unchanged
        return f * (keep + (1 - keep) / rope["factor"])
    return f
