"""What `omnidraft demo --learn` shows: a drafter learns a target while it serves prompts."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from .. import Learner, Options, Pair, learn, plain, speculative
from ..learning.online import Schedule
from ..learning.training import Recipe, Trainer
from ..metrics import summarize
from ..sampling import Uniforms
from .options import uniforms_of
from .printing import columns, console, escape, sparkline
from .prompts import read_prompts

HELD_OUT, GROUP = 6, 8  # prompts that are only measured on; prompts per point of the curve


def watch(pair: Pair, task: str, how: Options, seconds: float, seed: int,
          signs: bool) -> tuple[list[Any], dict]:
    """Serve prompts for about `seconds`, a line each; return what was shown, and figures."""
    from rich.text import Text

    from .render import Painter, legend

    (out, signs), (errors, _) = console(signs), console(signs, stderr=True)
    prompts, rng = [*read_prompts(task)[0]], np.random.default_rng(seed)
    learner = Learner(pair, Trainer(pair.draft, Recipe(), rng), rng, Schedule(every=2, replay=6))
    head = Text(f"{escape(pair.draft.name, '')} learns {escape(pair.target.name, '')} from {task}: "
                "tokens per target pass, draft tokens kept, tokens/s, * an update of the drafter")
    errors.print(head, legend(signs), sep="\n", soft_wrap=True)
    figures = {"task": task, "plain": measure(plain, pair.target, prompts, how),
               "before": measure(speculative, pair, prompts, how), "curve": []}
    began, group = perf_counter(), []
    for count, learned in enumerate(learn(learner, prompts[HELD_OUT:], how, Uniforms(rng)), 1):
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
    figures["learning"] = s = learner.statistics | {
        "rollbacks": learner.rollbacks, "wall_seconds": perf_counter() - began}
    figures["after"] = measure(speculative, pair, prompts, how)
    rows = [("decoding", "tokens/s", "tokens per target pass", "draft tokens kept")]
    for name in ("plain", "before", "after"):
        f = figures[name]
        rows.append((name, f"{f['tokens_per_second']:.0f}", f"{f['block_efficiency']:.2f}",
                     f"{f['acceptance_draft']:.0%}" if f["drafted"] else ""))
    curve = [point["block_efficiency"] for point in figures["curve"]]
    lines = [f"tokens per target pass, {GROUP} prompts each: {sparkline(curve)}"] if curve else []
    end = Text("\n".join(["", *lines, "", columns(rows), (
        f"{HELD_OUT} prompts that were not learned from. Learning: {s['prompts']} prompts, "
        f"{s['updates']} updates, {s['learning_seconds']:.1f} s of {s['wall_seconds']:.0f} s.")]))
    errors.print(end, soft_wrap=True)
    return [head, legend(signs), end], figures


def measure(decode: Any, models: Any, prompts: list[str], how: Options) -> dict:
    """Figures of the held-out prompts, with the drafter as it is now."""
    return summarize(record for prompt in prompts[:HELD_OUT] for record in decode(
        models, prompt, how, uniforms_of(0))).figures()
