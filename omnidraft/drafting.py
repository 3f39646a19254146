"""The drafter's side of the loop: its own tokens of the text so far, their cache, and the draft.

A round draws d_1..d_k from the rows q_1..q_k (arXiv 2507.02659, Algorithm 1, first step). It can
*heal* the boundary first (this project's own): where the drafter's last context token is how a
longer token begins (the target wrote " ", the drafter knows " 9" as one token), that token is taken
back and drawn among those that begin with it, so the context is one that training has shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import translation
from .errors import OmnidraftError
from .options import Options
from .pairing import Pairing
from .sampling import Sampler


@dataclass
class Draft:
    """What one round drafted: tokens d_1..d_k and the rows (V_q,) that they were drawn from."""

    tokens: list[int] = field(default_factory=list)
    probs: list[Any] = field(default_factory=list)  # none at temperature 0
    taken_back: int | None = None  # the last context token, if healing replaced it by d_1
    features: list[Any] = field(default_factory=list)  # what the acceptance head saw

    def data(self, tokenizer: Any) -> bytes:
        """The drafted bytes that the text does not have yet."""
        in_text = [] if self.taken_back is None else [self.taken_back]
        return tokenizer.decode_bytes(self.tokens)[len(tokenizer.decode_bytes(in_text)):]


class Drafter:
    """Drafts for one text: `draft` draws a round's tokens, `follow` takes over the target's.

    `prompt` is that text or its ids (V_q); all but its last two are read at once. The cache of the
    Drafter `before` is taken over if it is of the same model.
    """

    def __init__(self, pair: Pairing, prompt: str | Sequence[int], options: Options,
                 sampler: Sampler, before: "Drafter | None" = None) -> None:
        self.model, self.options, self.sampler = pair.draft, options, sampler
        tokenizer, stop = self.model.tokenizer, options.stop
        self.ids = tokenizer.encode(prompt, bos=True) if isinstance(prompt, str) else list(prompt)
        known = before is not None and before.model is self.model
        held = before.fed if known else []
        self.cache = before.cache if known else sampler.new_cache(self.model)
        self.cache.keeps_hidden = stop.head is not None
        # `tli` draws from the drafter renormalised onto the directly mapped tokens.
        tli = options.verify == "tli"
        if tli and not len(pair.direct.drafts):
            names = f"{pair.draft.name} and {pair.target.name}"
            raise OmnidraftError(f"{names} have no token in common for `tli`: use another rule")
        self.allowed = sampler.allow(pair.direct.drafts, self.model) if tli else None
        self._trim(1)
        # How many of `ids` and of `fed` are known to be the same, so that few are compared.
        self.agreed = continue_from(self.model, self.cache, held, self.ids, keep=2)
        self.fed = self.ids[:self.agreed]  # the ids that the cache holds

    def draft(self, lifting: Any, room: int) -> Draft:
        """Draw min(stop.limit, room) tokens, or fewer by the stop rule or an end token.

        `lifting` says which context tokens can be healed; None switches healing off.
        """
        stop, ends = self.options.stop, self.model.eos_ids
        limit = min(stop.limit, room, self.model.context_size // 2)
        self._trim(limit)
        heals = lifting is not None and self.options.heal and len(self.ids) > 1
        longer = lifting.longer(self.ids[-1]) if heals else []
        draft, logits = Draft(), self._catch_up(rows=2 if longer else 1)
        if longer:
            draft, logits = self._heal(logits, longer)
        drawn: list[Any] = []  # numbers, or on a device what stands for them
        confidences: list[float] = []
        while len(draft.tokens) + len(drawn) < limit:
            if drawn:
                logits = self.model.forward(drawn[-1:], self.cache)
            rows = self._rows(logits, self.allowed)
            if not (draft.tokens or drawn or stop.starts(0.0)):  # it depends on the row
                if not stop.starts(self._judge(self.sampler.draw(rows, True), rows)[1]):
                    return draft
            drawn.append(self.sampler.draw(rows))
            if self.options.temperature:
                draft.probs.append(rows[0])
            token = drawn[-1]
            if stop.looks:
                token, confidence, features = self._judge(token, rows)
                draft.features += features
                confidences.append(confidence)
                # subtle: the token that stops the round is still proposed (see `stopping`)
                if stop(confidences):
                    break
            if (stop.looks or self.sampler.looks) and token in ends:
                break
        tokens = self.sampler.settle(drawn, ends)
        self.fed += tokens[:-1]
        draft.tokens += tokens
        if len(tokens) < len(drawn):  # nobody had looked, and an end token was among them
            self.cache.rewind(len(self.fed))
            del draft.probs[len(draft.tokens):]
        return draft

    def follow(self, draft: Draft, data: bytes, silent: int = 0,
               same: list[int] | None = None) -> int:
        """Take over the bytes that the target wrote; how many draft tokens are wholly part of them.

        Special tokens have no bytes: as many of them are kept as the target wrote, `silent`, so an
        end token that it refused is no part of the text. In one vocabulary the `same` ids are
        copied: spelled again, their bytes could become others.
        """
        if same is not None:
            self.ids += same
            return translation.common_prefix(draft.tokens, same)
        tokenizer, drafted, kept = self.model.tokenizer, draft.data(self.model.tokenizer), 0
        agreed = translation.common_prefix(drafted, data)
        lengths = [len(tokenizer.decode_bytes([token])) for token in draft.tokens]
        size = len(drafted) - sum(lengths)  # below 0: those bytes of d_1 were in the text before
        for length in lengths:
            silent -= not length
            if silent < 0 or size + length > agreed:
                break
            kept, size = kept + 1, size + length
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
        self.fed[self.agreed:] = self.ids[self.agreed:]
        return self.model.forward(self.ids[self.agreed:], self.cache, rows)

    def _heal(self, logits: Any, longer: list[int]) -> tuple[Draft, Any]:
        """Draw among the last context token and those that begin with it; the logits after that.

        logits: (2, V_q), before the last context token and after it.
        """
        last = self.ids[-1]
        rows = self._rows(logits[:1], self.sampler.allow([last, *longer], self.model))
        [token] = self.sampler.settle([self.sampler.draw(rows)], ())
        if token == last:  # the context token stands, and drafting continues after it
            return Draft(), logits[1:]
        self.cache.rewind(len(self.fed) - 1)
        self.fed[-1] = token
        probs = [rows[0]] if self.options.temperature else []
        return Draft([token], probs, last), self.model.forward([token], self.cache, 1)

    def _rows(self, logits: Any, allowed: Any) -> Any:
        """The distribution that the next token is drawn from, as the only row of (1, V_q)."""
        logits = logits if allowed is None else logits.clip(allowed[0]) + allowed[1]
        return self.sampler.rows(logits, self.model.tokenizer.size)

    def _judge(self, token: Any, rows: Any) -> tuple[int, float, list[Any]]:
        """A token as a number, the confidence in it, and what the head saw, if there is one."""
        token, probability = self.sampler.read(token, rows)
        head, bound = self.options.stop.head, getattr(self.options.stop, "bound", None)
        if head is None:  # a rule with a `bound` reads the whole row
            return token, probability if bound is None else bound(rows[0]), []
        vectors = self.cache.hidden[-1], self.model.embedding[token]
        features = head.features(*map(self.sampler.to_numpy, vectors), probability)
        return token, float(head(features)), [features]

    def _trim(self, limit: int) -> None:
        """Forget the older half of a text that outgrows the drafter's context."""
        if len(self.ids) + limit + 1 > self.model.context_size:
            self.ids, self.agreed = self.ids[-(self.model.context_size // 2):], 0


def continue_from(model: Any, cache: Any, held: Sequence[int], ids: list[int], keep: int) -> int:
    """Feed `ids` but the last `keep` to a cache that holds `held`; how many it holds then."""
    end = max(0, len(ids) - keep)
    shared = min(translation.common_prefix(held, ids), end)
    cache.rewind(shared)
    if shared < end:
        model.forward(ids[shared:end], cache)
    return end
