"""Our own pass in PyTorch: a Llama, Mistral, Qwen2 or Qwen3 of transformers, run without transformers' own forward.

A small model's step is little arithmetic. In transformers most of its time is Python between the calls (of a drafter's step
nine tenths), and a round takes a dozen steps. Here are the calls alone, of the mathematics of `llama`, on the model's own
matrices, which are not copied. `TransformersModel` compares the logits with transformers' before it uses them.

What verification gains depends on what a few tokens cost at once. As x W^T two already cost up to twice one, as in NumPy (see
`kernels`); as W x^T, with MKL, 4 cost no more than one, and 8 about 1.4 times as much (`benchmarks/latency.py`).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import embedding, pad, rms_norm, scaled_dot_product_attention, silu

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
FULL = (4, 8, 16)  # as many rows as columns are multiplied at once: MKL's kernels are made for them
SAMPLE = 16_000_000  # weights that `streams` runs over
CACHED = 2_000_000  # weights that a processor's cache holds: there is nothing to stream
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
        config.model_type in ("qwen2", "qwen3") and config.use_sliding_window)
    matrices = {name: module for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))}
    return (not windows and config.hidden_act == "silu" and model.model.rotary_emb.rope_type in ROPES
            and all(type(matrix) is torch.nn.Linear and (matrix.bias is None or name.endswith(("q_proj", "k_proj", "v_proj")))
                    for name, matrix in matrices.items()))


def streams(model: Any) -> bool:
    """Whether passes of a few tokens are faster with W x^T, measured on some of the model's matrices (in some 50 ms).

    >>> streams(transformers.AutoModelForCausalLM.from_pretrained("models/stories260K"))  # doctest: +SKIP
    False
    """
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return False
    parts, used = [], 0
    for part in model.modules():
        if isinstance(part, torch.nn.Linear) and used < SAMPLE:
            parts.append(part)
            used += part.weight.numel()
    if used < CACHED:
        return False
    ways = {columns: [Matrix(part, columns) for part in parts] for columns in (False, True)}
    best = dict.fromkeys(ways, float("inf"))
    with torch.no_grad():
        for columns in 5 * [*ways]:
            began = time.perf_counter()
            for matrix in ways[columns]:
                matrix(matrix.weight.new_ones(FULL[0], matrix.weight.shape[1]))
            best[columns] = min(best[columns], time.perf_counter() - began)
    return best[True] < 0.8 * best[False]  # the rest of such a pass costs a little more


class Matrix:
    """Rows x (m, in) times a matrix of the model, W (out, in), which is not copied: x W^T and its bias, (m, out).

    With `columns` 4, 8 or 16 rows are multiplied as W x^T: the same numbers, lying column by column.

    >>> Matrix(torch.nn.Linear(2, 3, bias=False))(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """

    def __init__(self, part: Any, columns: bool = False) -> None:
        self.weight, self.bias, self.few = part.weight.detach(), part.bias, FULL if columns else ()
        self.turned = self.weight.t()  # a view

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) in self.few:
            x = x.contiguous().t()
            return (torch.mm(self.weight, x) if self.bias is None else torch.addmm(self.bias[:, None], self.weight, x)).t()
        return torch.mm(x, self.turned) if self.bias is None else torch.addmm(self.bias, x, self.turned)

    def add(self, more: Tensor, x: Tensor) -> Tensor:
        """The product (m, out) added to `more`, in its place."""
        return more.add_(self(x)) if len(x) in self.few else more.addmm_(x, self.turned)


class Pass:
    """One text's keys and values, and the pass that reads on; it stands where a cache of transformers does.

    >>> state = Pass(model); logits, _ = state(torch.tensor([1, 403]), rows=1); state.crop(-1)  # doctest: +SKIP
    """

    def __init__(self, model: Any, columns: bool = False) -> None:
        """An empty cache on the model's device, with room for 256 tokens at first; `columns` as in `Matrix`."""
        inner, config = model.model, model.config
        self.columns = columns
        self.embedding, self.head = inner.embed_tokens.weight.detach(), Matrix(model.lm_head, columns)
        self.eps, self.head_dim = config.rms_norm_eps, inner.layers[0].self_attn.head_dim
        self.heads, self.kv_heads, self.rotary = config.num_attention_heads, config.num_key_value_heads, inner.rotary_emb
        # On a CPU RMSNorm is a dozen calls inside PyTorch, its inputs' length and its gain times sqrt(width) are three.
        self.by_length = self.embedding.device.type == "cpu" and self.embedding.dtype in (torch.float32, torch.float64)
        self.roots = {width: torch.tensor((width * self.eps) ** 0.5) for width in (config.hidden_size, self.head_dim)}
        self.norm = self._gain(inner.norm)
        self.blocks = [(self._gain(layer.input_layernorm),
                        *(Matrix(part, columns) for part in (at.q_proj, at.k_proj, at.v_proj, at.o_proj)),
                        torch.cat([self._gain(at.q_norm).expand(self.heads, -1), self._gain(at.k_norm).expand(
                            self.kv_heads, -1)]) if hasattr(at, "q_norm") else None,  # (heads + kv_heads, head_dim)
                        self._gain(layer.post_attention_layernorm),
                        *(Matrix(part, columns) for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)))
                       for layer in inner.layers for at in [layer.self_attn]]
        self.length = 0
        self.kept = [self.embedding.new_empty(0, 2 * self.kv_heads, self.head_dim)] * len(self.blocks)
        # (m, 1, m): what a token may not see of those that are read with it
        self.later = self.embedding.new_full((FULL[-1], FULL[-1]), -torch.inf).triu(1)[:, None]
        self._reserve(256)

    def get_seq_length(self) -> int:
        """How many tokens have been read and not taken back."""
        return self.length

    def crop(self, count: int) -> None:
        """Take the last -count tokens back (the sign is transformers')."""
        self.length += count

    def __call__(self, ids: Tensor, rows: int, hidden: bool = False) -> tuple[Tensor, Tensor | None]:
        """Feed ids (m,): the logits (rows, V) after the last ones; if asked for, what the head read without its norm's gain."""
        count, first = len(ids), self.length
        if self.columns and count < FULL[-1]:  # what follows the text changes nothing before it, and is forgotten
            ids = pad(ids, (0, next(full for full in FULL if full >= count) - count))
        m, last = len(ids), first + len(ids)
        self._reserve(last)
        cos, sin = self.cos[first:last], self.sin[first:last]  # (m, 1, head_dim)
        x = embedding(ids, self.embedding)
        for (before, query, key, value, out, inside, between, gate, up, down), kept in zip(self.blocks, self.kept, strict=True):
            y = self._norm(x, before)
            heads = torch.cat([query(y), key(y), value(y)], -1).view(m, -1, self.head_dim)
            turned = heads[:, :self.heads + self.kv_heads]
            if inside is not None:  # Qwen3's norms of queries and keys
                turned.copy_(self._norm(turned, inside))
            other = turned.roll(self.head_dim // 2, -1)
            turned.mul_(cos).addcmul_(other, sin)
            q, kept[first:last] = heads.split((self.heads, 2 * self.kv_heads), 1)
            x = out.add(x, self._attend(q, *kept[:last].split(self.kv_heads, 1)))
            y = self._norm(x, between)
            x = down.add(x, silu(gate(y)).mul_(up(y)))
        self.length = first + count
        few = x if m in self.head.few else x[count - rows:count]
        logits = self.head(self._norm(few, self.norm))
        if len(few) > rows:
            few, logits = few[count - rows:count], logits[count - rows:count]
        return logits.contiguous(), rms_norm(few, few.shape[-1:], None, self.eps) if hidden else None

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Grouped-query attention (arXiv 2305.13245): q (m, heads, head_dim) and keys, values (n, kv_heads, head_dim)."""
        m, n = len(q), len(keys)
        if m <= FULL[-1]:  # all heads that share keys in one product: (kv_heads, m · heads of a group, head_dim)
            if m > 1:
                q = q.view(m, self.kv_heads, -1, self.head_dim).transpose(0, 1)
            scores = torch.bmm(q.reshape(self.kv_heads, -1, self.head_dim), keys.permute(1, 2, 0))
            if m > 1:
                scores.view(self.kv_heads, m, -1, n)[..., n - m:] += self.later[:m, :, :m]
            mixed = torch.bmm(scores.softmax(-1), values.transpose(0, 1))
            if m > 1:
                mixed = mixed.view(self.kv_heads, m, -1, self.head_dim).transpose(0, 1)
            return mixed.reshape(m, -1)
        # A text that begins here needs no mask, which of a long prompt would be large.
        mask = None if m == n else torch.ones(m, n, dtype=torch.bool, device=q.device).tril(n - m)
        shared = (part[:, :, None].expand(-1, -1, self.heads // self.kv_heads, -1).reshape(n, -1, self.head_dim)
                  for part in (keys, values))
        q, keys, values = (part.transpose(0, 1)[None] for part in (q, *shared))  # (1, heads, m or n, head_dim)
        mixed = scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None, scale=1.0)
        return mixed[0].transpose(0, 1).reshape(m, -1)

    def _reserve(self, length: int) -> None:
        """Room for `length` tokens: keys and values (room, 2 kv_heads, head_dim) per layer, and what turns each position."""
        room = len(self.kept[0])
        if length <= room:
            return
        more = self.embedding.new_zeros(max(length, 2 * room) - room, 2 * self.kv_heads, self.head_dim)
        self.kept = [torch.cat([kept, more]) for kept in self.kept]
        turns = self.rotary(more, torch.arange(room + len(more), device=more.device)[None])  # (1, room, head_dim) each
        # 1/sqrt(head_dim) of the scores goes half into the queries, half into the keys.
        self.cos, self.sin = (turn[0, :, None] * self.head_dim ** -0.25 for turn in turns)
        self.sin[..., :self.head_dim // 2] *= -1  # number i of a head turns with number i + head_dim / 2

    def _gain(self, norm: Any) -> Tensor:
        return norm.weight.detach() * len(norm.weight) ** 0.5 if self.by_length else norm.weight.detach()

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        """RMSNorm: x / sqrt(mean(x²) + eps) · gain."""
        if self.by_length:
            return x.div(vector_norm(x, dim=-1, keepdim=True).hypot_(self.roots[x.shape[-1]])).mul_(gain)
        return rms_norm(x, x.shape[-1:], None, self.eps).mul_(gain) if gain.dim() > 1 else rms_norm(
            x, x.shape[-1:], gain, self.eps)
