"""Online learning: the drafter aligns with its target while it serves (arXiv 2507.02659).

Every few prompts the drafter is updated on the texts that were written (Algorithm 2). An acceptance
head can be trained too: on the same batch (Algorithm 3), or between updates (Algorithm 4). The
learning rate follows the `guard`: it falls when weights are found worse, and rises again when they
are better. So a drafter that has much to learn does so fast, and a good one slowly.
"""

import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from ..decoding import Round, speculative
from ..losses import Example, make_example
from ..metrics import summarize
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..stopping import AcceptanceHead
from ..text.errors import GENERATOR, UNIFORMS, OmnidraftError, expect, expect_number, shown
from ..verification import acceptances
from .guard import Guard
from .training import AdamW, Trainer

WARM_UP = 10  # steps in which the guarded rate rises: Adam's first steps are rough
SLOWER, FASTER = 1 / 4, 4  # factors of the rate after a roll-back, and after better weights
SLOWEST = 1 / 64  # smallest share of the rate after roll-backs: the stream may change slowly
HEAD_RATE = 1e-3  # of the head's optimizer
HEAD_MEMORY = 4096  # latest drafted tokens in the head's replay buffer
LEAST = 1e-7  # probability that is kept for replay: some 5,000 of 150,000, with 0.9995 of the mass


@dataclass(frozen=True)
class Schedule:
    """When to update what; defaults are the paper's, where it states them."""

    every: int = 8  # prompts between two updates of the drafter
    steps: int = 1  # gradient steps per update; 0: only the head learns
    replay: int = 0  # earlier texts, drawn at random, that join the new ones in every step
    memory: int = 256  # latest texts kept for replay
    memory_bytes: int = 1 << 30  # their maximum size (6 MB for a text with 150,000 entries)
    head: str = "none"  # "joint" or "interleaved" trains the acceptance head too
    guard: int = 48  # updates without better weights until the guard rolls back; 0: no guard
    held_out: int = 8  # one in so many texts measures the gain and is not learned; 0: none

    def __post_init__(self) -> None:
        if self.head not in ("none", "joint", "interleaved"):
            raise OmnidraftError(f"unknown head {self.head!r}: choose none, joint or interleaved")
        least = {"every": 1, "steps": int(self.head == "none")}
        for name in ("every", "steps", "replay", "memory", "memory_bytes", "guard", "held_out"):
            lowest = least.get(name, 0)
            expect_number(name, getattr(self, name), f"from {lowest}", lowest)
        if self.head == "interleaved" and self.every == 1:
            raise OmnidraftError("the head learns between two updates: set every to 2 or more")


@dataclass
class Statistics:
    """Sums over all prompts that a drafter has served while it learned; saved with its adapter.

    A held-out prompt is answered by both drafters, the learned one and the untouched one; of these
    there are sums of the rounds and seconds per token, and of the squares of their differences.
    """

    prompts: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    kept: int = 0  # drafted tokens that entered the text
    seconds: float = 0.0
    learning_seconds: float = 0.0
    updates: int = 0
    learned_tokens: int = 0  # written with a drafter that had learned
    held_out: int = 0
    held_out_rounds: float = 0.0
    held_out_seconds: float = 0.0
    untouched_rounds: float = 0.0
    untouched_seconds: float = 0.0
    squared_rounds: float = 0.0
    squared_seconds: float = 0.0
    rate_share: float = 1.0  # of the rate, found with the guard
    paid_after_tokens: int | None = None  # None: learning has not paid off
    # "served HASH": prompts of the source with this hash. Of the held-out prompts 1, 2-3, 4-7, ...
    # their number ("curve 3 prompts" of the third group) and sums of rounds per token ("curve 3
    # before", "curve 3 now")
    others: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Statistics":
        """Read what `to_json` wrote; other names are ignored."""
        made = cls()
        for name, value in content.items():
            if name.startswith(("served ", "curve ")):
                made.others[name] = value
            elif name in vars(made) and name != "others":
                setattr(made, name, value)
        return made

    def to_json(self) -> dict[str, Any]:
        """All numbers that are known, by name."""
        content = vars(self) | self.others
        del content["others"]
        return {name: value for name, value in content.items() if value is not None}

    def add(self, **numbers: float) -> None:
        """Add to the sums with these names."""
        for name, number in numbers.items():
            setattr(self, name, getattr(self, name) + number)

    def count(self, rounds: Sequence[Round], untouched: Sequence[Round], changed: bool) -> None:
        """Count a prompt; held out if the `untouched` drafter's rounds are given.

        changed: it was answered by a drafter that has learned.
        """
        one = summarize(rounds)
        self.add(prompts=1, tokens=one.tokens, rounds=one.rounds, drafted=one.drafted,
                 kept=one.draft_kept, seconds=one.seconds, learned_tokens=one.tokens * changed)
        if not untouched:
            return
        other = summarize(untouched)
        self.held_out += 1
        group = self.held_out.bit_length()
        for name, number in (("prompts", 1), ("before", other.rounds / other.tokens),
                             ("now", one.rounds / one.tokens)):
            key = f"curve {group} {name}"
            self.others[key] = self.others.get(key, 0) + number
        for name in ("rounds", "seconds"):
            now = getattr(one, name) / one.tokens
            before = getattr(other, name) / other.tokens
            self.add(**{f"held_out_{name}": now, f"untouched_{name}": before,
                        f"squared_{name}": (before - now) ** 2})

    def saved(self, name: str) -> tuple[float, float]:
        """The "rounds" or "seconds" per token saved on held-out prompts, and two errors.

        (0.0, inf) for fewer than four. The error divides by n - 3, the spread of Student's t.
        """
        n = self.held_out
        if n < 4:
            return 0.0, math.inf
        gain = (getattr(self, f"untouched_{name}") - getattr(self, f"held_out_{name}")) / n
        variance = max(0.0, getattr(self, f"squared_{name}") / n - gain * gain)
        return gain, 2 * math.sqrt(variance / (n - 3))

    def tokens_per_pass(self) -> tuple[float, float]:
        """On held-out prompts, before and after learning; zeros for fewer than four."""
        if self.held_out < 4:
            return 0.0, 0.0
        count = self.held_out
        return count / (self.untouched_rounds or count), count / (self.held_out_rounds or count)

    def note_payoff(self) -> None:
        """Note after how many tokens learning has saved more time than it took, beyond chance."""
        passes, two_errors = self.saved("rounds")
        seconds, error = self.saved("seconds")
        least = (seconds - error) * self.learned_tokens
        if passes <= two_errors or least <= self.learning_seconds:
            self.paid_after_tokens = None
        elif self.paid_after_tokens is None:
            self.paid_after_tokens = self.tokens


