"""`omnidraft adapt`: serve a stream of prompts, from which the drafter learns its target."""

import math
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from .. import Adapters, Learner, OmnidraftError
from ..learning import online
from ..learning.training import Recipe
from ..metrics import summarize
from ..text.files import make_folder_of
from . import options
from .common import command
from .generate import describe
from .printing import console, emit, escape, note

SHOWN = 16  # prompts whose figures are shown: the first of a run, and the latest

@command("omnidraft adapt math",
         "omnidraft adapt prompts.jsonl --target llama3-like --loss hybrid --rank 16",
         "cat prompts.txt | omnidraft adapt - --head interleaved --adapters ./adapters",
         "omnidraft adapt math --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
         "omnidraft adapt gsm8k.jsonl --target smollm2",
         draft_length=8, threshold=0.2, temperature=1.0)
def adapt(
    *, source: Annotated[str, typer.Argument(show_default=False, help=options.SOURCE)],
    context: typer.Context, models: options.Models, chat: options.Chat = None,
    loss: Annotated[str, options.learning(help="lifted, dm or hybrid (the paper's).")] = "lifted",
    rank: Annotated[int | None, options.learning(
        help="LoRA rank; 0 trains all weights. Default: the saved adapter's, else 32.")] = None,
    rate: Annotated[float | None, options.learning(
        help="Learning rate. Default: by rank and model size, raised while that helps.")] = None,
    every: Annotated[int, options.learning(help="Prompts per update.")] = 2,
    replay_mb: Annotated[int, options.learning(help="Memory (MB) for replayed texts.")] = 1024,
    head: Annotated[str, options.learning(
        help="Train an acceptance head: none, joint or interleaved.")] = "none",
    decoding: options.Decoding,
    limit: Annotated[int, options.learning(
        help="Serve at most this many prompts.", show_default="all")] = sys.maxsize,
    adapters: options.Store = None,
    save: Annotated[bool, options.output(help="Save the adapter.")] = True,
    json_lines: options.JsonLines = False,
) -> None:
    """Serve prompts and learn from them. Ctrl-C stops; the next run resumes."""
    # 1. Read and check the input, before anything slow.
    how = decoding.options()
    if limit < 1:
        raise OmnidraftError(f"limit is {limit}, but must be 1 or more")
    if save and adapters:
        make_folder_of(adapters.expanduser() / "any")
    prompts, total = options.read_prompts(source)

    # 2. Load the models, and continue with what was learned.
    pair, store = models.pair(learns=True), Adapters(adapters)
    if save:  # refuse here, before the start, if another run is learning into this adapter
        context.with_resource(store.writing(pair))
    recipe = Recipe(loss, rank=Recipe.rank if rank is None else rank, rate=rate)
    schedule = online.Schedule(every, replay=6, memory_bytes=replay_mb << 20, head=head)
    rng = np.random.default_rng(decoding.seed)
    learner = store.resume(pair, recipe, schedule, rng, shipped=rank is None)
    if learner.statistics.prompts and not learner.version:
        note("starting from the shipped adapter (--rank 32 starts a new one)")
    how = options.with_head(how, learner.head)

    # 3. Serve the prompts that no earlier run has served, and learn.
    place = place_of(source)
    done = served_before(learner, place, total)
    if done:
        note(f"skipping the first {done} prompts of {source}, served in an earlier run")
    asked = islice(options.asked(pair.target, prompts, chat), done, min(done + limit, sys.maxsize))
    learning = online.learn(learner, asked, how, options.uniforms_of(decoding.seed))
    results = Results()
    shown = with_progress(learning, results, total and min(total - done, limit))
    stopped, failed = False, None
    try:
        with closing(shown):  # subtle: the bar ends before anything else is printed
            for learned in shown:
                learner.statistics.served[place] = done + results.count
                if json_lines:
                    emit({"type": "prompt", **vars(summarize(learned.rounds)),
                          "loss": None if math.isnan(learned.loss) else learned.loss,
                          "learning_seconds": learned.seconds, "updated": learned.updated,
                          "note": learned.note})
                if save and learned.updated and learner.updates % 8 == 0:
                    store.keep(learner)
    except KeyboardInterrupt:  # Ctrl-C, `kill`, or a terminal that was closed
        stopped = True  # subtle: said later, since a closed terminal takes no more text
        if not results.count:
            raise OmnidraftError("stopped early: nothing new was learned") from None
    except (OmnidraftError, UnicodeDecodeError, OSError, SystemExit) as error:
        failed = error  # a bad prompt, a closed output (Rich then exits): keep what was learned
    if not results.any_served:
        raise failed or OmnidraftError(
            f"no prompt in {source} could be served ({results.latest[-1].note})")

    # 4. Save, and say what was learned.
    last = learner.close().note
    try:
        if save:  # before anything is printed, as that may fail
            note(f"saved to {store.keep(learner)}")
    finally:
        if json_lines:
            emit({"type": "summary", **learner.statistics.to_json(), "rollbacks": learner.rollbacks,
                  "skipped": learner.skipped})
        note("stopped\n" * stopped + f"{last}\n" * bool(last) + report(results, learner))
    if failed:
        raise failed


