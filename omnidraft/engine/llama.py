"""A Llama-style language model in NumPy: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Runs Llama (arXiv 2302.13971), Mistral (2310.06825: sliding window) and Qwen2 (2407.10671: bias on q, k, v). A pass
feeds m tokens after those that the key-value cache holds. Speculative decoding lives from two facts: a pass over m
tokens costs little more than one token (`kernels` sees to that), and the cache can be rewound.

A small model's step is many short NumPy calls, so constant factors are folded into the weights once, when the model is
built: the norms' gains into the matrix that follows, 1/sqrt(head_dim) into the queries, the sign in silu into the gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OmnidraftError
from ..sampling import Sampler
from .config import ModelConfig
from .kernels import Layout, Linear, choose_layout
from .kv_cache import KVCache
from .rope import rotations
from .weights import load_tensors

PACKED = 200_000_000  # parameters of the largest model whose weights may lie in memory twice (0.8 GB more)
LONGEST_PASS = 256  # longer prompts are fed in pieces, which bounds the size of the attention scores


class Llama:
    """A model ready to run: `forward` feeds tokens, `tokenizer` spells them, `eos_ids` end a text.

    >>> model = Llama.load("models/stories260K"); cache = model.new_cache()
    >>> model.forward([1, 403], cache).shape, cache.length
    ((1, 512), 2)
    """

    sampler = Sampler

    def __init__(self, config: ModelConfig, tensors: dict[str, np.ndarray], dtype: Any = np.float32, *,
                 name: str = "model", folder: Path | None = None, tokenizer: Any = None, layout: Layout | None = None):
        """Build from a configuration and tensors under their Hugging Face names; without `layout`, measure the fastest.

        Raises OmnidraftError where a tensor is missing or has another shape than the configuration says.
        """
        self.config, self.dtype = config, np.dtype(dtype)
        self.name, self.folder, self.tokenizer = name, folder, tokenizer
        self.vocab_size, self.context_size = config.vocab_size, config.context_size
        roles = tokenizer.roles.get("eos", ()) if tokenizer is not None else ()
        self.eos_ids = tuple(dict.fromkeys(i for i in (*config.eos_ids, *roles) if i < config.vocab_size))
        small = sum(math.prod(shape) for shape in config.tensor_shapes().values()) <= PACKED
        self.layout = layout or choose_layout(matrix_shapes(config), str(self.dtype), twice=small)
        self.parameters = 0  # how many numbers were read
        self._build(tensors)
        self._eps = config.width * config.eps
        self._turns = self._rotations(512)
        self._triangle = np.triu(np.full((LONGEST_PASS, LONGEST_PASS), -np.inf, self.dtype), 1)

    @classmethod
    def load(cls, folder: str | Path, dtype: Any = np.float32) -> Llama:
        """Read config.json, the weights and tokenizer.json of a folder; raises OmnidraftError with one line."""
        from ..tokenizer import Tokenizer

        folder = Path(folder)
        config = ModelConfig.load(folder)
        return cls(config, load_tensors(folder), dtype, name=folder.name, folder=folder,
                   tokenizer=Tokenizer.load(folder).within(config.vocab_size))

    @property
    def kernel(self) -> str:
        """How this model's matrix products run, in a line."""
        return str(self.layout)

    def new_cache(self) -> KVCache:
        """An empty key-value cache for this model."""
        return KVCache(self.config, self.dtype)

    def forward(self, ids: Sequence[int], cache: KVCache, rows: int = 1) -> np.ndarray:
        """Feed `ids` after what the cache holds; the logits after the last `rows` of them: (rows, vocab_size).

        Raises OmnidraftError where there are fewer ids than `rows`, ids outside the vocabulary, more than the context
        holds, or logits that are not finite.
        """
        if not 1 <= rows <= len(ids):
            raise OmnidraftError(f"a pass over {len(ids)} tokens cannot give {rows} rows of logits")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise OmnidraftError(f"token ids {min(ids)} to {max(ids)} do not fit a vocabulary of {self.vocab_size}")
        cache.reserve(cache.length + len(ids))
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            pieces = [self._pass(ids[i:i + LONGEST_PASS], cache) for i in range(0, len(ids), LONGEST_PASS)]
            x = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            cache.hidden = self._norm(x[-rows:])
            logits = self.head(cache.hidden)
        if not math.isfinite(logits.max()):
            raise OmnidraftError(f"{self.name}: the model's logits are NaN or infinite: its weights are broken")
        return logits

    def _pass(self, ids: Sequence[int], cache: KVCache) -> np.ndarray:
        """The residual stream after all layers, (m, width); the cache grows by m tokens."""
        first, last = cache.length, cache.length + len(ids)
        if last > len(self._turns):
            self._turns = self._rotations(2 * last)
        turns = self._turns[first:last, None]  # (m, 1, head_dim / 2)
        masks = self._masks(first, last) if len(ids) > 1 else {}
        x = self.embedding[np.asarray(ids)]
        for (qkv, out, gate_up, down), window, keys, values in zip(
                self.layers, self.config.windows, cache.keys, cache.values, strict=True):
            begin = max(0, first - window + 1) if window else 0  # the oldest token that is looked at
            heads = self._turn_and_store(qkv(self._norm(x)), turns, keys[..., first:last], values[:, first:last])
            x = x + out(self._attend(heads, keys[..., begin:last], values[:, begin:last], masks.get(window)))
            x += down(_swiglu(gate_up(self._norm(x))))
        cache.length = last
        return x

    def _rotations(self, length: int) -> np.ndarray:
        """How far the pairs of a head turn at each of the first `length` positions, as far as the context goes."""
        return rotations(self.config.rope, self.config.head_dim, 0, min(length, self.context_size), self.dtype)

    def _norm(self, x: np.ndarray) -> np.ndarray:
        """RMSNorm without its gain: x / sqrt(mean(x²) + eps); the next matrix holds gain · sqrt(width)."""
        if len(x) == 1:  # the same in half the time
            row = x[0]
            return x / math.sqrt(row.dot(row) + self._eps)
        return x / np.sqrt(np.vecdot(x, x)[:, None] + self._eps)

    def _turn_and_store(self, qkv: np.ndarray, turns: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Turn queries and keys to their positions, cache keys and values; the queries (m, heads, head_dim)."""
        c = self.config
        rows = qkv.reshape(len(qkv), -1, c.head_dim)  # (m, heads + 2 kv_heads, head_dim)
        pairs = rows[:, :c.heads + c.kv_heads].view(turns.dtype)  # (m, heads + kv_heads, head_dim / 2), complex
        pairs *= turns
        keys[...] = rows[:, c.heads:c.heads + c.kv_heads].transpose(1, 2, 0)
        values[..., :-1] = rows[:, c.heads + c.kv_heads:].swapaxes(0, 1)
        return rows[:, :c.heads]

    def _attend(self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray,
                mask: np.ndarray | None) -> np.ndarray:
        """Grouped-query attention (arXiv 2305.13245): softmax(q k + mask) v, (m, heads · head_dim).

        keys (kv_heads, head_dim, n), values (kv_heads, n, head_dim + 1), mask (m, ≤ n) for the last positions.
        """
        m, heads, head_dim = queries.shape
        kv_heads = len(keys)
        if m == 1:  # (kv_heads, heads of a group, 1, head_dim): vectors times a matrix
            q = queries.reshape(kv_heads, -1, 1, head_dim)
        else:  # (kv_heads, 1, heads of a group · m, head_dim): all that share keys in one product
            q = queries.reshape(m, kv_heads, -1, head_dim).transpose(1, 2, 0, 3).reshape(kv_heads, 1, -1, head_dim)
        scores = q @ keys[:, None]
        if mask is not None:
            scores.reshape(kv_heads, -1, m, keys.shape[2])[..., -mask.shape[1]:] += mask
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = scores @ values[:, None]
        mixed = mixed[..., :-1] / mixed[..., -1:]
        if m > 1:
            mixed = mixed.reshape(kv_heads, -1, m, head_dim).transpose(2, 0, 1, 3)
        return mixed.reshape(m, heads * head_dim)

    def _masks(self, first: int, last: int) -> dict[int | None, np.ndarray]:
        """What to add to the scores of tokens first … last-1 so that none sees later ones, per window.

        (m, m) for the last m positions where there is no window, else (m, positions since the oldest looked at).
        """
        masks = {}
        for window in set(self.config.windows):
            if window is None:
                masks[window] = self._triangle[:last - first, :last - first]
            else:
                age = np.arange(first, last)[:, None] - np.arange(max(0, first - window + 1), last)
                masks[window] = np.where((age < 0) | (age >= window), -np.inf, 0).astype(self.dtype)
        return masks

    def _build(self, tensors: dict[str, np.ndarray]) -> None:
        """Fuse the matrices that share an input, fold the constant factors in, lay the result out."""
        c, shapes = self.config, self.config.tensor_shapes()
        for name, shape in shapes.items():
            if name not in tensors:
                raise OmnidraftError(f"{self.name}: the weights lack {name}")
            if tensors[name].shape != shape:
                raise OmnidraftError(f"{self.name}: {name} has shape {tensors[name].shape}, config.json says {shape}")
            self.parameters += tensors[name].size

        def get(name: str) -> np.ndarray:
            return tensors[name].astype(self.dtype)

        def gain(norm: str) -> np.ndarray:
            return get(f"{norm}.weight") * np.sqrt(c.width, dtype=self.dtype)

        def linear(prefix: str, parts: dict[str, Callable[[np.ndarray], np.ndarray]], scale: Any = 1) -> Linear:
            """One matrix for the `parts`: name to what is done to its rows, one for each output."""
            def fused(kind: str) -> np.ndarray:
                return np.concatenate([change(get(f"{prefix}.{part}.{kind}")) for part, change in parts.items()])

            bias = f"{prefix}.{next(iter(parts))}.bias" in shapes
            return Linear(fused("weight") * scale, fused("bias") if bias else None, self.layout)

        def pairs(rows: np.ndarray) -> np.ndarray:
            """Hugging Face turns number i of a head with number i + head_dim/2; here such a pair lies side by side."""
            return rows.reshape(-1, 2, c.head_dim // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

        def same(rows: np.ndarray) -> np.ndarray:
            return rows

        root = self.dtype.type(c.head_dim ** -0.5)
        self.layers = []
        for at in (f"model.layers.{i}" for i in range(c.layers)):
            qkv = {"q_proj": lambda rows: pairs(rows) * root, "k_proj": pairs, "v_proj": same}
            self.layers.append((
                linear(f"{at}.self_attn", qkv, gain(f"{at}.input_layernorm")),
                linear(f"{at}.self_attn", {"o_proj": same}),
                linear(f"{at}.mlp", {"gate_proj": np.negative, "up_proj": np.negative},
                       gain(f"{at}.post_attention_layernorm")),
                linear(f"{at}.mlp", {"down_proj": same}),
            ))
        self.embedding = get("model.embed_tokens.weight")
        head = self.embedding if c.tied else get("lm_head.weight")
        self.head = Linear(head * gain("model.norm"), None, self.layout)


def matrix_shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """The fused matrices (in, out) of one layer, and the head."""
    c = config
    return ((c.width, (c.heads + 2 * c.kv_heads) * c.head_dim), (c.heads * c.head_dim, c.width),
            (c.width, 2 * c.hidden), (c.hidden, c.width), (c.width, c.vocab_size))


def _swiglu(gate_up: np.ndarray) -> np.ndarray:
    """silu(g) · u = g / (1 + exp(-g)) · u from -g and -u, which the weights give: (m, 2 hidden) to (m, hidden).

    SwiGLU is arXiv 2002.05202. Where exp overflows the quotient is 0, as it should be.
    """
    hidden = gate_up.shape[1] // 2
    gate, up = gate_up[:, :hidden], gate_up[:, hidden:]
    y = np.exp(gate)
    y += 1
    np.divide(gate, y, out=y)
    y *= up
    return y
