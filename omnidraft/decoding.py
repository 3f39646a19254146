"""The decoding loop: draft, translate, verify, update; one `Round` record each (arXiv 2507.02659, Algorithm 1).

`speculative` yields the rounds of a pair, `plain` those of the target alone (the baseline that every speedup is measured
against). Nothing here prints; renderer, metrics, tests and lessons read the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, fields
from time import perf_counter
from typing import Any

import numpy as np

from . import translation, verification
from .drafting import Draft, Drafter
from .errors import OmnidraftError
from .ops import ops_of
from .pairing import Pair
from .sampling import Uniforms
from .stopping import Confidence, Payoff, Stop, Throughput
from .warm import Warm, check_prompt


@dataclass(frozen=True)
class Options:
    """How to decode: the rule, how far to draft, how to sample, when to end."""

    verify: str = "lossless"  # one of verification.RULES
    stop: Stop = Confidence()  # noqa: RUF009 (frozen); its `limit` bounds the draft length
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    max_new_tokens: int = 128
    heal: bool = True  # take back a context token that a longer draft token begins with (`lossless` only)
    payoff: bool = False  # decode plainly for a while where drafting costs more than it gains
    learn: bool = False  # insert the n-grams of the written text into the cache
    do_sample: InitVar[bool | None] = None  # as transformers has it: False is temperature 0, True never is (0 becomes 1)

    def __post_init__(self, do_sample: bool | None) -> None:
        whole, number = (int, np.integer), (int, float, np.number)
        for name, kind in {"temperature": number, "top_k": whole, "top_p": number, "max_new_tokens": whole}.items():
            if (value := getattr(self, name)) is None:  # transformers' word for the default
                object.__setattr__(self, name, getattr(Options, name))
            elif not isinstance(value, kind):
                raise OmnidraftError(f"{name} is {value!r}, but must be a {'whole ' if kind is whole else ''}number")
        if do_sample is not None:
            object.__setattr__(self, "temperature", (self.temperature or 1.0) if do_sample else 0.0)
        limit = getattr(self.stop, "limit", 0)
        for wrong, line in (
            (not isinstance(limit, (int, np.integer)), f"draft length is {limit!r}, but must be a whole number"),
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

    @classmethod
    def of(cls, draft_length: int = 12, threshold: float = 0.4, do_sample: bool | None = None, tune: bool = False,
           **settings: Any) -> Options:
        """Options by the names that transformers users know.

        `draft_length` and `threshold` make the confidence rule, unless a `stop` is given; with `tune` the threshold follows the
        measured throughput. Raises OmnidraftError for a name or value that will not do.

        >>> Options.of(do_sample=True, top_p=0.9, draft_length=4).temperature
        1.0
        """
        known = {field.name for field in fields(cls)}
        if unknown := settings.keys() - known:
            raise OmnidraftError(f"unknown option {min(unknown)!r}: choose from draft_length, threshold, do_sample, tune, "
                                 + ", ".join(sorted(known)))
        if not 0 <= threshold <= 1:
            raise OmnidraftError(f"threshold is {threshold}, but must be from 0 to 1")
        settings.setdefault("stop", (Throughput if tune else Confidence)(draft_length, threshold=threshold))
        return cls(**settings, do_sample=do_sample)


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


def plain(model: Any, prompt_ids: Sequence[int], options: Options, uniforms: Uniforms,
          warm: Warm | None = None) -> Iterator[Round]:
    """Ordinary decoding: one token of `model` per round, from what `warm` holds on.

    >>> [r.emitted for r in plain(model, ids, Options(max_new_tokens=2), Uniforms(rng))]  # doctest: +SKIP
    [[17], [4]]
    """
    ops, ids = ops_of(model), check_prompt(model, prompt_ids)
    (cache, took), uniforms = (warm or Warm()).read(model, ops, ids), ops.draws(uniforms)
    seconds = {"prefill": took}
    for count in range(1, options.max_new_tokens + 1):
        began = perf_counter()
        with ops.inference():
            logits = ops.wait(model.forward(ids[cache.length:], cache))
            seconds["target"] = perf_counter() - began
            logits = ops.mask(logits, model.tokenizer.size)
            if options.temperature == 0:
                drawn = ops.best(logits)
            else:
                drawn = [uniforms.choose(ops.process(logits, options.temperature, options.top_k, options.top_p)[0])]
            [token] = ops.to_host(drawn, model.vocab_size)
        ids.append(token)
        seconds["other"] = perf_counter() - began - seconds["target"]
        done = token in model.eos_ids or count == options.max_new_tokens or len(ids) >= model.context_size
        yield Round(emitted=[token], kinds=["bonus"], seconds=seconds, done=done)
        seconds = {}
        if done:
            return


def speculative(pair: Pair, prompt: str | tuple[Sequence[int], Sequence[int]], options: Options, uniforms: Uniforms,
                learner: Any = None, warm: Warm | None = None) -> Iterator[Round]:
    """Speculative decoding of `prompt`: the drafter proposes, the target verifies (arXiv 2507.02659, Algorithm 1).

    `prompt` is a text, or what the target and the drafter read for it (ids in V_p, ids in V_q); what `warm` holds of it is
    not read again. `learner.observe` is told every round (`online.Learner`). Raises OmnidraftError for an empty prompt or
    one that leaves no room in the target's context.

    >>> rounds = list(speculative(pair, "Question: ...", Options(), Uniforms(rng)))  # doctest: +SKIP
    """
    target, tokenizer, ops = pair.target, pair.target.tokenizer, pair.ops
    target_prompt, draft_prompt = (prompt, prompt) if isinstance(prompt, str) else prompt
    ids, warm = check_prompt(target, target_prompt), warm or Warm()
    first_new, payoff, uniforms = len(ids), Payoff(), ops.draws(uniforms)
    lifting = ops.lift(pair.lifting, target) if options.verify == "lossless" else None
    drafter = warm.drafter = Drafter(pair, draft_prompt, options, warm.drafter)
    cache, took = warm.read(target, ops, ids)
    seconds = {"prefill": took + drafter.prefill()}
    while True:
        began = perf_counter()
        room = min(options.max_new_tokens - (len(ids) - first_new), target.context_size - len(ids)) - 1
        # A drafter that can spell nothing of the text (no begin token, no byte fallback) has nothing to go on from.
        drafts = room > 0 and options.stop.limit > 0 and bool(drafter.ids) and (not options.payoff or payoff.drafts())
        with ops.inference():
            draft = drafter.draft(uniforms, lifting, room) if drafts else Draft()
            seconds["draft"] = perf_counter() - began
            proposals, verify = _translate(pair, draft, ids, options, uniforms, lifting, room)

            before = perf_counter()
            logits = ops.wait(target.forward(ids[cache.length:] + proposals.tokens, cache, rows=len(proposals.tokens) + 1))
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
        written = [tokenizer.decode_bytes([token]) for token in emitted]
        kept = drafter.follow(draft, b"".join(written), written.count(b""))
        if learner is not None:
            learner.observe(draft, proposals, ops.to_numpy(logits), emitted, kept, done)
        if options.learn:
            for longest in (count, count + 1):  # one more only where the drafter spells across the round's beginning
                tails = translation.common_tail(pair.draft.tokenizer, drafter.ids, tokenizer, ids, longest)
                if len(tails[1]) == longest:
                    break
            pair.cache.observe(*tails, pair.draft.tokenizer, tokenizer, fresh=count)
        took = perf_counter() - began
        seconds["other"] = took - seconds["draft"] - seconds["target"]
        payoff.record(drafts, took, count)
        record = Round(draft.tokens, proposals.tokens, proposals.spans, accepted, emitted, kinds, kept, seconds, done)
        options.stop.record(record)
        yield record
        seconds = {}
        if done:
            return


def _translate(pair: Pair, draft: Draft, ids: list[int], options: Options, uniforms: Uniforms, lifting: Any,
               room: int) -> tuple[translation.Proposals, Callable[[np.ndarray], verification.Verdict]]:
    """The round's proposals, and the function that verifies them once the target's logits (m + 1, V_p) are there."""
    made = translation.Proposals()
    rule, target, ops = options.verify, pair.target, pair.ops

    def probs(logits: np.ndarray) -> Sequence[np.ndarray]:
        return ops.rows(ops.mask(logits, target.tokenizer.size),
                        lambda some: ops.process(some, options.temperature, options.top_k, options.top_p))

    def argmax(logits: np.ndarray) -> verification.Verdict:
        return ops.greedy(made.tokens, ops.best(ops.mask(logits, target.tokenizer.size)))

    if rule in ("tli", "omnidraft"):
        match = pair.cache.longest_match if rule == "omnidraft" else (lambda tokens, start: None)
        spellings = pair.spellings if rule == "omnidraft" else {}
        made = translation.merge(draft.tokens, draft.probs, pair.direct, match, spellings,
                                 ops.Translated if options.temperature else None)
        _cut(made, room)
        if options.temperature == 0:
            return made, argmax
        return made, lambda logits: ops.rejection_sampling(made.tokens, made.rows, probs(logits), uniforms)

    if rule == "slem" or options.temperature == 0:
        # With a target that is certain there is no law to protect: propose what it would itself write for the text.
        data = draft.data(pair.draft.tokenizer)
        if rule == "lossless" and pair.one_vocabulary:  # a word that the draft cut short is not spelled anew
            proposals = [token for token in draft.tokens if token not in pair.draft.eos_ids]
        else:
            proposals = translation.continuation(target.tokenizer, ids, data) if data else []
        for token in proposals:
            made.add(token, None, _span(pair, token))
        if draft.tokens and draft.tokens[-1] in pair.draft.eos_ids and target.eos_ids:
            end = int(pair.alignment.draft_to_target[draft.tokens[-1]])
            made.add(end if end >= 0 else target.eos_ids[0], None, 1)
        _cut(made, room)
        if options.temperature == 0:
            return made, argmax
        return made, lambda logits: ops.exact_match(made.tokens, probs(logits), uniforms)

    in_text = lifting.paths[draft.taken_back] if draft.taken_back is not None else ()
    atoms, laws = lifting.reveal(draft.tokens, draft.probs, in_text)
    made.atoms, made.laws = atoms, laws
    for token, length in zip(*lifting.walk(atoms), strict=True):
        made.add(token, None, length)
    _cut(made, room)  # one draft token may spell more target tokens than there is room for
    return made, lambda logits: ops.lossless(atoms, laws, lifting, probs(logits), uniforms, room)


def _span(pair: Pair, token: int) -> int:
    """Draft tokens that one proposed token stands for: 1 if it has a direct token, else the length of its n-gram."""
    return 1 if pair.alignment.target_to_draft[token] >= 0 else len(pair.cache.split_of(token) or (0,))


def _cut(made: translation.Proposals, room: int) -> None:
    for part in (made.tokens, made.rows, made.spans):
        del part[room:]
