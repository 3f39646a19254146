"""`omnidraft adapt`: serve a stream of prompts, from which the drafter learns its target."""

import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import Adapters, Learner, OmnidraftError, Round
from ..learning import online
from ..metrics import summarize
from ..pairs.prompts import uniforms_of
from ..text.errors import expect_number
from ..text.files import make_folder_of
from . import options
from .app import command
from .generate import describe
from .printing import emit, escape, note, progress
from .prompts import TASKS, asked, read_prompts

ENOUGH = 6  # held-out prompts: at least four of them come after the first change of the drafter
SHOWN = 16  # latest prompts whose figures are shown
KEPT_EVERY = 8  # updates between two saves


@command("omnidraft adapt math",
         "omnidraft adapt prompts.jsonl --target llama3-like --loss hybrid --rank 16",
         "cat prompts.txt | omnidraft adapt - --head interleaved --adapters ./adapters",
         "omnidraft adapt math --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
         "omnidraft adapt gsm8k.jsonl --target smollm2",
         "omnidraft adapt math --paper",
         draft_length=8, threshold=0.2, temperature=1.0)
def adapt(
    *, source: Annotated[str, typer.Argument(show_default=False, help=options.SOURCE)],
    context: typer.Context,
    models: options.Models,
    chat: options.Chat = None,
    paper: options.Paper = False,
    learning: options.Learning,
    decoding: options.Decoding,
    limit: Annotated[int, options.learning(
        help="Serve at most this many prompts.", show_default="all")] = sys.maxsize,
    adapters: options.Store = None,
    save: Annotated[bool, options.output(
        help="Save the adapter.")] = True,
    json_lines: options.JsonLines = False,
) -> None:
    """Serve prompts and learn from them. Ctrl-C stops; the next run resumes."""
    # 1. Read and check the input, before anything slow.
    how = decoding.options()
    if paper:
        options.check_paper(vars(decoding) | vars(learning))
    expect_number("limit", limit, "from 1", 1)
    store = Adapters(adapters)
    if save and adapters:
        make_folder_of(store.root / "any")
    prompts, total = read_prompts(source)

    # 2. Load the models, and continue with what was learned.
    pair = models.pair(learns=True)
    if save:  # refuse here, before the start, if another run is learning into this adapter
        context.with_resource(store.writing(pair))
    share = 8
    if total:
        again = islice(read_prompts(source)[0], min(limit, total))
        share = held_out_share(asked(pair.target, again, chat))
    if paper:
        how = options.as_in_paper(pair, how)
    rng = np.random.default_rng(decoding.seed)
    learner = store.resume(pair, learning.recipe(), learning.schedule(share, paper), rng,
                           shipped=learning.rank is None)
    introduce(learner)

    # 3. Serve the prompts that no earlier run has served, and learn.
    place = place_of(source)
    begin = served_before(learner, place, total)
    if begin:
        note(f"skipping the first {begin} prompts of {source}, served in an earlier run")
    end = min(begin + limit, total or sys.maxsize)
    requests = islice(asked(pair.target, prompts, chat), begin, end)
    how = options.with_head(how, learner.head)
    run = Run(learner, store if save else None, place, begin, json_lines)
    run.serve(online.learn(learner, requests, how, uniforms_of(decoding.seed)),
              size=end - begin if total else None)

    # 4. Save, and say what was learned.
    run.end(source)


def held_out_share(prompts: Iterable[Any]) -> int:
    """One in how many of these prompts to hold out: enough, if there are enough prompts."""
    counts = dict.fromkeys((8, 4, 2), 0)
    with suppress(OmnidraftError):  # a bad line is reported when its turn comes
        for prompt in prompts:
            for share in counts:
                counts[share] += online.is_held_out(prompt, share)
    return max((share for share, count in counts.items() if count >= ENOUGH), default=8)


def introduce(learner: Learner) -> None:
    """Say where learning starts, and how it will be measured."""
    share = learner.schedule.held_out
    with suppress(OSError):  # if nobody reads this, the drafter learns all the same
        if learner.statistics.prompts and not learner.follows:
            note("starting from the shipped adapter (--rank 32 starts a new one)")
        note(f"one in {share} prompts is held out to measure the gain: {ENOUGH} of them "
             f"({share * ENOUGH} prompts) say something, 30 ({share * 30}) show a gain of 10 %")


