"""A custom PyTorch forward pass for Llama, Mistral and Qwen2 models of transformers on a CPU.

In transformers, Python between the calls takes most of a small model's step. Here are only the
calls, on the model's own matrices. As x W^T, two tokens cost 1.5 times as much as one; as W x^T,
with MKL, four cost no more than one. `choose` tries both; other models use transformers' forward.
"""

import time
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import embedding, linear, pad, scaled_dot_product_attention, silu
from transformers.cache_utils import DynamicCache, DynamicLayer

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")  # angles do not depend on the text's length
COLUMNS = 4  # the number of columns for which MKL's kernels are made
NEVER = COLUMNS + 1
CHANGED = "_forward_hooks", "_forward_pre_hooks", "forward"  # the last: replaced in the instance


def choose(model: Any, ids: Tensor, logits: Tensor) -> int | None:
    """The number of tokens from which `Pass` should multiply 4 columns (5: never); measured.

    None: the model is of another kind, or `Pass` does not give its `logits` (m, V) for `ids` (m,).
    """
    if not fits(model):
        return None
    best = dict.fromkeys(((NEVER, 1), (NEVER, 2), (1, 2)), float("inf"))
    with suppress(RuntimeError, AttributeError, TypeError, ValueError), torch.inference_mode():
        for columns_from in (1, NEVER):
            state = Pass(model, columns_from)
            found = torch.cat([state(ids[:-1], len(ids) - 1)[0], state(ids[-1:], 1)[0]])
            if not (found - logits).abs().max() < 1e-4 * logits.std():
                return None
        for columns_from, count in 5 * [*best]:
            state.columns_from, began = columns_from, time.perf_counter()
            state(ids[:count], count)
            best[columns_from, count] = min(best[columns_from, count], time.perf_counter() - began)
        return next((m for m in (1, 2) if best[NEVER, m] > best[1, 2]), NEVER)


def fits(model: Any) -> bool:
    """Does `Pass` support this kind of model? Checks what its logits may not show."""
    if (type(model).__name__ not in ARCHITECTURES or getattr(model, "hf_device_map", None)
            or model.device.type != "cpu" or model.dtype not in (torch.float32, torch.float64)):
        return False
    parts = [part for name, part in model.named_modules() if name.endswith(("_proj", "lm_head"))]
    windows = {type(layer) for layer in DynamicCache(config=model.config).layers} - {DynamicLayer}
    return (not windows and model.model.rotary_emb.rope_type in ROPES
            and not any(vars(one).get(k) for one in model.modules() for k in CHANGED)
            and all(type(part) is torch.nn.Linear for part in parts))  # none is quantized


