"""The drafter's pass in PyTorch: a Llama, Mistral or Qwen2 that transformers has loaded, run without transformers' own forward.

A small drafter's step is 0.1 ms of arithmetic. In transformers it takes ten times as long, most of it Python between the calls,
and a round takes a dozen steps. Here are the calls alone, of the mathematics of `llama`, on the model's own matrices, which
are not copied. `TransformersModel` compares the logits with transformers' before it uses them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")  # those whose angles stay what they are while the text grows


def runs(model: Any) -> bool:
    """Whether `Pass` is this model's pass: its architecture, no windows, on one device, matrices that are not quantized.

    >>> runs(transformers.AutoModelForCausalLM.from_pretrained("models/stories260K"))  # doctest: +SKIP
    True
    """
    config = model.config
    if type(model).__name__ not in ARCHITECTURES or getattr(model, "hf_device_map", None):
        return False
    windows = config.model_type == "mistral" and config.sliding_window or (
        config.model_type == "qwen2" and config.use_sliding_window)
    matrices = {name: module for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))}
    return (not windows and config.hidden_act == "silu" and model.model.rotary_emb.rope_type in ROPES
            and all(type(matrix) is torch.nn.Linear and (matrix.bias is None or name.endswith(("q_proj", "k_proj", "v_proj")))
                    for name, matrix in matrices.items()))


class Pass:
    """One text's keys and values, and the pass that reads on; it stands where a cache of transformers does.

    >>> state = Pass(model); logits, _ = state(torch.tensor([1, 403]), rows=1); state.crop(-1)  # doctest: +SKIP
    """

    def __init__(self, model: Any) -> None:
        """An empty cache on the model's device, with room for 256 tokens at first."""
        inner, config = model.model, model.config
        self.embedding, self.head = inner.embed_tokens.weight.detach(), _matrix(model.lm_head)
        self.eps, self.root = config.rms_norm_eps, torch.tensor((config.hidden_size * config.rms_norm_eps) ** 0.5)
        # On a CPU RMSNorm is a dozen calls inside PyTorch, its inputs' length and its gain times sqrt(width) are three.
        self.by_length = self.embedding.device.type == "cpu" and self.embedding.dtype in (torch.float32, torch.float64)
        self.norm = self._gain(inner.norm)
        self.blocks = [(self._gain(layer.input_layernorm),
                        *((part.weight.detach(), part.bias) for part in (at.q_proj, at.k_proj, at.v_proj)),
                        _matrix(at.o_proj), self._gain(layer.post_attention_layernorm),
                        *map(_matrix, (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)))
                       for layer in inner.layers for at in [layer.self_attn]]
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.rotary = inner.layers[0].self_attn.head_dim, inner.rotary_emb
        self.length = 0
        self.keys = self.values = [self.embedding.new_empty(0, self.kv_heads, self.head_dim)] * len(self.blocks)
        self._reserve(256)

    def get_seq_length(self) -> int:
        """How many tokens have been read and not taken back."""
        return self.length

    def crop(self, count: int) -> None:
        """Take the last -count tokens back (the sign is transformers')."""
        self.length += count

    def __call__(self, ids: Tensor, rows: int, hidden: bool = False) -> tuple[Tensor, Tensor | None]:
        """Feed ids (m,): the logits (rows, V) after the last ones; if asked for, what the head read without its norm's gain."""
        first, last = self.length, self.length + len(ids)
        self._reserve(last)
        cos, sin = self.cos[first:last], self.sin[first:last]  # (m, 1, head_dim)
        x = embedding(ids, self.embedding)
        for (before, query, key, value, out, between, gate, up, down), keys, values in zip(
                self.blocks, self.keys, self.values, strict=True):
            y = self._norm(x, before)
            both = torch.cat([linear(y, *query), linear(y, *key)], -1).view(last - first, -1, self.head_dim)
            both = torch.addcmul(both * cos, both.roll(self.head_dim // 2, -1), sin)  # (m, heads + kv_heads, head_dim)
            keys[first:last] = both[:, self.heads:]
            values[first:last] = linear(y, *value).view(last - first, self.kv_heads, self.head_dim)
            x = torch.addmm(x, self._attend(both[:, :self.heads], keys[:last], values[:last]), out)
            y = self._norm(x, between)
            x = torch.addmm(x, silu(torch.mm(y, gate)).mul_(torch.mm(y, up)), down)
        self.length, x = last, x[-rows:]
        told = rms_norm(x, x.shape[-1:], None, self.eps) if hidden else None
        return torch.mm(self._norm(x, self.norm), self.head), told

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Grouped-query attention (arXiv 2305.13245): q (m, heads, head_dim) and keys, values (n, kv_heads, head_dim)."""
        m, n = len(q), len(keys)
        if m == 1:  # (kv_heads, heads of a group, head_dim): all that share keys in one product
            scores = torch.bmm(q.view(self.kv_heads, -1, self.head_dim), keys.permute(1, 2, 0))
            return torch.bmm(scores.softmax(-1), values.transpose(0, 1)).view(1, -1)
        # A text that begins here needs no mask, which of a long prompt would be large.
        mask = None if m == n else torch.ones(m, n, dtype=torch.bool, device=q.device).tril(n - m)
        shared = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (keys, values))
        q, keys, values = (part.transpose(0, 1)[None] for part in (q, *shared))  # (1, heads, m or n, head_dim)
        mixed = scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None, scale=1.0)
        return mixed[0].transpose(0, 1).reshape(m, -1)

    def _reserve(self, length: int) -> None:
        """Room for `length` tokens: keys and values (room, kv_heads, head_dim) per layer, and what turns each position."""
        room = len(self.keys[0])
        if length <= room:
            return
        more = self.embedding.new_zeros(max(length, 2 * room) - room, self.kv_heads, self.head_dim)
        self.keys, self.values = ([torch.cat([kept, more]) for kept in part] for part in (self.keys, self.values))
        turns = self.rotary(more, torch.arange(room + len(more), device=more.device)[None])  # (1, room, head_dim) each
        # 1/sqrt(head_dim) of the scores goes half into the queries, half into the keys.
        self.cos, self.sin = (turn[0, :, None] * self.head_dim ** -0.25 for turn in turns)
        self.sin[..., :self.head_dim // 2] *= -1  # number i of a head turns with number i + head_dim / 2

    def _gain(self, norm: Any) -> Tensor:
        return norm.weight.detach() * len(norm.weight) ** 0.5 if self.by_length else norm.weight.detach()

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        """RMSNorm: x / sqrt(mean(x²) + eps) · gain."""
        if self.by_length:
            return x.div(vector_norm(x, dim=-1, keepdim=True).hypot_(self.root)).mul_(gain)
        return rms_norm(x, x.shape[-1:], gain, self.eps)


def _matrix(part: Any) -> Tensor:
    """(in, out), as a view."""
    return part.weight.detach().t()
