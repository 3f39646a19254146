"""Llama, Mistral and Qwen2 in NumPy, fast on a CPU.

The models of arXiv 2302.13971, 2310.06825, 2407.10671 (in plain form: tutorials/llama_plain.py).
Here a pass over m tokens costs little more than over one (`matmul`), and a step makes few NumPy
calls: constant factors, such as norm gains and 1/sqrt(head_dim), are folded into the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..sampler import Sampler
from ..text.errors import OmnidraftError
from ..text.tokenizer import Tokenizer
from .config import ModelConfig, frequencies
from .gguf import Gguf, is_gguf
from .matmul import Layout, Linear, choose_layout
from .model import check_pass, check_rewind, flat_ids, printable
from .weights import load_tensors

LARGE = 32_000_000  # from so many parameters on, weights are held once, whatever a copy would gain
LONGEST_PASS = 256  # longer prompts are fed in pieces, which bounds the size of the scores


class KVCache:
    """What attention remembers: keys and values of the `length` tokens that a model has read.

    Rewinding only shortens the length: what lies beyond is never read, and the next pass overwrites
    it.

    >>> cache = model.new_cache(); model.forward([1, 2, 3], cache).shape; cache.rewind(1)
    (1, 4096)
    """

    def __init__(self, config: ModelConfig, dtype: Any):
        self.length, self.limit = 0, config.context_size
        self.hidden: np.ndarray | None = None  # (rows, width) the head's last input: x / |x|
        # Both are stored in the order in which attention's products read them, without copies. A 1
        # follows each value, so the product that mixes the values also sums up their weights.
        heads, size = (config.layers, config.kv_heads), min(256, self.limit)
        self.keys = np.zeros((*heads, config.head_dim, size), dtype)
        self.values = np.ones((*heads, size, config.head_dim + 1), dtype)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError if there are fewer."""
        check_rewind(self.length, length)
        self.length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, at most as many as the model's context."""
        if length > (size := self.values.shape[2]):
            more, none = (0, min(max(length, 2 * size), self.limit) - size), (0, 0)
            self.keys = np.pad(self.keys, (none, none, none, more))
            self.values = np.pad(self.values, (none, none, more, none), constant_values=1)


