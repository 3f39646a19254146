"""`omnidraft adapt`: serve a stream of prompts, from which the drafter learns its target."""

import math
import sys
from collections import deque
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

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
    from rich.progress import Progress
    how = decoding.options()
    if limit < 1:
        raise OmnidraftError(f"limit is {limit}, but must be 1 or more")
    if save and adapters:  # before the models are loaded
        make_folder_of(adapters.expanduser() / "any")
    prompts, total = options.read_prompts(source)
    pair, store = models.pair(learns=True), Adapters(adapters)
    if save:  # refuse here, before the start, if another run is learning into this adapter
        context.with_resource(store.writing(pair))
    recipe = Recipe(loss, rank=Recipe.rank if rank is None else rank, rate=rate)
    schedule = online.Schedule(every, replay=6, memory_bytes=replay_mb << 20, head=head)
    rng = np.random.default_rng(decoding.seed)
    learner = store.resume(pair, recipe, schedule, rng, shipped=rank is None)
    if learner.statistics and not learner.version:
        note("starting from the shipped adapter (--rank 32 starts a new one)")
    how = options.with_head(how, learner.head)
    what = source if source in (*options.TASKS, "-") else str(Path(source).resolve())
    where = f"served {sha256(what.encode()).hexdigest()[:12]}"  # adapters are shared: save no paths
    served = learner.statistics.get(where, 0)
    if done := served if served < (total or 0) else 0:  # if all were served, start again
        note(f"skipping the first {done} prompts of {source}, served in an earlier run")
    first, latest = [], deque(maxlen=SHOWN)  # results: a run may have no end, so no others are kept
    count, any_served, stopped, failed = 0, False, False, None
    asked = options.asked(pair.target, prompts, chat)
    stream = islice(asked, done, min(done + limit, sys.maxsize))
    try:
        # subtle: by default Rich writes what goes to stdout to the bar's terminal, even for a pipe
        redirected = sys.stdout.isatty()
        with Progress(console=console(stderr=True)[0], redirect_stdout=redirected) as bar:
            learning = online.learn(learner, stream, how, options.uniforms_of(decoding.seed))
            for learned in bar.track(learning, total and min(total - done, limit)):
                count, any_served = count + 1, any_served or bool(learned.rounds)
                latest.append(learned)
                if len(first) < SHOWN:
                    first.append(learned)
                learner.statistics[where] = done + count
                tau = summarize(r for one in latest for r in one.rounds).block_efficiency
                bar.update(bar.task_ids[0], description=f"{tau:.2f} tokens per target pass")
                if learned.note:
                    bar.console.print(escape(learned.note), markup=False, soft_wrap=True)
                if json_lines:
                    emit({"type": "prompt", **vars(summarize(learned.rounds)),
                          "loss": None if math.isnan(learned.loss) else learned.loss,
                          "learning_seconds": learned.seconds, "updated": learned.updated,
                          "note": learned.note})
                if save and learned.updated and learner.updates % 8 == 0:
                    store.keep(learner)
    except KeyboardInterrupt:  # Ctrl-C, `kill`, or a terminal that was closed
        stopped = True  # subtle: said later, since a closed terminal takes no more text
        if not count:
            raise OmnidraftError("stopped early: nothing new was learned") from None
    except (OmnidraftError, UnicodeDecodeError, OSError, SystemExit) as error:
        failed = error  # a bad prompt, a closed output (Rich then exits): keep what was learned
    if not any_served:
        raise failed or OmnidraftError(
            f"no prompt in {source} could be served ({latest[-1].note})")
    last = learner.close().note
    try:
        if save:  # before anything is printed, as that may fail
            note(f"saved to {store.keep(learner)}")
    finally:
        if json_lines:
            emit({"type": "summary", **learner.statistics, "rollbacks": learner.rollbacks,
                  "skipped": learner.skipped})
        note("stopped\n" * stopped + f"{last}\n" * bool(last)
             + report(first, [*latest], count, learner))
    if failed:
        raise failed


def report(first: list[online.Learned], latest: list[online.Learned], count: int,
           learner: Learner) -> str:
    """A run of `count` prompts in four lines: the first and the latest ones, and the `verdict`."""
    size = max(1, min(SHOWN, count // 2))
    one, other = (describe(summarize(r for learned in some for r in learned.rounds))
                  for some in (first[:size], latest[-size:]))
    return (f"first prompts: {one}\nlast prompts: {other}\n{verdict(learner.statistics)}; "
            f"{learner.rollbacks} rollbacks in this run")


def verdict(s: dict[str, Any]) -> str:
    """What held-out prompts show, and whether learning has paid off in all."""
    learning, prompts, tokens, updates = (
        s.get(name, 0) for name in ("learning_seconds", "prompts", "tokens", "updates"))
    paid = f"after {s['paid_after_tokens']} tokens" if "paid_after_tokens" in s else "not yet"
    (gain, error), n, held_out = online.saved(s, "rounds"), s.get("held_out", 0), "too few to say"
    if n > 3:
        before, now = (n / (s.get(f"{one}_rounds") or n) for one in ("untouched", "held_out"))
        verdict = "gained" if gain > error else "lost" if gain < -error else "no gain beyond chance"
        held_out = (f"{before:.2f} tokens per target pass before, {now:.2f} after learning "
                    f"({gain * before:+.1%} passes saved, ± {error * before:.1%}): {verdict}")
    time = (f"; learning took {learning / (s.get('seconds', 0) + learning or 1):.0%} of the time; "
            f"paid off compared with the original drafter: {paid}") * (updates <= prompts)
    return (f"{n} held-out prompts, decoded with both drafters: {held_out}\n"
            f"total: {prompts} prompts, {tokens} tokens, {updates} updates{time}")