@dataclass
class Run:
    """The prompts that one command serves: counted, shown, and from time to time saved.

    Only the latest figures are kept: a run may have no end.
    """

    learner: Learner
    store: Adapters | None  # None: nothing is saved
    place: str  # where the statistics count the prompts of this source,
    begin: int  # and from where on
    as_json: bool
    count: int = 0
    latest: deque[online.Learned] = field(default_factory=lambda: deque(maxlen=SHOWN))
    stopped: bool = False
    failed: BaseException | None = None

    def serve(self, learning: Iterator[online.Learned], size: int | None) -> None:
        """Serve `size` prompts (None: unknown), until they end or something else ends the run."""
        try:
            with progress() as bar:
                for learned in bar.track(learning, size):
                    self._show(learned, bar)
                    self._keep(learned)
        except KeyboardInterrupt:  # Ctrl-C, `kill`, or a terminal that was closed
            self.stopped = True  # subtle: said later, since a closed terminal takes no more text
        except (OmnidraftError, UnicodeDecodeError, OSError, SystemExit) as error:
            self.failed = error  # a bad prompt, a closed output (Rich then exits)

    def _show(self, learned: online.Learned, bar: Any) -> None:
        """Count a prompt, with notes and the latest figures on stderr."""
        self.count += 1
        self.latest.append(learned)
        tau = summarize(rounds_of(self.latest)).block_efficiency
        bar.update(bar.task_ids[0], description=f"{tau:.2f} tokens per target pass")
        if learned.note:
            bar.console.print(escape(learned.note), markup=False, soft_wrap=True)

    def _keep(self, learned: online.Learned) -> None:
        """Print the figures of a prompt if asked to, and save every few updates."""
        learner = self.learner
        learner.statistics.others[self.place] = self.begin + self.count
        if self.as_json:
            emit({"type": "prompt",
                  **vars(summarize(learned.rounds)),
                  "loss": None if math.isnan(learned.loss) else learned.loss,
                  "learning_seconds": learned.seconds,
                  "updated": learned.updated,
                  "note": learned.note})
        if self.store and learned.updated and learner.statistics.updates % KEPT_EVERY == 0:
            self.store.keep(learner)

    def end(self, source: str) -> None:
        """Learn from what is left, save, and say what was learned; raises what ended the run."""
        if self.stopped and not self.count:
            raise OmnidraftError("stopped early: nothing new was learned")
        if not self.learner.served:
            raise self.failed or OmnidraftError(
                f"no prompt in {source} could be served ({self.latest[-1].note})")
        last = self.learner.close().note
        try:
            if self.store:  # before anything is printed, as that may fail
                note(f"saved to {self.store.keep(self.learner)}")
        finally:
            self.tell(last)
        if self.failed:
            raise self.failed

    def tell(self, last: str) -> None:
        """Say how the run ended: its `last` note, the latest prompts, the `verdict`."""
        learner = self.learner
        if self.as_json:
            emit({"type": "summary", **learner.statistics.to_json(), "rollbacks": learner.rollbacks,
                  "skipped": learner.skipped})
        latest = describe(summarize(rounds_of(self.latest)))
        if self.stopped:
            note("stopped")
        if last:
            note(last)
        note(f"last {len(self.latest)} prompts: {latest}\n"
             f"{verdict(learner.statistics)}; {learner.rollbacks} rollbacks in this run")


def rounds_of(some: Iterable[online.Learned]) -> Iterator[Round]:
    """All rounds of some prompts."""
    return (record for learned in some for record in learned.rounds)


def place_of(source: str) -> str:
    """Where statistics count the prompts of a source; adapters are shared, so they hold no path."""
    what = source
    if source not in TASKS and source != "-":
        what = str(Path(source).resolve())
    return f"served {sha256(what.encode()).hexdigest()[:12]}"


def served_before(learner: Learner, place: str, total: int | None) -> int:
    """How many prompts of a source earlier runs have served; 0 if all, to start again."""
    served = learner.statistics.others.get(place, 0)
    return served if served < (total or 0) else 0


def verdict(found: online.Statistics) -> str:
    """What held-out prompts show, and whether learning has paid off in all."""
    total = f"total: {found.prompts} prompts, {found.tokens} tokens, {found.updates} updates"
    if found.updates <= found.prompts:
        share = found.learning_seconds / (found.seconds + found.learning_seconds or 1)
        paid = "not yet"
        if found.paid_after_tokens is not None:
            paid = f"after {found.paid_after_tokens} tokens"
        total += (f"; learning took {share:.0%} of the time; "
                  f"paid off compared with the original drafter: {paid}")
    return (f"{found.held_out} held-out prompts, decoded with both drafters: {gain(found)}\n"
            f"{total}")


def curve(found: online.Statistics) -> list[tuple]:
    """How many tokens a pass of the target brought, over the held-out prompts in their order."""
    rows = [("held-out prompts", "tokens per pass before", "after learning", "")]
    for group in range(1, 64):
        count, before, now = (found.others.get(f"curve {group} {name}")
                              for name in ("prompts", "before", "now"))
        if count and before and now:
            tau = count / now
            rows.append((f"{2 ** (group - 1)}-{2 ** group - 1}", f"{count / before:.2f}",
                         f"{tau:.2f}", "█" * min(round(8 * tau), 60)))
    return rows


def gain(found: online.Statistics) -> str:
    """Passes of the target that learning saves, with the standard error of the share."""
    before, now = found.tokens_per_pass()
    if not now:
        return "too few to say"
    share, error = found.saved("rounds")
    means = "no gain beyond chance"
    if share > error:
        means = "gained"
    elif share < -error:
        means = "lost"
    return (f"{before:.2f} tokens per target pass before, {now:.2f} after learning "
            f"({share * before:+.1%} passes saved, ± {error * before:.1%}): {means}")
