"""Many texts of one model at a time, in NumPy: each step adds a token to every text; when a text ends, the next begins.

The products of a step are those of `engine.llama`, over one row per text; only attention reads each text's own keys: `Batch`
holds those of all texts in one array, which is faster for small models with Llama's layers, and `Caches` one cache per text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from omnidraft.engine.llama import Llama, _gated
from omnidraft.sampling import Uniforms, mask, process
from omnidraft.text.errors import OmnidraftError


class Batch:
    """Up to `size` texts of a model, each with its keys and values in a slot; `limit`: maximum length of prompt and text.

    >>> batch = Batch(load("qwen-like"), 32, 320); row = batch.read(0, [5, 6, 7]); rows = batch.step([9] * 32)
    """

    def __init__(self, model: Llama, size: int, limit: int) -> None:
        c = model.config
        if c.qk_norm:
            raise OmnidraftError(f"{model.name}: only models with Llama's layers are batched")
        self.model, self.limit, self.lengths = model, min(limit, model.context_size), np.zeros(size, int)
        self.turns = model._rotations(self.limit)[0]  # (places, 1, head_dim / 2)
        self.keys = np.zeros((c.layers, size, c.kv_heads, c.head_dim, self.limit), model.dtype)
        self.values = np.zeros((c.layers, size, c.kv_heads, self.limit, c.head_dim), model.dtype)

    def read(self, slot: int, ids: list[int]) -> np.ndarray:
        """Begin a text with its prompt; returns the logits after it (1, V)."""
        cache = self.model.new_cache()
        logits, length = self.model.forward(ids, cache), len(ids)
        self.keys[:, slot, ..., :length] = cache.keys[..., :length]
        self.values[:, slot, :, :length] = cache.values[:, :, :length, :-1]
        self.lengths[slot] = length
        return logits

    @np.errstate(over="ignore")  # for SwiGLU's exponential, as in the engine
    def step(self, ids: list[int]) -> np.ndarray:
        """Feed one token to every slot, also to slots whose texts have ended; returns the logits after it (size, V)."""
        model, c, at, size = self.model, self.model.config, self.lengths, len(ids)
        longest, heads, each = int(at.max()) + 1, c.heads + c.kv_heads, np.arange(size)
        later = np.where(np.arange(longest) > at[:, None], -np.inf, 0).astype(model.dtype)[:, None, None, None]
        x = model.embedding[ids]
        for layer, keys, values in zip(model.layers, self.keys, self.values, strict=True):
            rows = layer.qkv(model._norm(x)).reshape(size, -1, c.head_dim)
            pairs = rows[:, :heads].view(self.turns.dtype)
            pairs *= self.turns[at]
            keys[each, ..., at] = rows[:, c.heads:heads]
            values[each, :, at] = rows[:, heads:]
            # (size, kv_heads, heads of a group, 1, head_dim) · (size, kv_heads, 1, head_dim, longest): vectors · matrices
            scores = rows[:, :c.heads].reshape(size, c.kv_heads, -1, 1, c.head_dim) @ keys[:, :, None, :, :longest]
            scores += later
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            mixed = scores @ values[:, :, None, :longest] / scores.sum(axis=-1, keepdims=True)
            x = x + layer.out(mixed.reshape(size, -1))
            x += layer.down(_gated(layer.gate_up(model._norm(x)), gelu=False))
        self.lengths = np.minimum(at + 1, self.limit - 1)  # an ended text stays at its last place
        return model.head(model._norm(x))


class Caches:
    """The same for all models of the engine, with its `forward_each`."""

    def __init__(self, model: Llama, size: int, limit: int) -> None:
        self.model, self.limit = model, min(limit, model.context_size)
        self.caches = [model.new_cache() for _ in range(size)]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [cache.length for cache in self.caches]

    def read(self, slot: int, ids: list[int]) -> np.ndarray:
        """Begin a text with its prompt; returns the logits after it (1, V)."""
        self.caches[slot] = self.model.new_cache()
        return self.model.forward(ids, self.caches[slot])

    def step(self, ids: list[int]) -> np.ndarray:
        """Feed one token to every slot, also to slots whose texts have ended; returns the logits after it (size, V)."""
        for cache in self.caches:
            cache.length = min(cache.length, self.limit - 1)  # an ended text stays at its last place
        return self.model.forward_each([([i], cache) for i, cache in zip(ids, self.caches, strict=True)])


def write(model: Llama, prompts: Iterable[tuple[list[int], bool]], uniforms: Uniforms, tokens: int, size: int = 32,
          limit: int | None = None) -> Iterator[tuple[int, list[int], np.ndarray]]:
    """The model's texts, up to `tokens` tokens each: at temperature 1 if the prompt's second entry is true, else greedy.

    limit: most tokens of a prompt and its text, below the model's own.

    Yields each text when it ends: the prompt's number, the ids, and the model's distributions (T, V) they were drawn from.
    """
    coming, kind = enumerate(prompts), Caches if model.config.qk_norm else Batch
    batch = kind(model, size, limit or model.context_size)
    texts: dict[int, tuple[int, bool, list[int], list[np.ndarray]]] = {}  # by slot
    free = list(range(size))

    def take(logits: np.ndarray, slots: list[int]) -> Iterator[tuple[int, list[int], np.ndarray]]:
        """Choose a token for each slot; yields the texts that end with it."""
        for slot, row in zip(slots, process(mask(logits, model.tokenizer.size)), strict=True):
            number, sampled, written, rows = texts[slot]
            rows.append(row.astype(np.float32))
            written.append(uniforms.choose(row) if sampled else int(row.argmax()))
            if written[-1] in model.eos_ids or len(written) == tokens or batch.lengths[slot] + 1 == batch.limit:
                yield number, written, np.stack(rows)
                del texts[slot]
                free.append(slot)

    while True:
        while free and (following := next(coming, None)):
            slot, (number, (ids, sampled)) = free.pop(), following
            texts[slot] = number, sampled, [], []
            yield from take(batch.read(slot, ids), [slot])
        if not texts:
            return
        slots = list(texts)
        rows = batch.step([texts[slot][2][-1] if slot in texts else 0 for slot in range(size)])
        yield from take(rows[slots], slots)
