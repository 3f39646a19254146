"""`omnidraft bench`: the measured speed of a pair beside plain decoding, or beside transformers' own methods."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer

import omnidraft as od

from ..engine.loading import load
from ..errors import OmnidraftError
from ..files import check_writable, write_text
from . import common
from .demo import is_tie
from .inspect import columns
from .machine import machine
from .prompts import read_prompts

Method = Callable[[str, list[int], int, int], list["od.Round"]]  # (prompt, its ids, most new tokens, seed)


@common.command("omnidraft bench", "omnidraft bench --task code --target llama3-like --repeats 5 --json bench.json",
                "omnidraft bench --against transformers --temperature 1",
                "omnidraft bench --against transformers -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct --prompts my.jsonl")
def bench(
    context: typer.Context, draft: common.Draft = "draft-tasks", target: common.Target = "qwen-like",
    backend: common.Backend = "numpy", device: common.Device = "auto", dtype: common.Dtype = "auto",
    device_map: common.DeviceMap = None, compile: common.Compile = False,
    against: Annotated[str, common.models("--against", metavar="NAME", help=(
        "plain decoding, or transformers: its plain, assisted and prompt lookup decoding, --backend torch."))] = "plain",
    task: Annotated[str, common.models("--task", help="Prompts that ship here: math, code or text.")] = "math",
    prompts: Annotated[str | None, common.models("--prompts", metavar="FILE", show_default="those of --task", help=(
        "A .jsonl file with a `prompt` in each line, a text file with one prompt per line, or - for stdin."))] = None,
    count: Annotated[int, common.models("--count", metavar="N", help="Most prompts to use.")] = 6,
    verify: common.Verify = "lossless", draft_length: common.DraftLength = 12, threshold: common.Threshold = 0.4,
    temperature: common.Temperature = 0.0,
    seed: Annotated[int, common.sampling("--seed", help="Of the random draws.")] = 0, max_new_tokens: common.Tokens = 128,
    repeats: Annotated[int, common.output("--repeats", metavar="R", help="Medians over R repeats are shown.")] = 3,
    figures: Annotated[Path | None, common.output("--json", metavar="FILE", help="Save every figure.")] = None,
) -> None:
    """Measure how much faster a pair writes than its target alone, or than transformers does with the same two models."""
    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens)
    if against not in ("plain", "transformers"):
        raise OmnidraftError(f"cannot measure against {against!r}: choose plain or transformers")
    if min(count, repeats) < 1:
        raise OmnidraftError(f"--count is {count} and --repeats is {repeats}, but both must be 1 or more")
    common.uniforms_of(seed)
    texts = list(islice(read_prompts(prompts or task)[0], count))
    check_writable(figures)
    backend = "torch" if against == "transformers" else backend
    engine = "torch" if against == "transformers" else "auto"  # whose assisted generation needs modules of its own
    pair = common.load_pair(draft, target, stored=False, draft_backend=engine, backend=backend, device=device, dtype=dtype,
                            device_map=device_map, compile=compile)
    here = machine() | {model.name: model.kernel for model in (pair.draft, pair.target)}
    if backend == "torch":
        from ..engine.transformers_generation import versions

        here |= versions()
    for name in (pair.draft.name, pair.target.name, *(name for name in here if "threads" in name)):
        print(f"{name.replace('_', ' ')}: {here[name]}", file=sys.stderr)
    methods = ours(pair, options) if against == "plain" else beside_transformers(pair, options)
    rows = compare(methods, texts, pair.target, options, repeats, seed, whole=against != "plain")
    print(table(rows, "the decoding, without the prompt" if against == "plain" else "whole calls, with reading the prompt"))
    if figures:
        settings = context.params | {"backend": backend, "count": len(texts)}
        everything = {"omnidraft": od.__version__, "machine": here, "settings": settings, "methods": rows}
        write_text(figures, json.dumps(everything, indent=1, default=str) + "\n")


def ours(pair: od.Pair, options: od.Options) -> dict[str, Method]:
    """Plain decoding of the target, and speculative decoding of the pair."""
    return {"plain": lambda prompt, ids, _, seed: list(od.plain(pair.target, ids, options, common.uniforms_of(seed))),
            "speculative": lambda prompt, ids, _, seed: list(od.speculative(pair, prompt, options, common.uniforms_of(seed)))}


def beside_transformers(pair: od.Pair, options: od.Options) -> dict[str, Method]:
    """transformers' methods, ours on the same modules, and on CPUs ours with what the NumPy engine runs of them."""
    from ..engine.transformers_generation import decoders

    own = ours(pair, options)
    methods = decoders(pair, options.temperature) | {"omnidraft plain": own["plain"], "omnidraft": own["speculative"]}
    if pair.target.device.type == "cpu":
        dtype = "float64" if str(pair.target.dtype)[6:] == "float64" else "float32"
        try:
            draft = load(str(pair.draft.folder), dtype)
            methods["omnidraft, NumPy drafter"] = ours(od.Pair(draft, pair.target), options)["speculative"]
            methods["omnidraft, NumPy"] = ours(od.Pair(draft, load(str(pair.target.folder), dtype)), options)["speculative"]
        except OmnidraftError as error:
            print(f"not measured with the NumPy engine: {error}", file=sys.stderr)
    return methods