class Pass:
    """The keys and values of one text and the pass that continues it; replaces transformers' cache.

    >>> state = Pass(model); logits, _ = state(torch.tensor([1, 403]), rows=1); state.crop(-1)
    """

    def __init__(self, model: Any, columns_from: int = NEVER):
        inner, config = model.model, model.config
        self.columns_from, self.length = columns_from, 0
        self.rotary, self.head_dim = inner.rotary_emb, inner.layers[0].self_attn.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.root = torch.tensor((config.hidden_size * config.rms_norm_eps) ** 0.5)
        self.embedding, self.head = inner.embed_tokens.weight.detach(), _matrix(model.lm_head)
        self.norm = _gain(inner.norm)
        self.layers = [(_gain(layer.input_layernorm), _gain(layer.post_attention_layernorm),
                        *map(_matrix, (at.q_proj, at.k_proj, at.v_proj, at.o_proj,
                                       mlp.gate_proj, mlp.up_proj, mlp.down_proj)))
                       for layer in inner.layers for at, mlp in [(layer.self_attn, layer.mlp)]]
        none = self.embedding.new_empty(0, 2 * self.kv_heads, self.head_dim)
        self.kept = [none] * len(self.layers)  # keys and values (room, 2 kv_heads, head_dim)
        self._reserve(256)

    def crop(self, count: int) -> None:
        """Take back the last -count tokens (negative, as in transformers)."""
        self.length += count

    def __call__(self, ids: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Feed ids (m,): the logits (rows, V) of the last ones, and the head's input for them."""
        count, first = len(ids), self.length
        self.columns = self.columns_from <= count <= COLUMNS
        if self.columns:  # subtle: padding after the text changes nothing before it (causal)
            ids = pad(ids, (0, COLUMNS - count))
        m, last = len(ids), first + len(ids)
        self._reserve(last)
        cos, sin = self.cos[first:last], self.sin[first:last]  # (m, 1, head_dim)
        x = embedding(ids, self.embedding)
        for (before, between, q, k, v, out, gate, up, down), kept in zip(
                self.layers, self.kept, strict=True):
            y = self._norm(x).mul_(before)
            y = torch.cat([self._linear(y, part) for part in (q, k, v)], -1)
            heads = y.view(m, -1, self.head_dim)
            turned = heads[:, :self.heads + self.kv_heads]
            other = turned.roll(self.head_dim // 2, -1)
            turned.mul_(cos).addcmul_(other, sin)
            queries, kept[first:last] = heads.split((self.heads, 2 * self.kv_heads), 1)
            x = x + self._linear(self._attend(queries, kept[:last]), out)
            y = self._norm(x).mul_(between)
            x += self._linear(silu(self._linear(y, gate)).mul_(self._linear(y, up)), down)
        self.length = first + count
        x = self._norm(x if self.columns else x[-rows:])
        logits = self._linear(x * self.norm, self.head)
        if self.columns:
            x, logits = x[count - rows:count], logits[count - rows:count].contiguous()
        return logits, x * self.embedding.shape[1] ** 0.5

    def _linear(self, x: Tensor, part: tuple[Tensor, Tensor | None]) -> Tensor:
        """x W^T + b, (m, out)."""
        weight, bias = part
        if not self.columns:
            return linear(x, weight, bias)
        x = x.contiguous().t()  # subtle: results computed as columns are transposed views
        return (torch.mm(weight, x) if bias is None else torch.addmm(bias[:, None], weight, x)).t()

    def _attend(self, queries: Tensor, kept: Tensor) -> Tensor:
        """Grouped-query attention (arXiv 2305.13245): (m, heads, head_dim) to (m, width)."""
        m, n = len(queries), len(kept)
        mask = None if m == n or m == 1 else torch.ones(m, n, dtype=torch.bool).tril(n - m)
        q, k, v = (part.transpose(0, 1)[None] for part in (queries, *kept.split(self.kv_heads, 1)))
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=m == n > 1,
                                             enable_gqa=True)  # (1, heads, m, head_dim)
        return mixed[0].transpose(0, 1).reshape(m, -1)

    def _reserve(self, length: int) -> None:
        """Make room for `length` tokens, and compute the angles of as many positions."""
        if length <= (room := len(self.kept[0])):
            return
        more = self.embedding.new_zeros(max(length, 2 * room) - room, *self.kept[0].shape[1:])
        self.kept = [torch.cat([kept, more]) for kept in self.kept]
        positions = torch.arange(room + len(more))[None]
        self.cos, self.sin = (turn[0, :, None] for turn in self.rotary(more, positions))
        self.sin[..., :self.head_dim // 2] *= -1  # numbers i and i + head_dim / 2 rotate together

    def _norm(self, x: Tensor) -> Tensor:
        """RMSNorm without its factor gain · sqrt(width)."""
        return x / vector_norm(x, dim=-1, keepdim=True).hypot_(self.root)


def _matrix(part: torch.nn.Linear) -> tuple[Tensor, Tensor | None]:
    return part.weight.detach(), None if part.bias is None else part.bias.detach()


def _gain(norm: Any) -> Tensor:
    return norm.weight.detach() * len(norm.weight) ** 0.5
