"""`omnidraft bench`: the measured speed of a pair next to plain decoding of its target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np

from .. import OmnidraftError, Options, Pair, Round, __version__, plain, speculative
from ..decoding import check_prompt
from ..files import check_writable, write_text
from ..metrics import summarize
from ..sampling import mask, process
from . import common
from .demo import is_tie
from .machine import machine
from .prompts import read_prompts
from .render import columns

Method = Callable[[str, list[int], int, int], list[Round]]  # prompt, its ids, new tokens, seed


@common.command(
    "omnidraft bench",
    "omnidraft bench --task code --target llama3-like --repeats 5 --json bench.json",
    "omnidraft bench -d draft-general --adapter",
    "omnidraft bench --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct "
    "--prompts my.jsonl")
def bench(
    models: common.Served, decoding: common.Decoding,
    task: Annotated[str, common.models(
        "--task", help="Prompts that ship here: math, code or text.")] = "math",
    prompts: Annotated[str | None, common.models(
        "--prompts", metavar="FILE", show_default="those of --task", help=(
            "A .jsonl file with a `prompt` in each line, a text file with one prompt per line, or "
            "- for stdin."))] = None,
    count: Annotated[int, common.models(
        "--count", metavar="N", help="Most prompts to use.")] = 6,
    repeats: Annotated[int, common.output(
        "--repeats", metavar="R", help="Medians over R repeats are shown.")] = 3,
    figures: Annotated[Path | None, common.output(
        "--json", metavar="FILE", help="Save every figure.")] = None,
) -> None:
    """Measure how much faster a pair writes than its target alone."""
    options = decoding.options()
    if min(count, repeats) < 1:
        raise OmnidraftError(f"--count is {count} and --repeats is {repeats}, but both must be 1 "
                             "or more")
    texts = list(islice(read_prompts(prompts or task)[0], count))
    check_writable(figures)
    pair = common.load_pair(models.draft, models.target, stored=False, **models.how())
    if models.adapter:
        options = common.use_adapter(pair, models.adapters, options)
    here = machine() | {model.name: model.kernel for model in (pair.draft, pair.target)}
    for name in (pair.draft.name, pair.target.name, "blas_threads"):
        common.note(f"{name.replace('_', ' ')}: {here[name]}")
    rows = compare(ours(pair, options), texts, pair.target, options, repeats, decoding.seed)
    common.say(table(rows, "the decoding, without the prompt"))
    if figures:
        settings = vars(models) | vars(decoding) | {"count": len(texts), "repeats": repeats}
        everything = {"omnidraft": __version__, "machine": here, "settings": settings,
                      "methods": rows}
        write_text(figures, json.dumps(everything, indent=1, default=str) + "\n")


def ours(pair: Pair, options: Options) -> dict[str, Method]:
    """Plain decoding of the target, and speculative decoding of the pair."""
    return {
        "plain": lambda prompt, ids, limit, seed: [
            *plain(pair.target, ids, options, common.uniforms_of(seed))],
        "speculative": lambda prompt, ids, limit, seed: [
            *speculative(pair, prompt, options, common.uniforms_of(seed))]}


def compare(methods: dict[str, Method], prompts: Sequence[str], target: Any, options: Options,
            repeats: int, seed: int = 0) -> dict[str, dict]:
    """A row of figures per method: medians over repeats, ratios to the first method, same texts.

    They take turns at each prompt, after each has written the first one untimed. A method that
    returns no rounds has failed, and its row is empty.
    """
    texts, (base, *_) = [(prompt, check_prompt(target, prompt)) for prompt in prompts], methods
    runs = {name: [[] for _ in range(repeats + 1)] for name in methods}
    rows: dict[str, dict] = {name: {} for name in methods}
    written: dict[str, list[list[int]]] = {}
    for repeat in range(repeats + 1):
        for place, (prompt, ids) in enumerate(texts if repeat else texts[:1]):
            limit = min(options.max_new_tokens, target.context_size - len(ids))
            turn = (repeat + place) % len(methods)
            for name in [*methods][turn:] + [*methods][:turn]:
                draw = seed + repeat * len(texts) + place
                runs[name][repeat].append(methods[name](prompt, ids, limit, draw))
        common.note(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    for name in methods:
        measured = runs[name][1:]
        if not all(chain(*measured)):
            continue
        each = [summarize(chain(*part)).tokens_per_second for part in measured]
        ratios = np.divide(each, rows[base].get("each", each)).tolist()
        s = summarize(chain(*chain(*measured)))
        rows[name] = {
            "tokens_per_second": median(each), "each": each, "ratio": median(ratios),
            "tokens": s.tokens, "target_passes": s.rounds, "block_efficiency": s.block_efficiency,
            "acceptance_proposed": s.acceptance_proposed if s.proposed else None,
            "acceptance_draft": s.acceptance_draft if s.drafted else None}
        written[name] = [[token for record in rounds for token in record.emitted]
                         for rounds in chain(*measured)]
        if options.temperature:
            pairs = zip([ids for _, ids in texts] * repeats, written[name], strict=True)
            rows[name] |= excess(target, options.temperature, [*pairs])
            continue
        # greedy texts are the same in every repeat
        other = [(ids, one, two) for (_, ids), one, two in zip(
            texts, written[base], written[name], strict=False) if one != two]
        rows[name] |= {"prompts": len(texts), "same_text": len(texts) - len(other),
                       "ties": sum(is_tie(target, *three) for three in other)}
    return rows


def excess(target: Any, temperature: float,
           texts: list[tuple[list[int], list[int]]]) -> dict[str, float]:
    """How likely the tokens are next to the target's own draws, 0 for an exact method.

    The mean of log p(token) - sum p log p over `texts` (ids of a prompt, and of what was written
    after it), with the standard error of exact draws.
    """
    sums, count = np.zeros(2), 0
    for ids, tokens in texts:
        logits = target.forward(ids + tokens[:-1], target.new_cache(), rows=len(tokens))
        p = process(mask(logits, target.tokenizer.size), temperature)  # (tokens, V)
        log_p = np.log(np.maximum(p, 1e-30))
        log_p -= (p * log_p).sum(-1, keepdims=True)
        sums += log_p[np.arange(len(tokens)), tokens].sum(), (p * log_p**2).sum()
        count += len(tokens)
    mean, error = sums[0] / count, sums[1] ** 0.5 / count
    return {"log_p_excess": float(mean), "log_p_excess_error": float(error)}


def table(rows: dict[str, dict], timed: str) -> str:
    """The rows in columns, and what they mean."""
    greedy = any("same_text" in row for row in rows.values())
    cells = [("method", "tokens/s", " ratio", "tokens/pass", "accepted",
              "same text" if greedy else "excess")]
    for name, row in rows.items():
        if not row:
            cells.append((name, "failed"))
            continue
        kept = row["acceptance_proposed"]
        if greedy:
            same = f"{row['same_text']}/{row['prompts']}"
            same += f", {row['ties']} ties" * bool(row["ties"])
        else:
            same = f"{row['log_p_excess']:+.2f}±{row['log_p_excess_error']:.2f}"
        cells.append((name, f"{row['tokens_per_second']:8.0f}", f"{row['ratio']:5.2f}x",
                      f"{row['block_efficiency']:11.2f}", "" if kept is None else f"{kept:8.0%}",
                      same))
    return "\n".join([
        "", columns(cells), "", f"tokens/s: wall clock of {timed}", "tokens/pass: block efficiency",
        "accepted: share of the proposed target tokens, mean over target passes",
        "same text: greedy texts that are the first method's" if greedy else
        "excess: of log p over what the target's own draws have, 0 for an exact method"])
