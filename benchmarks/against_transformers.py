"""Plain and speculative decoding next to transformers' own methods, on the same loaded models.

    python -m benchmarks.against_transformers --json

The embedded pair runs on its three tasks, and the two models of $OMNIDRAFT_REAL_DATA in both
directions on stories, at temperatures 0 and 1. The figures are those of `omnidraft bench`: medians
over repeats, here of whole calls in one process. The methods take turns, with as many threads as the
libraries choose (torch: one for each core; NumPy here: one). Two figures say how far the texts of
UAG-TLI are from the target's distribution: the total variation of their first token, and their
excess of log p. --distances measures only the first of them and adds it to the file.
The rows "custom_generate" and "folder" draft inside transformers' `generate`. --draws N only tests
the first two tokens that they write at temperature 1 against the target's exact distribution, and
adds p to the file. With --inside the file is results/inside_transformers.json, and only these two
and assisted generation are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, product
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import arguments, chosen, result, save, skip, start, texts_of, versions
from benchmarks.same_text import REAL_PAIRS
from omnidraft import Options, Round, Uniforms, pair, plain, speculative
from omnidraft.cli.bench import is_tie
from omnidraft.cli.printing import columns
from omnidraft.decoding import check_prompt
from omnidraft.engine.load import load
from omnidraft.metrics import summarize
from omnidraft.pairs.generation import Pair
from omnidraft.sampling import mask, process
from omnidraft.stopping import FixedLength
from omnidraft.text.errors import OmnidraftError

PAIRS = ["draft-tasks:qwen-like:math,code,text", *(f"{pair}:text" for pair in REAL_PAIRS[::-1])]
Method = Callable[[str, list[int], int, int], list[Round]]  # prompt, its ids, new tokens, seed
ASSISTED, FAR = "transformers assisted", 1e-3  # a total variation that rounding does not explain
SETTINGS = ("prompts", "repeats", "tokens", "k", "threshold", "device", "assistant_tokens", "assistant_threshold")


def side_by_side(models: Pair, options: Options, assistant: dict[str, Any], only_inside: bool) -> dict[str, Method]:
    """transformers' methods, ours on the same modules, and on a CPU also ours with the NumPy engine.

    `only_inside`: only drafting inside its `generate`, and the methods compared with that.
    """
    from benchmarks.transformers_generation import decoders, inside

    own = ours(models, options)
    methods = decoders(models, options.temperature, assistant)
    methods |= {"omnidraft plain": own["plain"], "omnidraft": own["speculative"]}
    within = inside(models, options.temperature, stop=options.stop)
    if only_inside:
        methods = {name: methods[name] for name in ("transformers plain", ASSISTED)} | within
        return {name: whole_calls(name, method) for name, method in methods.items()}
    methods |= within
    if models.target.device.type == "cpu":
        dtype = "float64" if str(models.target.dtype)[6:] == "float64" else "float32"
        try:
            draft, target = (load(str(one.folder), dtype) for one in (models.draft, models.target))
            mixed, both = Pair(draft, models.target), Pair(draft, target)
            methods["omnidraft, NumPy drafter"] = ours(mixed, options)["speculative"]
            methods["omnidraft, NumPy"] = ours(both, options)["speculative"]
        except OmnidraftError as error:
            print(f"not measured with the NumPy engine: {error}", file=sys.stderr)
    return {name: whole_calls(name, method) for name, method in methods.items()}


def whole_calls(name: str, method: Method) -> Method:
    """The method, timed from outside. If another library's call fails: a printed line and no rounds."""
    def timed(*call: Any) -> list[Round]:
        began = perf_counter()
        try:
            rounds = method(*call)
        except OmnidraftError:
            raise
        except Exception as error:  # a failure of another library with these models is a result too
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
            return []
        each = (perf_counter() - began) / len(rounds)
        return [replace(one, seconds={"other": each}) for one in rounds]
    return timed


def uniforms_of(seed: int) -> Uniforms:
    """A fresh stream of draws."""
    return Uniforms(np.random.default_rng(seed))


def ours(pair: Pair, how: Options) -> dict[str, Method]:
    """Plain decoding of the target, and speculative decoding of the pair."""
    return {"plain": lambda prompt, ids, limit, seed: [
                *plain(pair.target, ids, how, uniforms_of(seed))],
            "speculative": lambda prompt, ids, limit, seed: [
                *speculative(pair, prompt, how, uniforms_of(seed))]}


