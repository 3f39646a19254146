"""Llama, Mistral, Qwen2, Qwen3 and Gemma 3 in NumPy, fast on a CPU.

The models of arXiv 2302.13971, 2310.06825, 2407.10671, 2505.09388 and 2503.19786 (the first three
in plain form: tutorials/llama_plain.py).
Here a pass over m tokens costs little more than over one (`matmul`), and a step makes few NumPy
calls: constant factors, such as norm gains and 1/sqrt(head_dim), are folded into the weights.
What another family computes in a layer goes into `_layer` (weights) and `_pass`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..sampling import Sampler
from ..text.errors import OmnidraftError
from ..text.tokenizer import Tokenizer
from .config import ModelConfig, frequencies
from .gguf import Gguf, is_gguf
from .matmul import Layout, Linear, Room, choose_layout
from .model import check_pass, check_rewind, flat_ids, printable
from .weights import load_tensors

LARGE = 32_000_000  # from so many parameters on, weights are held once
GELU = 2 * math.sqrt(2 / math.pi)
CHUNK = 2**18  # weights that are read at a time
LONGEST_PASS = 256  # longer prompts are fed in pieces, which bounds the size of the scores


class Layer(NamedTuple):
    """The four products of a layer, and the gains that no product can take in."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    heads: np.ndarray | None  # (heads + kv_heads, head_dim), of queries and keys (Qwen3, Gemma)
    attention: np.ndarray | None  # (width,), of the norm after attention (Gemma)
    mlp: np.ndarray | None  # (width,), of the norm after the feed-forward layer (Gemma)


class KVCache:
    """What attention remembers: keys and values of the `length` tokens that a model has read.

    Rewinding only shortens the length: what lies beyond is never read, and the next pass overwrites
    it.

    >>> cache = model.new_cache(); model.forward([1, 2, 3], cache).shape; cache.rewind(1)
    (1, 4096)
    """

    def __init__(self, config: ModelConfig, dtype: Any):
        self.length = 0
        self.limit = config.context_size
        self.hidden: np.ndarray | None = None  # (rows, width) the head's last input: x / |x|
        # Both are stored in the order in which attention's products read them, without copies. A 1
        # follows each value, so the product that mixes the values also sums up their weights.
        size = min(256, self.limit)
        self.keys = np.zeros((config.layers, config.kv_heads, config.head_dim, size), dtype)
        self.values = np.ones((config.layers, config.kv_heads, size, config.head_dim + 1), dtype)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError if there are fewer."""
        check_rewind(self.length, length)
        self.length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, at most as many as the model's context."""
        size = self.values.shape[2]
        if length > size:
            none = (0, 0)
            more = (0, min(max(length, 2 * size), self.limit) - size)
            self.keys = np.pad(self.keys, (none, none, none, more))
            self.values = np.pad(self.values, (none, none, more, none), constant_values=1)


class TiedEmbedding:
    """The embedding of a large model whose head has the same weights: they are held only there.

    The head's rows were multiplied by the last norm's gain (width,), so they are divided by it.
    """

    def __init__(self, head: Linear, gain: np.ndarray) -> None:
        self.head = head
        self.gain = gain
        self.shape = (head.outputs, len(gain))
        self.nbytes = 0

    def __getitem__(self, ids: np.ndarray | int) -> np.ndarray:
        """The rows of these ids (..., width), in a new array."""
        return self.head.rows(np.asarray(ids)) / self.gain


