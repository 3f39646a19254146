"""The decoding loop: draft, translate, verify, update (arXiv 2507.02659, Algorithm 1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .drafting import Draft, Drafter, continue_from
from .options import Options, as_ids
from .pairing import Pairing
from .sampling import Sampler, Uniforms
from .text.errors import OmnidraftError
from .translation import Proposals, until_end
from .verification import Verdict, exact_match


@dataclass
class Round:
    """One round: what was drafted and proposed, what entered the text, and how long it took."""

    draft_tokens: list[int] = field(default_factory=list)  # ids in V_q
    proposals: list[int] = field(default_factory=list)  # ids in V_p
    spans: list[int] = field(default_factory=list)  # draft tokens (or atoms) of each proposal
    accepted: int = 0  # number of proposals kept
    emitted: list[int] = field(default_factory=list)  # ids in V_p that enter the text
    # Per emitted token: "accepted", "merged" (from several draft tokens), "recovered" or "bonus".
    kinds: list[str] = field(default_factory=list)
    draft_kept: int = 0  # draft tokens whose bytes all entered the text
    seconds: dict[str, float] = field(default_factory=dict)  # draft, target, other; first: prefill
    done: bool = False


@dataclass
class Warm:
    """What both models have read, so that the next turn of a conversation feeds only the new part.

    The loop keeps it up to date. Discard it if an exception interrupted a round.
    """

    ids: list[int] = field(default_factory=list)  # the target's ids
    cache: Any = None  # the target's KV cache
    drafter: Drafter | None = None

    def read(self, model: Any, sampler: Sampler, ids: list[int]) -> Any:
        """The target's cache, holding all `ids` but the last, which the first round feeds."""
        if self.cache is None:
            self.cache = sampler.new_cache(model)
        continue_from(model, self.cache, self.ids[:self.cache.length], ids, keep=1)
        self.ids = ids
        return self.cache


def plain(model: Any, prompt_ids: str | Sequence[int], options: Options, uniforms: Uniforms,
          warm: Warm | None = None) -> Iterator[Round]:
    """Ordinary decoding, a token per round: the baseline. Arguments are as for `speculative`."""
    began = perf_counter()
    ids = check_prompt(model, prompt_ids)
    sampler = getattr(model, "sampler", Sampler)(uniforms, *options.sampling)
    cache = (warm or Warm()).read(model, sampler, ids)
    ends = options.ends(model)
    end_of_text = min(len(ids) + options.max_new_tokens, model.context_size)
    seconds = {"prefill": perf_counter() - began}
    done = False
    while not done:
        began = perf_counter()
        logits = sampler.finished(model.forward(ids[cache.length:], cache))  # (1, V)
        seconds["target"] = perf_counter() - began
        [token] = choices(logits, ids, options, sampler, model)
        ids.append(token)
        seconds["other"] = perf_counter() - began - seconds["target"]
        done = token in ends or len(ids) >= end_of_text
        yield Round(emitted=[token], kinds=["bonus"], seconds=seconds, done=done)
        seconds = {}


def speculative(pair: Pairing, prompt: str | tuple[Sequence[int], Sequence[int]], options: Options,
                uniforms: Uniforms, learner: Any = None, warm: Warm | None = None,
                pace: Any = None) -> Iterator[Round]:
    """The drafter proposes, the target verifies (arXiv 2507.02659, Algorithm 1).

    `prompt` is a text, or a pair of ids for the two models (in V_p, in V_q). The part of it that
    `warm` holds is not read again. `learner.observe` (`learning.online`) is called after every
    round. A round drafts if `pace.drafts()` (`pairs.pace`); in others the drafter does nothing,
    and `warm` has none. Raises OmnidraftError as `check_prompt` does.
    """
    began = perf_counter()
    text = Text(pair, prompt, options, uniforms, warm or Warm())
    if pace is None:
        text.wake()
    seconds = {"prefill": perf_counter() - began}
    while not text.done:
        # 1. Draft d_1..d_k from q, if that pays.
        drafts = pace is None or pace.drafts(text)
        late = text.wake() if drafts and pace else 0.0
        began = perf_counter()
        draft = text.draft() if drafts else text.rest()
        seconds["draft"] = perf_counter() - began

        # 2. Translate them to proposals t_1..t_m in the target's vocabulary.
        proposals = text.propose(draft)

        # 3. One pass of the target over all of them: rows p_1..p_{m+1}.
        before = perf_counter()
        logits = text.forward(proposals)  # (m + 1, V_p)
        seconds["target"] = perf_counter() - before

        # 4. Verify: keep the proposals that the target accepts, then add one token of its own.
        verdict = judge(proposals, logits, text.ids, options, text.sampler, pair.target, text.room)
        emitted = until_end(verdict.emitted, text.ends)

        # 5. Both models continue from the new text; the learner and the n-gram cache observe it.
        kept = text.follow(draft, emitted)
        if learner is not None:
            learner.observe(draft, proposals, logits, emitted, kept, text.done)
        if options.learn and drafts:
            text.learn_ngrams(emitted)
        seconds["other"] = perf_counter() - began - seconds["draft"] - seconds["target"]
        record = _record(draft, proposals, verdict, emitted, kept, seconds, text.done)
        if pace is not None:
            first = "prefill" in seconds
            pace.observe(record, drafts, 0.0 if first else late)
            seconds["prefill" if first else "draft"] += late
        yield record
        seconds = {}


