"""`omnidraft bench`: the measured speed of a pair next to plain decoding of its target."""

from __future__ import annotations

import json
from itertools import chain, islice
from statistics import median
from typing import Annotated

from .. import OmnidraftError, Options, Pair, Round, __version__, plain, speculative
from ..decoding import check_prompt
from ..files import check_writable, write_text
from ..metrics import summarize
from . import options
from .common import command
from .demo import is_tie
from .machine import machine
from .printing import columns, note, say
from .prompts import read_prompts


@command("omnidraft bench", "omnidraft bench -d draft-general --adapter",
         "omnidraft bench --task code --target llama3-like --repeats 5 --json bench.json",
         "omnidraft bench --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct "
         "--prompts my.jsonl")
def bench(
    models: options.Served, decoding: options.Decoding,
    task: Annotated[str, options.models(help="Prompts that ship: math, code or text.")] = "math",
    prompts: Annotated[str | None, options.models(show_default="those of --task", help=(
        "A .jsonl file with a `prompt` in each line, a file of lines, or - for stdin."))] = None,
    count: Annotated[int, options.models(help="Most prompts to use.")] = 6,
    repeats: Annotated[int, options.output(help="The table shows medians of these.")] = 3,
    figures: options.Json = None,
) -> None:
    """Measure how much faster a pair writes than its target alone."""
    how, texts = decoding.options(), list(islice(read_prompts(prompts or task)[0], max(0, count)))
    if min(count, repeats) < 1:
        raise OmnidraftError(f"--count is {count} and --repeats is {repeats}, but both must be 1 "
                             "or more")
    check_writable(figures)
    pair = models.pair(stored=False)
    if models.adapter:
        how = options.use_adapter(pair, models.adapters, how)
    here = machine() | {model.name: model.kernel for model in (pair.draft, pair.target)}
    for name in (pair.draft.name, pair.target.name, "blas_threads"):
        note(f"{name.replace('_', ' ')}: {here[name]}")
    rows = compare(pair, texts, how, repeats, decoding.seed)
    say(table(rows))
    if figures:
        settings = vars(models) | vars(decoding) | {"count": len(texts), "repeats": repeats}
        write_text(figures, json.dumps(
            {"omnidraft": __version__, "machine": here, "settings": settings, "methods": rows},
            indent=1, default=str) + "\n")


def compare(pair: Pair, prompts: list[str], how: Options, repeats: int,
            seed: int) -> dict[str, dict]:
    """Figures of both methods, which take turns at each prompt: medians, and equal greedy texts."""
    asked = [(prompt, check_prompt(pair.target, prompt)) for prompt in prompts]
    methods = {"plain": (plain, pair.target), "speculative": (speculative, pair)}
    runs: dict[str, list[list[list[Round]]]] = {name: [] for name in methods}
    for repeat in range(repeats + 1):
        for name in methods:
            runs[name].append([])
        for place, (prompt, _) in enumerate(asked if repeat else asked[:1]):  # the first: untimed
            for name in [*methods][::(-1) ** (repeat + place)]:
                draws = options.uniforms_of(seed + repeat * len(asked) + place)
                decode, models = methods[name]
                runs[name][repeat].append([*decode(models, prompt, how, draws)])
        note(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    rows: dict[str, dict] = {}
    for name, (_, *measured) in runs.items():
        each = [summarize(chain(*part)).tokens_per_second for part in measured]
        ratios = [a / b for a, b in zip(each, rows.get("plain", {}).get("each", each), strict=True)]
        s = summarize(chain(*chain(*measured)))
        rows[name] = {
            "tokens_per_second": median(each), "each": each, "ratio": median(ratios),
            "tokens": s.tokens, "target_passes": s.rounds, "block_efficiency": s.block_efficiency,
            "acceptance_proposed": s.acceptance_proposed if s.proposed else None,
            "acceptance_draft": s.acceptance_draft if s.drafted else None}
    if not how.temperature:  # then all repeats write the same
        texts = [[[token for one in rounds for token in one.emitted] for rounds in run[1]]
                 for run in runs.values()]
        ties = [is_tie(pair.target, ids, one, other)
                for (_, ids), one, other in zip(asked, *texts, strict=True) if one != other]
        rows["speculative"] |= {"prompts": len(asked), "same_text": len(asked) - len(ties),
                                "ties": sum(ties)}
    return rows


def table(rows: dict[str, dict]) -> str:
    """The rows in columns, and what they mean."""
    cells = [("method", "tokens/s", " ratio", "tokens/pass", "accepted", "same text")]
    for name, row in rows.items():
        kept, same = row["acceptance_proposed"], ""
        if "same_text" in row:
            ties = f", {row['ties']} ties" * bool(row["ties"])
            same = f"{row['same_text']}/{row['prompts']}{ties}"
        cells.append((name, f"{row['tokens_per_second']:8.0f}", f"{row['ratio']:5.2f}x",
                      f"{row['block_efficiency']:11.2f}", "" if kept is None else f"{kept:8.0%}",
                      same))
    return (f"\n{columns(cells)}\n\ntokens/s: wall clock of the decoding, without the prompt\n"
            "tokens/pass: block efficiency\n"
            "accepted: share of the proposed target tokens, mean over target passes\n"
            "same text: greedy texts that equal plain decoding's")
