"""The decoding loop: draft, translate, verify, update; one `Round` record each (arXiv 2507.02659, Algorithm 1).

`speculative` yields the rounds of a pair, `plain` those of the target alone (the baseline that every speedup is measured
against). Nothing here prints; renderer, metrics, tests and lessons read the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from . import translation, verification
from .errors import OmnidraftError
from .pairing import Pair
from .sampling import Uniforms, process
from .stopping import Confidence, Payoff


@dataclass(frozen=True)
class Options:
    """How to decode: the rule, how far to draft, how to sample, when to end."""

    verify: str = "lossless"  # one of verification.RULES
    stop: Callable[[list[float]], bool] = Confidence()  # noqa: RUF009 (frozen); its `limit` bounds the draft length
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    max_new_tokens: int = 128
    heal: bool = True  # take back a context token that a longer draft token begins with (`lossless` only)
    payoff: bool = False  # decode plainly for a while where drafting costs more than it gains
    learn: bool = False  # insert the n-grams of the written text into the cache

    def __post_init__(self) -> None:
        limit = getattr(self.stop, "limit", 0)
        for wrong, line in (
            (self.verify not in verification.RULES,
             f"unknown rule {self.verify!r}: choose one of {', '.join(verification.RULES)}"),
            (limit < 0, f"draft length is {limit}, but must be 0 or more"),
            (not 0 <= self.temperature < float("inf"), f"temperature is {self.temperature}, but must be 0 or more"),
            (self.top_k < 0, f"top-k is {self.top_k}, but must be 0 (off) or more"),
            (not 0 < self.top_p <= 1, f"top-p is {self.top_p}, but must be in (0, 1]"),
            (self.max_new_tokens < 1, f"number of new tokens is {self.max_new_tokens}, but must be 1 or more"),
        ):
            if wrong:
                raise OmnidraftError(line)


@dataclass
class Round:
    """One round: what was drafted, what was proposed, what entered the text, and where the time went.

    `kinds` has one of "accepted", "merged" (accepted, from several draft tokens), "recovered", "bonus" per emitted token.
    """

    draft_tokens: list[int] = field(default_factory=list)  # ids in V_q
    proposals: list[int] = field(default_factory=list)  # ids in V_p
    spans: list[int] = field(default_factory=list)  # draft tokens (or atoms) per proposal
    accepted: int = 0  # proposals kept
    emitted: list[int] = field(default_factory=list)  # ids in V_p that enter the text
    kinds: list[str] = field(default_factory=list)
    draft_kept: int = 0  # draft tokens whose bytes all entered the text
    seconds: dict[str, float] = field(default_factory=dict)  # draft, target, other; prefill in the first round
    done: bool = False


@dataclass
class _Draft:
    """What one round drafted: tokens, the rows (V_q,) they were drawn from, and what healing took back."""

    tokens: list[int] = field(default_factory=list)
    probs: list[np.ndarray] = field(default_factory=list)
    taken_back: int | None = None  # the context token that the first drafted token begins with


def plain(model: Any, prompt_ids: list[int], options: Options, uniforms: Uniforms) -> Iterator[Round]:
    """Ordinary decoding: one token of `model` per round.

    >>> [r.emitted for r in plain(model, ids, Options(max_new_tokens=2), Uniforms(rng))]  # doctest: +SKIP
    [[17], [4]]
    """
    _check_prompt(model, prompt_ids, options)
    ids, cache = list(prompt_ids), model.new_cache()
    seconds = {"prefill": _prefill(model, cache, ids)}
    for count in range(1, options.max_new_tokens + 1):
        began = perf_counter()
        logits = model.forward(ids[cache.length:], cache)
        seconds["target"] = perf_counter() - began
        if options.temperature == 0:
            token = int(_mask(model, logits).argmax())
        else:
            token = uniforms.choose(_probs(model, logits, options)[0])
        ids.append(token)
        seconds["other"] = perf_counter() - began - seconds["target"]
        done = token in model.eos_ids or count == options.max_new_tokens or len(ids) >= model.context_size
        yield Round(emitted=[token], kinds=["bonus"], seconds=seconds, done=done)
        seconds = {}
        if done:
            return


def speculative(pair: Pair, prompt: str, options: Options, uniforms: Uniforms) -> Iterator[Round]:
    """Speculative decoding of `prompt`: the drafter proposes, the target verifies (arXiv 2507.02659, Algorithm 1).

    Raises OmnidraftError for an empty prompt or one that leaves no room in the target's context.

    >>> rounds = list(speculative(pair, "Question: ...", Options(), Uniforms(rng)))  # doctest: +SKIP
    """
    target, tokenizer = pair.target, pair.target.tokenizer
    ids = tokenizer.encode(prompt, bos=True)
    _check_prompt(target, ids, options)
    first_new, payoff = len(ids), Payoff()
    drafter, cache = _Drafter(pair, prompt, options), target.new_cache()
    lifting = pair.lifting if options.verify == "lossless" else None
    seconds = {"prefill": _prefill(target, cache, ids) + drafter.prefill()}
    while True:
        began = perf_counter()
        room = min(options.max_new_tokens - (len(ids) - first_new), target.context_size - len(ids)) - 1
        drafts = room > 0 and (not options.payoff or payoff.drafts())
        draft = drafter.draft(uniforms, lifting, room) if drafts else _Draft()
        seconds["draft"] = perf_counter() - began
        proposals, verify = _translate(pair, draft, ids, options, uniforms, lifting, room)

        before = perf_counter()
        logits = target.forward(ids[cache.length:] + proposals.tokens, cache, rows=len(proposals.tokens) + 1)
        seconds["target"] = perf_counter() - before
        verdict = verify(logits)

        # An end token in mid-block ends the text, and nothing after it counts.
        ends = [i + 1 for i, token in enumerate(verdict.emitted) if token in target.eos_ids]
        count = min([len(verdict.emitted), room + 1, *ends])
        emitted, kinds = verdict.emitted[:count], verdict.kinds[:count]
        accepted = min(verdict.accepted, count)
        for i in range(accepted):
            if proposals.spans[i] > 1:
                kinds[i] = "merged"
        ids += emitted
        cache.rewind(min(cache.length, len(ids) - 1))
        done = bool(ends) or len(ids) - first_new >= options.max_new_tokens or len(ids) >= target.context_size
        kept = drafter.follow(draft, tokenizer.decode_bytes(emitted))
        if options.learn:
            tails = translation.common_tail(pair.draft.tokenizer, drafter.ids, tokenizer, ids, count + 1)
            pair.cache.observe(*tails, pair.draft.tokenizer, tokenizer)
        took = perf_counter() - began
        seconds["other"] = took - seconds["draft"] - seconds["target"]
        payoff.record(drafts, took, count)
        yield Round(draft.tokens, proposals.tokens, proposals.spans, accepted, emitted, kinds, kept, seconds, done)
        seconds = {}
        if done:
            return


class _Drafter:
    """The drafter's side of the loop: its own ids of the text so far and a key-value cache that follows them."""

    def __init__(self, pair: Pair, prompt: str, options: Options) -> None:
        self.model, self.options, self.stop = pair.draft, options, options.stop
        self.ids = self.model.tokenizer.encode(prompt, bos=True)
        self.fed: list[int] = []  # the ids that the cache holds
        self.cache = self.model.new_cache()
        # `tli` draws from the drafter renormalised onto the directly mapped tokens.
        self.barred = np.flatnonzero(pair.alignment.draft_to_target < 0) if options.verify == "tli" else None

    def prefill(self) -> float:
        """Feed the prompt but its last two tokens, which the first round feeds; seconds."""
        began = perf_counter()
        self._trim(1)
        if len(self.ids) > 2:
            self._forward(self.ids[:-2])
        return perf_counter() - began

    def draft(self, uniforms: Uniforms, lifting: Any, room: int) -> _Draft:
        """Draw up to min(stop.limit, room) tokens, fewer where the stop rule or an end token says so."""
        draft = _Draft()
        limit = min(self.stop.limit, room)
        if limit <= 0:
            return draft
        self._trim(limit)
        longer = lifting.longer(self.ids[-1]) if lifting is not None and self.options.heal and len(self.ids) > 1 else []
        shared = min(translation.common_prefix(self.fed, self.ids), len(self.ids) - (2 if longer else 1))
        self.cache.rewind(shared)
        del self.fed[shared:]
        logits = self._forward(self.ids[shared:], rows=2 if longer else 1)
        confidences: list[float] = []
        if longer:
            # Draw the first token from those that begin with the last context token, itself included.
            draft.taken_back = self.ids[-1]
            allowed = np.full(logits.shape[-1], -np.inf)
            allowed[[draft.taken_back, *longer]] = 0.0
            healed = logits[:1] + allowed
            logits = logits[1:]
            token, q, _ = self._draw(healed, uniforms)
            if token != draft.taken_back:
                self.cache.rewind(len(self.fed) - 1)
                del self.fed[-1:]
                logits = self._forward([token])
            draft.tokens.append(token)
            draft.probs.append(q)
            limit += 1
        while len(draft.tokens) < limit:
            if draft.tokens and len(draft.tokens) > (draft.taken_back is not None):
                logits = self._forward(draft.tokens[-1:])
            token, q, confidence = self._draw(logits, uniforms)
            draft.tokens.append(token)
            draft.probs.append(q)
            confidences.append(confidence)
            if token in self.model.eos_ids or self.stop(confidences):
                break
        return draft

    def follow(self, draft: _Draft, data: bytes) -> int:
        """Take over what the target wrote; how many draft tokens of the round are wholly part of it."""
        before = self.ids[:-1] if draft.taken_back is not None else self.ids
        self.ids = translation.extend(self.model.tokenizer, self.ids, data)
        # Where the text agrees with the draft its tokens stay, so that the cache need not be fed again.
        kept = _kept(self.model.tokenizer, draft, data)
        told = before + draft.tokens[:kept]
        spelled = self.model.tokenizer.decode_bytes(told[max(0, len(before) - 1):])
        whole = self.model.tokenizer.decode_bytes(self.ids[max(0, len(before) - 1):])
        if kept and whole.startswith(spelled) and self.ids[:len(told)] != told:
            self.ids = translation.extend(self.model.tokenizer, told, whole[len(spelled):])
        return kept

    def _draw(self, logits: np.ndarray, uniforms: Uniforms) -> tuple[int, np.ndarray, float]:
        """One token from one row of logits (1, V_q): the token, the row it was drawn from, the drafter's probability."""
        logits = _mask(self.model, logits)
        if self.barred is not None:
            logits[:, self.barred] = -np.inf
        if self.options.temperature == 0:
            token = int(logits[0].argmax())
            return token, logits[0], float(1.0 / np.exp(logits[0] - logits[0, token]).sum())
        q = _probs(self.model, logits, self.options)[0]
        token = uniforms.choose(q)
        return token, q, float(q[token])

    def _forward(self, ids: list[int], rows: int = 1) -> np.ndarray:
        logits = self.model.forward(ids, self.cache, rows)
        self.fed += ids
        return logits

    def _trim(self, limit: int) -> None:
        """Forget the older half of a text that outgrows the drafter's context (the target's is never cut)."""
        if len(self.ids) + limit + 1 > self.model.context_size:
            self.ids = self.ids[-(self.model.context_size // 2):]


def _translate(pair: Pair, draft: _Draft, ids: list[int], options: Options, uniforms: Uniforms, lifting: Any,
               room: int) -> tuple[translation.Proposals, Callable[[np.ndarray], verification.Verdict]]:
    """The round's proposals, and the function that verifies them once the target's logits (m + 1, V_p) are there."""
    made = translation.Proposals()
    rule, target = options.verify, pair.target

    def probs(logits: np.ndarray) -> np.ndarray:
        return _probs(target, logits, options)

    def argmax(logits: np.ndarray) -> verification.Verdict:
        return verification.greedy(made.tokens, _mask(target, logits).argmax(-1).tolist())

    if rule in ("tli", "omnidraft"):
        match = pair.cache.longest_match if rule == "omnidraft" else (lambda tokens, start: None)
        spellings = pair.spellings if rule == "omnidraft" else {}
        made = translation.merge(draft.tokens, draft.probs, pair.alignment.draft_to_target, target.vocab_size, match,
                                 spellings)
        _cut(made, room)
        if options.temperature == 0:
            return made, argmax
        return made, lambda logits: verification.rejection_sampling(made.tokens, made.rows, probs(logits), uniforms)

    if rule == "slem" or options.temperature == 0:
        # With a target that is certain there is no law to protect: propose what it would itself write for the text.
        taken = pair.draft.tokenizer.decode_bytes([draft.taken_back]) if draft.taken_back is not None else b""
        data = pair.draft.tokenizer.decode_bytes(draft.tokens)[len(taken):]
        for token in translation.continuation(target.tokenizer, ids, data) if data else ():
            made.add(token, None, _span(pair, token))
        if draft.tokens and draft.tokens[-1] in pair.draft.eos_ids and target.eos_ids:
            end = int(pair.alignment.draft_to_target[draft.tokens[-1]])
            made.add(end if end >= 0 else target.eos_ids[0], None, 1)
        _cut(made, room)
        if options.temperature == 0:
            return made, argmax
        return made, lambda logits: verification.exact_match(made.tokens, probs(logits), uniforms)

    written = lifting.paths[draft.taken_back] if draft.taken_back is not None else ()
    revealed = list(lifting.reveal(draft.tokens, draft.probs, written))
    atoms, laws = [atom for atom, _, _ in revealed], [law for _, law, _ in revealed]
    for token, length in zip(*lifting.walk(atoms), strict=True):
        made.add(token, None, length)
    return made, lambda logits: verification.lossless(atoms, laws, lifting, probs(logits), uniforms)


def _span(pair: Pair, token: int) -> int:
    """Draft tokens that one proposed token stands for: 1 if it has a direct token, else the length of its n-gram."""
    return 1 if pair.alignment.target_to_draft[token] >= 0 else len(pair.cache.split_of(token) or (0,))


def _cut(made: translation.Proposals, room: int) -> None:
    for part in (made.tokens, made.rows, made.spans):
        del part[room:]


def _kept(tokenizer: Any, draft: _Draft, data: bytes) -> int:
    """How many draft tokens are wholly contained in the bytes that entered the text."""
    spelled = -len(tokenizer.decode_bytes([draft.taken_back])) if draft.taken_back is not None else 0
    whole = tokenizer.decode_bytes(draft.tokens)[-spelled:] if spelled else tokenizer.decode_bytes(draft.tokens)
    agreed = translation.common_prefix(whole, data)
    for kept, token in enumerate(draft.tokens):
        spelled += len(tokenizer.decode_bytes([token]))
        if spelled > agreed:
            return kept
    return len(draft.tokens)


def _mask(model: Any, logits: np.ndarray) -> np.ndarray:
    """Logits (rows, V) with what lies beyond the tokenizer (padding) ruled out."""
    if logits.shape[-1] > model.tokenizer.size:
        logits[..., model.tokenizer.size:] = -np.inf
    return logits


def _probs(model: Any, logits: np.ndarray, options: Options) -> np.ndarray:
    return process(_mask(model, logits), options.temperature, options.top_k, options.top_p)


def _prefill(model: Any, cache: Any, ids: list[int]) -> float:
    """Feed all but the last id (the first round feeds it); seconds."""
    began = perf_counter()
    if len(ids) > 1:
        model.forward(ids[:-1], cache)
    return perf_counter() - began


def _check_prompt(model: Any, ids: list[int], options: Options) -> None:
    if not ids:
        raise OmnidraftError("the prompt is empty: give some text to go on from")
    if len(ids) >= model.context_size:
        raise OmnidraftError(f"the prompt has {len(ids)} tokens, but {model.name} reads at most {model.context_size - 1}: "
                             "shorten it")
