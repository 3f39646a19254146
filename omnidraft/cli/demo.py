"""`omnidraft demo`: tokens coloured by their fate, and the speed compared to plain decoding."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer

from .. import OmnidraftError, Options, Pair, Round, Tokenizer
from ..engine.load import drafter_for
from ..metrics import summarize
from ..pairs.prompts import ids_of
from ..text.files import check_writable
from . import options
from .app import command
from .bench import Measured, both_ways, compare, emitted, save_figures
from .generate import note_plain
from .printing import console, escape, note
from .prompts import Request, asked

USUAL = {"math": "Ben has 24 marbles. He gives 6 to Mia and 4 to Tom. How many marbles are left?",
         "code": "Write a Python function that adds two numbers.",
         "text": "Write a story about a dog."}
PAUSE = 0.35  # seconds between two steps of --slow


@command("omnidraft demo", "omnidraft demo --task code --slow",
         "omnidraft demo 'Once upon a time' --draft ./my-drafter --target ./my-target",
         "omnidraft demo --target llama3-like --verify slem",
         "omnidraft demo --temperature 1 --plain --json figures.json",
         "omnidraft demo --target smollm2",
         "omnidraft demo --paper --task math",
         max_new_tokens=192)
def demo(
    models: options.Served, decoding: options.Decoding,
    prompt: Annotated[str | None, typer.Argument(
        show_default="one of each task", help="Text to continue.")] = None,
    task: Annotated[str | None, options.models(
        help="Only this task: math, code, text.")] = None,
    slow: Annotated[bool, options.output(
        "--slow", help="Show each draft, then the verdict, and pause after both.")] = False,
    paper: options.Paper = False,
    signs: options.Plain = False,
    figures: options.Json = None,
    chat: options.Chat = None,
) -> None:
    """Watch a small model draft for a larger one."""
    how = decoding.options()
    if paper:
        options.check_paper(vars(decoding))
    if task is not None and (task not in USUAL or prompt is not None):
        raise OmnidraftError(f"--task {task}: choose {', '.join(USUAL)}, or give a prompt instead")
    prompts = {task: USUAL[task]} if task else USUAL
    if prompt is not None:
        prompts = {"yours": prompt}
    check_writable(figures)
    models = replace(models, draft=models.draft or drafter_for(models.target, learns=True))
    pair, how = models.served(how, shipped=not paper)
    if paper:
        how = options.as_in_paper(pair, how)
    how = replace(how, adaptive=bool(how.adaptive))  # unless asked otherwise, show drafts
    rows = show(pair, prompts, how, decoding.seed, signs, slow, chat)
    if figures:
        save_figures(figures, pair, vars(decoding) | {"verify": how.verify}, rows)


def show(pair: Pair, prompts: dict[str, str], how: Options, seed: int, signs: bool,
         slow: bool, chat: bool | None = None) -> list[dict]:
    """Decode each prompt plainly and speculatively; return the figures."""
    from .render import COLUMNS, Painter, Text, headline, legend, speed_table

    out, signs = console(signs)
    errors, _ = console(signs, stderr=True)
    target = pair.target
    requests = list(asked(target, map(Request, prompts.values()), chat))
    read = [ids_of(pair, request) for request in requests]  # all, before the first is shown
    names = [f"{one.name} ({one.tokenizer.size:,} entries)" for one in (pair.draft, target)]
    note(" drafts for ".join(names) + f", rule {how.verify}")
    errors.print(legend(signs, rounds=True))
    for _, records in both_ways(pair, read[0], replace(how, max_new_tokens=8), 0):
        list(records)  # untimed: the first passes of a process load the weights
    rows = []
    for (task, prompt), request, ids in zip(prompts.items(), requests, read, strict=True):
        errors.print(f"\n--- {task} ---")
        (_, alone), (_, records) = both_ways(pair, ids, how, seed)
        alone = list(alone)
        end = "" if isinstance(request, str) else "\n"  # the answer to a chat begins on a new line
        out.print(Text(escape(prompt) + end, "dim"), end="", soft_wrap=True)
        drafted = play(out, records, Painter(target.tokenizer, signs), pair.draft.tokenizer, slow)
        note_plain(summarize(drafted), pair, how)
        written = target.tokenizer.decode(emitted(drafted))
        rows.append({"task": task, "prompt": prompt, "text": written,
                     **compare(target, [Measured(ids[0], alone, drafted)], how)})
    note(f"\n{speed_table(rows)}\n\n{COLUMNS}\n")
    errors.print(headline(rows), soft_wrap=True)
    return rows


def play(out: Any, records: Iterable[Round], painter: Any, drafter: Tokenizer,
         slow: bool) -> list[Round]:
    """Show a text round by round; `slow`: each on a new line, after its draft. Returns them."""
    from .render import drafted

    done = []
    for record in records:
        done.append(record)
        steps = [painter.paint_with_end(record)]
        if slow:
            steps.insert(0, drafted(record, drafter))
        for step in filter(None, steps):
            if slow:
                out.print()
                time.sleep(PAUSE)
            out.print(step, end="", soft_wrap=True)
    out.print()
    return done
