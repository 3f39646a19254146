"""`omnidraft bench`: the measured speed of a pair against plain decoding of its target."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from .. import OmnidraftError, Options, Pair, Round, __version__, plain
from ..metrics import computed_speedup, speedup, summarize
from ..pairs.pace import paced
from ..pairs.prompts import ids_of, uniforms_of
from ..text.files import check_writable, write_text
from ..translation import common_prefix
from . import options
from .app import command
from .inspect import machine
from .printing import note, progress, say
from .prompts import TASKS, asked, read_prompts


@command("omnidraft bench", "omnidraft bench -d draft-general --adapter auto",
         "omnidraft bench --task code --target llama3-like --repeats 5 --json bench.json",
         "omnidraft bench -d ./my-drafter -t ./my-target --prompts my.jsonl")
def bench(
    models: options.Served, decoding: options.Decoding,
    source: options.Prompts = "math",
    chat: options.Chat = None,
    count: Annotated[int, options.models(help="Number of prompts.")] = 6,
    repeats: Annotated[int, options.output(help="Runs; the speedup is their median.")] = 3,
    figures: options.Json = None,
) -> None:
    """Measure how much faster a pair decodes than its target alone."""
    from .render import COLUMNS, speed_table

    how = decoding.options()
    if min(count, repeats) < 1:
        raise OmnidraftError(f"--count is {count} and --repeats is {repeats}: give 1 or more")
    prompts = [one for _, one in zip(range(count), read_prompts(source)[0], strict=False)]
    check_writable(figures)
    pair, how = models.served(how)
    here = machine()
    note(f"{pair.draft.name} drafts for {pair.target.name} on {here['cpu']}, {here['cores']} cores "
         "(`omnidraft info MODEL` says how a model runs)")
    read = [ids_of(pair, prompt) for prompt in asked(pair.target, prompts, chat)]
    row = measure(pair, read, how, repeats, decoding.seed)
    row["task"] = source if source in TASKS else "all"
    slowest, fastest = min(row["each"]), max(row["each"])
    say(f"{speed_table([row])}\n\n{COLUMNS}\n"
        f"speedup: the median of {repeats} runs, {slowest:.2f}-{fastest:.2f}")
    if row["undrafted"]:
        say(f"{row['undrafted']:.0%} of the rounds drafted nothing: drafting did not pay, or the "
            "drafter was not sure (--no-adaptive --threshold 0 always drafts)")
    if figures:
        settings = vars(models) | vars(decoding) | {"count": len(prompts), "repeats": repeats}
        save_figures(figures, pair, settings, [row])


class Measured(NamedTuple):
    """One text: the target's ids of its prompt, and the rounds of both ways to decode it."""

    ids: list[int]
    plain: list[Round]
    speculative: list[Round]


def measure(pair: Pair, asked: list[tuple[list[int], list[int]]], how: Options, repeats: int,
            seed: int) -> dict:
    """Figures of all texts, as from `compare`; the speedup is the median over repeats.

    `asked`: the ids of each prompt for target and drafter. Both methods alternate at each prompt,
    after an untimed run of the first three prompts.
    """
    every: list[Measured] = []
    each = []
    with progress(auto_refresh=False) as bar:  # it is renewed between two runs only
        for repeat in bar.track(range(repeats + 1), description="measuring"):
            texts = []
            for place, ids in enumerate(asked if repeat else asked[:3]):
                ways = both_ways(pair, ids, how, seed + repeat * len(asked) + place)
                if (repeat + place) % 2:
                    ways.reverse()
                made = {name: list(records) for name, records in ways}
                texts.append(Measured(ids[0], **made))
            if repeat:
                each.append(compare(pair.target, texts, how)["speedup"])
                every += texts
    return compare(pair.target, every, how) | {"speedup": median(each), "each": each}


def both_ways(pair: Pair, ids: tuple[list[int], list[int]], how: Options,
              seed: int) -> list[tuple[str, Iterator[Round]]]:
    """A text decoded plainly and speculatively with the same draws, as each is read."""
    return [("plain", plain(pair.target, ids[0], how, uniforms_of(seed))),
            ("speculative", paced(pair, ids, how, uniforms_of(seed)))]


def compare(target: Any, texts: list[Measured], how: Options) -> dict[str, Any]:
    """Figures of some texts: of both ways, the speedup, and whether the texts are the same."""
    slow = summarize(record for text in texts for record in text.plain)
    fast = summarize(record for text in texts for record in text.speculative)
    row = {"plain": vars(slow), "speculative": vars(fast), "speedup": speedup(fast, slow),
           "computed_speedup": computed_speedup(fast, slow),
           "undrafted": sum(not (record.draft_tokens or record.done) for text in texts
                            for record in text.speculative) / (fast.rounds or 1)}
    if how.temperature:
        kind = "exact" if how.rule.exact else "biased"
        return row | {"distribution": f"{kind} ({how.verify})"}
    ties = []
    for text in texts:
        one, other = emitted(text.plain), emitted(text.speculative)
        if one != other:
            ties.append(is_tie(target, text.ids, one, other))
    return row | {"same_text": not ties, "tie": bool(ties) and all(ties)}


def emitted(rounds: list[Round]) -> list[int]:
    """The tokens that some rounds wrote."""
    return [token for record in rounds for token in record.emitted]


def is_tie(model: Any, ids: list[int], one: list[int], other: list[int]) -> bool:
    """Do two greedy texts diverge at tokens whose logits differ only by float32 rounding?"""
    place = common_prefix(one, other)
    if place >= min(len(one), len(other)):
        return False
    row = model.forward(ids + one[:place], model.new_cache())[0]
    return bool(row.max() - min(row[one[place]], row[other[place]]) < 1e-3)


def save_figures(path: Path, pair: Pair, settings: dict[str, Any], tasks: Any) -> None:
    """Write figures as JSON, with the settings and machine of the measurement."""
    settings |= {"draft": pair.draft.name, "target": pair.target.name,
                 "kernels": {model.name: model.kernel for model in (pair.draft, pair.target)}}
    found = {"omnidraft": __version__, "machine": machine(), "tasks": tasks, "settings": settings}
    write_text(path, json.dumps(found, indent=1, default=str) + "\n")
