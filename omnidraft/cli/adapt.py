"""`omnidraft adapt`: serve a stream of prompts and let the drafter learn its target from what is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OmnidraftError
from . import common
from .prompts import TASKS, Shortener, read_prompts

if TYPE_CHECKING:
    from ..learning.online import Learned, Learner

learning = partial(typer.Option, rich_help_panel="Learning")


@common.command("omnidraft adapt math", "omnidraft adapt prompts.jsonl --target llama3-like --loss hybrid --rank 16",
                "cat prompts.txt | omnidraft adapt - --interleaved --adapters ./adapters",
                "omnidraft adapt math --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
                "omnidraft adapt stories.jsonl -d ./my-drafter -t ./my-target --rank 0 --rate 0.0005 --no-save")
def adapt(
    source: Annotated[str, typer.Argument(show_default=False, help=(
        "math, code or text (prompts that ship here), a .jsonl file with a `prompt` (or instruction, question, document, "
        "text) in each line, a text file with one prompt per line, or - for stdin."))],
    draft: common.Draft = "draft-general", target: common.Target = "qwen-like",
    backend: common.Backend = "numpy", device: common.Device = "auto", dtype: common.Dtype = "auto",
    loss: Annotated[str, learning("--loss", metavar="NAME", help="lifted, hybrid (the paper's), hybrid-kl or dm.")] = "lifted",
    divergence: Annotated[str, learning("--divergence", metavar="NAME", help="Of lifted: forward, reverse or tv.")] = "forward",
    weight: Annotated[str, learning("--weight", metavar="W", help=(
        "Of the n-gram term of hybrid and hybrid-kl: a number, or dynamic."))] = "0.2",
    rank: Annotated[int | None, learning("--rank", metavar="R", help="Of the LoRA adapters; 0 trains all weights.",
                                         show_default="that of what is kept for the pair or in the package, else 32")] = None,
    rate: Annotated[float | None, learning("--rate", metavar="LR", help="Learning rate.",
                                           show_default="0.01, with --rank 0 0.003, above 10 M parameters 0.0001")] = None,
    every: Annotated[int, learning("--every", metavar="N", help="Prompts between two updates.")] = 2,
    steps: Annotated[int, learning("--steps", metavar="N", help="Gradient steps of one update.")] = 1,
    replay: Annotated[int, learning("--replay", metavar="N", help="Earlier texts that join the new ones in a step.")] = 6,
    joint: Annotated[bool, learning("--joint", help="Train an acceptance head with the drafter.")] = False,
    interleaved: Annotated[bool, learning("--interleaved", help=(
        "Train an acceptance head between the drafter's updates."))] = False,
    verify: common.Verify = "lossless", draft_length: common.DraftLength = 8, threshold: common.Threshold = 0.2,
    tune: common.Tune = False, temperature: common.Temperature = 1.0,
    seed: Annotated[int, common.sampling("--seed", help="Of every random draw.")] = 0, max_new_tokens: common.Tokens = 128,
    limit: Annotated[int | None, learning("--limit", metavar="N", show_default="all", help="Most prompts to serve.")] = None,
    again: Annotated[bool, learning("--again", help="Begin the source anew, not where the last run stopped.")] = False,
    adapters: common.AdapterFolder = None,
    save: Annotated[bool, common.output("--save/--no-save", help="Keep what was learned.")] = True,
    json_lines: Annotated[bool, common.output("--json", help="One JSON object per prompt on stdout, then a summary.")] = False,
) -> None:
    """Serve a stream of prompts and learn from the texts; Ctrl-C stops, the next run goes on from there."""
    import numpy as np

    from ..files import make_folder_of
    from ..learning.adapters import Adapters
    from ..learning.online import Schedule, learn
    from ..learning.training import Recipe

    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens, tune=tune)
    if limit is not None and limit < 1:
        raise OmnidraftError(f"limit is {limit}, but must be 1 or more")
    if joint and interleaved:
        raise OmnidraftError("--joint and --interleaved exclude each other: choose one")
    recipe = Recipe(loss, weight if weight == "dynamic" else _number(weight), divergence, 32 if rank is None else rank, rate)
    schedule = Schedule(every, steps, replay, head="joint" if joint else "interleaved" if interleaved else "none")
    uniforms, rng = common.uniforms_of(seed), np.random.default_rng(seed)
    prompts, total = read_prompts(source)
    pair, store = common.load_pair(draft, target, backend=backend, device=device, dtype=dtype), Adapters(adapters)
    if save:
        make_folder_of(store.folder(pair) / "current.json")
    if rank is None:  # what the package has learned is gone on from; another rank begins anew
        recipe = replace(recipe, rank=store.rank(pair))
    own = (store.folder(pair) / "current.json").exists()
    learner = store.resume(pair, recipe, schedule, rng, shipped=rank is None)
    if learner.statistics and not own:
        print("going on from the adapter in the package (--rank 32 begins anew)", file=sys.stderr)
    if learner.head is not None:
        options = replace(options, stop=replace(options.stop, head=learner.head))
    places = learner.statistics.setdefault("places", {})
    where = source if source in (*TASKS, "-") else str(Path(source).resolve())
    done = 0 if again or source == "-" else places.get(where, 0)
    if total is not None and done >= total:
        raise OmnidraftError(f"all {total} prompts of {source} were learned from already: add --again, or give others")
    if done:
        print(f"going on after the first {done} prompts of {source} (--again begins anew)", file=sys.stderr)
    cut = Shortener(pair.target, max_new_tokens)
    stream = cut(islice(prompts, done, None if limit is None else done + limit))
    records: list[Learned] = []
    failed: OmnidraftError | None = None
    try:
        with Board(learner, None if total is None else min(total - done, limit or total), json_lines) as board:
            for learned in learn(learner, stream, options, uniforms):
                records.append(learned)
                places[where] = done + len(records)
                board.show(learned)
                if save and learned.updated and learner.updates % 8 == 0:
                    store.keep(learner)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        failed = None if records else OmnidraftError("stopped before the first prompt was served: nothing new was learned")
    except OmnidraftError as error:  # a line that is no prompt, say: what was learned before it is kept
        failed = error
    if not any(learned.rounds for learned in records):
        raise failed or OmnidraftError(f"{source} holds no prompt that could be served" + (
            f" ({records[-1].note})" if records else ": give at least one line"))
    if note := learner.close().note:
        print(note, file=sys.stderr)
    if cut.count:
        print(f"{cut.count} prompts were cut to their last {cut.limit} tokens: {pair.target.name} reads "
              f"{pair.target.context_size}", file=sys.stderr)
    if save:
        print(f"saved in {store.keep(learner)}", file=sys.stderr)
    if json_lines:
        print(json.dumps({"type": "summary", **learner.statistics, "rollbacks": learner.rollbacks, "skipped": learner.skipped}))
    for line in summary(records, learner):
        print(line, file=sys.stderr)
    if failed:
        raise failed


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OmnidraftError(f"weight is {text!r}, but must be a number or dynamic") from None


class Board:
    """The progress of learning on stderr: a bar, the latest prompts' figures, notes; with `json_lines` JSON on stdout."""

    def __init__(self, learner: Learner, total: int | None, json_lines: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        _, errors = common.consoles()
        self.json_lines, self.recent = json_lines, []
        self.progress = Progress(TextColumn("learning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                                 TextColumn("{task.fields[figures]}"), console=errors)
        self.bar = self.progress.add_task("", total=total, figures="")

    def __enter__(self) -> Board:
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def show(self, learned: Learned) -> None:
        """Take in one prompt."""
        from ..metrics import summarize

        self.recent = [*self.recent[-15:], learned]
        s = summarize(r for one in self.recent for r in one.rounds)
        self.progress.update(self.bar, advance=1, figures=f"{s.acceptance_draft:.0%} of draft tokens kept, "
                             f"{s.block_efficiency:.2f} per pass, {s.tokens_per_second:.0f} tokens/s")
        if learned.note:
            self.progress.console.print(learned.note, markup=False)
        if self.json_lines:
            s = summarize(learned.rounds)
            print(json.dumps({"type": "prompt", "tokens": s.tokens, "acceptance_draft": s.acceptance_draft,
                              "block_efficiency": s.block_efficiency, "tokens_per_second": s.tokens_per_second,
                              "learning_seconds": learned.seconds, "updated": learned.updated, "note": learned.note,
                              "loss": learned.loss if learned.loss == learned.loss else None}), flush=True)


def summary(records: list[Learned], learner: Learner) -> Iterator[str]:
    """Lines on what a run brought: its first and last prompts, a curve, and whether learning has paid for itself."""
    from ..metrics import summarize
    from .render import sparkline

    size = max(1, min(16, len(records) // 2))
    groups = [summarize(r for one in records[i:i + size] for r in one.rounds) for i in range(0, len(records), size)]
    for name, part in (("first", groups[0]), ("last", groups[-1])):
        yield (f"{name} prompts: {part.acceptance_draft:.0%} of draft tokens kept, {part.block_efficiency:.2f} tokens per "
               f"target pass, {part.tokens_per_second:.0f} tokens/s")
    yield f"tokens per target pass, {size} prompts each: {sparkline([g.block_efficiency for g in groups])}"
    s = learner.statistics
    share = s["learning_seconds"] / (s["seconds"] + s["learning_seconds"])
    paid = f"it has paid for itself after {s['paid_after_tokens']} tokens" if "paid_after_tokens" in s else \
        "it has not paid for itself yet"
    yield (f"in all {s['prompts']} prompts, {s['tokens']} tokens, {s['updates']} updates, {learner.rollbacks} rolled back; "
           f"learning took {share:.0%} of the time, and measured against the first prompts {paid}")
