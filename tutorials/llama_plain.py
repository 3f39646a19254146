"""The forward pass of Llama, Mistral and Qwen2 as in a textbook: what one pass of a model computes.

It reads one whole text at a time, without a cache: simple and slow. `omnidraft/engine/llama.py` is
the fast version; a test checks that they agree. Shapes: n tokens, width w of the residual stream,
h heads, g key-value heads (each shared by h / g query heads), head dimension d, width f of the
feed-forward layer, vocabulary size V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from omnidraft.engine.config import ModelConfig, frequencies

Tensors = dict[str, np.ndarray]  # by Hugging Face name


def forward(config: ModelConfig, tensors: Tensors, ids: Sequence[int]) -> np.ndarray:
    """The logits (n, V) of a text; row i predicts the token after ids[i]."""
    x = tensors["model.embed_tokens.weight"][ids]                               # (n, w)
    for at in (f"model.layers.{i}" for i in range(config.layers)):
        y = rms_norm(x, tensors, f"{at}.input_layernorm", config.eps)           # (n, w)
        x = x + attention(config, tensors, f"{at}.self_attn", y)
        y = rms_norm(x, tensors, f"{at}.post_attention_layernorm", config.eps)  # (n, w)
        x = x + mlp(tensors, f"{at}.mlp", y)
    x = rms_norm(x, tensors, "model.norm", config.eps)                          # (n, w)
    head = tensors["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
    return x @ head.T                                                           # (n, V)


def rms_norm(x: np.ndarray, tensors: Tensors, name: str, eps: float) -> np.ndarray:
    """RMSNorm (arXiv 1910.07467): divide each row by its root mean square, multiply by a gain."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)                        # (n, 1)
    return x / np.sqrt(mean_square + eps) * tensors[f"{name}.weight"]           # (n, w)


def linear(x: np.ndarray, tensors: Tensors, name: str) -> np.ndarray:
    """x W^T + b; the bias b is optional."""
    return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)


def attention(config: ModelConfig, tensors: Tensors, at: str, x: np.ndarray) -> np.ndarray:
    """Causal attention (arXiv 1706.03762) with grouped queries (2305.13245): (n, w) to (n, w)."""
    n, group = len(x), config.heads // config.kv_heads
    q, k, v = (linear(x, tensors, f"{at}.{part}_proj").reshape(n, -1, config.head_dim)
               for part in "qkv")                                # (n, h, d), (n, g, d), (n, g, d)
    q, k = (turn(heads, *angles(n, config, x.dtype)) for heads in (q, k))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)             # (n, h, d)
    q, k, v = (heads.swapaxes(0, 1) for heads in (q, k, v))                     # (h, n, d)
    scores = q @ k.swapaxes(1, 2) / config.head_dim ** 0.5                      # (h, n, n)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)  # no token sees a later one
    mixed = softmax(scores) @ v                                                 # (h, n, d)
    return linear(mixed.swapaxes(0, 1).reshape(n, -1), tensors, f"{at}.o_proj")  # (n, w)


def angles(n: int, config: ModelConfig, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the rotation angles at each position, position · f_i: (n, 1, d / 2) each."""
    turns = np.outer(np.arange(n), frequencies(config))[:, None]
    return np.cos(turns).astype(dtype), np.sin(turns).astype(dtype)


def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary position embedding (RoPE, arXiv 2104.09864): numbers i and i + d/2 of each head of x
    (n, h, d) are rotated as a point in the plane, so q · k depends on the distance of two tokens.

    >>> turn(np.array([[[1.0, 0.0]]]), np.zeros((1, 1, 1)), np.ones((1, 1, 1)))  # a quarter turn
    array([[[0., 1.]]])
    """
    a, b = np.split(x, 2, axis=-1)                                              # (n, h, d / 2) each
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)      # (n, h, d)


def softmax(scores: np.ndarray) -> np.ndarray:
    """exp(scores), normalised to sum to 1 along the last axis."""
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True))  # subtle: the shift prevents overflow
    return exp / exp.sum(axis=-1, keepdims=True)


def mlp(tensors: Tensors, at: str, x: np.ndarray) -> np.ndarray:
    """SwiGLU (arXiv 2002.05202): down(silu(gate) · up) with silu(g) = g / (1 + e^-g)."""
    gate = linear(x, tensors, f"{at}.gate_proj")                                # (n, f)
    silu = gate / (1 + np.exp(-gate))                                           # (n, f)
    return linear(silu * linear(x, tensors, f"{at}.up_proj"), tensors, f"{at}.down_proj")  # (n, w)
