"""`omnidraft demo`: tokens coloured by their fate, and the speed compared to plain decoding."""

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer

from .. import OmnidraftError, Options, Pair, Round, Tokenizer, plain
from ..engine.load import drafter_for
from ..pairs.prompts import ids_of
from ..text.files import check_writable
from . import options
from .bench import compare, save_figures
from .common import command
from .generate import on_a_terminal, rounds_of
from .printing import console, escape, note

USUAL = {"math": "Ben has 24 marbles. He gives 6 to Mia and 4 to Tom. How many marbles are left?",
         "code": "Write a Python function that adds two numbers.",
         "text": "Write a story about a dog."}
USUAL_ADAPTER = "none, except for the default drafter"
PAUSE = 0.35  # seconds between two steps of --slow


@command("omnidraft demo", "omnidraft demo --task code --slow",
         "omnidraft demo 'Once upon a time' --draft ./my-drafter --target ./my-target",
         "omnidraft demo --target llama3-like --verify slem --seed 7",
         "omnidraft demo --temperature 1 --plain --json figures.json",
         "omnidraft demo --target smollm2",
         adapter=USUAL_ADAPTER, max_new_tokens=192)
def demo(
    models: options.Served, decoding: options.Decoding,
    prompt: Annotated[str | None, typer.Argument(
        show_default="one of each task", callback=options.typed, help="Text to continue.")] = None,
    task: Annotated[str | None, options.models(help="Only this task: math, code, text.")] = None,
    slow: Annotated[bool, options.output(
        "--slow", help="Show each draft, then the verdict; space: next, Enter: all.")] = False,
    signs: options.Plain = False, figures: options.Json = None, chat: options.Chat = None,
) -> None:
    """Watch a small model draft for a larger one. `--seed` chooses the prompts."""
    how, seed = decoding.options(), decoding.seed
    if task not in (None, *USUAL) or task and prompt is not None:
        raise OmnidraftError(f"--task {task}: choose {', '.join(USUAL)}, or give a prompt instead")
    rng = random.Random(seed)
    prompts = {"yours": prompt} if prompt is not None else {
        name: rng.choice([*options.read_prompts(name)[0]]) if seed else USUAL[name]
        for name in ([task] if task else USUAL)}
    check_writable(figures)
    draft = models.draft or drafter_for(models.target, learns=True)
    which = models.adapter
    if which == USUAL_ADAPTER:  # None: what this drafter has learned, if anything
        which = "none" if models.draft else None
    pair, how = replace(models, draft=draft, adapter=which).served(how)
    how = replace(how, adaptive=bool(how.adaptive))  # unless asked otherwise, show drafts
    rows = show(pair, prompts, how, seed, signs, slow, chat)
    if figures:
        save_figures(figures, pair, vars(decoding) | {"verify": how.verify}, rows)


def show(pair: Pair, prompts: dict[str, str], how: Options, seed: int, signs: bool,
         slow: bool, chat: bool | None = None) -> list[dict]:
    """Decode each prompt plainly and speculatively; return the figures."""
    from .render import Painter, Text, headline, legend, speed_table

    (out, signs), (errors, _), target = console(signs), console(signs, stderr=True), pair.target
    requests = [*options.asked(target, map(options.Request, prompts.values()), chat)]
    asked = [ids_of(pair, request)[0] for request in requests]  # all, before the first is shown
    ends = ["" if isinstance(request, str) else "\n" for request in requests]  # of what is shown
    note(" drafts for ".join(f"{one.name} ({one.tokenizer.size:,} entries)"
                             for one in (pair.draft, target)) + f", rule {how.verify}")
    errors.print(legend(signs, rounds=True), soft_wrap=True)
    rows, short, uniforms = [], replace(how, max_new_tokens=8), options.uniforms_of
    each = zip(prompts.items(), requests, asked, ends, strict=True)
    for (task, prompt), request, ids, end in each:
        if not rows:  # warm up untimed: the first passes of a process load the weights
            list(plain(target, ids, short, uniforms(0)))
            pair.generate(request, short)
        keys = "  (space: next step, Enter: run to the end)" if slow and on_a_terminal() else ""
        errors.print(f"\n--- {task} ---{keys}")
        alone = list(plain(target, ids, how, uniforms(seed)))
        drafted = play(out, Text.assemble((escape(prompt) + end, "dim")),
                       rounds_of(pair, request, how, seed),
                       Painter(target.tokenizer, signs), pair.draft.tokenizer, slow)
        written = target.tokenizer.decode([token for one in drafted for token in one.emitted])
        rows.append({"task": task, "prompt": prompt, "text": written,
                     **compare(target, [(ids, alone, drafted)], how)})
    errors.print(Text(), speed_table(rows), headline(rows), soft_wrap=True)
    return rows


def play(out: Any, begin: Any, records: Iterable[Round], painter: Any, drafter: Tokenizer,
         slow: bool) -> list[Round]:
    """Show a text round by round and return the rounds; `slow`: each draft, then the verdict."""
    from rich.live import Live

    from .render import Text, drafted

    done, text, by_key = [], begin.copy(), on_a_terminal()
    if not (slow and out.is_terminal):
        out.print(begin, end="", soft_wrap=True)
        for record in records:
            done.append(record)
            out.print(painter.paint_with_end(record), end="", soft_wrap=True)
            time.sleep(PAUSE * slow)
        out.print()
        return done
    with Live(console=out, auto_refresh=False) as screen:
        for record in records:
            done.append(record)
            grey = text + drafted(record, drafter)
            text.append_text(painter.paint_with_end(record))
            for step in (grey, text) if record.draft_tokens else (text,):
                lines = step.wrap(out, out.width)[-(out.height - 1):]  # those that fit
                screen.update(Text("\n").join(lines), refresh=True)
                if by_key:
                    by_key = typer.getchar() not in "\r\n"  # Enter lets the rest run
                else:
                    time.sleep(PAUSE)
        screen.update(text)
    return done
