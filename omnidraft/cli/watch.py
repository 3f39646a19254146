"""What `omnidraft demo --learn` shows: a drafter learns a target while it serves prompts."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from .. import Learner, Options, Pair, learn, plain, speculative
from ..learning.online import Schedule
from ..learning.training import Recipe, Trainer
from ..metrics import summarize
from ..sampling import Uniforms
from . import common
from .prompts import read_prompts
from .render import Painter, escape, legend, sparkline

HELD_OUT = 6  # prompts of the task that are only measured on, before and after
GROUP = 8  # prompts per point of the curves


def watch(pair: Pair, task: str, options: Options, seconds: float, seed: int,
          signs: bool) -> tuple[list[Any], dict]:
    """Serve prompts for about `seconds`, a line each; what was shown, and figures."""
    out, errors = common.consoles()
    signs, rng, prompts = signs or common.without_colour(out), np.random.default_rng(seed), [
        *read_prompts(task)[0]]
    held_out, stream = prompts[:HELD_OUT], prompts[HELD_OUT:]
    learner = Learner(pair, Trainer(pair.draft, Recipe(), rng), rng, Schedule(every=2, replay=6))
    head = Text(f"{escape(pair.draft.name, '')} learns {escape(pair.target.name, '')} from {task}: "
                "tokens per target pass, draft tokens kept, tokens/s, * an update of the drafter")
    errors.print(head, legend(signs), sep="\n", soft_wrap=True)
    figures = {"task": task, "plain": measure(pair, held_out, options, False),
               "before": measure(pair, held_out, options), "curve": []}
    began, group = perf_counter(), []
    for count, learned in enumerate(learn(learner, stream, options, Uniforms(rng)), 1):
        if not learned.rounds:
            continue
        s, painter = summarize(learned.rounds), Painter(pair.target.tokenizer, signs, one_line=True)
        line = Text(f"{count:3} {s.block_efficiency:5.2f} {s.acceptance_draft:4.0%} "
                    f"{s.tokens_per_second:5.0f}/s {'*' if learned.updated else ' '} ")
        for record in learned.rounds:
            line.append_text(painter.paint(record))
        out.print(line, overflow="crop", no_wrap=True)
        group += learned.rounds
        if count % GROUP == 0:
            figures["curve"].append(summarize(group).figures())
            group = []
        if perf_counter() - began > seconds:
            break
    figures["learning"] = learner.statistics | {
        "rollbacks": learner.rollbacks, "wall_seconds": perf_counter() - began}
    figures["after"] = measure(pair, held_out, options)
    shown = [head, legend(signs), curves(figures["curve"]), table(figures)]
    errors.print(*shown[2:])
    return shown, figures


def measure(pair: Pair, prompts: list[str], options: Options, drafts: bool = True) -> dict:
    """Figures of prompts that are not learned from, with the drafter as it is now or plain."""
    rounds = []
    for prompt in prompts:
        uniforms = common.uniforms_of(0)
        rounds += speculative(pair, prompt, options, uniforms) if drafts else \
            plain(pair.target, prompt, options, uniforms)
    return summarize(rounds).figures()


def curves(points: list[dict]) -> Text:
    """Acceptance, block efficiency and speed over time."""
    lines = [f"\nmeans of {GROUP} prompts each"]
    for name, title in (("acceptance_draft", "draft tokens kept"),
                        ("block_efficiency", "tokens per target pass"),
                        ("tokens_per_second", "tokens/s")):
        if points:
            lines.append(f"{title:>24}  {sparkline([point[name] for point in points])}")
    return Text("\n".join(lines))


def table(figures: dict) -> Table:
    """Before and after on the held-out prompts, next to plain decoding."""
    s, made = figures["learning"], Table(box=None, pad_edge=False, caption_justify="left")
    made.caption = (f"{HELD_OUT} prompts that were not learned from. Learning: {s['prompts']} "
                    f"prompts, {s['updates']} updates, {s['learning_seconds']:.1f} s of "
                    f"{s['wall_seconds']:.0f} s.")
    made.add_column("decoding")
    for name in ("tokens/s", "x plain", "tokens per pass", "draft tokens kept"):
        made.add_column(name, justify="right")
    for key, name in (("plain", "plain"), ("before", "speculative, before"),
                      ("after", "speculative, after")):
        f = figures[key]
        speed, kept = f["tokens_per_second"], f"{f['acceptance_draft']:.0%}"
        made.add_row(name, f"{speed:.0f}", f"{speed / figures['plain']['tokens_per_second']:.2f}",
                     f"{f['block_efficiency']:.2f}", "" if key == "plain" else kept)
    return made
