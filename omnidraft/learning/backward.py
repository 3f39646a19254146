"""How to differentiate a transformer: the forward pass over a text, and the backward pass.

Backpropagation (Rumelhart et al. 1986): write dy for ∂L/∂y, which has the shape of y. Each
operation y = f(x, W) returns y and a function `back`. Given dy, `back` returns dx for the previous
operation, and stores dW in the dictionary `grads` if W's name is in it. The model is a sequence of
operations (`run`); its gradient calls their `back`s in reverse order (`gradients`). If a value is
used twice, the gradients of both uses are added.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.config import ModelConfig, frequencies
from ..text.errors import OmnidraftError

Tensors = dict[str, np.ndarray]  # by Hugging Face name
Gradients = dict[str, np.ndarray | None]  # for the wanted names; None until it is computed
Back = Callable[[np.ndarray, Gradients], np.ndarray]
Forward = tuple[np.ndarray, Back]
EMBEDDING = "model.embed_tokens.weight"
GELU = 2 * math.sqrt(2 / math.pi)


def linear(x: np.ndarray, tensors: Tensors, name: str) -> Forward:
    """y = x W^T + b: (n, in) to (n, out). Back: dx = dy W, dW = dy^T x, db = Σ dy over the tokens.

    >>> y, back = linear(np.ones((1, 2)), {"a.weight": np.array([[3.0, 4.0]])}, "a")
    >>> grads = {"a.weight": None}; y, back(np.array([[2.0]]), grads), grads["a.weight"]
    (array([[7.]]), array([[6., 8.]]), array([[2., 2.]]))
    """
    weight = tensors[f"{name}.weight"]  # (out, in)
    bias = tensors.get(f"{name}.bias", 0)  # (out,)

    def back(dy: np.ndarray, grads: Gradients) -> np.ndarray:
        if f"{name}.weight" in grads:
            grads[f"{name}.weight"] = dy.T @ x
        if f"{name}.bias" in grads:
            grads[f"{name}.bias"] = dy.sum(axis=0)
        return dy @ weight

    return x @ weight.T + bias, back


def rms_norm(x: np.ndarray, config: ModelConfig, tensors: Tensors, name: str) -> Forward:
    """y = g · u with u = r x, r = 1 / sqrt(mean(x²) + eps), per token (RMSNorm, arXiv 1910.07467).

    x may be the heads of all tokens (n, h, d). Gemma stores g − 1.
    Back: dg = Σ dy · u over the tokens, du = g · dy, dx = r (du − u · mean(du · u)). The second
    term comes from r, which depends on x: it removes the component of du along u.
    """
    gain = tensors[f"{name}.weight"] + int(config.gemma)
    r = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config.eps)  # (n, 1)
    u = x * r

    def back(dy: np.ndarray, grads: Gradients) -> np.ndarray:
        if f"{name}.weight" in grads:
            grads[f"{name}.weight"] = (dy * u).reshape(-1, len(gain)).sum(axis=0)
        du = dy * gain
        return r * (du - u * np.mean(du * u, axis=-1, keepdims=True))

    return u * gain, back


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float,
              window: int | None = None) -> tuple[np.ndarray, Callable]:
    """Grouped-query attention (arXiv 1706.03762, 2305.13245): o = P v, P = softmax(q k^T · scale).

    q and o (n, heads, d), k and v (n, kv_heads, d); scale is 1 / √d, in most models. A token sees
    itself and those before it, at most `window`. Back: dv = P^T do, dP = do v^T, through the
    softmax dS = P · (dP − Σ dP · P), where that row sum is do · o (arXiv 2205.14135, B.2), then
    dq = dS k · scale, dk = dS^T q · scale.
    """
    n, kv_heads, d = k.shape

    # stack the heads that share a key as rows of one matrix, so that their dk and dv add up
    def stack(x: np.ndarray) -> np.ndarray:  # to (kv_heads, heads of a group · n, d)
        return x.reshape(n, kv_heads, -1, d).transpose(1, 2, 0, 3).reshape(kv_heads, -1, d)

    def unstack(x: np.ndarray) -> np.ndarray:
        return x.reshape(kv_heads, -1, n, d).transpose(2, 0, 1, 3).reshape(n, -1, d)

    q = stack(q) * scale
    k = stack(k)
    v = stack(v)
    scores = q @ k.swapaxes(1, 2)  # (kv_heads, heads of a group · n, n)
    seen = np.tri(n, dtype=bool)
    if window is not None:
        seen &= ~np.tri(n, k=-window, dtype=bool)
    scores.reshape(-1, n, n)[:, ~seen] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    o = weights @ v

    def back(do: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        do = stack(do)
        dscores = weights * (do @ v.swapaxes(1, 2) - np.vecdot(do, o)[..., None])
        dq = dscores @ k * scale
        dk = dscores.swapaxes(1, 2) @ q
        dv = weights.swapaxes(1, 2) @ do
        return unstack(dq), unstack(dk), unstack(dv)

    return unstack(o), back


def turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """RoPE (arXiv 2104.09864): rotate numbers i and i + d/2 of each head of x (n, h, d)."""
    a, b = np.split(x, 2, axis=-1)  # (n, h, d / 2) each
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def norm_if(wanted: bool, x: np.ndarray, config: ModelConfig, tensors: Tensors,
            name: str) -> Forward:
    """A norm that only some families have; without it, y = x."""
    if wanted:
        return rms_norm(x, config, tensors, name)
    return x, unchanged


def unchanged(dy: np.ndarray, grads: Gradients) -> np.ndarray:
    """The `back` of y = x."""
    return dy


def attention_branch(x: np.ndarray, config: ModelConfig, tensors: Tensors, layer: int) -> Forward:
    """What attention adds to the residual stream (n, width), from its norm to its output."""
    at = f"model.layers.{layer}"
    local = layer in config.local
    y, back_norm = rms_norm(x, config, tensors, f"{at}.input_layernorm")
    q, back_q = linear(y, tensors, f"{at}.self_attn.q_proj")
    k, back_k = linear(y, tensors, f"{at}.self_attn.k_proj")
    v, back_v = linear(y, tensors, f"{at}.self_attn.v_proj")
    q, k, v = (heads.reshape(len(x), -1, config.head_dim) for heads in (q, k, v))
    q, back_q_norm = norm_if(config.qk_norm, q, config, tensors, f"{at}.self_attn.q_norm")
    k, back_k_norm = norm_if(config.qk_norm, k, config, tensors, f"{at}.self_attn.k_norm")
    turns = np.outer(np.arange(len(x)), frequencies(config, local))[:, None]  # (n, 1, d / 2)
    cos = np.cos(turns).astype(x.dtype)
    sin = np.sin(turns).astype(x.dtype)
    mixed, back_attention = attention(turn(q, cos, sin), turn(k, cos, sin), v, config.score_scale,
                                      config.window if local else None)
    out, back_out = linear(mixed.reshape(len(x), -1), tensors, f"{at}.self_attn.o_proj")
    added, back_added = norm_if(config.gemma, out, config, tensors,
                                f"{at}.post_attention_layernorm")

    def back(dout: np.ndarray, grads: Gradients) -> np.ndarray:
        dout = back_added(dout, grads)
        dq, dk, dv = back_attention(back_out(dout, grads).reshape(q.shape))
        # `turn` is a rotation: its `back` rotates the other way
        dq = back_q_norm(turn(dq, cos, -sin), grads)
        dk = back_k_norm(turn(dk, cos, -sin), grads)
        dy = back_q(dq.reshape(len(x), -1), grads)
        dy = dy + back_k(dk.reshape(len(x), -1), grads)
        dy = dy + back_v(dv.reshape(len(x), -1), grads)
        return back_norm(dy, grads)

    return added, back


def mlp_branch(x: np.ndarray, config: ModelConfig, tensors: Tensors, layer: int) -> Forward:
    """What SwiGLU (arXiv 2002.05202) adds to the residual stream: norm, silu(gate) · up, down.

    silu(g) = g s with s = sigmoid(z), z = g; Gemma's GELU (arXiv 1606.08415) has
    z = 2 √(2/π) (g + 0.044715 g³). Back: dup = d · silu, dgate = d · up · (s + silu (1 − s) dz/dg).
    """
    at = f"model.layers.{layer}"
    before = "pre_feedforward_layernorm" if config.gemma else "post_attention_layernorm"
    y, back_norm = rms_norm(x, config, tensors, f"{at}.{before}")
    gate, back_gate = linear(y, tensors, f"{at}.mlp.gate_proj")
    up, back_up = linear(y, tensors, f"{at}.mlp.up_proj")
    z, dz = gate, 1
    if config.gemma:
        z = GELU * (gate + 0.044715 * gate ** 3)
        dz = GELU * (1 + 3 * 0.044715 * gate ** 2)
    s = 0.5 + 0.5 * np.tanh(0.5 * z)  # the sigmoid; tanh cannot overflow
    silu = gate * s
    out, back_down = linear(silu * up, tensors, f"{at}.mlp.down_proj")
    added, back_added = norm_if(config.gemma, out, config, tensors,
                                f"{at}.post_feedforward_layernorm")

    def back(dout: np.ndarray, grads: Gradients) -> np.ndarray:
        d = back_down(back_added(dout, grads), grads)
        dgate = d * up * (s + silu * (1 - s) * dz)
        return back_norm(back_gate(dgate, grads) + back_up(d * silu, grads), grads)

    return added, back


@dataclass
class Trace:
    """A forward pass and its `back`s; its tensors must not change before `gradients` is called."""

    config: ModelConfig
    tensors: Tensors
    ids: np.ndarray  # (n,)
    logits: np.ndarray  # (n, vocab_size); row i predicts the token after ids[i]
    hidden: np.ndarray  # (n, width), after the last norm and its gain: the head's input
    backs: list[Back]  # for attention and MLP of each layer, then the last norm


def run(config: ModelConfig, tensors: Tensors, ids: Sequence[int]) -> Trace:
    """The forward pass over one text: x = embedding; x += branch(x), two per layer; logits.

    Raises OmnidraftError if `tensors` are not all float32 or all float64, or ids do not fit.
    """
    tensors = {name: tensors[name] for name in config.tensor_shapes()}
    dtype = np.result_type(*tensors.values())
    if dtype not in (np.float32, np.float64):
        raise OmnidraftError(f"training needs float32 or float64 tensors, not {dtype}; use astype")
    if not 0 < len(ids) <= config.context_size or min(ids) < 0 or max(ids) >= config.vocab_size:
        raise OmnidraftError(f"cannot train on {len(ids)} tokens: the model takes 1 to "
                             f"{config.context_size} with ids from 0 to {config.vocab_size - 1}")
    ids = np.asarray(ids)
    backs = []
    x = tensors[EMBEDDING][ids] * embedding_scale(config)
    for layer in range(config.layers):
        for branch in attention_branch, mlp_branch:
            added, back = branch(x, config, tensors, layer)
            x = x + added
            backs.append(back)
    hidden, back_norm = rms_norm(x, config, tensors, "model.norm")
    logits = hidden @ tensors.get("lm_head.weight", tensors[EMBEDDING]).T
    return Trace(config, tensors, ids, logits, hidden, [*backs, back_norm])


def embedding_scale(config: ModelConfig) -> float:
    """Gemma multiplies the embeddings by the root of the width."""
    return math.sqrt(config.width) if config.gemma else 1


def gradients(trace: Trace, dlogits: np.ndarray, wanted: Iterable[str] | None = None) -> Tensors:
    """∂L/∂W of the `wanted` tensors (default: all) by name, from dlogits = ∂L/∂logits (n, V).

    For L = −Σ log q(next token), dlogits is softmax(logits) − one-hot.
    """
    grads: Gradients = dict.fromkeys(trace.tensors if wanted is None else wanted)
    head = "lm_head.weight" if "lm_head.weight" in trace.tensors else EMBEDDING
    rows = np.flatnonzero(dlogits.any(axis=1))  # skip rows of zeros
    dy = dlogits[rows].astype(trace.hidden.dtype)
    if head in grads:
        grads[head] = dy.T @ trace.hidden[rows]
    dx = np.zeros_like(trace.hidden)
    dx[rows] = dy @ trace.tensors[head]
    *branches, back_norm = trace.backs
    dx = back_norm(dx, grads)
    for back in reversed(branches):
        dx = dx + back(dx, grads)
    if EMBEDDING in grads:
        if head != EMBEDDING:
            grads[EMBEDDING] = np.zeros_like(trace.tensors[EMBEDDING])
        np.add.at(grads[EMBEDDING], trace.ids, dx * embedding_scale(trace.config))
    return grads
