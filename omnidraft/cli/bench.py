"""`omnidraft bench`: the measured speed of a pair against plain decoding of its target."""

import json
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from .. import OmnidraftError, Options, Pair, Round, __version__, plain
from ..metrics import computed_speedup, speedup, summarize
from ..pairs.pace import paced
from ..pairs.prompts import ids_of
from ..text.files import check_writable, write_text
from ..translation import common_prefix
from . import options
from .common import command
from .inspect import machine
from .printing import console, note


@command("omnidraft bench", "omnidraft bench -d draft-general --adapter auto",
         "omnidraft bench --task code --target llama3-like --repeats 5 --json bench.json",
         "omnidraft bench -d ./my-drafter -t ./my-target --prompts my.jsonl")
def bench(
    models: options.Served, decoding: options.Decoding, source: options.Prompts = "math",
    chat: options.Chat = None,
    count: Annotated[int, options.models(help="Number of prompts.")] = 6,
    repeats: Annotated[int, options.output(help="Runs; the speedup is their median.")] = 3,
    figures: options.Json = None,
) -> None:
    """Measure how much faster a pair decodes than its target alone."""
    from .render import speed_table
    how = decoding.options()
    if min(count, repeats) < 1:
        raise OmnidraftError(f"--count is {count} and --repeats is {repeats}: give 1 or more")
    prompts = [one for _, one in zip(range(count), options.read_prompts(source)[0], strict=False)]
    check_writable(figures)
    pair, how = models.served(how)
    note(" drafts for ".join(f"{one.name} ({one.kernel})" for one in (pair.draft, pair.target)))
    note(", ".join(f"{key} {value}" for key, value in machine().items()))
    asked = [ids_of(pair, prompt) for prompt in options.asked(pair.target, prompts, chat)]
    row = measure(pair, asked, how, repeats, decoding.seed)
    row["task"] = source if source in options.TASKS else "all"
    console()[0].print(speed_table([row]), soft_wrap=True)
    if figures:
        settings = vars(models) | vars(decoding) | {"count": len(prompts), "repeats": repeats}
        save_figures(figures, pair, settings, [row])


def measure(pair: Pair, asked: list[tuple[list[int], list[int]]], how: Options, repeats: int,
            seed: int) -> dict:
    """Figures of all texts, as from `compare`; the speedup is the median over repeats.

    `asked`: the ids of each prompt for target and drafter. Both methods alternate at each prompt,
    after an untimed run of the first three prompts.
    """
    every, methods = [], [(plain, pair.target), (paced, pair)]
    for repeat in range(repeats + 1):
        texts = []
        for place, both in enumerate(asked if repeat else asked[:3]):
            draw, done = seed + repeat * len(asked) + place, {}
            for decode, models in methods[::(-1) ** (repeat + place)]:
                read = both if models is pair else both[0]
                done[decode] = [*decode(models, read, how, options.uniforms_of(draw))]
            texts.append((both[0], done[plain], done[paced]))
        every.append(texts)
        note(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    each = [compare(pair.target, texts, how)["speedup"] for texts in every[1:]]
    row = compare(pair.target, [*chain(*every[1:])], how)
    return row | {"speedup": median(each), "each": each}


def compare(target: Any, texts: list[tuple[list[int], list[Round], list[Round]]],
            how: Options) -> dict[str, Any]:
    """Figures of texts, each given as prompt ids and rounds of plain and speculative decoding."""
    slow, fast = (summarize(chain(*rounds)) for rounds in [*zip(*texts, strict=True)][1:])
    row = {"plain": vars(slow), "speculative": vars(fast), "speedup": speedup(fast, slow),
           "computed_speedup": computed_speedup(fast, slow)}
    if how.temperature:
        kind = "exact" if how.rule.exact else "biased"
        return row | {"distribution": f"{kind} ({how.verify})"}
    written = [(ids, *([token for one in rounds for token in one.emitted] for rounds in both))
               for ids, *both in texts]
    other = [text for text in written if text[1] != text[2]]
    tie = bool(other) and all(is_tie(target, *text) for text in other)
    return row | {"same_text": not other, "tie": tie}


def is_tie(model: Any, ids: list[int], one: list[int], other: list[int], gap: float = 1e-3) -> bool:
    """Do two greedy texts diverge at tokens whose logits differ only by float32 rounding?"""
    place = common_prefix(one, other)
    if place >= min(len(one), len(other)):
        return False
    row = model.forward(ids + one[:place], model.new_cache())[0]
    return bool(row.max() - min(row[one[place]], row[other[place]]) < gap)


def save_figures(path: Path, pair: Pair, settings: dict[str, Any], tasks: Any) -> None:
    """Write figures as JSON, with the settings and machine of the measurement."""
    settings |= {"draft": pair.draft.name, "target": pair.target.name,
                 "kernels": {model.name: model.kernel for model in (pair.draft, pair.target)}}
    write_text(path, json.dumps({"omnidraft": __version__, "machine": machine(), "tasks": tasks,
                                 "settings": settings}, indent=1, default=str) + "\n")