class Llama:
    """A model ready to run: `forward` feeds tokens, `tokenizer` spells them, `eos_ids` end a text.

    It is built from tensors by Hugging Face name; without a `layout`, the fastest one is measured.
    Raises OmnidraftError if a tensor is missing or does not have the shape in the configuration.
    """

    def __init__(self, config: ModelConfig, tensors: dict[str, np.ndarray], dtype: Any = np.float32,
                 *, name: str = "model", folder: Path | None = None, tokenizer: Any = None,
                 layout: Layout | None = None, reread: Callable[[], dict] | None = None):
        self.sampler = Sampler
        self.config, self.dtype = config, np.dtype(dtype)
        self.name, self.folder, self.tokenizer = printable(name), folder, tokenizer
        self.reread = reread  # gives the tensors again, for learning
        self.vocab_size, self.context_size = config.vocab_size, config.context_size
        ends = config.eos_ids, tokenizer.roles.get("eos", ()) if tokenizer else ()
        self.eos_ids = flat_ids(*ends, size=config.vocab_size)
        shapes = config.tensor_shapes()
        self.parameters = sum(math.prod(shape) for shape in shapes.values())
        config.check(tensors, name)
        self.layout = layout or choose_layout(matrix_shapes(config), str(self.dtype),
                                              large=self.parameters >= LARGE)
        self.kernel = str(self.layout)  # one line on how the matrix products run
        self._build(tensors)
        self._eps = config.width * config.eps
        self._turns = self._rotations(512)
        self._later = np.triu(np.full((LONGEST_PASS, LONGEST_PASS), -np.inf, self.dtype), 1)

    def __repr__(self) -> str:
        return f"Llama({self.name!r}: {self.parameters:,} parameters, {self.dtype}, {self.kernel})"

    @classmethod
    def load(cls, folder: str | Path, dtype: Any = np.float32) -> "Llama":
        """Read a Hugging Face folder or a GGUF file; raises OmnidraftError with one line."""
        folder = Path(folder)
        if is_gguf(folder):
            file = Gguf(folder)
            name, config, tokenizer = folder.stem, file.config(), file.tokenizer()
            tensors = file.weights(config)
        else:
            name, config, tokenizer = folder.name, ModelConfig.load(folder), Tokenizer.load(folder)
            tensors = load_tensors(folder)

        def reread() -> dict[str, Any]:
            return Gguf(folder).weights(config) if is_gguf(folder) else load_tensors(folder)

        return cls(config, tensors, dtype, name=name, folder=folder, reread=reread,
                   tokenizer=tokenizer.within(config.vocab_size))

    def stored(self, untied: bool = False) -> tuple[ModelConfig, dict[str, np.ndarray]]:
        """Configuration and stored tensors, as `dtype`; `untied`: with a separate head."""
        config, tensors = self.config, self.reread()
        tensors = {name: np.array(tensors[name], self.dtype) for name in config.tensor_shapes()}
        if untied:  # then adapting the head leaves the embedding unchanged
            tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
        return replace(config, tied=config.tied and not untied), tensors

    def rebuilt(self, config: ModelConfig, tensors: dict[str, np.ndarray]) -> "Llama":
        """The same model with other weights; this one is its `untouched`."""
        made = Llama(config, tensors, self.dtype, name=self.name, folder=self.folder,
                     tokenizer=self.tokenizer, layout=self.layout, reread=self.reread)
        made.untouched = self
        return made

    def new_cache(self) -> KVCache:
        """An empty key-value cache for this model."""
        return KVCache(self.config, self.dtype)

    def forward(self, ids: Sequence[int], cache: KVCache, rows: int = 1) -> np.ndarray:
        """Feed `ids` after what the cache holds; returns the logits (rows, V) of the last ids.

        Raises OmnidraftError like `check_pass`, and for logits that are not finite.

        >>> cache = model.new_cache(); model.forward([1, 403], cache).shape, cache.length
        ((1, 4096), 2)
        """
        check_pass(self, ids, len(ids), rows, cache.length)
        cache.reserve(cache.length + len(ids))
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            pieces = [self._pass(ids[i:i + LONGEST_PASS], cache)
                      for i in range(0, len(ids), LONGEST_PASS)]
            x = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            cache.hidden = self._norm(x[-rows:])
            logits = self.head(cache.hidden)
        if not math.isfinite(logits.max()):
            raise OmnidraftError(f"{self.name}: logits are NaN or infinite: its weights are broken")
        return logits

    def _pass(self, ids: Sequence[int], cache: KVCache) -> np.ndarray:
        """The residual stream after all layers (m, width); the cache grows by m tokens."""
        c, m, first, last = self.config, len(ids), cache.length, cache.length + len(ids)
        turns = self._turns  # subtle: read once, as another thread may replace it by a shorter one
        if last > len(turns):
            turns = self._turns = self._rotations(2 * last)
        turns = turns[first:last, None]  # (m, 1, head_dim / 2)
        both = c.heads + c.kv_heads
        x = self.embedding[np.asarray(ids)]
        for (qkv, out, gate_up, down), keys, values in zip(
                self.layers, cache.keys, cache.values, strict=True):
            rows = qkv(self._norm(x)).reshape(m, -1, c.head_dim)  # (m, heads + 2 kv_heads, ...)
            pairs = rows[:, :both].view(turns.dtype)  # (m, heads + kv_heads, head_dim / 2), complex
            pairs *= turns
            keys[..., first:last] = rows[:, c.heads:both].transpose(1, 2, 0)
            values[:, first:last, :-1] = rows[:, both:].swapaxes(0, 1)
            x = x + out(self._attend(rows[:, :c.heads], keys[..., :last], values[:, :last]))
            x += down(_swiglu(gate_up(self._norm(x))))
        cache.length = last
        return x

    def _rotations(self, length: int) -> np.ndarray:
        """The complex numbers that rotate the pairs of a head (positions, head_dim / 2)."""
        positions = np.arange(min(length, self.context_size))[:, None]
        turns = np.exp(1j * (positions * frequencies(self.config)))
        return turns.astype(np.result_type(self.dtype, np.complex64))

    def _norm(self, x: np.ndarray) -> np.ndarray:
        """RMSNorm without the factor gain · sqrt(width), which is folded into the next matrix."""
        if len(x) == 1:  # the same result in half the time
            return x / math.sqrt(x[0].dot(x[0]) + self._eps)
        return x / np.sqrt(np.vecdot(x, x)[:, None] + self._eps)

    def _attend(self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Grouped-query attention (arXiv 2305.13245): softmax(q k) v, (m, heads · head_dim).

        keys (kv_heads, head_dim, n); values (kv_heads, n, head_dim + 1), whose last column is 1.
        """
        m, heads, head_dim = queries.shape
        kv_heads, _, n = keys.shape
        if m == 1:  # (kv_heads, heads of a group, 1, head_dim): vectors times a matrix
            q = queries.reshape(kv_heads, -1, 1, head_dim)
        else:  # (kv_heads, 1, heads of a group · m, head_dim): one product for all that share keys
            q = queries.reshape(m, kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
            q = q.reshape(kv_heads, 1, -1, head_dim)
        scores = q @ keys[:, None]
        if m > 1:  # causal mask: none of the m tokens sees a later one
            scores.reshape(kv_heads, -1, m, n)[..., n - m:] += self._later[:m, :m]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = scores @ values[:, None]
        mixed = mixed[..., :-1] / mixed[..., -1:]  # divide by the sum of the exponentials
        if m > 1:
            mixed = mixed.reshape(kv_heads, -1, m, head_dim).transpose(2, 0, 1, 3)
        return mixed.reshape(m, heads * head_dim)

    def _build(self, tensors: dict[str, np.ndarray]) -> None:
        """Fuse matrices that share an input, fold in constant factors, and apply the layout."""
        c, shapes = self.config, self.config.tensor_shapes()

        def get(name: str) -> np.ndarray:
            return tensors[name].astype(self.dtype)

        def gain(norm: str) -> np.ndarray:
            return get(f"{norm}.weight") * np.sqrt(c.width, dtype=self.dtype)

        def pairs(rows: np.ndarray) -> np.ndarray:
            # numbers i and i + head_dim/2 rotate together: side by side they form a complex number
            halves = rows.reshape(-1, 2, c.head_dim // 2, *rows.shape[1:])
            return halves.swapaxes(1, 2).reshape(rows.shape)

        def linear(at: str, parts: dict[str, Callable], scale: Any = 1) -> Linear:
            """One matrix from the `parts`: each name with a function for its rows (outputs)."""
            weight, bias = (
                [change(get(name)) for part, change in parts.items()
                 if (name := f"{at}.{part}_proj.{kind}") in shapes] for kind in ("weight", "bias"))
            bias = np.concatenate(bias) if bias else None
            return Linear(np.concatenate(weight) * scale, bias, self.layout)

        root = self.dtype.type(c.head_dim ** -0.5)
        qkv = {"q": lambda rows: pairs(rows) * root, "k": pairs, "v": np.positive}
        gate_up = {"gate": np.negative, "up": np.negative}
        self.layers = [
            (linear(f"{at}.self_attn", qkv, gain(f"{at}.input_layernorm")),
             linear(f"{at}.self_attn", {"o": np.positive}),
             linear(f"{at}.mlp", gate_up, gain(f"{at}.post_attention_layernorm")),
             linear(f"{at}.mlp", {"down": np.positive}))
            for at in (f"model.layers.{i}" for i in range(c.layers))]
        self.embedding = get("model.embed_tokens.weight")
        head = self.embedding if c.tied else get("lm_head.weight")
        self.head = Linear(head * gain("model.norm"), None, self.layout)


def matrix_shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """The fused matrices (in, out) of one layer, and the head."""
    c = config
    return ((c.width, (c.heads + 2 * c.kv_heads) * c.head_dim), (c.heads * c.head_dim, c.width),
            (c.width, 2 * c.hidden), (c.hidden, c.width), (c.width, c.vocab_size))


def _swiglu(gate_up: np.ndarray) -> np.ndarray:
    """SwiGLU (arXiv 2002.05202): g / (1 + exp(-g)) · u, of -g and -u side by side (m, 2 hidden)."""
    hidden = gate_up.shape[1] // 2
    gate, up = gate_up[:, :hidden], gate_up[:, hidden:]
    y = np.exp(gate)  # if this overflows, the quotient is 0, as it should be
    y += 1
    np.divide(gate, y, out=y)
    y *= up
    return y
