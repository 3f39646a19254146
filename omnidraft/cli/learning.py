"""What `omnidraft demo --learn` shows: a drafter that has never seen the target's texts learns them while it serves."""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

import omnidraft as od

from . import common
from .render import Painter, legend, sparkline

if TYPE_CHECKING:
    from rich.console import Console

HELD_OUT = 6  # prompts of the task that are only measured on, before and after
GROUP = 8  # prompts per point of the curve


def watch(base: od.Pair, task: str, options: od.Options, seconds: float, seed: int, plain: bool) -> tuple[list[Any], dict]:
    """Serve prompts of `task` for about `seconds`, a line each, then compare before and after: what was shown, and figures.

    The first HELD_OUT prompts that ship for the task are never learned from.
    """
    out, errors = common.consoles()
    plain = plain or common.without_colour(out)
    lines = (Path(__file__).parents[1] / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    rng = np.random.default_rng(seed)
    learner = od.Learner(base, od.Trainer(base.draft, od.Recipe(), rng), rng, od.Schedule(every=2, replay=6))
    shown: list[Any] = [Text(f"{base.draft.name} learns {base.target.name} from {task}: a line per prompt, with tokens per "
                             "target pass, draft tokens kept and tokens per second"), legend(plain)]
    errors.print(*shown, sep="\n", soft_wrap=True)
    figures: dict[str, Any] = {"task": task, "plain": _measure(base, prompts[:HELD_OUT], options, True),
                               "before": _measure(base, prompts[:HELD_OUT], options), "curve": []}
    began, group = perf_counter(), []
    for count, learned in enumerate(od.learn(learner, prompts[HELD_OUT:], options, od.Uniforms(rng)), 1):
        if not learned.rounds:
            continue
        painter = Painter(base.target.tokenizer, plain, one_line=True)
        out.print(_line(count, learned, painter, out), overflow="crop", no_wrap=True)
        group += learned.rounds
        if count % GROUP == 0:
            figures["curve"].append(od.summarize(group).figures())
            group = []
        if perf_counter() - began > seconds:
            break
    figures["learning"] = learner.statistics | {"rollbacks": learner.rollbacks, "wall_seconds": perf_counter() - began}
    figures["after"] = _measure(base, prompts[:HELD_OUT], options)
    shown += [_curves(figures["curve"]), _table(figures)]
    errors.print(*shown[2:])
    return shown, figures


def _measure(pair: od.Pair, prompts: list[str], options: od.Options, plainly: bool = False) -> dict[str, float]:
    """Figures of the held-out prompts, decoded plainly or with the drafter as it is now."""
    rounds: list[od.Round] = []
    for prompt in prompts:
        uniforms = common.uniforms_of(0)
        rounds += od.plain(pair.target, pair.target.tokenizer.encode(prompt, bos=True), options, uniforms) if plainly else \
            od.speculative(pair, prompt, options, uniforms)
    return od.summarize(rounds).figures()


def _line(count: int, learned: Any, painter: Painter, out: Console) -> Text:
    s = od.summarize(learned.rounds)
    line = Text(f"{count:3} {s.block_efficiency:5.2f} {s.acceptance_draft:4.0%} {s.tokens_per_second:5.0f}/s "
                f"{'*' if learned.updated else ' '} ")
    for record in learned.rounds:
        line.append_text(painter.paint(record))
        if len(line) > out.width:
            break
    return line


def _curves(points: list[dict]) -> Text:
    """Acceptance, block efficiency and speed as they went."""
    names = {"acceptance_draft": "draft tokens kept", "block_efficiency": "tokens per target pass",
             "tokens_per_second": "tokens/s"}
    lines = [f"{title:>24}  {sparkline([point[name] for point in points])}" for name, title in names.items()] if points else []
    return Text("\n".join(["", f"means of {GROUP} prompts each, * is an update of the drafter", *lines]))


def _table(figures: dict) -> Table:
    """Before and after on the held-out prompts, beside plain decoding."""
    s = figures["learning"]
    table = Table(box=None, pad_edge=False, caption_justify="left", caption=(
        f"{HELD_OUT} prompts that were not learned from. Learning: {s['prompts']} prompts, {s['updates']} updates, "
        f"{s['learning_seconds']:.1f} s of {s['wall_seconds']:.0f} s."))
    for name in ("decoding", "tokens/s", "x plain", "tokens per pass", "draft tokens kept"):
        table.add_column(name, justify="left" if name == "decoding" else "right")
    for key, name in (("plain", "plain"), ("before", "speculative, before"), ("after", "speculative, after")):
        f = figures[key]
        ratio = f["tokens_per_second"] / figures["plain"]["tokens_per_second"]
        table.add_row(name, f"{f['tokens_per_second']:.0f}", f"{ratio:.2f}", f"{f['block_efficiency']:.2f}",
                      "" if key == "plain" else f"{f['acceptance_draft']:.0%}")
    return table
