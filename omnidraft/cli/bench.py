"""`omnidraft bench`: the measured speed of a pair next to plain decoding of its target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain, islice
from statistics import median
from typing import Annotated, Any

import numpy as np

from .. import OmnidraftError, Options, Pair, Round, __version__, plain, speculative
from ..decoding import check_prompt
from ..files import check_writable, write_text
from ..metrics import summarize
from ..sampling import mask, process
from . import options
from .common import command, note, say
from .demo import is_tie
from .machine import machine
from .prompts import read_prompts
from .render import columns

Method = Callable[[str, list[int], int, int], list[Round]]  # prompt, its ids, new tokens, seed


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
    repeats: Annotated[int, options.output(help="Medians over so many are shown.")] = 3,
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
    rows = compare(ours(pair, how), texts, pair.target, how, repeats, decoding.seed)
    say(table(rows, "the decoding, without the prompt"))
    if figures:
        settings = vars(models) | vars(decoding) | {"count": len(texts), "repeats": repeats}
        write_text(figures, json.dumps(
            {"omnidraft": __version__, "machine": here, "settings": settings, "methods": rows},
            indent=1, default=str) + "\n")


def ours(pair: Pair, how: Options) -> dict[str, Method]:
    """Plain decoding of the target, and speculative decoding of the pair."""
    return {"plain": lambda prompt, ids, limit, seed: [
                *plain(pair.target, ids, how, options.uniforms_of(seed))],
            "speculative": lambda prompt, ids, limit, seed: [
                *speculative(pair, prompt, how, options.uniforms_of(seed))]}


def compare(methods: dict[str, Method], prompts: Sequence[str], target: Any, how: Options,
            repeats: int, seed: int = 0) -> dict[str, dict]:
    """A row of figures per method: medians over repeats, ratios to the first method, same texts.

    They take turns at each prompt, after each has written the first one untimed. A method that
    returns no rounds has failed, and its row is empty.
    """
    texts, (base, *_) = [(prompt, check_prompt(target, prompt)) for prompt in prompts], methods
    runs: dict[str, list[list[list[Round]]]] = {name: [] for name in methods}
    for repeat in range(repeats + 1):
        for name in methods:
            runs[name].append([])
        for place, (prompt, ids) in enumerate(texts if repeat else texts[:1]):
            limit = min(how.max_new_tokens, target.context_size - len(ids))
            turn, draw = (repeat + place) % len(methods), seed + repeat * len(texts) + place
            for name in [*methods][turn:] + [*methods][:turn]:
                runs[name][repeat].append(methods[name](prompt, ids, limit, draw))
        note(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    rows: dict[str, dict] = {name: {} for name in methods}
    for name, (_, *measured) in runs.items():
        if not all(chain(*measured)):
            continue
        each = [summarize(chain(*part)).tokens_per_second for part in measured]
        s = summarize(chain(*chain(*measured)))
        ratios = np.divide(each, rows[base].get("each", each))
        rows[name] = {
            "tokens_per_second": median(each), "each": each, "ratio": median(ratios.tolist()),
            "tokens": s.tokens, "target_passes": s.rounds, "block_efficiency": s.block_efficiency,
            "acceptance_proposed": s.acceptance_proposed if s.proposed else None,
            "acceptance_draft": s.acceptance_draft if s.drafted else None}
        written = [tokens_of(rounds) for rounds in chain(*measured)]
        if how.temperature:
            pairs = zip([ids for _, ids in texts] * repeats, written, strict=True)
            rows[name] |= excess(target, how.temperature, [*pairs])
            continue
        # greedy texts are the same in every repeat
        other = [(ids, tokens_of(first), text) for (_, ids), first, text in zip(
            texts, runs[base][1], written, strict=False) if tokens_of(first) != text]
        rows[name] |= {"prompts": len(texts), "same_text": len(texts) - len(other),
                       "ties": sum(is_tie(target, *three) for three in other)}
    return rows


def tokens_of(rounds: list[Round]) -> list[int]:
    """What they wrote."""
    return [token for record in rounds for token in record.emitted]


def excess(target: Any, temperature: float,
           texts: list[tuple[list[int], list[int]]]) -> dict[str, float]:
    """How likely the tokens are next to the target's own draws, 0 for an exact method.

    The mean of log p(token) - sum p log p over `texts` (ids of a prompt, and of what was written
    after it), with the standard error of exact draws.
    """
    sums, count = np.zeros(2), sum(len(tokens) for _, tokens in texts)
    for ids, tokens in texts:
        logits = target.forward(ids + tokens[:-1], target.new_cache(), rows=len(tokens))
        p = process(mask(logits, target.tokenizer.size), temperature)  # (tokens, V)
        log_p = np.log(np.maximum(p, 1e-30))
        log_p -= (p * log_p).sum(-1, keepdims=True)
        sums += log_p[np.arange(len(tokens)), tokens].sum(), (p * log_p**2).sum()
    mean, error = float(sums[0]) / count, float(sums[1]) ** 0.5 / count
    return {"log_p_excess": mean, "log_p_excess_error": error}


def table(rows: dict[str, dict], timed: str) -> str:
    """The rows in columns, and what they mean."""
    greedy = any("same_text" in row for row in rows.values())
    last = "same text" if greedy else "excess"
    cells = [("method", "tokens/s", " ratio", "tokens/pass", "accepted", last)]
    for name, row in rows.items():
        if not row:
            cells.append((name, "failed"))
            continue
        kept = row["acceptance_proposed"]
        if greedy:
            ties = f", {row['ties']} ties" if row["ties"] else ""
            same = f"{row['same_text']}/{row['prompts']}{ties}"
        else:
            same = f"{row['log_p_excess']:+.2f}±{row['log_p_excess_error']:.2f}"
        cells.append((name, f"{row['tokens_per_second']:8.0f}", f"{row['ratio']:5.2f}x",
                      f"{row['block_efficiency']:11.2f}", "" if kept is None else f"{kept:8.0%}",
                      same))
    meaning = "greedy texts that are the first method's" if greedy else \
        "of log p over what the target's own draws have, 0 for an exact method"
    return (f"\n{columns(cells)}\n\ntokens/s: wall clock of {timed}\n"
            "tokens/pass: block efficiency\n"
            "accepted: share of the proposed target tokens, mean over target passes\n"
            f"{last}: {meaning}")
