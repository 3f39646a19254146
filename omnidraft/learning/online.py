"""Online learning: the drafter aligns itself with the target that it serves (arXiv 2507.02659, Algorithms 2, 3 and 4).

For each prompt of a stream: decode speculatively, keep the text with the target's rows, and every few prompts update the
drafter on them (Algorithm 2). An acceptance head may learn along: on the same batch (joint, Algorithm 3), or from a larger
replay buffer on every prompt that brings no drafter update (interleaved, Algorithm 4). The learner is told every round by
the decoding loop, there is no second loop.

A `guard` looks at the new texts of every update before they are learned from: it brings the best weights back where the
acceptance expected on them fell, slows learning down then, and tells when the stream has turned to texts of another kind.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ..decoding import Round, speculative
from ..errors import OmnidraftError
from ..generation import Pair
from ..losses import Example, make_example
from ..metrics import summarize
from ..options import Options
from ..sampling import Uniforms, mask, process
from ..stopping import AcceptanceHead
from ..verification import acceptances
from .guard import LATEST, SLOWER, SLOWEST, Guard
from .optimizer import AdamW
from .training import Trainer


@dataclass(frozen=True)
class Schedule:
    """When what is updated; the defaults are the paper's where it has any."""

    every: int = 8  # prompts between two updates of the drafter
    steps: int = 1  # gradient steps of one update; 0: the drafter stays as it is, and the head alone learns
    replay: int = 0  # earlier texts, drawn at random, that join the new ones in every step
    memory: int = 256  # texts kept for replay, the latest ones; none from before the stream has turned (see `guard`)
    memory_bytes: int = 1 << 30  # that they may take
    head: str = "none"  # "joint" or "interleaved" trains the acceptance head too
    head_rate: float = 1e-3
    head_memory: int = 4096  # drafted tokens in the interleaved head's replay buffer; labels are not recomputed, old ones go
    rejected_weight: float = 1.0  # of rejections in the head's loss; arXiv 2405.19715 has 6, which stops earlier
    guard: int = 4  # updates between two decisions of the guard about the weights; 0 switches it off
    tolerance: float = 0.01  # by which the expected acceptance of new texts may fall

    def __post_init__(self) -> None:
        if self.head not in ("none", "joint", "interleaved"):
            raise OmnidraftError(f"unknown head training {self.head!r}: choose none, joint or interleaved")
        if self.every < 1 or self.steps < (self.head == "none"):
            raise OmnidraftError(f"updates every {self.every} prompts of {self.steps} steps: both must be 1 or more")
        if self.head == "interleaved" and self.every == 1:
            raise OmnidraftError("interleaved, the head learns from prompts that bring no update: update every 2 or more")
        for name in ("replay", "memory"):
            if getattr(self, name) < 0:
                raise OmnidraftError(f"{name} is {getattr(self, name)}, but must be 0 or more")


@dataclass
class Learned:
    """What one prompt brought: its rounds, and the update that followed it, if one did."""

    prompt: str | list[int]
    rounds: list[Round]
    updated: bool = False
    loss: float = math.nan
    seconds: float = 0.0  # spent on learning
    note: str = ""  # "skipped: ..." or "rolled back, ..."


