"""The decoding loop: draft, translate, verify, update (arXiv 2507.02659, Algorithm 1)."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Any, Protocol, runtime_checkable

from .drafting import Draft, Drafter
from .options import Options, as_ids
from .pairing import Pairing
from .reading import Reader
from .sampling import Sampler, Uniforms
from .text.errors import OmnidraftError, shown
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
    # The same by `clock_of`, with what the drafter took to read what it had missed as "late".
    costs: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class Observer(Protocol):
    """What learns from a text: the loop calls `observe` after every round."""

    def observe(self, draft: Draft, proposals: Proposals, logits: Any, emitted: list[int],
                kept: int, done: bool) -> None:
        """A round, as `learning.online.Learner` takes it."""


def plain(model: Any, prompt_ids: str | Sequence[int], options: Options, uniforms: Uniforms,
          text: "Text | None" = None) -> Iterator[Round]:
    """Ordinary decoding, a token per round: the baseline. Arguments are as for `speculative`."""
    laps = Laps(clock_of(model))
    text = text or Text(model)
    text.begin(prompt_ids, (), options, uniforms)  # no drafter reads it
    laps.end("prefill")
    while not text.done:
        logits = text.forward([])  # (1, V)
        laps.end("target")
        emitted = list(choices(logits, text.ids, options, text.sampler, model))
        text.append(emitted)
        laps.end("other")
        yield Round(emitted=emitted, kinds=["bonus"], seconds=laps.seconds, done=text.done,
                    costs=laps.costs)
        laps = Laps(laps.clock)


def clock_of(*models: Any) -> Callable[[], float]:
    """The clock for costs: a CPU's is the time of this thread, which no other work lengthens.

    Of several threads of PyTorch or BLAS, this one computes its share. A device computes while the
    thread waits: its clock is the one on the wall.
    """
    is_on_cpu = all(str(getattr(model, "device", "cpu")) == "cpu" for model in models)
    if is_on_cpu and os.name != "nt":  # Windows counts in steps of 16 ms
        return thread_time
    return perf_counter


class Laps:
    """How long each part of a round took: on the wall clock, and by the clock for costs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}
        self.costs: dict[str, float] = {}
        self._began = perf_counter()
        self._costs_began = clock()

    def end(self, part: str) -> None:
        """What happened since the last call (or the start) belongs to this part."""
        now = perf_counter()
        costs_now = self.clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._began
        self.costs[part] = self.costs.get(part, 0.0) + costs_now - self._costs_began
        self._began = now
        self._costs_began = costs_now


def speculative(pair: Pairing, prompt: str | tuple[Sequence[int], Sequence[int]], options: Options,
                uniforms: Uniforms, learner: Observer | None = None, text: "Text | None" = None,
                pace: Any = None) -> Iterator[Round]:
    """The drafter proposes, the target verifies (arXiv 2507.02659, Algorithm 1).

    `prompt` is a text, or a pair of ids for the two models (in V_p, in V_q). With the `Text` of an
    earlier call, what both models have read of it is not read again. `learner.observe`
    (`learning.online`) is called after every round. A round drafts if `pace.drafts()`
    (`pairs.pace`); in others the drafter does nothing. Raises OmnidraftError as `check_prompt`.
    """
    laps = Laps(clock_of(pair.draft, pair.target))
    text = text or Text(pair)
    prompts = (prompt, prompt) if isinstance(prompt, str) else prompt
    text.begin(*prompts, options, uniforms)
    laps.end("prefill")
    while not text.done:
        # 1. Draft d_1..d_k from q, if that pays. The drafter first reads what it has missed.
        drafts = pace is None or pace.drafts(text)
        draft = text.draft(laps) if drafts else Draft()

        # 2. Translate them to proposals t_1..t_m in the target's vocabulary.
        proposals = text.propose(draft)
        laps.end("other")

        # 3. One pass of the target over all of them: rows p_1..p_{m+1}.
        logits = text.forward(proposals.tokens)  # (m + 1, V_p)
        laps.end("target")

        # 4. Verify: keep the proposals that the target accepts, then add one token of its own.
        verdict = judge(proposals, logits, text.ids, options, text.sampler, pair.target, text.room)
        emitted = until_end(verdict.emitted, text.ends)

        # 5. Both models continue from the new text; the learner and the n-gram cache observe it.
        kept = text.follow(draft, emitted, drafts)
        if learner is not None:
            learner.observe(draft, proposals, logits, emitted, kept, text.done)
        laps.end("other")
        record = _record(draft, proposals, verdict, emitted, kept, laps, text.done)
        if pace is not None:
            pace.observe(record, drafts)
        yield record
        laps = Laps(laps.clock)


