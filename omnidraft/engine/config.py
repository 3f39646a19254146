"""A model's config.json as the NumPy engine understands it: Llama, Mistral and Qwen2, as transformers 4 and 5 write it.

The three families differ in four places only: which projections have a bias, the sliding window, and two defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OmnidraftError
from ..files import read_json

# key-value heads (None: as many as queries) and context of each family where config.json names none
FAMILIES = {"Llama": (None, 2048), "Mistral": (8, 131072), "Qwen2": (32, 32768)}
# what each RoPE type needs beside its base
ROPE_TYPES = {"default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
              "llama3": ("factor", "low_freq_factor", "high_freq_factor")}


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and switches of one model."""

    family: str  # "Llama", "Mistral" or "Qwen2"
    vocab_size: int  # width of the logits
    width: int  # of the residual stream
    hidden: int  # of the feed-forward layer
    layers: int
    heads: int  # of the queries
    kv_heads: int  # of keys and values: heads // kv_heads queries share one
    head_dim: int
    context_size: int  # most tokens the cache may hold
    eps: float  # of the RMS norms
    rope: dict[str, Any]  # rope_type, rope_theta and what the type needs
    windows: tuple[int | None, ...]  # per layer: how many tokens back it looks (itself included), None = all
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False  # the head is the embedding
    eos_ids: tuple[int, ...] = ()

    @classmethod
    def load(cls, folder: str | Path) -> ModelConfig:
        """Read config.json and, where there is one, generation_config.json (its end tokens come first).

        Raises OmnidraftError where the file is missing, broken, or names a model that this engine does not run.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise OmnidraftError(f"no such model folder: {folder}")
        if not (folder / "config.json").is_file():
            raise OmnidraftError(f"{folder} has no config.json (an ordinary Hugging Face model folder is needed)")
        config = read_json(folder / "config.json")
        generation = read_json(folder / "generation_config.json")
        config["eos_token_id"] = flat_ids(generation.get("eos_token_id"), config.get("eos_token_id"))
        return cls.parse(config, str(folder))

    @classmethod
    def parse(cls, config: dict[str, Any], name: str = "config") -> ModelConfig:
        """Read the dictionary that config.json holds; `name` stands in the messages.

        >>> ModelConfig.parse({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 172,
        ...     "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 512}).kv_heads
        8
        """
        try:
            return cls._parse(config, name)
        except OmnidraftError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise OmnidraftError(f"{name}: config.json has a value of the wrong kind ({error})") from None

    @classmethod
    def _parse(cls, config: dict[str, Any], name: str) -> ModelConfig:
        named = config.get("architectures") or config.get("model_type")
        named = named[0] if isinstance(named, list) else named
        family = next((family for family in FAMILIES if named in (f"{family}ForCausalLM", family.lower())), None)
        if family is None:
            raise OmnidraftError(f"{named} is not supported by the NumPy engine (it runs {', '.join(FAMILIES)}); "
                                 "use --backend torch")
        if config.get("quantization_config"):
            raise OmnidraftError(f"{name}: quantized weights are not supported by the NumPy engine (use --backend torch)")
        if config.get("hidden_act", "silu") not in ("silu", "swish"):
            raise OmnidraftError(f"{name}: hidden_act {config['hidden_act']!r} is not supported (silu is)")
        try:
            width, hidden, layers, heads, vocab_size = (int(config[key]) for key in (
                "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"))
        except KeyError as key:
            raise OmnidraftError(f"{name}: config.json does not say {key}") from None
        except (TypeError, ValueError):
            raise OmnidraftError(f"{name}: a size in config.json is not a whole number") from None
        kv_heads = int(config.get("num_key_value_heads", FAMILIES[family][0]) or heads)
        head_dim = int(config.get("head_dim") or width // max(1, heads))
        context = int(config.get("max_position_embeddings") or FAMILIES[family][1])
        if min(width, hidden, layers, heads, vocab_size, kv_heads, head_dim, context) < 1:
            raise OmnidraftError(f"{name}: a size in config.json is less than 1")
        if heads % kv_heads or head_dim % 2:
            raise OmnidraftError(f"{name}: {heads} heads cannot share {kv_heads} key-value heads of {head_dim} numbers")
        rope = _rope(config, context, name)
        if rope["rope_type"] == "dynamic":  # the only variant that is made to run past its own context
            context = int(context * rope["factor"])
        bias = bool(config.get("attention_bias")) and family == "Llama"
        return cls(
            family=family, vocab_size=vocab_size, width=width, hidden=hidden, layers=layers, heads=heads,
            kv_heads=kv_heads, head_dim=head_dim, context_size=context, eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=rope, windows=_windows(config, family, layers), qkv_bias=bias or family == "Qwen2", out_bias=bias,
            mlp_bias=bool(config.get("mlp_bias")) and family == "Llama", tied=bool(config.get("tie_word_embeddings")),
            eos_ids=tuple(i for i in flat_ids(config.get("eos_token_id")) if 0 <= i < vocab_size))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors that a model of this configuration has, under their Hugging Face names, with their shapes.

        >>> ModelConfig.load("models/stories260K").tensor_shapes()["model.norm.weight"]
        (64,)
        """
        width, hidden, q, kv = self.width, self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        linears = {"self_attn.q_proj": (q, width, self.qkv_bias), "self_attn.k_proj": (kv, width, self.qkv_bias),
                   "self_attn.v_proj": (kv, width, self.qkv_bias), "self_attn.o_proj": (width, q, self.out_bias),
                   "mlp.gate_proj": (hidden, width, self.mlp_bias), "mlp.up_proj": (hidden, width, self.mlp_bias),
                   "mlp.down_proj": (width, hidden, self.mlp_bias)}
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, width)}
        for at in (f"model.layers.{i}" for i in range(self.layers)):
            for part, (outputs, inputs, bias) in linears.items():
                shapes[f"{at}.{part}.weight"] = (outputs, inputs)
                shapes |= {f"{at}.{part}.bias": (outputs,)} if bias else {}
            shapes |= {f"{at}.input_layernorm.weight": (width,), f"{at}.post_attention_layernorm.weight": (width,)}
        shapes["model.norm.weight"] = (width,)
        return shapes if self.tied else shapes | {"lm_head.weight": (self.vocab_size, width)}