def compare(methods: dict[str, Method], prompts: Sequence[str], target: Any, how: Options,
            repeats: int, seed: int = 0) -> tuple[dict[str, dict], dict[str, list]]:
    """Figures per method (medians, ratios to the first, equal texts), and its texts as (ids, new).

    First each method writes three prompts untimed; then the methods take turns at each prompt. A
    method that returns no rounds has failed, and its row is empty.
    """
    asked, (base, *_) = [(prompt, check_prompt(target, prompt)) for prompt in prompts], methods
    runs: dict[str, list[list[list[Round]]]] = {name: [] for name in methods}
    for repeat in range(repeats + 1):
        for name in methods:
            runs[name].append([])
        for place, (prompt, ids) in enumerate(asked if repeat else asked[:3]):
            limit = min(how.max_new_tokens, target.context_size - len(ids))
            turn, draw = (repeat + place) % len(methods), seed + repeat * len(asked) + place
            for name in [*methods][turn:] + [*methods][:turn]:
                runs[name][repeat].append(methods[name](prompt, ids, limit, draw))
        print(f"repeat {repeat} of {repeats}" if repeat else "warmed up", file=sys.stderr)
    rows: dict[str, dict] = {name: {} for name in methods}
    texts: dict[str, list] = {}
    for name, (_, *measured) in runs.items():
        if not all(chain(*measured)):
            continue
        each = [summarize(chain(*part)).tokens_per_second for part in measured]
        ratios = [a / b for a, b in zip(each, rows[base].get("each", each), strict=True)]
        s = summarize(chain(*chain(*measured)))
        rows[name] = {
            "tokens_per_second": median(each), "each": each, "ratio": median(ratios), "ratios": ratios,
            "tokens": s.tokens, "target_passes": s.rounds, "block_efficiency": s.block_efficiency,
            "acceptance_proposed": s.acceptance_proposed if s.proposed else None,
            "acceptance_draft": s.acceptance_draft if s.drafted else None}
        texts[name] = [(ids, [token for one in rounds for token in one.emitted])
                       for part in measured for (_, ids), rounds in zip(asked, part, strict=True)]
        if not how.temperature:  # every repeat writes the same text
            other = [(*one, two[1]) for one, two in zip(
                texts[base][:len(asked)], texts[name], strict=False) if one != two]
            rows[name] |= {"prompts": len(asked), "same_text": len(asked) - len(other),
                           "ties": sum(is_tie(target, *three) for three in other)}
    return rows, texts


def distance(models: Pair, prompts: Sequence[str], temperature: float) -> dict[str, float]:
    """The total variation of assisted sampling's first token over prompts; {} where it fails."""
    from benchmarks.transformers_generation import first_token_distance

    try:
        found = first_token_distance(models, prompts, temperature)
    except AttributeError as error:  # transformers fails if the target has all of the drafter's tokens
        print(f"{ASSISTED}: {error}", file=sys.stderr)
        return {}
    return {"first_token_distance": float(np.mean(found)),
            "first_token_distance_range": [min(found), max(found)]}


def table(rows: dict[str, dict], timed: str) -> str:
    """The rows in columns, and what the columns mean."""
    cells = [("method", "tokens/s", " ratio", "(range)", "tokens/pass", "accepted", "same text")]
    for name, row in rows.items():
        if "ratio" not in row:
            cells.append((name, "failed"))
            continue
        kept, same, ratios = row["acceptance_proposed"], "", row.get("ratios", [row["ratio"]])
        name += " *" * (row.get("first_token_distance", 0.0) > FAR)
        if "same_text" in row:
            ties = f", {row['ties']} ties" * bool(row["ties"])
            same = f"{row['same_text']}/{row['prompts']}{ties}"
        cells.append((name, f"{row['tokens_per_second']:8.0f}", f"{row['ratio']:5.2f}x",
                      f"({min(ratios):.2f}-{max(ratios):.2f})",
                      f"{row['block_efficiency']:11.2f}", "" if kept is None else f"{kept:8.0%}",
                      same))
    notes = "".join(
        f"\n* not the target's distribution: the first token has a total variation of {far:.2f} "
        "from it (mean over the prompts; see docs/upstream)"
        for far in (row.get("first_token_distance", 0.0) for row in rows.values()) if far > FAR)
    return (f"\n{columns(cells)}\n\ntokens/s: wall clock of {timed}\n"
            "ratio: to the first method, median and range over repeats\ntokens/pass: block efficiency\n"
            "accepted: share of the proposed target tokens, mean over target passes\n"
            f"same text: greedy texts that equal the first method's{notes}")


