"""Block efficiency of the four rules: target tokens per target pass, drafts of the same length.

    python -m benchmarks.efficiency --json

Each figure is a mean over at least `--rounds` rounds with its standard error. Published models
(real:DRAFT:TARGET) are folders in $OMNIDRAFT_REAL_DATA; they continue stories.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from benchmarks.common import REAL_PAIRS, TARGETS, TASKS, add, arguments, chosen, folders_of, save, start, stories, texts_of
from benchmarks.writing import efficiency, write
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.stopping import FixedLength

PAIRS = [*(f"{draft}:{target}" for draft in ("draft-tasks", "draft-general") for target in TARGETS), "draft-smol:qwen-like"]
RULES = ["tli", "slem", "omnidraft", "lifted"]


def measure(pair: Pair, texts: list[str], options: Options, least: int) -> dict:
    """Block efficiency over at least `least` rounds of tens of prompts, which are the same for every rule."""
    rounds, asked = [], 0
    for seed in range(100 if options.temperature else 1):
        for i, text in enumerate(texts):
            rounds += write(pair, text, options, [seed, i])
            asked = max(asked, i + 1)
            if len(rounds) >= least and (i + 1) % 10 == 0:
                break
        if len(rounds) >= least:
            break
    return efficiency(rounds) | {"rounds": len(rounds), "prompts": asked}


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "efficiency", pairs=PAIRS + REAL_PAIRS, tasks=TASKS, rules=RULES, k=6, rounds=300,
                     temperatures=[0.0, 1.0], tokens=48)
    settings = chosen(args, "k", "rounds", "tokens")
    results = start(args.json, settings, pairs={})
    for name in args.pairs:
        if not (folders := folders_of(name)):
            continue
        pair, label = Pair(*map(load, folders)), ":".join(Path(part).name for part in folders)
        sets = {task: texts_of(task, 200) for task in args.tasks}
        if name.startswith("real:"):
            sets = {"tinystories1000": stories(200)}
        for task, temperature in product(sets, args.temperatures):
            figures = {}
            for rule in args.rules:
                options = Options(verify=rule, stop=FixedLength(args.k), temperature=temperature,
                                  max_new_tokens=args.tokens)
                figures[rule] = measure(pair, sets[task], options, args.rounds)
            at = f"T={temperature:g}"
            add(results, ("pairs", label, task, at), figures, settings, folders)
            shown = (f"{rule} {f['block_efficiency']:.2f}±{f['error']:.2f}"
                     for rule, f in figures.items())
            print(f"{label} {task} {at}:", *shown, flush=True)
            save(args.json, results)


if __name__ == "__main__":
    main()