class Text:
    """A text that a pair writes: both models' ids and caches, between the rounds of the loop."""

    def __init__(self, pair: Pairing, prompt: str | tuple[Sequence[int], Sequence[int]],
                 options: Options, uniforms: Uniforms, warm: Warm) -> None:
        self.pair = pair
        self.options = options
        target_prompt = draft_prompt = prompt
        if not isinstance(prompt, str):
            target_prompt, draft_prompt = prompt
        self.ids = check_prompt(pair.target, target_prompt)
        self.end = min(len(self.ids) + options.max_new_tokens, pair.target.context_size)
        self.ends = options.ends(pair.target)
        self.sampler = pair.sampler(uniforms, *options.sampling)
        self.lifting = None
        if options.rule.lifts:
            self.lifting = self.sampler.lifting(pair.lifting, pair.target)
        self.done = False
        self.warm = warm
        self.cache = warm.read(pair.target, self.sampler, self.ids)
        self.draft_prompt = draft_prompt
        self.drafter: Drafter | None = None  # until it is needed
        self.before = warm.drafter  # that of an earlier text, whose cache is reused
        self.unread: list[int] = []  # what was written since the drafter read

    @property
    def room(self) -> int:
        """How many proposals fit; the target adds one token of its own."""
        return self.end - len(self.ids) - 1

    def wake(self) -> float:
        """Let the drafter read what it has missed; seconds."""
        began = perf_counter()
        if self.drafter is None:
            self.drafter = Drafter(self.pair, self.draft_prompt, self.options, self.sampler,
                                   self.before)
        unread, self.unread = self.unread, []
        if unread:
            self._adopt(Draft(), unread)
            if self.options.learn:
                self.learn_ngrams(unread)
        self.warm.drafter = self.drafter
        return perf_counter() - began

    def rest(self) -> Draft:
        """Step 1 of a round in which the target writes alone: no draft."""
        self.warm.drafter = None
        return Draft()

    def draft(self) -> Draft:
        """Step 1. If the drafter can spell nothing of the text, it drafts nothing."""
        if self.room > 0 and self.options.stop.limit > 0 and self.drafter.ids:
            return self.drafter.draft(self.lifting, self.room)
        return Draft()

    def propose(self, draft: Draft) -> Proposals:
        """Step 2, at most `room` proposals: one draft token may expand to several."""
        room = self.room
        rule = self.options.rule
        proposals = rule.propose(self.pair, draft, self.ids, self.sampler, self.lifting)
        del proposals.tokens[room:], proposals.spans[room:], proposals.probs[room:]
        return proposals

    def forward(self, proposals: Proposals) -> Any:
        """Step 3: the target's logits (m + 1, V_p) after the text and after each proposal."""
        new = self.ids[self.cache.length:] + proposals.tokens
        rows = len(proposals.tokens) + 1
        return self.sampler.finished(self.pair.target.forward(new, self.cache, rows=rows))

    def follow(self, draft: Draft, emitted: list[int]) -> int:
        """Step 5: both models adopt what was emitted; how many draft tokens it fully contains."""
        self.ids += emitted
        self.done = emitted[-1] in self.ends or len(self.ids) >= self.end
        self.cache.rewind(min(self.cache.length, len(self.ids) - 1))
        if self.warm.drafter is None:  # it reads this later
            self.unread += emitted
            if self.done and (self.drafter is not None or self.options.learn):
                self.wake()
            return 0
        return self._adopt(draft, emitted)

    def _adopt(self, draft: Draft, emitted: list[int]) -> int:
        written = self.pair.target.tokenizer.pieces(emitted)
        same_ids = emitted if self.pair.one_vocabulary else None
        silent = written.count(b"")
        return self.drafter.follow(draft, b"".join(written), silent, same_ids)

    def learn_ngrams(self, emitted: list[int]) -> None:
        """Insert the n-grams of what was emitted into the pair's cache."""
        draft_ids = self.drafter.ids[-8 * len(emitted):]  # 8 a token suffice, from the end
        self.pair.cache.observe(draft_ids, emitted, self.pair.draft.tokenizer,
                                self.pair.target.tokenizer)


