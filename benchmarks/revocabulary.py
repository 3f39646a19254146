"""A drafter with a smaller vocabulary: only the tokenizer's first merges, in two ways.

A BPE tokenizer with its first n merges is the one that training would have given at that size. So
vocabularies are nested, and with a smaller n the drafter has fewer of the target's tokens. `cut`
drops the rows of embedding and head, and the drafter reads sequences that it was never trained on.
`Split` keeps its knowledge: every dropped token is drawn as the pieces that spell it, each with its
probability under the drafter's own distribution.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import tokenizers

from omnidraft import Tokenizer
from omnidraft.engine.llama import Llama
from omnidraft.engine.weights import load_tensors
from omnidraft.sampling import process
from omnidraft.translation import common_prefix


def merges_of(tokenizer: Tokenizer) -> int:
    """How many merges a BPE tokenizer has."""
    return len(json.loads(tokenizer.raw.to_str())["model"]["merges"])


def with_merges(tokenizer: Tokenizer, count: int) -> tuple[Tokenizer, np.ndarray]:
    """The tokenizer with its first `count` merges, and the old id of each of its tokens.

    >>> with_merges(Tokenizer.load(folder("draft-tasks")), 0)[0].size  # bytes and characters
    355
    """
    data = json.loads(tokenizer.raw.to_str())
    model, merges = data["model"], data["model"]["merges"]
    gone = {"".join(pair) for pair in merges[count:]} - {"".join(pair) for pair in merges[:count]}
    kept = sorted((old, string) for string, old in model["vocab"].items() if string not in gone)
    model["merges"] = merges[:count]
    model["vocab"] = {string: new for new, (_, string) in enumerate(kept)}
    news = {old: new for new, (old, _) in enumerate(kept)}
    for token in data["added_tokens"]:  # tokens that the model's vocabulary does not have come last
        token["id"] = news.setdefault(token["id"], len(news))
    name = f"{tokenizer.name}-{count}"
    raw = tokenizers.Tokenizer.from_str(json.dumps(data))
    return Tokenizer(raw, name, tokenizer.config), np.array([*news])


def cut(model: Llama, count: int) -> Llama:
    """The drafter without the rows of the tokens that later merges make."""
    made, old = with_merges(model.tokenizer, count)
    tensors = dict(load_tensors(model.folder))
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        tensors[name] = tensors[name][old]
    ends = tuple(np.flatnonzero(np.isin(old, model.config.eos_ids)).tolist())
    config = replace(model.config, vocab_size=len(old), eos_ids=ends)
    return Llama(config, tensors, model.dtype, name=made.name, tokenizer=made, layout=model.layout)


class Pieces:
    """What a `Split` drafter has read, and its model's cache with the tokens in it."""

    def __init__(self, model: Any) -> None:
        self.ids: list[int] = []
        self.inner, self.fed = model.new_cache(), []
        self.rows: dict[tuple[int, ...], np.ndarray] = {}  # the latest distributions, by tokens

    def rewind(self, length: int) -> None:
        """Forget all but the first pieces."""
        del self.ids[length:]


class Split:
    """A drafter that writes a smaller vocabulary's pieces for its own tokens.

    The trie of all splits groups the pieces that were read into tokens. At a node, the next piece
    either continues an open token, with the probability of the tokens below the node, or begins the
    token after the one that ends there. The rules are exact for any distribution of the drafts.
    """

    def __init__(self, model: Llama, count: int) -> None:
        self.model, self.context_size, self.sampler = model, model.context_size, model.sampler
        self.tokenizer, self.old = with_merges(model.tokenizer, count)
        self.name, self.folder, self.vocab_size = self.tokenizer.name, None, len(self.old)
        self.eos_ids = tuple(np.flatnonzero(np.isin(self.old, model.eos_ids)).tolist())
        splits = {int(old): (new,) for new, old in enumerate(self.old)}
        for token, data in enumerate(model.tokenizer.token_bytes):
            if token not in splits and data:
                splits[token] = self.tokenizer.split(data)
        self.children: list[dict[int, int]] = [{}]
        below: list[list[int]] = [[]]
        self.token, self.first = [-1], np.zeros(model.vocab_size, np.int64)
        for token, split in splits.items():
            self.first[token], node = split[0], 0
            for piece in split:
                if piece not in self.children[node]:
                    self.children[node][piece] = len(self.token)
                    self.children.append({})
                    below.append([])
                    self.token.append(-1)
                node = self.children[node][piece]
                below[node].append(token)
            self.token[node] = token
        self.below = [*map(np.array, below)]
        self.close = cache(self._close)

    def new_cache(self) -> Pieces:
        """An empty cache."""
        return Pieces(self.model)

    def forward(self, ids: list[int], cache: Pieces, rows: int = 1) -> np.ndarray:
        """Feed pieces; the logits (rows, V) after the last of them."""
        cache.ids += ids
        lengths = range(len(cache.ids) - rows + 1, len(cache.ids) + 1)
        made = np.stack([self._row(cache.ids[:length], cache) for length in lengths])
        return np.log(np.maximum(made, 1e-38)).astype(np.float32)

    def _row(self, pieces: list[int], cache: Pieces) -> np.ndarray:
        """The distribution (V,) of the piece after these."""
        tokens, node, begin = [], 0, 0
        for place, piece in enumerate(pieces):
            if piece not in self.children[node]:
                tokens += self.close(tuple(pieces[begin:place]))
                node, begin = 0, place
            node = self.children[node][piece]
        made, stop = np.zeros(self.vocab_size), 1.0
        if self.children[node]:
            q = self._next(tokens, cache)  # (V_q,) distribution of the open token
            mass = {piece: q[self.below[child]].sum()
                    for piece, child in self.children[node].items()}
            stop = q[self.token[node]] if self.token[node] >= 0 else 0.0
            total = sum(mass.values()) + stop
            stop = stop / total if total > 0 else 1.0
            for piece in mass if total > 0 else ():
                made[piece] = mass[piece] / total
        if stop > 0:
            q = self._next(tokens + list(self.close(tuple(pieces[begin:]))), cache)
            made += stop * np.bincount(self.first, q, self.vocab_size)
        return made

    def _close(self, pieces: tuple[int, ...]) -> tuple[int, ...]:
        """The model's own tokens for pieces that no further piece continues."""
        data = self.tokenizer.decode_bytes(pieces)
        own = self.model.tokenizer.split(data) if data else None
        return own or tuple(self.old[list(pieces)].tolist())

    def _next(self, tokens: list[int], cache: Pieces) -> np.ndarray:
        """The model's distribution (V_q,) after its own tokens."""
        if (key := tuple(tokens)) not in cache.rows:
            same = min(common_prefix(cache.fed, tokens), len(tokens) - 1)
            cache.inner.rewind(same)
            logits = self.model.forward(tokens[same:], cache.inner)
            cache.fed = tokens
            if len(cache.rows) > 15:
                cache.rows.clear()
            cache.rows[key] = process(logits)[0]
        return cache.rows[key]