def compare(methods: dict[str, Method], prompts: Sequence[str], target: Any, options: od.Options, repeats: int,
            seed: int = 0, whole: bool = False) -> dict[str, dict]:
    """A row of figures per method: medians over repeats, ratios to the first, whether its greedy texts are the first's.

    They take turns at each prompt, after each has written the first one untimed; `whole` times their calls from outside.
    What one raises is its "error".
    """
    from ..decoding import check_prompt

    texts, (base, *_) = [(prompt, check_prompt(target, prompt)) for prompt in prompts], methods
    runs: dict[str, list[list[list[od.Round]]]] = {name: [[] for _ in range(repeats + 1)] for name in methods}
    rows: dict[str, dict] = {name: {} for name in methods}
    for repeat in range(repeats + 1):
        for place, (prompt, ids) in enumerate(texts if repeat else texts[:1]):
            limit, turn = min(options.max_new_tokens, target.context_size - len(ids)), (repeat + place) % len(methods)
            for name in [name for name in [*methods][turn:] + [*methods][:turn] if not rows[name]]:
                began = perf_counter()
                try:
                    rounds = methods[name](prompt, ids, limit, seed + repeat * len(texts) + place)
                except OmnidraftError:
                    raise
                except Exception as error:  # what another library does with two models is a result too
                    rows[name]["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                    continue
                took = {"other": (perf_counter() - began) / len(rounds)}
                runs[name][repeat].append([replace(record, seconds=took) for record in rounds] if whole else rounds)
        if rows[base]:
            raise OmnidraftError(f"{base} failed, {rows[base]['error']}")
        print(f"repeat {repeat} of {repeats}" if repeat else "warmed up", file=sys.stderr)
    for name in [name for name in methods if not rows[name]]:
        each = [od.summarize(chain(*part)).tokens_per_second for part in runs[name][1:]]
        s = od.summarize(chain(*chain(*runs[name][1:])))
        rows[name] = {
            "tokens_per_second": median(each), "each": each, "tokens": s.tokens, "target_passes": s.rounds,
            "ratio": median(one / other for one, other in zip(each, rows[base].get("each", each), strict=True)),
            "block_efficiency": s.block_efficiency, "acceptance_proposed": s.acceptance_proposed if s.proposed else None,
            "acceptance_draft": s.acceptance_draft if s.drafted else None}
        written, first = ([(ids, [token for record in rounds for token in record.emitted]) for part in runs[which][1:]
                           for (_, ids), rounds in zip(texts, part, strict=True)] for which in (name, base))
        if options.temperature:
            rows[name] |= excess(target, options.temperature, written)
        else:  # texts are the same in every repeat
            three = [(ids, one, other) for (ids, one), (_, other) in zip(first, written, strict=True)][:len(texts)]
            rows[name] |= {"prompts": len(three), "same_text": sum(one == other for _, one, other in three),
                           "ties": sum(one != other and is_tie(target, ids, one, other) for ids, one, other in three)}
    return rows


def excess(target: Any, temperature: float, texts: list[tuple[list[int], list[int]]]) -> dict[str, float]:
    """How likely the tokens are beside the target's own draws: the mean of log p(token) - sum p log p, 0 for an exact method.

    `texts` are ids of prompts and of what was written after them; the standard error is that of exact draws.
    """
    import numpy as np

    from ..sampling import mask, process

    sums, count = np.zeros(2), sum(len(tokens) for _, tokens in texts)
    for ids, tokens in texts:
        logits = target.forward(ids + tokens[:-1], target.new_cache(), rows=len(tokens))
        p = process(mask(logits, target.tokenizer.size), temperature, 0, 1.0).astype(np.float64)  # (tokens, V)
        log_p = np.log(np.maximum(p, 1e-30))
        log_p -= (p * log_p).sum(-1, keepdims=True)
        sums += log_p[np.arange(len(tokens)), tokens].sum(), (p * log_p**2).sum()
    return {"log_p_excess": float(sums[0] / count), "log_p_excess_error": float(sums[1] ** 0.5 / count)}


def table(rows: dict[str, dict], timed: str) -> str:
    """The rows in columns, and what they mean."""
    greedy = any("same_text" in row for row in rows.values())
    cells = [("method", "tokens/s", " ratio", "tokens/pass", "accepted", "same text" if greedy else "excess")]
    for name, row in rows.items():
        if "error" in row:
            cells.append((name, f"failed: {row['error']}"))
            continue
        accepted = "" if row["acceptance_proposed"] is None else f"{row['acceptance_proposed']:8.0%}"
        text = f"{row['same_text']}/{row['prompts']}" + f", {row['ties']} ties" * bool(row["ties"]) if greedy else \
            f"{row['log_p_excess']:+.2f}±{row['log_p_excess_error']:.2f}"
        numbers = f"{row['tokens_per_second']:8.0f}", f"{row['ratio']:5.2f}x", f"{row['block_efficiency']:11.2f}"
        cells.append((name, *numbers, accepted, text))
    return "\n".join(["", *columns(cells), "", f"tokens/s: wall clock of {timed}", "tokens/pass: block efficiency",
                      "accepted: share of the proposed target tokens, mean over target passes",
                      "same text: greedy texts that are the first method's" if greedy else
                      "excess: of log p over what the target's own draws have, 0 for an exact method"])