class Learner:
    """Collects what a pair writes and updates `pair.draft`; an update replaces that model, so its caches start anew.

    >>> learner = Learner(pair, Trainer(pair.draft, Recipe(), rng), rng)
    >>> for learned in learn(learner, prompts, options, Uniforms(rng)): print(learned.loss)  # doctest: +SKIP
    """

    def __init__(self, pair: Pair, trainer: Trainer, rng: np.random.Generator, schedule: Schedule | None = None,
                 head: AcceptanceHead | None = None) -> None:
        self.pair, self.trainer, self.rng, self.schedule = pair, trainer, rng, schedule or Schedule()
        self.head = head
        if self.schedule.head != "none" and head is None:
            raise OmnidraftError(f"{self.schedule.head} training needs an acceptance head")
        self.head_optimizer = AdamW(head.parameters, self.schedule.head_rate, decay=0.0) if head else None
        self.batch: list[Example] = []
        self.memory: deque[Example] = deque(maxlen=self.schedule.memory)
        self.labelled: deque[tuple[np.ndarray, float]] = deque(maxlen=self.schedule.head_memory)
        self.served = 0  # texts
        self.fresh = 0  # labelled tokens since the last update of the drafter
        self.guard = Guard(trainer, self.schedule.guard, self.schedule.tolerance)
        self.updates = self.skipped = self.rollbacks = 0
        self.statistics: dict[str, Any] = {}  # running sums, kept with the adapter
        self._tokens: list[int] = []
        self._rows: list[np.ndarray] = []
        self._options = Options()

    # ---- told by the decoding loop ------------------------------------------------------------------------------
    def begin(self, options: Options) -> None:
        """A new text begins; what an unfinished one left is dropped."""
        self._tokens, self._rows, self._options = [], [], options

    def observe(self, draft: Any, proposals: Any, logits: np.ndarray, emitted: list[int], kept: int, done: bool) -> None:
        """Take in a round: the emitted tokens with the target's rows, and labels for the head's predictions.

        logits: (m + 1, V_p), of which the first len(emitted) rows are those that the emitted tokens were drawn from.
        """
        self._tokens += emitted
        self._rows.append(np.array(logits[:len(emitted)]))
        if self.head is None or not draft.features:
            return
        labels = self._labels(draft, proposals, logits, kept, done)
        first = len(draft.tokens) - len(draft.features)  # a healed token has no features
        pairs = list(zip(draft.features, labels[first:], strict=False))
        self.labelled.extend(pairs)
        self.fresh += len(pairs)

    def finish(self, prompt: str | list[int]) -> Learned:
        """The text after `prompt` (as for `make_example`) is complete: keep it, and update when its turn has come."""
        began, learned = perf_counter(), Learned(prompt, [])
        self.served += 1
        try:
            logits = mask(np.concatenate(self._rows), self.pair.target.tokenizer.size)
            self.batch.append(make_example(self.pair, prompt, self._tokens, process(logits).astype(np.float32)))
        except OmnidraftError as error:  # the target's rows are no numbers
            self.skipped += 1
            learned.note = f"skipped: {error}"
        if self.served % self.schedule.every == 0:
            self.update(learned)
        elif self.schedule.head == "interleaved":
            self._train_head(256)
        learned.seconds = perf_counter() - began
        return learned

    def update(self, learned: Learned) -> None:
        """Update drafter and head on the texts collected so far, if there are any; `learned` is told how it went."""
        if not self.batch:
            return
        learned.updated = True
        if self.schedule.steps:
            before = self.trainer.state()
            try:
                learned.loss, note = self._update(before)
            except BaseException:  # Ctrl-C: half a step, or the weights that the guard compares with, must not be what stays
                self.trainer.restore(before)
                raise
            learned.note = note or learned.note
        self.batch = []
        if self.schedule.head == "joint":
            self._train_head(self.fresh)
        self.fresh = 0

    def close(self) -> Learned:
        """Learn from the texts of a batch that the end of the stream cut short."""
        began, learned = perf_counter(), Learned("", [])
        self.update(learned)
        learned.seconds = perf_counter() - began
        self.count(learned)
        return learned

    def count(self, learned: Learned) -> None:
        """Add what a prompt brought to the running statistics; the first prompts, before any update, are the baseline."""
        summary, first = summarize(learned.rounds), not self.statistics.get("updates")
        new = {"prompts": int(bool(learned.rounds)), "tokens": summary.tokens, "rounds": summary.rounds,
               "drafted": summary.drafted, "kept": summary.draft_kept, "seconds": summary.seconds,
               "learning_seconds": learned.seconds, "updates": int(learned.updated), "baseline_tokens": summary.tokens * first,
               "baseline_seconds": summary.seconds * first}
        for name, value in new.items():
            self.statistics[name] = self.statistics.get(name, 0) + value
        s = self.statistics
        saved = s["tokens"] * s["baseline_seconds"] / max(1, s["baseline_tokens"]) - s["seconds"] - s["learning_seconds"]
        if saved > 0 and s["updates"]:
            s.setdefault("paid_after_tokens", s["tokens"])
        else:
            s.pop("paid_after_tokens", None)

    # ---- updates --------------------------------------------------------------------------------------------------
    def _update(self, now: dict[str, np.ndarray]) -> tuple[float, str]:
        """Gradient steps from the state `now` on; the loss, and a note where they were skipped or undone."""
        value, note = math.nan, self._guarded(now) if self.schedule.guard else ""
        for _ in range(self.schedule.steps):
            drawn = self.rng.permutation(len(self.memory))[:self.schedule.replay]
            value = self.trainer.step(self.pair, [*self.batch, *(self.memory[i] for i in drawn)])
            if not math.isfinite(value):
                self.skipped += 1
                note = "skipped: the loss was not finite"
                break
        if math.isfinite(value):  # what could not be learned from is not replayed
            self._remember(self.batch)
        self.updates += 1
        self.pair.draft = self.trainer.model()
        return value, note

    def _remember(self, texts: list[Example]) -> None:
        """Keep texts for replay, the oldest go: their rows of a vocabulary of 150,000 take 80 MB a text."""
        self.memory.extend(texts)
        while sum(text.target_probs.nbytes for text in self.memory) > self.schedule.memory_bytes and len(self.memory) > 1:
            self.memory.popleft()

    def _guarded(self, now: dict[str, np.ndarray]) -> str:
        """Ask the guard about the new texts before they are learned from, and do as it says; what was done."""
        note = self.guard.look(self.pair, self.batch[:2], now)
        if note:
            self.rollbacks += 1
            share = self.statistics.get("rate_share", 1.0)
            self.statistics["rate_share"] = min(share, max(SLOWEST, SLOWER * share))  # one kept earlier may be smaller
            self.trainer.slow_down(self.statistics["rate_share"] / share)
            note += f"; on at 1/{1 / self.statistics['rate_share']:.0f} of the rate"
        if self.guard.turned():  # what is new came since the last LATEST updates, the present one being the last of them
            new = (LATEST - 1) * self.schedule.every
            self.memory = deque(list(self.memory)[-new:], self.schedule.memory)
            self.trainer.slow_down(1 / self.statistics.pop("rate_share", 1.0))
            note += "; " * bool(note) + "texts of another kind: those before are no longer replayed, the rate is whole again"
        return note

    def _train_head(self, size: int) -> None:
        """One step of the head on the latest `size` labelled tokens (joint) or as many drawn from the buffer (interleaved)."""
        if not self.labelled or not size:
            return
        chosen = range(max(0, len(self.labelled) - size), len(self.labelled))
        if self.schedule.head == "interleaved":
            chosen = self.rng.integers(len(self.labelled), size=size)
        features, labels = zip(*(self.labelled[i] for i in chosen), strict=True)
        _, gradients = self.head.loss(np.stack(features), np.array(labels, np.float32), self.schedule.rejected_weight)
        self.head_optimizer.step(gradients)

    def _labels(self, draft: Any, proposals: Any, logits: np.ndarray, kept: int, done: bool) -> list[float]:
        """P(accepted) of each drafted token given that all before it were, as far as this round can tell.

        Under `lossless` at temperature > 0 the product of min(1, P/Q) over the token's atoms (this project's own), else 1
        for the tokens that were kept and 0 for the first that was not.
        """
        if not proposals.atoms:
            return [1.0] * kept + [0.0] * (kept < len(draft.tokens) and not done)
        options, to_numpy = self._options, self.pair.sampler.to_numpy
        lifting = getattr(proposals.lifting, "host", proposals.lifting)  # that the round was verified with
        rows = process(mask(logits, self.pair.target.tokenizer.size), options.temperature, options.top_k, options.top_p)
        drawn = [(to_numpy(row), prefix) for row, prefix in proposals.drawn]
        each = acceptances(proposals.atoms, drawn, lifting, rows)
        written = len(lifting.paths[draft.taken_back]) if draft.taken_back is not None else 0
        labels, place = [], 0
        for token in draft.tokens:
            path = lifting.paths[token]
            part = each[place:place + (len(path) - written if path else 1)]
            if not part:
                break
            labels.append(math.prod(part))
            place, written = place + len(part), 0
        return labels


def learn(learner: Learner, prompts: Iterable[str], options: Options, uniforms: Uniforms) -> Iterator[Learned]:
    """Serve the prompts one after another and learn from them; what each one brought. Prompts that do not fit are passed over.

    The learner may be used further, after a stop as well: it is whole after every prompt.
    """
    for prompt in prompts:
        learner.begin(options)
        try:
            rounds = list(speculative(learner.pair, prompt, options, uniforms, learner))
        except OmnidraftError as error:
            yield Learned(prompt, [], note=f"passed over: {error}")
            continue
        learned = learner.finish(prompt)
        learned.rounds = rounds
        learner.count(learned)
        yield learned