@dataclass
class Learned:
    """The result of one prompt: its rounds, and the update that followed it, if any."""

    prompt: Any  # a text, a chat, or the ids that target and drafter read for it
    rounds: list[Round]
    updated: bool = False
    loss: float = math.nan
    seconds: float = 0.0  # spent on learning
    note: str = ""  # "skipped: ...", "prompt skipped: ..." or "rolled back; ..."


class Learner:
    """Collects what a pair writes and updates `pair.draft`; a guard lets only better weights draft.

    >>> learner = Learner(pair, Trainer(pair.draft, Recipe(), rng), rng)
    >>> losses = [learned.loss for learned in learn(learner, prompts, options, Uniforms(rng))]
    """

    def __init__(self, pair: Pairing, trainer: Trainer, rng: np.random.Generator,
                 schedule: Schedule | None = None, head: AcceptanceHead | None = None) -> None:
        expect("rng", rng, np.random.Generator, GENERATOR)
        expect("schedule", schedule, (None, Schedule), "a Schedule")
        expect("head", head, (None, AcceptanceHead), "an AcceptanceHead")
        schedule = schedule or Schedule()
        self.pair = pair
        self.trainer = trainer
        self.rng = rng
        self.schedule = schedule
        if schedule.head != "none" and head is None:
            head = AcceptanceHead(trainer.base.embedding.shape[1])
        if head and not head.on_host:
            raise OmnidraftError("the head is PyTorch's: give a stopping.AcceptanceHead to learn")
        self.head = head
        self.head_optimizer = head and AdamW(head.parameters, HEAD_RATE, decay=0.0)
        self.batch: list[Example] = []
        self.memory = Memory(schedule.replay and schedule.memory, schedule.memory_bytes,
                             pair.sampler.to_numpy)
        self.labelled: deque[tuple[Any, float]] = deque(maxlen=HEAD_MEMORY)
        self.served = 0  # texts
        self.fresh = 0  # labelled tokens since the drafter's last update
        self.guard = Guard(trainer, schedule.guard)
        self.skipped = 0
        self.rollbacks = 0
        self.statistics = Statistics()
        # Where it may be saved: after the version with this checksum ("": none; None: any), and
        # after versions with its own name.
        self.follows: str | None = None
        self.writer = secrets.token_hex(8)

    def begin(self, options: Options) -> None:
        """Begin a new text; drop what an unfinished one left."""
        self._tokens, self._rows, self._options = [], [], options

    def observe(self, draft: Any, proposals: Any, logits: Any, emitted: list[int], kept: int,
                done: bool) -> None:
        """Record a round: its tokens with the target's rows, and labels for the head.

        logits: (m + 1, V_p), an array or a tensor on the models' device; the emitted tokens were
        drawn from the first len(emitted) rows.
        """
        self._tokens += emitted
        self._rows.append(deepcopy(logits[:len(emitted)]))
        if self.head and draft.features:
            healed = len(draft.tokens) - len(draft.features)  # a healed token has no features
            labels = self._labels(draft, proposals, logits, kept, done)[healed:]
            self.labelled.extend(zip(draft.features, labels, strict=False))
            self.fresh += min(len(draft.features), len(labels))

    def finish(self, prompt: Any, rounds: list[Round],
               uniforms: Uniforms | None = None) -> Learned:
        """The text after `prompt` is complete: keep it, and update if it is time.

        With `uniforms` some prompts are held out, whenever they come: they are never learned from.
        Once the drafter has changed, the untouched one also answers these, for the statistics.
        """
        began = perf_counter()
        learned = Learned(prompt, rounds)
        untouched: list[Round] = []
        self.served += 1
        changed = self.pair.draft is not self.trainer.base
        size = self.schedule.held_out
        read = self.pair.read(prompt)
        held_out = uniforms and size and is_held_out(prompt, size)
        if held_out and changed:
            pair = copy(self.pair)
            pair.draft = self.trainer.base
            options = replace(self._options, stop=copy(self._options.stop), learn=False)
            untouched = list(speculative(pair, read, options, uniforms))
        elif not held_out:
            self._keep(read, learned)
        if self.served % self.schedule.every == 0:
            self._update(learned)
        elif self.schedule.head == "interleaved":
            self._train_head(256)
        if rounds:
            self.statistics.count(rounds, untouched, changed)
        return self._timed(learned, began)

    def _keep(self, prompt: Any, learned: Learned) -> None:
        """Add the text to the next update's batch; prompt: a text, or the ids for both models."""
        if isinstance(prompt, tuple):
            prompt = prompt[1]
        try:
            probs = self.trainer.rows(self._rows, self.pair.target.tokenizer.size)
            example = make_example(self.pair, prompt, self._tokens, probs)
        except OmnidraftError as error:  # NaN in the target's rows
            self.skipped += 1
            learned.note = f"skipped: {error}"
            return
        if example.draft_ids:  # the drafter may spell none of it
            self.batch.append(example)

    def close(self) -> Learned:
        """Learn from an incomplete batch at the end of the stream."""
        began = perf_counter()
        learned = Learned("", [])
        self._update(learned)
        return self._timed(learned, began)

    def _timed(self, learned: Learned, began: float) -> Learned:
        """Count the time that learning took since `began`, and whether it has paid off."""
        learned.seconds = perf_counter() - began
        self.statistics.add(learning_seconds=learned.seconds, updates=learned.updated)
        self.statistics.note_payoff()
        return learned

    def _update(self, learned: Learned) -> None:
        """Update drafter and head on the texts collected so far, if any; fills in `learned`."""
        if not self.batch:
            return
        learned.updated = True
        if self.schedule.steps:
            before = self.trainer.state()
            try:
                self._steps(before, learned)
            except BaseException:  # Ctrl-C must not leave half a step or the weights of the guard
                self.trainer.restore(before)
                self.guard.compared = []  # subtle: it may see this batch again
                raise
        self.batch = []
        if self.schedule.head == "joint":
            self._train_head(self.fresh)
        self.fresh = 0

    def _steps(self, now: dict[str, np.ndarray], learned: Learned) -> None:
        """Gradient steps from the state `now`, after the guard has looked at the new texts."""
        if self.schedule.guard:
            learned.note = self._guarded(now) or learned.note
        for _ in range(self.schedule.steps):
            drawn = self.rng.permutation(len(self.memory))[:self.schedule.replay]
            texts = [*self.batch, *(self.memory[i] for i in drawn)]
            learned.loss = self.trainer.step(self.pair, texts)
            if not math.isfinite(learned.loss):  # do not replay what cannot be learned from
                self.skipped += 1
                learned.note = "skipped: the loss was not finite"
                break
        else:
            for text in self.batch:
                self.memory.add(text)
        if not self.schedule.guard:
            self.pair.draft = self.trainer.model()

    def _guarded(self, now: dict[str, np.ndarray]) -> str:
        """Ask the guard, with the new texts before they are learned from; a note on the result."""
        trainer = self.trainer
        better = self.guard.look(self.pair, self.batch[:4], now)
        note = ""
        share = self.statistics.rate_share
        if better:
            trainer.restore(self.guard.best)
            self.pair.draft = trainer.model()
            trainer.restore(now)
            share = min(1.0, FASTER * share)
        elif better is False:
            self.rollbacks += 1
            share = max(SLOWEST, SLOWER * share)
            note = f"rolled back; now at 1/{1 / share:.0f} of the rate"
        self.statistics.rate_share = share
        warm = min(1.0, (trainer.optimizer.steps.item() + 1) / WARM_UP)
        trainer.optimizer.rate = trainer.recipe.step_size(trainer.base) * share * warm
        return note

    def _train_head(self, size: int) -> None:
        """One step of the head on the latest `size` labels, or, interleaved, on random ones."""
        if not self.labelled or not size:
            return
        chosen = range(max(0, len(self.labelled) - size), len(self.labelled))
        if self.schedule.head == "interleaved":
            chosen = self.rng.integers(len(self.labelled), size=size)
        features, labels = zip(*(self.labelled[i] for i in chosen), strict=True)
        seen = np.stack(features)  # (n, F)
        _, gradients = self.head.loss(seen, np.array(labels, np.float32), rejected_weight=1.0)
        self.head_optimizer.step(gradients)

    def _labels(self, draft: Any, proposals: Any, logits: Any, kept: int,
                done: bool) -> list[float]:
        """P(accepted) of each drafted token given those before it, as far as this round shows."""
        if not proposals.atoms:  # 1 for each kept token, and 0 for the first one not kept
            return [1.0] * kept + [0.0] * (kept < len(draft.tokens) and not done)
        # The product of the `acceptances` of the token's atoms (this project's own). Subtle:
        # `pair.lifting` may have changed since this round was verified.
        lifting = proposals.lifting
        sampler = self.pair.sampler(Uniforms([]), *self._options.sampling)
        rows = sampler.rows(logits, self.pair.target.tokenizer.size)
        each = iter(acceptances(proposals.atoms, proposals.origins, lifting, rows))
        sizes = [len(lifting.paths[token] or (None,)) for token in draft.tokens]
        if draft.taken_back is not None:  # the atoms of the healed token are in the text already
            sizes[0] -= len(lifting.paths[draft.taken_back])
        labels = [list(islice(each, size)) for size in sizes]  # of the atoms of each token
        return [math.prod(part) for part in labels if part]


