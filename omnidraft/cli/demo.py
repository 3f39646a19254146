"""`omnidraft demo`: tokens coloured by their fate, the speed next to plain, a drafter learning."""

import json
import random
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .. import Adapters, OmnidraftError, Options, Pair, Round, __version__, plain, speculative
from ..decoding import check_prompt
from ..files import check_writable, write_text
from ..learning import online
from ..learning.training import Recipe, Trainer
from ..metrics import computed_speedup, speedup, summarize
from ..translation import common_prefix
from . import options
from .adapt import report
from .common import command
from .machine import machine
from .printing import console, escape, note
from .prompts import TASKS, read_prompts

# The lines of data/TASK.jsonl that are shown: held out, but of kinds that training saw, and picked
# by hand because their answers read well. benchmarks/speed.py measures averages; they are lower.
USUAL = {"math": 5, "code": 4, "text": 1}


@command("omnidraft demo", "omnidraft demo --task code --slow",
         "omnidraft demo --target llama3-like --verify slem --seed 7",
         "omnidraft demo --temperature 1 --plain --json figures.json --svg demo.svg",
         draft="draft-general, adapted", max_new_tokens=192)
def demo(
    models: options.Served, decoding: options.Decoding,
    task: Annotated[str | None, options.models(help="Only math, code or text.")] = None,
    learn: Annotated[bool, options.models("--learn", help="Learn from prompts of a task.")] = False,
    seconds: Annotated[float, options.models(help="How long --learn serves prompts.")] = 120.0,
    slow: Annotated[bool, options.output("--slow", help="Pause after every round.")] = False,
    signs: options.Plain = False,
    svg: Annotated[Path | None, options.output(metavar="FILE", help="Save a picture.")] = None,
    figures: options.Json = None,
) -> None:
    """Watch a small model draft for a bigger one. `--seed` picks the prompts."""
    how, prompts = decoding.options(), choose_prompts(task, decoding.seed)
    check_writable(svg, figures)
    if svg and figures and svg.resolve() == figures.resolve():
        raise OmnidraftError(f"--svg and --json both name {svg}: one would overwrite the other")
    if learn and models.adapter:
        raise OmnidraftError("--learn begins with the drafter as it is: leave out --adapter")
    pair, how, adapted = load(models, how, learn)
    for prompt in prompts.values():
        check_prompt(pair.target, prompt)
    if learn:
        shown, rows = watch(pair, task or "math", how, seconds, decoding.seed, signs)
    else:
        shown, rows = show(pair, prompts, how, decoding.seed, signs, 0.35 if slow else 0.0)
    if figures:
        settings = vars(decoding) | {"adapter": adapted, "verify": how.verify}
        save_figures(figures, pair, settings, rows)
    if svg:
        from .render import export_svg

        write_text(svg, export_svg(shown, f"{pair.draft.name} drafts for {pair.target.name}"))


def save_figures(path: Path, pair: Pair, settings: dict[str, Any], tasks: Any) -> None:
    """Write figures as JSON, with what they were measured with."""
    models = (pair.draft, pair.target)
    settings |= {"draft": pair.draft.name, "target": pair.target.name,
                 "kernels": {model.name: model.kernel for model in models}}
    write_text(path, json.dumps({"omnidraft": __version__, "machine": machine(), "tasks": tasks,
                                 "settings": settings}, indent=1, default=str) + "\n")


def load(models: options.Served, how: Options, learn: bool) -> tuple[Pair, Options, bool]:
    """The pair, its options with the adapter's head, and whether it drafts with an adapter."""
    usual, store = models.draft == "draft-general, adapted", Adapters(models.adapters)
    pair = replace(models, draft="draft-general" if usual else models.draft).pair(stored=False)
    adapted = models.adapter or usual and not learn and store.load(pair, shipped=True) is not None
    if adapted:
        own = (store.folder(pair) / "current.json").exists()
        how = options.use_adapter(pair, models.adapters, how)
        where = f"your own, in {store.folder(pair)}" if own else "the one in the package"
        note(f"{pair.draft.name} drafts with an adapter: {where}")
        pair.draft.name += " with its adapter"
    return pair, how, adapted


def choose_prompts(task: str | None, seed: int) -> dict[str, str]:
    """One held-out prompt per task (or of one task): with seed 0 the usual ones, else others."""
    if task not in (None, *TASKS):
        raise OmnidraftError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}")
    rng, chosen = random.Random(seed), {}
    for name in TASKS:
        lines = [*read_prompts(name)[0]]
        chosen[name] = lines[rng.randrange(len(lines)) if seed else USUAL[name]]
    return chosen if task is None else {task: chosen[task]}


