"""What `omnidraft demo --learn` shows: a drafter learns a target while it serves prompts."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from .. import Learner, Options, Pair, learn
from ..learning.online import Schedule
from ..learning.training import Recipe, Trainer
from ..metrics import summarize
from .adapt import report
from .options import uniforms_of
from .printing import console, escape
from .prompts import read_prompts


def watch(pair: Pair, task: str, how: Options, seconds: float, seed: int,
          signs: bool) -> tuple[list[Any], dict]:
    """Serve prompts for about `seconds`, a line each; return what was shown, and figures."""
    from rich.text import Text

    from .render import Painter, legend

    (out, signs), (errors, _) = console(signs), console(signs, stderr=True)
    rng = np.random.default_rng(seed)
    learner = Learner(pair, Trainer(pair.draft, Recipe(), rng), rng, Schedule(every=2, replay=6))
    head = Text(f"{escape(pair.draft.name, '')} learns {escape(pair.target.name, '')} from {task}: "
                "tokens per target pass, draft tokens kept, tokens/s, * an update of the drafter")
    errors.print(head, legend(signs), sep="\n", soft_wrap=True)
    began, records = perf_counter(), []
    for learned in learn(learner, read_prompts(task)[0], how, uniforms_of(seed)):
        records.append(learned)
        s, painter = summarize(learned.rounds), Painter(pair.target.tokenizer, signs, one_line=True)
        line = Text(f"{len(records):3} {s.block_efficiency:5.2f} {s.acceptance_draft:4.0%} "
                    f"{s.tokens_per_second:5.0f}/s {'*' if learned.updated else ' '} ")
        out.print(line.append_text(Text.assemble(*map(painter.paint, learned.rounds))),
                  overflow="crop", no_wrap=True)
        if perf_counter() - began > seconds:
            break
    end = Text("\n".join(["", *report(records, learner)]))
    errors.print(end, soft_wrap=True)
    return [head, legend(signs), end], {
        "task": task, **learner.statistics, "rollbacks": learner.rollbacks,
        "prompts": [summarize(learned.rounds).figures() for learned in records]}
