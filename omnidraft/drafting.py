"""The drafter's side of the loop: its own tokens of the text so far, their cache, and the draft.

A round draws d_1..d_k from the rows q_1..q_k (arXiv 2507.02659, Algorithm 1, first step). Two
things are special here. The drafter re-tokenises what the target wrote, and keeps its cache up to
the first token that changed. And it can *heal* the boundary (this project's own): where its last
context token is how a longer token begins (the target wrote " ", the drafter knows " 9" as one
token), it takes that token back and draws among those that begin with it, so that it is never
conditioned on a context that it has not seen in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import translation
from .options import Options
from .pairing import Pairing
from .sampling import Sampler

LEAST = -1e38  # a logit; what is allowed stays possible where the model rules it out


@dataclass
class Draft:
    """What one round drafted: tokens d_1..d_k and the rows (V_q,) that they were drawn from."""

    tokens: list[int] = field(default_factory=list)
    probs: list[Any] = field(default_factory=list)  # none at temperature 0
    taken_back: int | None = None  # the last context token, if healing replaced it by d_1
    features: list[Any] = field(default_factory=list)  # what the acceptance head saw

    def data(self, tokenizer: Any) -> bytes:
        """The drafted bytes that the text does not have yet."""
        return tokenizer.decode_bytes(self.tokens)[self._written(tokenizer):]

    def kept(self, tokenizer: Any, data: bytes, silent: int = 0) -> tuple[int, int]:
        """How many draft tokens are wholly part of `data`, which entered the text, and their bytes
        in it.

        Special tokens have no bytes: as many of them are kept as the target wrote, `silent`. So an
        end token that it refused is no part of the text.
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
    """Drafts for one text: `draft` draws a round's tokens, `follow` takes over what the target
    wrote.

    `prompt` is that text or its ids (V_q); the cache of the Drafter `before` is taken over if it is
    of the same model.

    >>> drafter = Drafter(pair, "Once upon", options, sampler)  # doctest: +SKIP
    >>> drafter.draft(pair.lifting, 8).tokens  # doctest: +SKIP
    [263, 931]
    """

    def __init__(self, pair: Pairing, prompt: str | Sequence[int], options: Options,
                 sampler: Sampler, before: Drafter | None = None) -> None:
        self.model, self.options, self.sampler = pair.draft, options, sampler
        tokenizer = self.model.tokenizer
        self.ids = tokenizer.encode(prompt, bos=True) if isinstance(prompt, str) else list(prompt)
        self.fed: list[int] = []  # the ids that the cache holds
        self.agreed = 0  # how many of both are known to be the same, so that few are compared
        if before is not None and before.model is self.model:
            self.fed, self.cache = before.fed, before.cache
        else:
            self.cache = sampler.new_cache(self.model)
        stop = options.stop
        self.asks = getattr(stop, "looks", True)  # for each token's probability
        self.looks = sampler.looks or self.asks
        self.head = getattr(stop, "head", None)
        self.cache.keeps_hidden = self.head is not None
        self.starts = getattr(stop, "starts", None)  # asked before a round's first token is drawn
        if self.starts is not None and self.starts(0.0):  # it always says yes
            self.starts = None
        # `tli` draws from the drafter renormalised onto the directly mapped tokens.
        tli = options.verify == "tli"
        self.allowed = sampler.allow(pair.direct.drafts, self.model) if tli else None

    def feed_prompt(self) -> None:
        """Feed the prompt but its last two tokens, which the first round feeds."""
        self._trim(1)
        self.agreed = continue_from(self.model, self.cache, self.fed, self.ids, keep=2)
        self.fed = self.ids[:self.agreed]

    def draft(self, lifting: Any, room: int) -> Draft:
        """Draw up to min(stop.limit, room) tokens, fewer where the stop rule or an end token says
        so.

        `lifting` says which context tokens can be healed; None switches healing off.
        """
        draft, ends = Draft(), self.model.eos_ids
        limit = min(self.options.stop.limit, room, self.model.context_size // 2)
        self._trim(limit)
        heals = lifting is not None and self.options.heal and len(self.ids) > 1
        longer = lifting.longer(self.ids[-1]) if heals else []
        logits = self._catch_up(rows=2 if longer else 1)
        if longer:
            draft, logits = self._heal(logits, longer)
        drawn: list[Any] = []  # numbers, or on a device what stands for them
        confidences: list[float] = []
        while len(draft.tokens) + len(drawn) < limit:
            if drawn:
                logits = self.model.forward(drawn[-1:], self.cache)
            rows = self._rows(logits)
            if self.starts and not (draft.tokens or drawn) and not self.starts(self._promise(rows)):
                return draft
            drawn.append(self.sampler.draw(rows))
            if self.options.temperature:
                draft.probs.append(rows[0])
            token = drawn[-1]
            if self.asks:
                token, probability = self.sampler.read(token, rows)
                confidences.append(self._confidence(token, probability, rows, draft))
                # subtle: the token that stops the round is still proposed (see `stopping`)
                if self.options.stop(confidences):
                    break
            if self.looks and token in ends:
                break
        tokens = self.sampler.settle(drawn, ends)
        self.fed += tokens[:-1]
        draft.tokens += tokens
        if len(tokens) < len(drawn):  # nobody had looked, and an end token was among them
            self.cache.rewind(len(self.fed))
            del draft.probs[len(draft.tokens):]
        return draft

    def follow(self, draft: Draft, data: bytes, silent: int = 0) -> int:
        """Take over the bytes that the target wrote; how many draft tokens are wholly part of them.

        `silent` of the target's tokens have no bytes.
        """
        tokenizer = self.model.tokenizer
        kept, size = draft.kept(tokenizer, data, silent)
        if kept:  # the drafter's own tokens stay, so that the cache need not be fed again
            self.ids[len(self.ids) - (draft.taken_back is not None):] = draft.tokens[:kept]
            data = data[size:]
        start, made = translation.retokenize(tokenizer, self.ids, data)
        self.ids[start:] = made
        self.agreed = min(self.agreed, start)
        return kept

    def _catch_up(self, rows: int) -> Any:
        """Feed what the cache lacks of the text; logits (rows, V_q) after its last tokens."""
        same = translation.common_prefix(self.fed[self.agreed:], self.ids[self.agreed:])
        self.agreed = min(self.agreed + same, len(self.ids) - rows)
        self.cache.rewind(self.agreed)
        del self.fed[self.agreed:]
        return self._forward(self.ids[self.agreed:], rows)

    def _heal(self, logits: Any, longer: list[int]) -> tuple[Draft, Any]:
        """Draw among the last context token and those that begin with it.

        logits: (2, V_q), before that token and after it. Returns what that drafts, and the logits
        to continue from.
        """
        last = self.ids[-1]
        rows = self._rows(logits[:1], self.sampler.allow([last, *longer], self.model))
        [token] = self.sampler.settle([self.sampler.draw(rows)], ())
        if token == last:  # the context token stands, and drafting continues after it
            return Draft(), logits[1:]
        self.cache.rewind(len(self.fed) - 1)
        del self.fed[-1:]
        probs = [rows[0]] if self.options.temperature else []
        return Draft([token], probs, last), self._forward([token])

    def _rows(self, logits: Any, allowed: Any = None) -> Any:
        """The distribution that the next token is drawn from, as the only row of (1, V_q)."""
        allowed = self.allowed if allowed is None else allowed
        if allowed is not None:
            logits = logits.clip(LEAST) + allowed
        return self.sampler.rows(logits, self.model.tokenizer.size)

    def _promise(self, rows: Any) -> float:
        """The confidence in the likeliest token: its probability, or what the head predicts."""
        if self.head is None:
            return float(rows[0].max())
        return self.head(self._features(*self.sampler.read(self.sampler.likeliest(rows), rows)))

    def _confidence(self, token: int, probability: float, rows: Any, draft: Draft) -> float:
        """The stop rule's confidence in a drawn token; a head's features are kept for learning."""
        if self.head is not None:
            features = self._features(token, probability)
            draft.features.append(features)
            return self.head(features)
        bound = getattr(self.options.stop, "bound", None)  # a rule may read the whole row instead
        return probability if bound is None else bound(rows[0])

    def _features(self, token: int, probability: float) -> Any:
        vectors = self.cache.hidden[-1], self.model.embedding[token]
        return self.head.features(*map(self.sampler.to_numpy, vectors), probability)

    def _forward(self, ids: list[int], rows: int = 1) -> Any:
        logits = self.model.forward(ids, self.cache, rows)
        self.fed += ids
        return logits

    def _trim(self, limit: int) -> None:
        """Forget the older half of a text that outgrows the drafter's context."""
        if len(self.ids) + limit + 1 > self.model.context_size:
            self.ids, self.agreed = self.ids[-(self.model.context_size // 2):], 0


def continue_from(model: Any, cache: Any, held: Sequence[int], ids: list[int], keep: int) -> int:
    """Rewind a cache that holds `held` to what `ids` begin with, and feed those but the last
    `keep`.

    Returns how many ids the cache holds then.
    """
    end = max(0, len(ids) - keep)
    shared = min(translation.common_prefix(held, ids), end)
    cache.rewind(shared)
    if shared < end:
        model.forward(ids[shared:end], cache)
    return end