def show(pair: Pair, prompts: dict[str, str], how: Options, seed: int, signs: bool,
         pause: float) -> tuple[list[Any], list[dict]]:
    """Decode each prompt plainly and speculatively; return what was shown, and figures."""
    from .render import Painter, Text, legend, speed_table

    (out, signs), (errors, _), target = console(signs), console(signs, stderr=True), pair.target
    one, other = (f"{escape(model.name, '')} ({model.tokenizer.size:,} entries)"
                  for model in (pair.draft, target))
    head = Text(f"{one} drafts for {other}, rule {how.verify}")
    errors.print(head, legend(signs), sep="\n", soft_wrap=True)
    shown, rows, short = [head, legend(signs=True)], [], replace(how, max_new_tokens=8)
    for task, prompt in prompts.items():
        ids, uniforms = target.tokenizer.encode(prompt, bos=True), options.uniforms_of
        if not rows:  # the first passes of a process read the weights: a few tokens, untimed
            list(plain(target, ids, short, uniforms(0)))
            list(speculative(pair, prompt, short, uniforms(0)))
        errors.print(f"\n--- {task} ---")
        out.print(Text(escape(prompt), "dim"), end="", soft_wrap=True)
        alone, drafted = list(plain(target, ids, how, uniforms(seed))), []
        painter = Painter(target.tokenizer, signs)
        for record in speculative(pair, prompt, how, uniforms(seed)):
            drafted.append(record)
            out.print(painter.paint(record), end="", soft_wrap=True)
            time.sleep(pause)
        out.print()
        written = target.tokenizer.decode([token for one in drafted for token in one.emitted])
        rows.append({"task": task, "prompt": prompt, "text": written,
                     **compare(target, [(ids, alone, drafted)], how)})
        pictured = map(Painter(target.tokenizer, signs=True).paint, drafted)
        shown += [Text(f"\n--- {task} ---"), Text.assemble((escape(prompt), "dim"), *pictured)]
    shown += [Text(), speed_table(rows)]
    errors.print(shown[-1])
    if any(row.get("tie") for row in rows):
        note("tie: the texts part where the target's two best tokens differ by rounding only")
    return shown, rows


def watch(pair: Pair, task: str, how: Options, seconds: float, seed: int,
          signs: bool) -> tuple[list[Any], dict]:
    """Serve prompts for about `seconds`, a line each; return what was shown, and figures."""
    from .render import Painter, Text, legend

    (out, signs), (errors, _) = console(signs), console(signs, stderr=True)
    rng, schedule = np.random.default_rng(seed), online.Schedule(every=2, replay=6)
    learner = online.Learner(pair, Trainer(pair.draft, Recipe(), rng), rng, schedule)
    head = Text(f"{escape(pair.draft.name, '')} learns {escape(pair.target.name, '')} from {task}: "
                "tokens per target pass, draft tokens kept, tokens/s, * an update of the drafter")
    errors.print(head, legend(signs), sep="\n", soft_wrap=True)
    began, records, prompts = time.perf_counter(), [], read_prompts(task)[0]
    for learned in online.learn(learner, prompts, how, options.uniforms_of(seed)):
        records.append(learned)
        s, painter = summarize(learned.rounds), Painter(pair.target.tokenizer, signs, one_line=True)
        line = (f"{len(records):3} {s.block_efficiency:5.2f} {s.acceptance_draft:4.0%} "
                f"{s.tokens_per_second:5.0f}/s {'*' if learned.updated else ' '} ")
        out.print(Text.assemble(line, *map(painter.paint, learned.rounds)), overflow="crop",
                  no_wrap=True)
        if time.perf_counter() - began > seconds:
            break
    end = Text("\n" + report(records, learner))
    errors.print(end, soft_wrap=True)
    each = [vars(summarize(learned.rounds)) for learned in records]
    return [head, legend(signs), end], {"task": task, **learner.statistics, "prompts": each}


def compare(target: Any, texts: list[tuple[list[int], list[Round], list[Round]]],
            how: Options) -> dict[str, Any]:
    """Figures of texts, each as ids of the prompt and rounds of plain and speculative decoding."""
    slow, fast = (summarize(chain(*rounds)) for rounds in [*zip(*texts, strict=True)][1:])
    row = {"plain": vars(slow), "speculative": vars(fast), "speedup": speedup(fast, slow),
           "computed_speedup": computed_speedup(fast, slow)}
    if how.temperature:
        kind = "biased" if how.verify == "omnidraft" else "exact"
        return row | {"distribution": f"{kind} ({how.verify})"}
    written = [(ids, *([token for one in rounds for token in one.emitted] for rounds in both))
               for ids, *both in texts]
    other = [text for text in written if text[1] != text[2]]
    tie = bool(other) and all(is_tie(target, *text) for text in other)
    return row | {"same_text": not other, "tie": tie}


def is_tie(model: Any, ids: list[int], one: list[int], other: list[int], gap: float = 1e-3) -> bool:
    """Whether two greedy texts part at tokens whose logits differ by float32 rounding only."""
    place = common_prefix(one, other)
    if place >= min(len(one), len(other)):
        return False
    row = model.forward(ids + one[:place], model.new_cache())[0]
    return bool(row.max() - min(row[one[place]], row[other[place]]) < gap)
