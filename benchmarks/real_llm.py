"""Real language models: one small drafter, published targets, public data (the tables of arXiv 2507.02659).

    python -m benchmarks.real_llm --json                              # every cell that has no result yet
    python -m benchmarks.real_llm --json --targets smollm2 --data gsm8k --methods before lifted

A cell is a target, a data set and a method. The drafter serves `--stream` prompts, greedy, and learns from them; "before"
does not learn, "tli" and "omnidraft" are that with the rules of the paper's baseline SpD_DM and of its Algorithm 1, which has
n-grams too, and "k = 4" with drafts of fixed length. "adapter" is that with the package's adapter for this target, if it has
one; "recipe" one that recipes.real_adapters made, in the folder `--adapters`. With "head" only the acceptance head learns; it
then decides when drafts stop, at the same threshold. Then held-out prompts are written at T = 0 and 1: block efficiency and
both acceptances, with errors over the prompts (jackknife; after learning also with drafts of four tokens), and, for the first
`--timed` of them, plain and speculative decoding in turns: the speedup is the ratio of their tokens per second by the wall
clock.
Targets with a chat template get the prompts as requests. `--rules` compares the four rules between two real models, and
needs PyTorch. The data are not part of the repository: their folder is $OMNIDRAFT_REAL_DATA. `recipes.requests.SPLITS` says
which rows are for training, for the stream, and held out.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import REAL, arguments, chosen, run_all, skip, start
from benchmarks.writing import draws, emitted
from omnidraft import Adapters, Options, Pair, Round, learn, plain, speculative
from omnidraft.engine.load import load
from omnidraft.learning.adapters import SHIPPED
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.metrics import Summary, summarize
from omnidraft.pairs.conversation import template_of
from omnidraft.pairs.prompts import ids_of
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.text.files import make_folder_of, write_text
from omnidraft.verification import RULES
from recipes.requests import SPLITS

FILES = {"gsm8k": ["gsm8k_train1000"], "code": ["mbpp_train374", "humaneval164"], "alpaca": ["alpaca_train1000"],
         "xsum": ["xsum_train300"]}
SAVE_EVERY = 16  # prompts
LONGEST_DOCUMENT = 1200  # characters of a text that is to be summarized: the short ones of XSum
METHODS: dict[str, dict[str, Any] | None] = {  # arguments of a Recipe, if the drafter learns
    "tli": None, "omnidraft": None, "before": None, "k = 4": None,
    "dm": {"loss": "dm", "rank": 0}, "hybrid": {"loss": "hybrid", "rank": 0}, "hybrid + LoRA": {"loss": "hybrid"},
    "lifted": {"rank": 0}, "lifted + LoRA": {},
    "head": {},
    "adapter": None, "recipe": None}
ADAPTED = ("adapter", "recipe")  # measured only if they are named
LEARNING = Schedule(every=2, replay=6, held_out=0)
HEAD_ONLY = Schedule(every=2, steps=0, head="joint", guard=0, held_out=0)


def requests_of(data: str) -> tuple[list[str], list[str]]:
    """The prompts of the stream and the held-out ones, neither of which trained a drafter of the package."""
    stream: list[str] = []
    held_out: list[str] = []
    for name in FILES[data]:
        lines = (REAL / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        first, last = SPLITS.get(name, (0, len(rows) * 3 // 4))
        texts = [wording(data, row) for row in rows]
        stream += [text for text in texts[first:last] if text]
        held_out += [text for text in texts[last:] if text]
    for some in (stream, held_out):
        np.random.default_rng(0).shuffle(some)
    return stream, held_out


def wording(data: str, row: dict[str, Any]) -> str | None:
    """A row as a request; None for a document that is too long."""
    if data == "alpaca":
        return f"{row['instruction']}\n\n{row['input']}".strip()
    if data == "xsum":
        document = row["prompt"]
        return f"Summarize in one sentence:\n{document}" if len(document) < LONGEST_DOCUMENT else None
    return row["prompt"]


def as_prompt(pair: Pair, text: str) -> Any:
    """A chat if the target has a template, else the text."""
    return [{"role": "user", "content": text}] if template_of(pair.target)[0] else text


def write(pair: Pair, text: str, options: Options, seed: int) -> list[Round]:
    """The rounds of speculative decoding."""
    return list(speculative(pair, ids_of(pair, as_prompt(pair, text)), options, draws([seed, 0])))


def write_plainly(pair: Pair, text: str, options: Options, seed: int) -> list[Round]:
    """The rounds of plain decoding of the target."""
    ids, _ = ids_of(pair, as_prompt(pair, text))
    return list(plain(pair.target, ids, options, draws([seed, 0])))


def jackknife(value: Callable[[Any], float], rows: list[Any]) -> tuple[float, float]:
    """value(rows), and its standard error from leaving out one row at a time.

    >>> jackknife(lambda some: sum(some) / len(some), [1.0, 2.0, 3.0])
    (2.0, 0.577)
    """
    parts = [value(rows[:place] + rows[place + 1:]) for place in range(len(rows))]
    error = float(np.std(parts)) * (len(rows) - 1) ** 0.5
    return round(value(rows), 3), round(error, 3)


def efficiency(sums: list[Summary]) -> dict[str, float]:
    """Tokens per target pass and the share of draft tokens that were kept, each with its error."""
    tokens, tokens_error = jackknife(lambda some: sum(s.tokens for s in some) / sum(s.rounds for s in some), sums)
    kept, kept_error = jackknife(lambda some: sum(s.draft_kept for s in some) / max(1, sum(s.drafted for s in some)), sums)
    proposed = float(np.mean([s.acceptance_proposed for s in sums]))
    return {"block_efficiency": tokens, "error": tokens_error, "acceptance_draft": kept, "acceptance_error": kept_error,
            "acceptance_proposed": round(proposed, 3), "prompts": len(sums), "tokens": sum(s.tokens for s in sums)}


def in_turns(pair: Pair, texts: list[str], options: Options, repeats: int) -> dict[str, Any]:
    """Wall clock of speculative over plain decoding; both write every text, the order changes each time."""
    ways = {"plain": write_plainly, "speculative": write}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    same = 0
    for repeat, (place, text) in product(range(repeats), enumerate(texts)):
        order = list(ways) if (repeat + place) % 2 else list(ways)[::-1]
        rounds = {name: ways[name](pair, text, options, place) for name in order}
        for name, some in rounds.items():
            seconds[name].append(1 / summarize(some).tokens_per_second)
        same += emitted(rounds["plain"]) == emitted(rounds["speculative"])
    ratios = np.array(seconds["plain"]) / np.array(seconds["speculative"])
    mean, error = jackknife(lambda some: float(np.exp(np.mean(some))), list(np.log(ratios)))
    found = {"speedup": mean, "speedup_error": error, "timed": len(ratios),
             "plain_tokens_per_second": round(1 / float(np.median(seconds["plain"])), 1)}
    return found | ({"same_text": f"{same} of {len(ratios)}"} if options.temperature == 0 else {})


def served(pair: Pair, recipe: Recipe, schedule: Schedule, stream: list[str], seed: int, tokens: int,
           work: Path) -> tuple[dict[str, Any], AcceptanceHead | None]:
    """The pair serves and learns; `pair.draft` is the drafter that the guard let serve last. Also the head, if it learned.

    `work` keeps the adapter and the block efficiency of each prompt: an interrupted run continues there.
    """
    rng, store, record = np.random.default_rng(seed), Adapters(work), work / "served.json"
    learner = store.resume(pair, recipe, schedule, rng)
    done = learner.statistics.prompts
    each: list[float] = json.loads(record.read_text())[:done] if done else []
    options = Options(stop=Confidence(12, 0.3, learner.head), max_new_tokens=tokens)
    prompts = [as_prompt(pair, text) for text in stream[done:]]
    for number, learned in enumerate(learn(learner, prompts, options, draws([seed, done])), done + 1):
        if not learned.rounds:
            raise SystemExit(learned.note)
        each.append(summarize(learned.rounds).block_efficiency)
        if number % SAVE_EVERY == 0 or number == len(stream):
            make_folder_of(record)
            write_text(record, json.dumps(each))
            store.keep(learner)
    s, parts = learner.statistics, np.array_split(each, max(1, min(8, len(each) // 8)))
    return {"prompts": len(each), "curve": [round(float(np.mean(part)), 3) for part in parts], "updates": s.updates,
            "serving_seconds": round(s.seconds, 1), "learning_seconds": round(s.learning_seconds, 1)}, learner.head


def cell(target: str, data: str, method: str, seed: int, args: Namespace) -> dict[str, Any]:
    """One target, data set and method."""
    how = {"backend": args.backend} if args.backend != "numpy" else {}
    pair = Pair(load(args.draft), load(target, **how))
    stream, held_out = requests_of(data)
    found: dict[str, Any] = {}
    learns = METHODS[method]
    head = None
    if learns is not None:
        place = Path(args.work) / f"{Path(target).stem}-{data}-{method.replace(' ', '')}-{seed}"
        schedule = HEAD_ONLY if method == "head" else LEARNING
        found["learned"], head = served(pair, Recipe(**learns), schedule, stream[:args.stream], seed, args.tokens, place)
    if method in ADAPTED:
        store = SHIPPED if method == "adapter" else Path(args.adapters)
        adapter = Adapters(store).load(pair)
        if adapter is None:
            raise SystemExit(f"{store} has no adapter of {args.draft} for {target}: choose another method")
        pair.draft = adapter.drafter(pair.draft)
    sizes = [len(ngram) + 1 for ngram, _, _ in pair.cache.items()]
    found["cache"] = {"n-grams": len(sizes), "bytes": 4 * sum(sizes)}  # ids of four bytes
    rule = method if method in RULES else "lifted"
    stop = FixedLength(4) if method == "k = 4" else Confidence(12, head=head)
    for temperature in args.temperatures:
        options = Options(verify=rule, stop=stop, temperature=temperature, max_new_tokens=args.tokens)
        sums = [summarize(write(pair, text, options, place)) for place, text in enumerate(held_out[:args.held_out])]
        found[f"T={temperature:g}"] = efficiency(sums) | in_turns(pair, held_out[:args.timed], options, args.repeats)
        if learns is not None and head is None:
            # a loss may make the drafter surer of itself: also compare drafts of equal length
            equal = replace(options, stop=FixedLength(4))
            sums = [summarize(write(pair, text, equal, place)) for place, text in enumerate(held_out[:args.held_out])]
            found[f"k = 4, T={temperature:g}"] = efficiency(sums)
    return found


def four_rules(draft: str, target: str, data: str, args: Namespace) -> dict[str, Any]:
    """Block efficiency of every rule between two real models, with drafts of four tokens."""
    pair = Pair(*(load(name, backend="torch") for name in (draft, target)))
    _, held_out = requests_of(data)
    found = {}
    for rule, temperature in product(RULES, args.temperatures):
        options = Options(verify=rule, stop=FixedLength(4), temperature=temperature, max_new_tokens=args.tokens)
        sums = [summarize(write(pair, text, options, place)) for place, text in enumerate(held_out[:args.held_out])]
        found[f"{rule}, T={temperature:g}"] = efficiency(sums)
    return found


def main() -> None:
    """Measure, print and write after every cell."""
    args = arguments(
        __doc__, "real_llm", draft="draft-smol", backend="numpy", targets=["smollm2"],
        data={"nargs": "*", "default": list(FILES), "choices": list(FILES)},
        methods={"nargs": "*", "default": [one for one in METHODS if one not in ADAPTED], "choices": [*METHODS]},
        rules=([""], "pairs DRAFT:TARGET of real models, for all four rules"), temperatures=[0.0, 1.0], seeds=[0],
        stream=(200, "prompts to learn from"), held_out=(24, "prompts for the block efficiency"),
        timed=(8, "of them, for the speed"), repeats=(1, "of each timed text"), tokens=64,
        work=("build/real_llm", "folder of what was learned"), adapters=("", "folder of adapters, for the method recipe"))
    if not (REAL / "data").is_dir():
        skip("real_llm", "set OMNIDRAFT_REAL_DATA to a folder with the data")
    jobs: dict[tuple, Callable[[], dict]] = {
        ("cells", f"{args.draft} -> {Path(target).stem}, {data}, {method}, seed {seed}"):
            partial(cell, target, data, method, seed, args)
        for target, data, method, seed in product(args.targets, args.data, args.methods, args.seeds)}
    for names, data in product([one for one in args.rules if one], args.data):
        draft, target = names.split(":")
        jobs["rules", f"{Path(draft).stem} -> {Path(target).stem}, {data}"] = partial(four_rules, draft, target, data, args)
    settings = chosen(args, "held_out", "timed", "repeats", "tokens")  # each cell says how many prompts taught it
    run_all(args.json, start(args.json, settings, cells={}, rules={}), jobs, settings)


if __name__ == "__main__":
    main()
