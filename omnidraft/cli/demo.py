"""`omnidraft demo`: tokens coloured by their fate, and the speed compared to plain decoding."""

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer

from .. import OmnidraftError, Options, Pair, Round, Tokenizer, plain
from ..engine.load import drafter_for
from ..metrics import summarize
from ..pairs.prompts import ids_of, uniforms_of
from ..text.files import check_writable
from . import options
from .app import command
from .bench import Measured, compare, emitted, save_figures
from .generate import note_plain, rounds_of
from .printing import console, escape, note
from .prompts import Request, asked, read_prompts

USUAL = {"math": "Ben has 24 marbles. He gives 6 to Mia and 4 to Tom. How many marbles are left?",
         "code": "Write a Python function that adds two numbers.",
         "text": "Write a story about a dog."}
PAUSE = 0.35  # seconds between two steps of --slow


@command("omnidraft demo", "omnidraft demo --task code --slow",
         "omnidraft demo 'Once upon a time' --draft ./my-drafter --target ./my-target",
         "omnidraft demo --target llama3-like --verify slem --seed 7",
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
    """Watch a small model draft for a larger one. `--seed` chooses the prompts."""
    how = decoding.options()
    if paper:
        options.check_paper(vars(decoding))
    if task is not None and (task not in USUAL or prompt is not None):
        raise OmnidraftError(f"--task {task}: choose {', '.join(USUAL)}, or give a prompt instead")
    prompts = chosen(prompt, task, decoding.seed)
    check_writable(figures)
    models = replace(models, draft=models.draft or drafter_for(models.target, learns=True))
    pair, how = models.served(how, shipped=not paper)
    if paper:
        how = options.as_in_paper(pair, how)
    how = replace(how, adaptive=bool(how.adaptive))  # unless asked otherwise, show drafts
    rows = show(pair, prompts, how, decoding.seed, signs, slow, chat)
    if figures:
        save_figures(figures, pair, vars(decoding) | {"verify": how.verify}, rows)


def chosen(prompt: str | None, task: str | None, seed: int) -> dict[str, str]:
    """The prompts to show, by name: the reader's own, or one of the task, or one of each."""
    if prompt is not None:
        return {"yours": prompt}
    names = [task] if task else list(USUAL)
    if not seed:
        return {name: USUAL[name] for name in names}
    rng = random.Random(seed)
    return {name: rng.choice(list(read_prompts(name)[0])) for name in names}


def show(pair: Pair, prompts: dict[str, str], how: Options, seed: int, signs: bool,
         slow: bool, chat: bool | None = None) -> list[dict]:
    """Decode each prompt plainly and speculatively; return the figures."""
    from .render import COLUMNS, Painter, Text, headline, legend, speed_table

    out, signs = console(signs)
    errors, _ = console(signs, stderr=True)
    target = pair.target
    requests = list(asked(target, map(Request, prompts.values()), chat))
    read = [ids_of(pair, request)[0] for request in requests]  # all, before the first is shown
    names = [f"{one.name} ({one.tokenizer.size:,} entries)" for one in (pair.draft, target)]
    note(" drafts for ".join(names) + f", rule {how.verify}")
    errors.print(legend(signs, rounds=True))
    warm_up(pair, requests[0], read[0], how)
    rows = []
    for (task, prompt), request, ids in zip(prompts.items(), requests, read, strict=True):
        errors.print(f"\n--- {task} ---")
        alone = list(plain(target, ids, how, uniforms_of(seed)))
        end = "" if isinstance(request, str) else "\n"  # the answer to a chat begins on a new line
        drafted = play(out, Text.assemble((escape(prompt) + end, "dim")),
                       rounds_of(pair, request, how, seed),
                       Painter(target.tokenizer, signs), pair.draft.tokenizer, slow)
        note_plain(summarize(drafted), pair, how)
        written = target.tokenizer.decode(emitted(drafted))
        rows.append({"task": task, "prompt": prompt, "text": written,
                     **compare(target, [Measured(ids, alone, drafted)], how)})
    note(f"\n{speed_table(rows)}\n\n{COLUMNS}\n")
    errors.print(headline(rows), soft_wrap=True)
    return rows


def warm_up(pair: Pair, request: Any, ids: list[int], how: Options) -> None:
    """Decode a few tokens untimed: the first passes of a process load the weights."""
    short = replace(how, max_new_tokens=8)
    list(plain(pair.target, ids, short, uniforms_of(0)))
    pair.generate(request, short)


def play(out: Any, begin: Any, records: Iterable[Round], painter: Any, drafter: Tokenizer,
         slow: bool) -> list[Round]:
    """Show a text round by round and return the rounds; `slow`: each draft, then the verdict."""
    if slow and out.is_terminal:
        return play_in_steps(out, begin, records, painter, drafter)
    done = []
    out.print(begin, end="", soft_wrap=True)
    for record in records:
        done.append(record)
        out.print(painter.paint_with_end(record), end="", soft_wrap=True)
        if slow:
            time.sleep(PAUSE)
    out.print()
    return done


def play_in_steps(out: Any, begin: Any, records: Iterable[Round], painter: Any,
                  drafter: Tokenizer) -> list[Round]:
    """On a terminal, which shows each draft until its verdict."""
    from rich.live import Live

    from .render import Text, drafted

    done = []
    text = begin.copy()
    with Live(console=out, auto_refresh=False) as screen:
        for record in records:
            done.append(record)
            grey = text + drafted(record, drafter)
            text.append_text(painter.paint_with_end(record))
            for step in (grey, text) if record.draft_tokens else (text,):
                lines = step.wrap(out, out.width)[-(out.height - 1):]  # those that fit
                screen.update(Text("\n").join(lines), refresh=True)
                time.sleep(PAUSE)
        screen.update(text)
    return done