def headline(rows: dict[str, dict]) -> str:
    """One line for the methods that run the same PyTorch models in both libraries."""
    found = [rows.get(name, {}).get("ratio") for name in ("omnidraft", ASSISTED, "omnidraft plain")]
    parts = [f"{name} {ratio:.2f}x" for name, ratio in zip(
        ("omnidraft", ASSISTED, "omnidraft plain"), found, strict=True) if ratio]
    return f"Both models in PyTorch, next to transformers' plain generation: {', '.join(parts)}."


def excess(target, temperature: float, texts: list) -> dict[str, float]:
    """How much likelier the tokens are than the target's own draws; 0 for an exact method.

    The mean of log p(token) - sum p log p over `texts` (ids of a prompt, and the ids written after
    it), with the standard error of exact draws.
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


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "against_transformers", pairs=(PAIRS, "draft:target:task,task"),
                     prompts=12, repeats=3, tokens=96, temperatures=[0.0, 1.0], k=12, threshold=0.4,
                     device="cpu", inside=(False, "only drafting inside generate, and its plain and assisted generation"),
                     draws=(0, "only test the first two tokens of this many texts"),
                     first_seed=(0, "seed of the first text; the p of each first seed is kept"),
                     methods=(["custom_generate", "folder"], "methods to test with --draws"),
                     distances=(False, "only measure the distances of assisted sampling"),
                     assistant_tokens=(0, "maximum tokens that transformers' assistant drafts; 0: its default"),
                     assistant_threshold=(-1.0, "confidence below which it stops; -1: its default"))
    if not (find_spec("torch") and find_spec("transformers")):
        skip("transformers", "pip install 'omnidraft[torch]'")
    results = start(None, chosen(args, *SETTINGS), pairs={})
    results["machine"] |= versions()
    assistant = {"num_assistant_tokens": args.assistant_tokens} if args.assistant_tokens else {}
    if args.assistant_threshold >= 0:
        assistant["assistant_confidence_threshold"] = args.assistant_threshold
    if args.inside:
        args.json = args.json and args.json.with_name("inside_transformers.json")
    if args.distances or args.draws:  # added to speeds measured earlier, on the same machine
        results = result("inside_transformers" if args.inside else "against_transformers") or results
    for line in args.pairs:
        draft, target, tasks = line.split(":")
        models = pair(draft, target, backend="torch", draft_backend="torch", device=args.device)
        name = f"{models.draft.name}:{models.target.name}"
        if args.draws:
            from benchmarks.transformers_generation import inside, p_value, remember
            prompt, tests = texts_of(tasks.split(",")[0], 1)[0], results.setdefault("first_two_tokens", {}).setdefault(name, {})
            methods = {f"omnidraft, {method}" for method in args.methods}
            for one in (models.draft, models.target):
                remember(one)  # only the decoder uses this: the folder calls the modules
            for method, write in inside(models, 1.0, stop=FixedLength(2)).items():
                if method in methods:
                    name_of = method + f", seeds from {args.first_seed}" * bool(args.first_seed)
                    p = p_value(write, models.target, prompt, args.draws, args.first_seed)
                    tests[name_of] = {"draws": args.draws, "p": p}
                    print(name, name_of, tests[name_of], flush=True)
            continue
        for task, at in product(tasks.split(","), args.temperatures):
            prompts, where = texts_of(task, args.prompts), f"{task} T = {at:g}"
            rows = results["pairs"].setdefault(name, {}).setdefault(where, {})
            if not args.distances:
                how = Options.of(args.k, args.threshold, temperature=at, max_new_tokens=args.tokens)
                measured, texts = compare(side_by_side(models, how, assistant, args.inside), prompts, models.target,
                                          how, args.repeats)
                rows |= measured
                for method in texts if at else ():
                    rows[method] |= excess(models.target, at, texts[method])
            if at and not models.one_vocabulary and not args.inside:
                rows.setdefault(ASSISTED, {}).update(distance(models, prompts, at))
            print(f"\n{name}, {where}", flush=True)
            print(table(rows, "whole calls, with reading the prompt"))
            print("" if args.inside else headline(rows))
            own = {"num_assistant_tokens": "its default", "assistant_confidence_threshold": "its default"} | assistant
            print(", ".join(f"{name} {value}" for name, value in {**versions(), **own}.items()))
    save(args.json, results)


if __name__ == "__main__":
    main()
