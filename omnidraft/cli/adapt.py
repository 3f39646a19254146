"""`omnidraft adapt`: serve a stream of prompts, from which the drafter learns its target."""

import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from .. import Adapters, Learner, OmnidraftError, Round
from ..learning import online
from ..learning.training import Recipe
from ..metrics import summarize
from ..pairs.prompts import uniforms_of
from ..text.files import make_folder_of
from . import options
from .app import command
from .generate import describe
from .printing import console, emit, escape, note
from .prompts import TASKS, asked, read_prompts

SHOWN = 16  # prompts whose figures are shown: the first of a run, and the latest
KEPT_EVERY = 8  # updates between two saves


@command("omnidraft adapt math",
         "omnidraft adapt prompts.jsonl --target llama3-like --loss hybrid --rank 16",
         "cat prompts.txt | omnidraft adapt - --head interleaved --adapters ./adapters",
         "omnidraft adapt math --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
         "omnidraft adapt gsm8k.jsonl --target smollm2",
         draft_length=8, threshold=0.2, temperature=1.0)
def adapt(
    *, source: Annotated[str, typer.Argument(show_default=False, help=options.SOURCE)],
    context: typer.Context,
    models: options.Models,
    chat: options.Chat = None,
    loss: Annotated[str, options.learning(
        help="lifted, dm or hybrid (the paper's).")] = "lifted",
    rank: Annotated[int | None, options.learning(
        help="LoRA rank; 0 trains all weights. Default: the saved adapter's, else 32.")] = None,
    rate: Annotated[float | None, options.learning(
        help="Learning rate. Default: by rank and model size, raised while that helps.")] = None,
    every: Annotated[int, options.learning(
        help="Prompts per update.")] = 2,
    replay_mb: Annotated[int, options.learning(
        help="Memory (MB) for replayed texts.")] = 1024,
    head: Annotated[str, options.learning(
        help="Train an acceptance head: none, joint or interleaved.")] = "none",
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
    if limit < 1:
        raise OmnidraftError(f"limit is {limit}, but must be 1 or more")
    if save and adapters:
        make_folder_of(adapters.expanduser() / "any")
    prompts, total = read_prompts(source)

    # 2. Load the models, and continue with what was learned.
    pair = models.pair(learns=True)
    store = Adapters(adapters)
    if save:  # refuse here, before the start, if another run is learning into this adapter
        context.with_resource(store.writing(pair))
    recipe = Recipe(loss, rank=Recipe.rank if rank is None else rank, rate=rate)
    schedule = online.Schedule(every, replay=6, memory_bytes=replay_mb << 20, head=head)
    rng = np.random.default_rng(decoding.seed)
    learner = store.resume(pair, recipe, schedule, rng, shipped=rank is None)
    if learner.statistics.prompts and not learner.follows:
        note("starting from the shipped adapter (--rank 32 starts a new one)")

    # 3. Serve the prompts that no earlier run has served, and learn.
    place = place_of(source)
    begin = served_before(learner, place, total)
    if begin:
        note(f"skipping the first {begin} prompts of {source}, served in an earlier run")
    requests = islice(asked(pair.target, prompts, chat), begin, min(begin + limit, sys.maxsize))
    how = options.with_head(how, learner.head)
    run = Run(learner, store if save else None, place, begin, json_lines)
    run.serve(online.learn(learner, requests, how, uniforms_of(decoding.seed)),
              size=min(total - begin, limit) if total else None)
    if run.stopped and not run.count:
        raise OmnidraftError("stopped early: nothing new was learned")
    if not run.any_served:
        raise run.failed or OmnidraftError(
            f"no prompt in {source} could be served ({run.latest[-1].note})")

    # 4. Save, and say what was learned.
    last = learner.close().note
    try:
        if save:  # before anything is printed, as that may fail
            note(f"saved to {store.keep(learner)}")
    finally:
        run.tell(last)
    if run.failed:
        raise run.failed


class Run:
    """The prompts that one command serves: counted, shown, and from time to time saved.

    place, begin: where the statistics count the prompts of this source, and from where on; `store`
    None: nothing is saved. Of the figures only the first and the latest are kept: a run may have no
    end.
    """

    def __init__(self, learner: Learner, store: Adapters | None, place: str, begin: int,
                 as_json: bool) -> None:
        self.learner = learner
        self.store = store
        self.place = place
        self.begin = begin
        self.as_json = as_json
        self.count = 0
        self.any_served = False
        self.first: list[online.Learned] = []
        self.latest: deque[online.Learned] = deque(maxlen=SHOWN)
        self.stopped = False
        self.failed: BaseException | None = None

    def serve(self, learning: Iterator[online.Learned], size: int | None) -> None:
        """Serve `size` prompts (None: unknown), until they end or something else ends the run."""
        try:
            with closing(self._with_progress(learning, size)) as shown:
                for learned in shown:
                    self._keep(learned)
        except KeyboardInterrupt:  # Ctrl-C, `kill`, or a terminal that was closed
            self.stopped = True  # subtle: said later, since a closed terminal takes no more text
        except (OmnidraftError, UnicodeDecodeError, OSError, SystemExit) as error:
            self.failed = error  # a bad prompt, a closed output (Rich then exits)

    def _with_progress(self, learning: Iterator[online.Learned],
                       size: int | None) -> Iterator[online.Learned]:
        """Count what is learned, with a bar and notes on stderr.

        Subtle: to be closed, so that the bar ends before anything else is printed.
        """
        from rich.progress import Progress

        # subtle: by default Rich writes what goes to stdout to the bar's terminal, even for a pipe
        redirected = sys.stdout.isatty()
        with Progress(console=console(stderr=True)[0], redirect_stdout=redirected) as bar:
            for learned in bar.track(learning, size):
                self.count += 1
                self.any_served = self.any_served or bool(learned.rounds)
                self.latest.append(learned)
                if len(self.first) < SHOWN:
                    self.first.append(learned)
                tau = summarize(rounds_of(self.latest)).block_efficiency
                bar.update(bar.task_ids[0], description=f"{tau:.2f} tokens per target pass")
                if learned.note:
                    bar.console.print(escape(learned.note), markup=False, soft_wrap=True)
                yield learned

    def _keep(self, learned: online.Learned) -> None:
        """Print the figures of a prompt if asked to, and save every few updates."""
        learner = self.learner
        learner.statistics.served[self.place] = self.begin + self.count
        if self.as_json:
            emit({"type": "prompt",
                  **vars(summarize(learned.rounds)),
                  "loss": None if math.isnan(learned.loss) else learned.loss,
                  "learning_seconds": learned.seconds,
                  "updated": learned.updated,
                  "note": learned.note})
        if self.store and learned.updated and learner.updates % KEPT_EVERY == 0:
            self.store.keep(learner)

    def tell(self, last: str) -> None:
        """Say how the run ended: its `last` note, the first and latest prompts, the `verdict`."""
        learner = self.learner
        if self.as_json:
            emit({"type": "summary", **learner.statistics.to_json(), "rollbacks": learner.rollbacks,
                  "skipped": learner.skipped})
        size = max(1, min(SHOWN, self.count // 2))
        first = summarize(rounds_of(self.first[:size]))
        latest = summarize(rounds_of(list(self.latest)[-size:]))
        lines = [f"first prompts: {describe(first)}",
                 f"last prompts: {describe(latest)}",
                 f"{verdict(learner.statistics)}; {learner.rollbacks} rollbacks in this run"]
        if last:
            lines.insert(0, last)
        if self.stopped:
            lines.insert(0, "stopped")
        note("\n".join(lines))


def rounds_of(some: Iterable[online.Learned]) -> Iterator[Round]:
    """All rounds of some prompts."""
    return (record for learned in some for record in learned.rounds)


def place_of(source: str) -> str:
    """Where statistics count the prompts of a source; adapters are shared, so they hold no path."""
    what = source
    if source not in TASKS and source != "-":
        what = str(Path(source).resolve())
    return sha256(what.encode()).hexdigest()[:12]


def served_before(learner: Learner, place: str, total: int | None) -> int:
    """How many prompts of a source earlier runs have served; 0 if all, to start again."""
    served = learner.statistics.served.get(place, 0)
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


def gain(found: online.Statistics) -> str:
    """Passes of the target that learning saves, with the standard error of the share."""
    count = found.held_out
    if count <= 3:
        return "too few to say"
    share, error = found.saved("rounds")
    before = count / (found.untouched_rounds or count)
    now = count / (found.held_out_rounds or count)
    means = "no gain beyond chance"
    if share > error:
        means = "gained"
    elif share < -error:
        means = "lost"
    return (f"{before:.2f} tokens per target pass before, {now:.2f} after learning "
            f"({share * before:+.1%} passes saved, ± {error * before:.1%}): {means}")