def flat_ids(*values: Any) -> tuple[int, ...]:
    """The ids in values that are each an id, a list of ids or None; of equal ones the first."""
    ids = [i for value in values for i in (value if isinstance(value, (list, tuple)) else [value])]
    return tuple(dict.fromkeys(i for i in ids if isinstance(i, int)))


def _windows(config: dict[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window", 4096)
    window = None if window is None else max(1, int(window))
    if family == "Mistral":
        return (window,) * layers
    if family == "Llama" or not config.get("use_sliding_window", False):
        return (None,) * layers
    kinds = config.get("layer_types") or ["sliding_attention" if i >= config.get("max_window_layers", 28)
                                          else "full_attention" for i in range(layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(config: dict[str, Any], context: int, name: str) -> dict[str, Any]:
    """`rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of transformers 4, as one dictionary."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    original = "original_max_position_embeddings"
    rope |= {"context": context, "original_context": config.get(original) or rope.get(original) or context}
    kind = rope["rope_type"]
    if kind not in ROPE_TYPES:
        raise OmnidraftError(f"{name}: RoPE type {kind!r} is not supported (known: {', '.join(ROPE_TYPES)})")
    numbers = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
    given = [key for key in numbers if rope.get(key) is not None]
    for key in ("rope_theta", *ROPE_TYPES[kind], *given):
        if not isinstance(rope.get(key), (int, float)) or key not in given and not 0 < rope[key] < float("inf"):
            raise OmnidraftError(f"{name}: RoPE type {kind!r} needs a number {key!r} above 0 in config.json")
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise OmnidraftError(f"{name}: partial_rotary_factor is not supported")
    return rope