def _record(draft: Draft, proposals: Proposals, verdict: Verdict, emitted: list[int], kept: int,
            seconds: dict[str, float], done: bool) -> Round:
    accepted = min(verdict.accepted, len(emitted))  # an end token may cut the proposals short
    kinds = ["merged" if span > 1 else "accepted" for span in proposals.spans[:accepted]]
    kinds += [verdict.last] * (len(emitted) - accepted)
    return Round(draft.tokens, proposals.tokens, proposals.spans, accepted, emitted, kinds, kept,
                 seconds, done)


def processed(logits: Any, ids: list[int], options: Options) -> Any:
    """Apply `options.processor` to logits (n, V) in place; `ids`: all before the last row."""
    if options.processor is None:
        return logits
    first = len(ids) - len(logits) + 1  # number of ids before the first row
    for row in range(len(logits)):
        logits[row] = options.processor(ids[:first + row], logits[row])
    return logits


def choices(logits: Any, ids: list[int], options: Options, sampler: Sampler,
            model: Any) -> Iterator[int]:
    """What the model itself writes at each of logits (n, V); `ids`: all before the last row.

    subtle: a row is processed when its choice is asked for. So a processor may keep state: it is
    called once per token of the text, in order, and never for what follows a rejection or an end.
    """
    if options.processor is None:
        yield from sampler.choices(logits, model.tokenizer.size)
        return
    first = len(ids) - len(logits) + 1  # number of ids before the first row
    ends = options.ends(model)
    token = None
    for row in range(len(logits)):
        if token not in ends:
            one = processed(logits[row:row + 1], ids[:first + row], options)
            [token] = sampler.choices(one, model.tokenizer.size)
        yield token  # after an end it is never written: no need to look for another


def judge(proposals: Proposals, logits: Any, ids: list[int], options: Options, sampler: Sampler,
          target: Any, room: int) -> Verdict:
    """The verdict on a round's proposals (m,) after `ids`, given logits (m + 1, V_p)."""
    ids = ids + proposals.tokens
    if options.exact_match:
        return exact_match(proposals.tokens, choices(logits, ids, options, sampler, target))
    rows = sampler.rows(processed(logits, ids, options), target.tokenizer.size)
    return options.rule.judge(proposals, rows, sampler.uniforms, room)


def check_prompt(model: Any, prompt: str | Sequence[int]) -> list[int]:
    """The ids of a prompt, a text or ids; OmnidraftError if it is empty or too long."""
    most = model.context_size * model.tokenizer.longest
    if not isinstance(prompt, str):
        prompt = ids = as_ids("the prompt", prompt)
    elif len(prompt) > most:  # too long in any tokenization: do not encode it
        raise OmnidraftError(f"the prompt has {len(prompt)} characters, but {model.name} reads at "
                             f"most {model.context_size - 1} tokens ({most} bytes): shorten it")
    else:
        ids = model.tokenizer.encode(prompt, bos=True)
    if not prompt:
        raise OmnidraftError("the prompt is empty: give some text to continue")
    if not ids:
        raise OmnidraftError(f"no token of {model.name} spells any of the prompt: write it in "
                             "characters that the model knows")
    if len(ids) >= model.context_size:
        raise OmnidraftError(f"the prompt has {len(ids)} tokens, but {model.name} reads at most "
                             f"{model.context_size - 1}: shorten it")
    return ids