class Llama:
    """A model ready to run: `forward` feeds tokens, `tokenizer` spells them, `eos_ids` end a text.

    It is built from tensors by Hugging Face name; without a `layout`, the fastest one is measured.
    Raises OmnidraftError if a tensor is missing or does not have the shape in the configuration.
    """

    def __init__(self, config: ModelConfig, tensors: dict[str, np.ndarray], dtype: Any = np.float32,
                 *, name: str = "model", folder: Path | None = None, tokenizer: Any = None,
                 layout: Layout | None = None, reread: Callable[[], dict] | None = None):
        config = config.with_head_of(tensors)
        config.check(tensors, name)
        self.sampler = Sampler
        self.config = config
        self.dtype = np.dtype(dtype)
        self.name = printable(name)
        self.folder = folder
        self.tokenizer = tokenizer
        self.reread = reread  # gives the tensors again, for learning
        self.vocab_size = config.vocab_size
        self.context_size = config.context_size
        ends = tokenizer.roles.get("eos", ()) if tokenizer else ()
        self.eos_ids = flat_ids(config.eos_ids, ends, size=config.vocab_size)
        self.parameters = config.parameters
        self.layout = layout or layout_of(config, str(self.dtype))
        self.kernel = str(self.layout)  # one line on how the matrix products run
        self._build(tensors)
        self._eps = config.width * config.eps
        self._turns = self._rotations(512)
        self._embedding_scale = self.dtype.type(math.sqrt(config.width) if config.gemma else 1)
        self._later = np.triu(np.full((LONGEST_PASS, LONGEST_PASS), -np.inf, self.dtype), 1)

    def __repr__(self) -> str:
        return f"Llama({self.name!r}: {self.parameters:,} parameters, {self.dtype}, {self.kernel})"

    @classmethod
    def load(cls, folder: str | Path, dtype: Any = np.float32) -> "Llama":
        """Read a Hugging Face folder or a GGUF file; raises OmnidraftError with one line."""
        folder = Path(folder)
        if is_gguf(folder):
            name = folder.stem
            file = Gguf(folder)
            config = file.config()
            tokenizer = file.tokenizer()
            tensors = file.weights(config)
        else:
            name = folder.name
            config = ModelConfig.load(folder)
            tensors = load_tensors(folder)
            tokenizer = Tokenizer.load(folder)

        def reread() -> dict[str, Any]:
            return Gguf(folder).weights(config) if is_gguf(folder) else load_tensors(folder)

        return cls(config, tensors, dtype, name=name, folder=folder, reread=reread,
                   tokenizer=tokenizer.within(config.vocab_size))

    def stored(self, untied: bool = False) -> tuple[ModelConfig, dict[str, np.ndarray]]:
        """Configuration and stored tensors, as `dtype`; `untied`: with a separate head."""
        config = self.config
        found = self.reread()
        tensors = {name: found[name].astype(self.dtype) for name in config.tensor_shapes()}
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
            pieces = [self._read(ids[i:i + LONGEST_PASS], cache)
                      for i in range(0, len(ids), LONGEST_PASS)]
            x = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            cache.hidden = self._norm(x[-rows:])
            logits = self.head(cache.hidden)
        return self._finite(logits)

    def forward_each(self, texts: Sequence[tuple[Sequence[int], KVCache]]) -> np.ndarray:
        """Feed each text its few ids: the logits (B, V) after the last id of each.

        The weights are read once for all B texts. Each has a cache of its own, and at most 256 ids.

        >>> model.forward_each([([1, 403], model.new_cache()), ([7], model.new_cache())]).shape
        (2, 4096)
        """
        for ids, cache in texts:
            check_pass(self, ids, len(ids), 1, cache.length)
            cache.reserve(cache.length + len(ids))
        all_ids = [i for ids, _ in texts for i in ids]
        turns = [self._turns_at(cache.length, len(ids)) for ids, cache in texts]
        turns = [np.concatenate(kind) for kind in zip(*turns, strict=True)]
        ends = np.cumsum([len(ids) for ids, _ in texts])

        def attend(rows: np.ndarray, place: int) -> np.ndarray:
            parts = np.split(rows, ends[:-1])
            return np.concatenate([self._attention(cache, part, place)
                                   for part, (_, cache) in zip(parts, texts, strict=True)])

        with np.errstate(over="ignore", invalid="ignore"):
            x = self._pass(all_ids, turns, attend)
            logits = self.head(self._norm(x[ends - 1]))
        for ids, cache in texts:
            cache.length += len(ids)
        return self._finite(logits)

    def _finite(self, logits: np.ndarray) -> np.ndarray:
        if not math.isfinite(logits.max()):
            raise OmnidraftError(f"{self.name}: logits are NaN or infinite: its weights are broken")
        return logits

    def _read(self, ids: Sequence[int], cache: KVCache) -> np.ndarray:
        """Feed one text at most `LONGEST_PASS` ids: the residual stream (m, width)."""
        turns = self._turns_at(cache.length, len(ids))
        x = self._pass(ids, turns, partial(self._attention, cache))
        cache.length += len(ids)
        return x

    def _pass(self, ids: Sequence[int], turns: list[np.ndarray],
              attend: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
        """The residual stream of m ids after all layers (m, width).

        turns: their rotations (`_turns_at`). attend: `_attention` of the text or texts.
        """
        c = self.config
        m = len(ids)
        both = c.heads + c.kv_heads
        x = self.embedding[np.asarray(ids)]
        if c.gemma:
            x *= self._embedding_scale
        for place, layer in enumerate(self.layers):
            rows = layer.qkv(self._norm(x)).reshape(m, -1, c.head_dim)  # (m, heads + 2 kv_heads, …)
            heads = rows[:, :both]
            if layer.heads is not None:
                squares = np.vecdot(heads, heads)[..., None]
                heads *= layer.heads / np.sqrt(squares + c.head_dim * c.eps)
            turn = turns[place in c.local]
            pairs = heads.view(turn.dtype)  # (m, heads + kv_heads, head_dim / 2), complex
            pairs *= turn
            added = layer.out(attend(rows, place))
            x = x + (added if layer.attention is None else self._norm(added) * layer.attention)
            added = layer.down(_gated(layer.gate_up(self._norm(x)), c.gemma))
            x += added if layer.mlp is None else self._norm(added) * layer.mlp
        return x

    def _attention(self, cache: KVCache, rows: np.ndarray, place: int) -> np.ndarray:
        """Grouped-query attention (arXiv 2305.13245) of one text: softmax(q k) v.

        rows (m, heads + 2 kv_heads, head_dim), queries, keys and values of m tokens; the cache
        stores the two last. Result (m, heads · head_dim).
        """
        c = self.config
        m = len(rows)
        first = cache.length
        last = first + m
        kv_heads = c.kv_heads
        both = c.heads + kv_heads
        cache.keys[place][..., first:last] = rows[:, c.heads:both].transpose(1, 2, 0)
        cache.values[place][:, first:last, :-1] = rows[:, both:].swapaxes(0, 1)
        window = c.window if place in c.local else last  # each token sees so many, itself included
        begin = max(0, first + 1 - window)  # of what the first of them sees
        keys = cache.keys[place][:, None, :, begin:last]  # (kv_heads, 1, head_dim, n)
        values = cache.values[place][:, None, begin:last]  # (kv_heads, 1, n, head_dim + 1)
        queries = rows[:, :c.heads]
        if m == 1:  # (kv_heads, heads of a group, 1, head_dim): vectors times a matrix
            q = queries.reshape(kv_heads, -1, 1, c.head_dim)
        else:  # (kv_heads, 1, heads of a group · m, head_dim): one product for all that share keys
            q = queries.reshape(m, kv_heads, -1, c.head_dim).transpose(1, 2, 0, 3)
            q = q.reshape(kv_heads, 1, -1, c.head_dim)
        scores = q @ keys
        if m > 1:
            self._mask(scores.reshape(kv_heads, -1, m, last - begin), window)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = scores @ values
        mixed = mixed[..., :-1] / mixed[..., -1:]  # divide by the sum of the exponentials
        if m > 1:
            mixed = mixed.reshape(kv_heads, -1, m, c.head_dim).transpose(2, 0, 1, 3)
        return mixed.reshape(m, c.heads * c.head_dim)

    def _mask(self, scores: np.ndarray, window: int) -> None:
        """Hide later tokens, and those before the window, in scores (..., m, n) of the last m."""
        m, n = scores.shape[-2:]
        scores[..., n - m:] += self._later[:m, :m]
        if n > window:
            scores[..., np.tri(m, n, n - m - window, dtype=bool)] = -np.inf

    def _turns_at(self, first: int, count: int) -> list[np.ndarray]:
        """The rotations of `count` places from `first` on, by kind (count, 1, head_dim / 2)."""
        last = first + count
        turns = self._turns  # subtle: read once, as another thread may replace it by a shorter one
        if last > len(turns[0]):
            turns = self._turns = self._rotations(2 * last)
        return [turn[first:last] for turn in turns]

    def _rotations(self, length: int) -> list[np.ndarray]:
        """The complex numbers that rotate the pairs of a head (positions, 1, head_dim / 2).

        The second of them are those of local layers, if there are any.
        """
        kinds = (False, True) if self.config.local else (False,)
        positions = np.arange(min(length, self.context_size))[:, None, None]
        dtype = np.result_type(self.dtype, np.complex64)
        return [np.exp(1j * (positions * frequencies(self.config, kind))).astype(dtype)
                for kind in kinds]

    def _norm(self, x: np.ndarray) -> np.ndarray:
        """RMSNorm without the factor gain · sqrt(width), which is folded into the next matrix."""
        if len(x) == 1:  # the same result in half the time
            return x / math.sqrt(x[0].dot(x[0]) + self._eps)
        return x / np.sqrt(np.vecdot(x, x)[:, None] + self._eps)

    def _build(self, tensors: dict[str, np.ndarray]) -> None:
        """Fuse matrices that share an input, fold in constant factors, and apply the layout."""
        c = self.config
        tensors = {name: tensors[name] for name in c.tensor_shapes()}  # no others, such as a bias
        sizes = [math.prod(shape) for shape in matrix_shapes(c)[:-1]]
        self._room = Room(c.layers * sum(sizes), self.dtype)
        self.layers = [self._layer(tensors, f"model.layers.{i}") for i in range(c.layers)]
        self._room = None
        head = "model.embed_tokens" if c.tied else "lm_head"
        gain = self._gain(tensors, "model.norm")
        self.head = self._linear(tensors, {head: unchanged}, gain)
        if c.tied and self.parameters >= LARGE and gain.all():
            self.embedding = TiedEmbedding(self.head, gain)
        else:
            self.embedding = tensors["model.embed_tokens.weight"].astype(self.dtype)

    def _layer(self, tensors: dict[str, np.ndarray], at: str) -> Layer:
        """The layer whose tensors' names begin with `at`."""
        c = self.config
        head_dim = c.head_dim
        root = self.dtype.type(c.score_scale)

        def queries(rows: np.ndarray) -> np.ndarray:
            return side_by_side(rows, head_dim) * (1 if c.qk_norm else root)

        def keys(rows: np.ndarray) -> np.ndarray:
            return side_by_side(rows, head_dim)

        before_attention = self._gain(tensors, f"{at}.input_layernorm")
        mlp_norm = "pre_feedforward_layernorm" if c.gemma else "post_attention_layernorm"
        before_mlp = self._gain(tensors, f"{at}.{mlp_norm}")
        heads = after_attention = after_mlp = None
        if c.qk_norm:  # subtle: the norm removes every factor before it, so the scores' comes here
            q = side_by_side(self._gain(tensors, f"{at}.self_attn.q_norm"), head_dim) * root
            k = side_by_side(self._gain(tensors, f"{at}.self_attn.k_norm"), head_dim)
            heads = np.stack([q] * c.heads + [k] * c.kv_heads)
        if c.gemma:
            after_attention = self._gain(tensors, f"{at}.post_attention_layernorm")
            after_mlp = self._gain(tensors, f"{at}.post_feedforward_layernorm")
        attention = f"{at}.self_attn"
        mlp = f"{at}.mlp"
        qkv = {f"{attention}.q_proj": queries, f"{attention}.k_proj": keys,
               f"{attention}.v_proj": unchanged}
        gate_up = {f"{mlp}.gate_proj": negated, f"{mlp}.up_proj": negated}
        return Layer(self._linear(tensors, qkv, before_attention),
                     self._linear(tensors, {f"{attention}.o_proj": unchanged}),
                     self._linear(tensors, gate_up, before_mlp),
                     self._linear(tensors, {f"{mlp}.down_proj": unchanged}),
                     heads, after_attention, after_mlp)

    def _gain(self, tensors: dict[str, np.ndarray], norm: str) -> np.ndarray:
        """A norm's gain · sqrt(size), which `_norm` leaves out (size,)."""
        gain = tensors[f"{norm}.weight"].astype(self.dtype)
        if self.config.gemma:  # stored as the difference from 1
            gain += 1
        return gain * np.sqrt(len(gain), dtype=self.dtype)

    def _linear(self, tensors: dict[str, np.ndarray], parts: dict[str, Callable],
                scale: Any = 1) -> Linear:
        """One product of several: the names of the parts, each with what becomes of its rows."""
        weights = [tensors[f"{name}.weight"] for name in parts]
        biases = [change(tensors[f"{name}.bias"].astype(self.dtype))
                  for name, change in parts.items() if f"{name}.bias" in tensors]
        bias = np.concatenate(biases) if biases else None
        shape = (sum(weight.shape[0] for weight in weights), weights[0].shape[1])
        # some heads at a time, so that nothing large is in memory twice
        step = self.config.head_dim * max(1, CHUNK // (self.config.head_dim * shape[1]))

        def pieces() -> Iterator[np.ndarray]:
            for weight, change in zip(weights, parts.values(), strict=True):
                for first in range(0, weight.shape[0], step):
                    rows = weight[first:first + step].astype(self.dtype)
                    rows = change(rows)  # subtle: rows are a copy, which may be overwritten
                    rows *= scale
                    yield rows

        return Linear(pieces(), bias, self.layout, shape, self.dtype, self._room)


def layout_of(config: ModelConfig, dtype: str = "float32") -> Layout:
    """The fastest layout for the matrices of such a model (`choose_layout`)."""
    return choose_layout(matrix_shapes(config), dtype, large=config.parameters >= LARGE)


def matrix_shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """The fused matrices (in, out) of one layer, and the head."""
    c = config
    return ((c.width, (c.heads + 2 * c.kv_heads) * c.head_dim), (c.heads * c.head_dim, c.width),
            (c.width, 2 * c.hidden), (c.hidden, c.width), (c.width, c.vocab_size))


def side_by_side(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """The rows (heads · head_dim, ...) with numbers i and i + head_dim/2 of a head as neighbours.

    These two rotate together; as neighbours they form a complex number.
    """
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def unchanged(rows: np.ndarray) -> np.ndarray:
    """The rows as they are."""
    return rows


def negated(rows: np.ndarray) -> np.ndarray:
    """The rows times -1, in place."""
    return np.negative(rows, out=rows)


def _gated(gate_up: np.ndarray, gelu: bool) -> np.ndarray:
    """SwiGLU (arXiv 2002.05202): g / (1 + exp(-g)) · u, of -g and -u side by side (m, 2 hidden).

    `gelu`: GEGLU. GELU's form with tanh (arXiv 1606.08415) is g / (1 + exp(-z)) with
    z = 2 sqrt(2 / pi) (g + 0.044715 g³).
    """
    hidden = gate_up.shape[1] // 2
    gate = gate_up[:, :hidden]
    up = gate_up[:, hidden:]
    exponent = gate
    if gelu:
        exponent = GELU * (gate + 0.044715 * gate * gate * gate)
    y = np.exp(exponent)  # if this overflows, the quotient is 0, as it should be
    y += 1
    np.divide(gate, y, out=y)
    y *= up
    return y
