"""What `omnidraft demo --learn` shows: a drafter learns a target while it serves prompts."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from rich.text import Text

from .. import Learner, Options, Pair, learn, plain, speculative
from ..learning.online import Schedule
from ..learning.training import Recipe, Trainer
from ..metrics import summarize
from ..sampling import Uniforms
from .common import console
from .options import uniforms_of
from .prompts import read_prompts
from .render import Painter, columns, escape, legend, sparkline

HELD_OUT, GROUP = 6, 8  # prompts that are only measured on; prompts per point of the curve


def watch(pair: Pair, task: str, how: Options, seconds: float, seed: int,
          signs: bool) -> tuple[list[Any], dict]:
    """Serve prompts for about `seconds`, a line each; what was shown, and figures."""
    (out, signs), (errors, _), prompts = console(signs), console(stderr=True), read_prompts(task)[0]
    prompts, rng = [*prompts], np.random.default_rng(seed)
    learner = Learner(pair, Trainer(pair.draft, Recipe(), rng), rng, Schedule(every=2, replay=6))
    head = Text(f"{escape(pair.draft.name, '')} learns {escape(pair.target.name, '')} from {task}: "
                "tokens per target pass, draft tokens kept, tokens/s, * an update of the drafter")
    errors.print(head, legend(signs), sep="\n", soft_wrap=True)
    figures = {"task": task, "plain": measure(pair, prompts[:HELD_OUT], how, False),
               "before": measure(pair, prompts[:HELD_OUT], how), "curve": []}
    began, group = perf_counter(), []
    for count, learned in enumerate(learn(learner, prompts[HELD_OUT:], how, Uniforms(rng)), 1):
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
    figures["learning"] = s = learner.statistics | {
        "rollbacks": learner.rollbacks, "wall_seconds": perf_counter() - began}
    figures["after"] = measure(pair, prompts[:HELD_OUT], how)
    lines, rows = [], [("decoding", "tokens/s", "x plain", "tokens/pass", "draft tokens kept")]
    for name in ("acceptance_draft", "block_efficiency", "tokens_per_second"):
        if points := [point[name] for point in figures["curve"]]:
            lines.append(f"{name.replace('_', ' '):>18}  {sparkline(points)}  (by {GROUP} prompts)")
    for name in ("plain", "before", "after"):
        f, base = figures[name], figures["plain"]["tokens_per_second"]
        rows.append((name, f"{f['tokens_per_second']:.0f}", f"{f['tokens_per_second'] / base:.2f}",
                     f"{f['block_efficiency']:.2f}",
                     f"{f['acceptance_draft']:.0%}" if f["drafted"] else ""))
    end = Text("\n".join(["", *lines, "", columns(rows), (
        f"{HELD_OUT} prompts that were not learned from. Learning: {s['prompts']} prompts, "
        f"{s['updates']} updates, {s['learning_seconds']:.1f} s of {s['wall_seconds']:.0f} s.")]))
    errors.print(end, soft_wrap=True)
    return [head, legend(signs), end], figures


def measure(pair: Pair, prompts: list[str], how: Options, drafts: bool = True) -> dict:
    """Figures of prompts that are not learned from, with the drafter as it is now or plain."""
    decode = speculative if drafts else plain
    return summarize(record for prompt in prompts for record in decode(
        pair if drafts else pair.target, prompt, how, uniforms_of(0))).figures()
