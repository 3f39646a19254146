"""Online learning: the drafter aligns with its target while it serves (arXiv 2507.02659).

Every few prompts the drafter is updated on the texts that were written (Algorithm 2). An acceptance
head can be trained too: on the same batch (Algorithm 3), or between updates (Algorithm 4). The
learning rate follows the `guard`: it rises when weights are found better, and falls when they are
worse. So a drafter that knows nothing soon learns fast, and a good one slowly.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Integral
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
from ..text.errors import GENERATOR, UNIFORMS, OmnidraftError, expect, shown
from ..verification import acceptances
from .guard import Guard
from .optimizer import AdamW
from .replay import Memory
from .training import Trainer

WARM_UP = 1 / 16  # start at this share of the default rate: the drafter may be good already
SLOWER, FASTER = 1 / 4, 4  # factors of the rate after a roll-back, and after better weights
SLOWEST = 1 / 64  # smallest share of the rate after roll-backs: the stream may change slowly
HEAD_RATE = 1e-3  # of the head's optimizer
HEAD_MEMORY = 4096  # latest drafted tokens in the head's replay buffer


@dataclass(frozen=True)
class Schedule:
    """When to update what; defaults are the paper's, where it states them."""

    every: int = 8  # prompts between two updates of the drafter
    steps: int = 1  # gradient steps per update; 0: only the head learns
    replay: int = 0  # earlier texts, drawn at random, that join the new ones in every step
    memory: int = 256  # latest texts kept for replay
    memory_bytes: int = 1 << 30  # their maximum size (29 MB per text with 150,000 entries)
    head: str = "none"  # "joint" or "interleaved" trains the acceptance head too
    guard: int = 48  # updates without better weights until the guard rolls back; 0: no guard
    held_out: int = 8  # one in so many texts measures the gain and is not learned; 0: none

    def __post_init__(self) -> None:
        if self.head not in ("none", "joint", "interleaved"):
            raise OmnidraftError(f"unknown head {self.head!r}: choose none, joint or interleaved")
        for name, least in (("every", 1), ("steps", int(self.head == "none")), ("replay", 0),
                            ("memory", 0), ("memory_bytes", 0), ("guard", 0), ("held_out", 0)):
            if not (isinstance(value := getattr(self, name), Integral) and value >= least):
                raise OmnidraftError(f"{name} is {value}, but must be {least} or more, and whole")
        if self.head == "interleaved" and self.every == 1:
            raise OmnidraftError("the head learns between two updates: set every to 2 or more")


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
        self.pair, self.trainer, self.rng = pair, trainer, rng
        schedule = self.schedule = schedule or Schedule()
        if schedule.head != "none" and head is None:
            fresh = AcceptanceHead(trainer.base.embedding.shape[1])
            head = trainer.head_beside(trainer.base, fresh)
        self.head = head
        self.head_optimizer = head and AdamW(trainer.head_weights(head), HEAD_RATE, decay=0.0)
        self.batch: list[Example] = []
        self.memory = Memory(schedule.memory, schedule.memory_bytes, self._to_numpy)
        self.labelled: deque[tuple[Any, float]] = deque(maxlen=HEAD_MEMORY)
        self.served = self.fresh = 0  # texts; labelled tokens since the drafter's last update
        self.guard = Guard(trainer, schedule.guard)
        self.updates = self.skipped = self.rollbacks = 0
        self.statistics: dict[str, Any] = {}  # running sums, saved with the adapter
        self.version: int | None = None  # version of the saved adapter that it continues, if any
        # Names of the folders of versions that are its own ("": none yet); empty: any version is.
        self.saved_as: set[str] = set()

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
        began, learned, untouched = perf_counter(), Learned(prompt, rounds), []
        self.served += 1
        changed, size = self.pair.draft is not self.trainer.base, self.schedule.held_out
        held_out = uniforms and size and sum(ascii(prompt).encode()) % size == 0
        if held_out and changed:
            pair = copy(self.pair)
            pair.draft = self.trainer.base
            options = replace(self._options, stop=copy(self._options.stop), learn=False)
            untouched = list(speculative(pair, prompt, options, uniforms))
        elif not held_out:
            self._keep(learned)
        if self.served % self.schedule.every == 0:
            self._update(learned)
        elif self.schedule.head == "interleaved":
            self._train_head(256)
        return self._count(learned, began, untouched, changed)

    def _keep(self, learned: Learned) -> None:
        """Add the text to the next update's batch."""
        try:
            probs = self.trainer.rows(self._rows, self.pair.target.tokenizer.size)
            prompt = learned.prompt[1] if isinstance(learned.prompt, tuple) else learned.prompt
            example = make_example(self.pair, prompt, self._tokens, probs)
            self.batch += [example] if example.draft_ids else []  # the drafter may spell none of it
        except OmnidraftError as error:  # NaN in the target's rows
            self.skipped += 1
            learned.note = f"skipped: {error}"

    def close(self) -> Learned:
        """Learn from an incomplete batch at the end of the stream."""
        began, learned = perf_counter(), Learned("", [])
        self._update(learned)
        return self._count(learned, began)

    def _count(self, learned: Learned, began: float, untouched: Sequence[Round] = (),
               changed: bool = False) -> Learned:
        """Count a prompt, held out if `untouched`; `changed`: by a drafter that has learned."""
        learned.seconds = perf_counter() - began
        s, one, other = self.statistics, summarize(learned.rounds), summarize(untouched)
        new = {"prompts": int(bool(learned.rounds)), "tokens": one.tokens, "rounds": one.rounds,
               "drafted": one.drafted, "kept": one.draft_kept, "seconds": one.seconds,
               "learning_seconds": learned.seconds, "updates": int(learned.updated),
               "learned_tokens": one.tokens * changed}
        if untouched:
            new["held_out"] = 1
            for name in ("rounds", "seconds"):  # per token; squares for the standard errors
                now, before = (getattr(part, name) / part.tokens for part in (one, other))
                new |= {f"held_out_{name}": now, f"untouched_{name}": before,
                        f"squared_{name}": (before - now) ** 2}
        s |= {name: s.get(name, 0) + value for name, value in new.items()}
        (passes, sure), (seconds, error) = (saved(s, name) for name in ("rounds", "seconds"))
        if passes > sure and (seconds - error) * s["learned_tokens"] > s["learning_seconds"]:
            s.setdefault("paid_after_tokens", s["tokens"])
        else:
            s.pop("paid_after_tokens", None)
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
        self.updates += 1
        if not self.schedule.guard:
            self.pair.draft = self.trainer.model()

    def _guarded(self, now: dict[str, np.ndarray]) -> str:
        """Ask the guard, with the new texts before they are learned from; a note on the result."""
        better, s = self.guard.look(self.pair, self.batch[:4], now), self.statistics
        share = s.get("rate_share", WARM_UP if self.trainer.recipe.rate is None else 1.0)
        if better:
            self.trainer.restore(self.guard.best)
            self.pair.draft = self.trainer.model()
            self.trainer.restore(now)
            share = s["rate_share"] = min(1.0, FASTER * share)
        elif better is False:
            self.rollbacks += 1
            share = s["rate_share"] = min(share, max(SLOWEST, SLOWER * share))
        self.trainer.optimizer.rate = self.trainer.recipe.step_size(self.trainer.base) * share
        return "" if better is not False else f"rolled back; now at 1/{1 / share:.0f} of the rate"

    def _train_head(self, size: int) -> None:
        """One step of the head on the latest `size` labels, or, interleaved, on random ones."""
        if not self.labelled or not size:
            return
        chosen = range(max(0, len(self.labelled) - size), len(self.labelled))
        if self.schedule.head == "interleaved":
            chosen = self.rng.integers(len(self.labelled), size=size)
        features, labels = zip(*(self.labelled[i] for i in chosen), strict=True)
        self.head_optimizer.step(self.trainer.head_gradients(self.head, features, labels))

    def _to_numpy(self, rows: Any) -> np.ndarray:
        """Rows as an array: a copy to the host, if they are on a device."""
        return self.pair.sampler.to_numpy(rows)

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
        return [math.prod(part) for size in sizes if (part := [*islice(each, size)])]


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
            learned = learner.finish(read, rounds, uniforms)
            learned.prompt = prompt
            yield learned


def saved(statistics: dict[str, Any], name: str) -> tuple[float, float]:
    """The "rounds" or "seconds" per token that learning saves on held-out prompts, and two errors.

    (0.0, inf) for fewer than four. The error divides by n - 3, the spread of Student's t.
    """
    n, parts = statistics.get("held_out", 0), ("untouched", "held_out", "squared")
    if n < 4:
        return 0.0, math.inf
    before, now, square = (statistics.get(f"{part}_{name}", 0) / n for part in parts)
    return before - now, 2 * math.sqrt(max(0.0, square - (before - now) * (before - now)) / (n - 3))
