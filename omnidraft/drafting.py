"""The drafter's side of the loop: the text so far in its own tokens, and the draft that follows it.

One round (arXiv 2507.02659, Algorithm 1, first step), as in `Drafter.draft`:

    1. How many tokens at most? The stop rule has a limit, the text and the context have an end.
    2. Read what the target wrote in the last round. The logits after it are for d_1.
    3. *Heal* the boundary, if a longer token could begin at the last one. This draws d_1.
    4. Is a draft worth it? The row q_1 decides, before anything is drawn from it.
    5. Draw d_1 from q_1, read it for q_2, and so on, until the stop rule says so, or an end token.

Then the target verifies. `Drafter.follow` adopts what it wrote: the draft tokens that this text
contains are kept, and the rest of it is cut into the drafter's tokens.

Healing is this project's own. If the target wrote " " and the drafter has " 9" as one token, then
in training it has seldom seen " " before a digit. So the token " " is taken back and redrawn, from
itself and the longer ones that begin with it. If it is redrawn as " 9", this is d_1.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from . import translation
from .options import Options
from .pairing import Pairing
from .reading import Reader
from .sampling import Sampler
from .text.errors import OmnidraftError


@dataclass
class Draft:
    """What one round drafted: tokens d_1..d_k and the rows (V_q,) that they were drawn from."""

    tokens: list[int] = field(default_factory=list)
    probs: list[Any] = field(default_factory=list)  # empty at temperature 0
    taken_back: int | None = None  # the last context token, if healing replaced it by d_1
    features: list[Any] = field(default_factory=list)  # what the acceptance head saw

    def data(self, tokenizer: Any) -> bytes:
        """The drafted bytes that are not in the text yet."""
        data = tokenizer.decode_bytes(self.tokens)
        if self.taken_back is None:
            return data
        in_text = tokenizer.decode_bytes([self.taken_back])
        return data[len(in_text):]


class Drafter:
    """Drafts for one text: `draft` draws a round's tokens, `follow` adopts what the target wrote.

    prompt: the text or its ids (V_q). All but the last two are fed immediately: healing needs the
    logits before the last id and after it. reader: of an earlier text, used again if it belongs to
    the same model; its `ids` are the text in the drafter's tokens.
    """

    def __init__(self, pair: Pairing, prompt: str | Sequence[int], options: Options,
                 sampler: Sampler, reader: Reader | None = None) -> None:
        self.model = pair.draft
        self.options = options
        self.sampler = sampler
        if reader is None or reader.model is not self.model:
            reader = Reader(self.model, sampler.new_cache(self.model))
        self.reader = reader
        reader.cache.keeps_hidden = options.stop.head is not None
        self.allowed = None
        if options.rule.shared_only:
            self.allowed = self._shared_only(pair)
        if isinstance(prompt, str):
            prompt = self.model.tokenizer.encode_possible(prompt)
        reader.begin(self._recent(prompt, 1), keep=2)

    @property
    def ids(self) -> list[int]:
        """The text in the drafter's tokens."""
        return self.reader.ids

    def _shared_only(self, pair: Pairing) -> Any:
        """What allows directly mapped tokens only: q is renormalised onto them."""
        if not len(pair.direct.drafts):
            names = f"{pair.draft.name} and {pair.target.name}"
            raise OmnidraftError(f"{names} have no token in common for `{self.options.verify}`: "
                                 "use another rule")
        return self.sampler.allow(pair.direct.drafts, self.model)

    def draft(self, lifting: Any, room: int) -> Draft:
        """One round of drafting, step by step as above: at most min(stop.limit, room) tokens.

        `lifting` says which context tokens can be healed; None switches healing off.
        """
        limit = self.most(room)  # 1.
        draft, logits = self._begin(lifting)  # 2. and 3.
        drawn = []  # token ids, or tensors that hold them on a device
        confidences = []
        while len(draft.tokens) + len(drawn) < limit:
            if drawn:
                logits = self.model.forward(drawn[-1:], self.reader.cache)
            rows = self._rows(logits, self.allowed)
            first = not (draft.tokens or drawn)
            if first and not self._worth_it(rows):  # 4.
                return draft  # empty: the target writes alone
            drawn.append(self.sampler.draw(rows))  # 5.
            if self.options.temperature:
                draft.probs.append(rows[0])
            if self._is_last(drawn[-1], rows, draft, confidences):
                break
        return self._settle(draft, drawn)

    def most(self, room: int) -> int:
        """How many tokens to draft at most; the text is shortened if the context has no room."""
        limit = min(self.options.stop.limit, room, self.model.context_size // 2)
        recent = self._recent(self.ids, limit)
        if len(recent) < len(self.ids):
            self.reader.replace(0, recent)
        return limit

    def _recent(self, ids: list[int], limit: int) -> list[int]:
        """The ids, or only the latest if the context has no room for `limit` more: half of it."""
        if len(ids) + limit + 1 > self.model.context_size:
            return ids[-(self.model.context_size // 2):]
        return ids

    def _begin(self, lifting: Any) -> tuple[Draft, Any]:
        """Feed what the cache lacks, and heal if possible: a draft, empty or healed, and logits."""
        longer = []
        if lifting is not None and self.options.heal and len(self.ids) > 1:
            longer = lifting.longer(self.ids[-1])
        if not longer:
            return Draft(), self.reader.read()
        return self._heal(self.reader.read(rows=2), longer)

    def _heal(self, logits: Any, longer: list[int]) -> tuple[Draft, Any]:
        """Draw the last context token again, or a longer one; that draft and the logits after it.

        logits: (2, V_q), before the last context token and after it.
        """
        last = self.ids[-1]
        rows = self._rows(logits[:1], self.sampler.allow([last, *longer], self.model))
        [token] = self.sampler.settle([self.sampler.draw(rows)], ())
        if token == last:  # the context token is confirmed, and drafting continues after it
            return Draft(), logits[1:]
        draft = Draft([token], taken_back=last)
        if self.options.temperature:
            draft.probs.append(rows[0])
        return draft, self.reader.read([token], back=1)

    def _rows(self, logits: Any, allowed: Any) -> Any:
        """The distribution that the next token is drawn from, as a single row (1, V_q)."""
        if allowed is not None:
            logits = logits.clip(allowed[0]) + allowed[1]  # finite, then -inf for what is not
        return self.sampler.rows(logits, self.model.tokenizer.size)

    def _worth_it(self, rows: Any) -> bool:
        """Should the round draft? Decided by the row q_1, before anything is drawn from it."""
        stop = self.options.stop
        if stop.starts(0.0):  # whatever the confidence
            return True
        likeliest = self.sampler.draw(rows, likeliest=True)
        return stop.starts(self._judge(likeliest, rows)[1])

    def _is_last(self, token: Any, rows: Any, draft: Draft, confidences: list[float]) -> bool:
        """Does this drawn token end the draft? It is proposed all the same.

        Reading a token waits for the device, so an end token is noticed there only by a rule that
        looks; `_settle` removes what was drawn after it.
        """
        stop = self.options.stop
        if stop.looks:
            token, confidence, features = self._judge(token, rows)
            draft.features += features
            confidences.append(confidence)
            if stop(confidences):
                return True
        return (stop.looks or self.sampler.draws_ids) and token in self.model.eos_ids

    def _judge(self, token: Any, rows: Any) -> tuple[int, float, list[Any]]:
        """The token's id, the confidence in it, and the head's input if there is a head."""
        token, probability, norm = self.sampler.read(token, rows)
        head = self.options.stop.head
        if head is None:
            bound = self.options.stop.bound
            if bound is not None:
                return token, bound(rows[0]), []
            # subtle: at T > 0 it is not the drawn token that decides, but how far the target's row
            # overlaps this one; two draws from this row agree with probability norm^2
            return token, norm if self.options.temperature else probability, []
        vectors = [self.reader.cache.hidden[-1], self.model.embedding[token]]
        if head.on_host:
            vectors = map(self.sampler.to_numpy, vectors)
        features = head.features(*vectors, probability)
        return token, head(features).item(), [features]

    def _settle(self, draft: Draft, drawn: list[Any]) -> Draft:
        """Add the drawn tokens to the draft, up to the first end token."""
        tokens = self.sampler.settle(drawn, self.model.eos_ids)
        self.reader.ahead += tokens[:-1]  # the last one was drawn, but not read
        draft.tokens += tokens
        del draft.probs[len(draft.tokens):]
        return draft

    # ---- after verification ---------------------------------------------------------------------
    def follow(self, draft: Draft, data: bytes, silent: int = 0,
               same_ids: list[int] | None = None) -> int:
        """Adopt the bytes that the target wrote; returns how many draft tokens they fully contain.

        If the draft is " snow", "f", and the target wrote " snowy day", then " snow" is kept, and
        "y day" is added to the text, whose end is cut into tokens again.

        silent: special tokens have no bytes, so as many are kept as the target wrote; a rejected
        end token does not stay in the text. same_ids: with one vocabulary the emitted ids are
        copied instead, as tokenising their bytes again could give other ids.
        """
        if same_ids is not None:
            self.reader.append(same_ids)
            return translation.common_prefix(draft.tokens, same_ids)
        kept, size = self._kept(draft, data, silent)
        if kept:  # keep the drafter's own tokens, which the cache already holds
            end = len(self.ids)
            if draft.taken_back is not None:
                end -= 1  # d_1 begins with the bytes of the last token
            self.reader.replace(end, draft.tokens[:kept])
            data = data[size:]
        with suppress(OmnidraftError):  # subtle: only the target's text must be complete
            start, made = translation.retokenize(self.model.tokenizer, self.ids, data)
            self.reader.replace(start, made)
        return kept

    def _kept(self, draft: Draft, data: bytes, silent: int) -> tuple[int, int]:
        """How many draft tokens `data` fully contains, and how many of its bytes they are."""
        tokenizer = self.model.tokenizer
        drafted = draft.data(tokenizer)
        agreed = translation.common_prefix(drafted, data)
        lengths = [len(piece) for piece in tokenizer.pieces(draft.tokens)]
        size = len(drafted) - sum(lengths)  # below 0: so many bytes of d_1 were in the text before
        kept = 0
        for length in lengths:
            if not length:
                silent -= 1  # a special token uses up one that the target wrote
            if silent < 0 or size + length > agreed:
                break
            kept += 1
            size += length
        return kept, size
