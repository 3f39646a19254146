"""The drafter's side of the loop: its own tokens of the text so far, a key-value cache that follows them, and the draft.

A round draws d_1..d_k from the rows q_1..q_k (arXiv 2507.02659, Algorithm 1, first step). Two things are special here.
The drafter re-tokenises what the target wrote, keeping its cache up to the first token that changed. And it can *heal* the
boundary (this project's own): where its last context token is how a longer token begins (the target wrote " ", the drafter
knows " 9" as one token), it takes that token back and draws from those that begin with it, so that it is never conditioned
on a context it has not seen in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import translation
from .pairing import Pair
from .sampling import Uniforms
from .warm import prefill


@dataclass
class Draft:
    """What one round drafted: `tokens` d_1..d_k, the rows (V_q,) they were drawn from, and the token taken back."""

    tokens: list[int] = field(default_factory=list)
    probs: list[np.ndarray] = field(default_factory=list)
    taken_back: int | None = None  # the last context token, which the first drafted token begins with
    features: list[np.ndarray] = field(default_factory=list)  # what the acceptance head saw of the last of them

    def data(self, tokenizer: Any) -> bytes:
        """The drafted bytes that the text does not have yet."""
        return tokenizer.decode_bytes(self.tokens)[self._written(tokenizer):]

    def kept(self, tokenizer: Any, data: bytes, silent: int = 0) -> tuple[int, int]:
        """How many draft tokens are wholly part of `data`, which entered the text, and how many of its bytes they are.

        Special tokens have no bytes: as many of them are kept as the target wrote, `silent`. An end token that it refused is
        no part of the text.
        """
        agreed = translation.common_prefix(self.data(tokenizer), data)
        count, size = 0, -self._written(tokenizer)
        for token in self.tokens:
            length = len(tokenizer.decode_bytes([token]))
            silent -= not length
            if silent < 0 or size + length > agreed:
                break
            count, size = count + 1, size + length
        return count, max(0, size)

    def _written(self, tokenizer: Any) -> int:
        return 0 if self.taken_back is None else len(tokenizer.decode_bytes([self.taken_back]))


class Drafter:
    """Drafts for one text: `draft` draws a round's tokens, `follow` takes over what the target wrote.

    `prompt` is that text or its ids (V_q); the cache of the Drafter `before` is taken over if it is of the same model.

    >>> drafter = Drafter(pair, "Once upon", Options()); drafter.draft(Uniforms(rng), pair.lifting, 8)  # doctest: +SKIP
    """

    def __init__(self, pair: Pair, prompt: str | Sequence[int], options: Any, before: Drafter | None = None) -> None:
        self.model, self.options, self.ops = pair.draft, options, pair.ops
        self.ids = self.model.tokenizer.encode(prompt, bos=True) if isinstance(prompt, str) else list(prompt)
        self.fed: list[int] = []  # the ids that the cache holds
        self.agreed = 0  # how many of both are known to be the same: to compare all would cost more in a longer text
        if before is not None and before.model is self.model:
            self.fed, self.cache = before.fed, before.cache
        else:
            self.cache = self.ops.new_cache(self.model)
        self.looks = self.ops.LOOK or getattr(options.stop, "looks", True)
        self.head = self.ops.head_of(getattr(options.stop, "head", None), self.model)  # predicts acceptance where there is one
        self.cache.keeps_hidden = self.head is not None
        starts = getattr(options.stop, "starts", None)  # asked before a round's first token is drawn, unless it always says yes
        self.starts = None if starts is None or starts(0.0) else starts
        self.bound = getattr(options.stop, "bound", None)  # reads the row's entropy
        # `tli` draws from the drafter renormalised onto the directly mapped tokens.
        self.allowed = self.ops.allow(pair.direct.drafts, self.model) if options.verify == "tli" else None

    def prefill(self) -> float:
        """Feed the prompt but its last two tokens, which the first round feeds; seconds."""
        self._trim(1)
        seconds = prefill(self.model, self.cache, self.fed, self.ids, 2)
        self.fed = self.ids[:self.cache.length]
        self.agreed = len(self.fed)
        return seconds

    def draft(self, uniforms: Uniforms, lifting: Any, room: int) -> Draft:
        """Draw up to min(stop.limit, room) tokens, fewer where the stop rule or an end token says so.

        `lifting` says which context tokens can be healed; None switches healing off.
        """
        draft, limit = Draft(), min(self.options.stop.limit, room, self.model.context_size // 2)
        self._trim(limit)
        longer = lifting.longer(self.ids[-1]) if lifting is not None and self.options.heal and len(self.ids) > 1 else []
        rows = 2 if longer else 1
        same = self.agreed + translation.common_prefix(self.fed[self.agreed:], self.ids[self.agreed:])
        shared = self.agreed = min(same, len(self.ids) - rows)
        self.cache.rewind(shared)
        del self.fed[shared:]
        logits = self._forward(self.ids[shared:], rows)
        if longer:
            draft, logits = self._heal(logits, longer, uniforms)
        drawn: list[Any] = []  # numbers, or what stands for them on a device
        confidences: list[float] = []
        while len(draft.probs) < limit:
            if drawn:
                logits = self.model.forward(drawn[-1:], self.cache)
            q = self._row(logits)
            if self.starts is not None and not draft.probs and not self.starts(self._confidence(q)):
                return draft
            token = self._choose(q, uniforms)
            drawn.append(token)
            draft.probs.append(q)
            if self.looks:
                token, confidence = self.ops.look(token, q, self.options.temperature)
                if self.bound is not None:
                    confidence = self.bound(self.ops.entropy(q, self.options.temperature))
                if self.head is not None:
                    features = self._features(token, confidence)
                    draft.features.append(self.ops.to_numpy(features))
                    confidence = self.head(features)
                confidences.append(confidence)
                if token in self.model.eos_ids or self.options.stop(confidences):
                    break
        drawn = self.ops.to_host(drawn, self.model.vocab_size)
        self.fed += drawn[:-1]
        count = next((i + 1 for i, token in enumerate(drawn) if token in self.model.eos_ids), len(drawn))
        if count < len(drawn):  # nobody looked: what was drawn after an end token is as if it had never been
            del draft.probs[count - len(drawn):]
            uniforms.give_back((len(drawn) - count) * (self.options.temperature > 0))
        draft.tokens += drawn[:count]
        return draft

    def _heal(self, logits: np.ndarray, longer: list[int], uniforms: Uniforms) -> tuple[Draft, np.ndarray]:
        """Draw from the last context token and those that begin with it; what that drafts, and the logits to go on from.

        logits: (2, V_q), before that token and after it.
        """
        last = self.ids[-1]
        row = self._row(logits[:1] + self.ops.allow([last, *longer], self.model))
        [token] = self.ops.to_host([self._choose(row, uniforms)], self.model.vocab_size)
        if token == last:  # the context token stands, and drafting goes on after it
            return Draft(), logits[1:]
        self.cache.rewind(len(self.fed) - 1)
        del self.fed[-1:]
        return Draft([token], [row], last), self._forward([token])

    def follow(self, draft: Draft, data: bytes, silent: int = 0) -> int:
        """Take over the bytes that the target wrote; how many draft tokens of the round are wholly part of them.

        `silent` of its tokens have no bytes.
        """
        tokenizer = self.model.tokenizer
        kept, size = draft.kept(tokenizer, data, silent)
        if kept:  # the drafter's own tokens stay, so that the cache need not be fed again
            self.ids[len(self.ids) - (draft.taken_back is not None):] = draft.tokens[:kept]
            data = data[size:]
        start, made = translation.retokenize(tokenizer, self.ids, data)
        self.ids[start:], self.agreed = made, min(self.agreed, start)
        return kept

    def _row(self, logits: np.ndarray) -> np.ndarray:
        """The row (V_q,) that the next token is drawn from, of logits (1, V_q): at temperature 0 the logits."""
        logits = self.ops.mask(logits, self.model.tokenizer.size)
        if self.allowed is not None:
            logits += self.allowed
        if self.options.temperature == 0:
            return logits[0]
        return self.ops.process(logits, self.options.temperature, self.options.top_k, self.options.top_p)[0]

    def _choose(self, row: np.ndarray, uniforms: Uniforms) -> Any:
        """One token of such a row."""
        return uniforms.choose(row) if self.options.temperature else self.ops.best(row[None])[0]

    def _confidence(self, row: np.ndarray) -> float:
        """The probability of a row's most likely token, or the acceptance that the head predicts for it."""
        if self.head is None:
            return self.ops.peak(row, self.options.temperature)
        return self.head(self._features(*self.ops.look(self.ops.best(row[None])[0], row, self.options.temperature)))

    def _features(self, token: int, confidence: float) -> Any:
        return self.head.features(self.cache.hidden[-1], self.model.embedding[token], confidence)

    def _forward(self, ids: list[int], rows: int = 1) -> np.ndarray:
        logits = self.model.forward(ids, self.cache, rows)
        self.fed += ids
        return logits

    def _trim(self, limit: int) -> None:
        """Forget the older half of a text that outgrows the drafter's context (the target's is never cut)."""
        if len(self.ids) + limit + 1 > self.model.context_size:
            self.ids, self.agreed = self.ids[-(self.model.context_size // 2):], 0