class Results:
    """The prompts served so far: how many, the first and the latest (a run may have no end)."""

    def __init__(self) -> None:
        self.count = 0
        self.any_served = False
        self.first: list[online.Learned] = []
        self.latest: deque[online.Learned] = deque(maxlen=SHOWN)

    def add(self, learned: online.Learned) -> None:
        """One more prompt."""
        self.count += 1
        self.any_served = self.any_served or bool(learned.rounds)
        self.latest.append(learned)
        if len(self.first) < SHOWN:
            self.first.append(learned)


def with_progress(learning: Iterator[online.Learned], results: Results,
                  size: int | None) -> Iterator[online.Learned]:
    """Collect the results of `size` prompts (None: unknown), with a bar and notes on stderr."""
    from rich.progress import Progress

    # subtle: by default Rich writes what goes to stdout to the bar's terminal, even for a pipe
    redirected = sys.stdout.isatty()
    with Progress(console=console(stderr=True)[0], redirect_stdout=redirected) as bar:
        for learned in bar.track(learning, size):
            results.add(learned)
            tau = summarize(r for one in results.latest for r in one.rounds).block_efficiency
            bar.update(bar.task_ids[0], description=f"{tau:.2f} tokens per target pass")
            if learned.note:
                bar.console.print(escape(learned.note), markup=False, soft_wrap=True)
            yield learned


def place_of(source: str) -> str:
    """Where statistics count the prompts of a source; adapters are shared, so they hold no path."""
    what = source if source in (*options.TASKS, "-") else str(Path(source).resolve())
    return sha256(what.encode()).hexdigest()[:12]


def served_before(learner: Learner, place: str, total: int | None) -> int:
    """How many prompts of a source earlier runs have served; 0 if all, to start again."""
    served = learner.statistics.served.get(place, 0)
    return served if served < (total or 0) else 0


def report(results: Results, learner: Learner) -> str:
    """A run in four lines: the first and the latest prompts, and the `verdict`."""
    size = max(1, min(SHOWN, results.count // 2))
    one, other = (describe(summarize(r for learned in some for r in learned.rounds))
                  for some in (results.first[:size], [*results.latest][-size:]))
    return (f"first prompts: {one}\nlast prompts: {other}\n{verdict(learner.statistics)}; "
            f"{learner.rollbacks} rollbacks in this run")


def verdict(s: online.Statistics) -> str:
    """What held-out prompts show, and whether learning has paid off in all."""
    paid = "not yet" if s.paid_after_tokens is None else f"after {s.paid_after_tokens} tokens"
    n = s.held_out
    gain, error = s.saved("rounds")
    held_out = "too few to say"
    if n > 3:
        before = n / (s.untouched_rounds or n)
        now = n / (s.held_out_rounds or n)
        verdict = "gained" if gain > error else "lost" if gain < -error else "no gain beyond chance"
        held_out = (f"{before:.2f} tokens per target pass before, {now:.2f} after learning "
                    f"({gain * before:+.1%} passes saved, ± {error * before:.1%}): {verdict}")
    share = s.learning_seconds / (s.seconds + s.learning_seconds or 1)
    time = (f"; learning took {share:.0%} of the time; "
            f"paid off compared with the original drafter: {paid}") * (s.updates <= s.prompts)
    return (f"{n} held-out prompts, decoded with both drafters: {held_out}\n"
            f"total: {s.prompts} prompts, {s.tokens} tokens, {s.updates} updates{time}")