def is_held_out(prompt: Any, size: int) -> bool:
    """Is it the one in `size` prompts that is never learned from? By its text, so always the same.

    One in 8 is also one in 4.
    """
    return sum(ascii(prompt).encode()) % size == 0


def learn(learner: Learner, prompts: Iterable[Any], options: Options,
          uniforms: Uniforms) -> Iterator[Learned]:
    """Serve the prompts in turn and learn; yields each result. The learner can be used again.

    A prompt is a text or, for a pair that `omnidraft.pair` made, also a chat: messages, each with
    "role" and "content", which both models read through their templates. OmnidraftError for other
    arguments; a prompt that cannot be read is skipped, and its note says why.
    """
    expect("learner", learner, Learner, "a Learner")
    expect("prompts", prompts, Iterable, "a list of prompts")
    if isinstance(prompts, (str, bytes)):  # each of its characters would be a prompt
        raise OmnidraftError(f"prompts is {shown(prompts)}, but must be a list of prompts")
    expect("options", options, Options, "Options")
    expect("uniforms", uniforms, Uniforms, UNIFORMS)
    for prompt in prompts:
        learner.begin(options)
        try:
            read = learner.pair.read(prompt)
            rounds = list(speculative(learner.pair, read, options, uniforms, learner))
        except OmnidraftError as error:
            yield Learned(prompt, [], note=f"prompt skipped: {error}")
        else:
            yield learner.finish(prompt, rounds, uniforms)


class Memory:
    """The latest texts for replay: at most `texts`, and one or as many as fit into `size` bytes.

    Of their rows only entries above `LEAST` are kept; in the Examples that it returns, the others
    have about their mean. `to_numpy` makes arrays of rows that are tensors.
    """

    def __init__(self, texts: int, size: int, to_numpy: Callable[[Any], np.ndarray]) -> None:
        self.size = size
        self._to_numpy = to_numpy
        self._texts: deque[tuple] = deque(maxlen=texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> Example:
        text, shape, entries, probs = self._texts[place]
        rows = np.full(shape, LEAST / 30, np.float32)  # subtle: not 0, as `dm` takes the logarithm
        rows.flat[entries] = probs
        return replace(text, target_probs=rows)

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take."""
        return sum(entries.nbytes + probs.nbytes for *_, entries, probs in self._texts)

    def add(self, text: Example) -> None:
        """Keep this text too, and forget the oldest that no longer fit."""
        rows = self._to_numpy(text.target_probs)
        entries = np.flatnonzero(rows > LEAST)
        kept = replace(text, target_probs=None)
        self._texts.append((kept, rows.shape, entries, rows.flat[entries]))
        while self.nbytes > self.size and len(self._texts) > 1:
            self._texts.popleft()