class Text:
    """A text that a pair writes, or a model alone: the only ledger of its ids.

    `begin` starts it, or continues it with another prompt: what both models have read stays read.
    """

    def __init__(self, writer: Any) -> None:
        self.pair = writer
        self.model = getattr(writer, "target", writer)
        self.target: Reader | None = None
        self.drafter: Drafter | None = None

    def begin(self, prompt: str | Sequence[int], draft_prompt: str | Sequence[int],
              options: Options, uniforms: Uniforms) -> None:
        """Start after a prompt: the target reads it, except for its last id."""
        ids = check_prompt(self.model, prompt)
        self.options = options
        self.ends = options.ends(self.model)
        self.end = min(len(ids) + int(options.max_new_tokens), self.model.context_size)
        self.done = False
        self.sampler = getattr(self.pair, "sampler", Sampler)(uniforms, *options.sampling)
        self.lifting = None
        if options.rule.lifts and isinstance(self.pair, Pairing):
            self.lifting = self.sampler.lifting(self.pair.lifting, self.model)
        if self.target is None:
            self.target = Reader(self.model, self.sampler.new_cache(self.model))
        self.target.begin(ids, keep=1)
        self.start = len(ids)
        self.draft_prompt = draft_prompt
        self.drafted = 0  # so many of the target's ids are in the drafter's text; 0: it is asleep

    @property
    def ids(self) -> list[int]:
        """The text in the target's tokens."""
        return self.target.ids

    @property
    def draft_ids(self) -> list[int] | None:
        """The text in the drafter's tokens, or None if the drafter has not followed it."""
        if self.drafted < len(self.ids):
            return None
        return self.drafter.ids

    @property
    def room(self) -> int:
        """How many proposals fit; the target adds one token of its own."""
        return self.end - len(self.ids) - 1

    def wake(self) -> None:
        """Let the drafter read what it has missed."""
        if not self.drafted:
            reader = None
            if self.drafter is not None:  # of an earlier prompt
                reader = self.drafter.reader
            self.drafter = Drafter(self.pair, self.draft_prompt, self.options, self.sampler, reader)
            self.drafted = self.start
        missed = self.ids[self.drafted:]
        if missed:
            self._adopt(Draft(), missed)

    def draft(self, laps: Laps) -> Draft:
        """Step 1. If the drafter can spell nothing of the text, it drafts nothing."""
        self.wake()
        laps.end("late")
        draft = Draft()
        if self.room > 0 and self.options.stop.limit > 0 and self.drafter.ids:
            draft = self.drafter.draft(self.lifting, self.room)
        laps.end("draft")
        return draft

    def propose(self, draft: Draft) -> Proposals:
        """Step 2, at most `room` proposals: one draft token may expand to several."""
        room = self.room
        rule = self.options.rule
        proposals = rule.propose(self.pair, draft, self.ids, self.sampler, self.lifting)
        del proposals.tokens[room:], proposals.spans[room:], proposals.probs[room:]
        return proposals

    def forward(self, proposals: list[int]) -> Any:
        """Step 3: the target's logits (m + 1, V_p) after the text and after each proposal."""
        return self.sampler.finished(self.target.read(proposals, len(proposals) + 1))

    def follow(self, draft: Draft, emitted: list[int], drafts: bool) -> int:
        """Step 5: adopt what was emitted; returns how many draft tokens it fully contains."""
        self.append(emitted)
        if drafts:
            return self._adopt(draft, emitted)
        if self.done and self.options.learn:
            self.wake()
        return 0

    def append(self, emitted: list[int]) -> None:
        """Add what was emitted to the target's text."""
        self.target.append(emitted)
        self.done = emitted[-1] in self.ends or len(self.ids) >= self.end

    def _adopt(self, draft: Draft, emitted: list[int]) -> int:
        """Add what was emitted to the drafter's text; with `learn`, also to the n-gram cache."""
        written = self.pair.target.tokenizer.pieces(emitted)
        same_ids = emitted if self.pair.one_vocabulary else None
        silent = written.count(b"")
        kept = self.drafter.follow(draft, b"".join(written), silent, same_ids)
        self.drafted += len(emitted)
        if self.options.learn:
            self._learn_ngrams(emitted)
        return kept

    def _learn_ngrams(self, emitted: list[int]) -> None:
        """Insert the n-grams of what was emitted into the pair's cache."""
        draft_ids = self.drafter.ids[-8 * len(emitted):]  # 8 a token suffice, from the end
        self.pair.cache.observe(draft_ids, emitted, self.pair.draft.tokenizer,
                                self.pair.target.tokenizer)


def _record(draft: Draft, proposals: Proposals, verdict: Verdict, emitted: list[int], kept: int,
            laps: Laps, done: bool) -> Round:
    accepted = min(verdict.accepted, len(emitted))  # an end token may cut the proposals short
    kinds = ["merged" if span > 1 else "accepted" for span in proposals.spans[:accepted]]
    kinds += [verdict.last] * (len(emitted) - accepted)
    seconds = laps.seconds
    late = seconds.pop("late", 0.0)
    if late:
        seconds["prefill" if "prefill" in seconds else "draft"] += late
    return Round(draft.tokens, proposals.tokens, proposals.spans, accepted, emitted, kinds, kept,
                 seconds, done, laps.costs)


def processed(logits: Any, ids: list[int], options: Options) -> Any:
    """Apply `options.processor` to logits (n, V) in place; `ids`: all before the last row."""
    if options.processor is None:
        return logits
    first = len(ids) - len(logits) + 1  # number of ids before the first row
    for row in range(len(logits)):
        made = options.processor(ids[:first + row], logits[row])
        if getattr(made, "shape", None) != logits[row].shape:
            name = getattr(options.processor, "__name__", options.processor)
            raise OmnidraftError(f"the logits processor {name} returned {shown(made)}, but must "
                                 f"return logits of shape {tuple(logits[row].shape)}")
        logits[row] = made
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
