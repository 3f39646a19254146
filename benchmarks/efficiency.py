"""Block efficiency of the four rules: target tokens per target pass, drafts of the same length.

    python -m benchmarks.efficiency --json

Each figure is a mean over at least `--rounds` rounds with its standard error. Published models
(real:DRAFT:TARGET) are folders in $OMNIDRAFT_REAL_DATA; they continue stories. For other models, give
folders in --pairs DRAFT:TARGET, and a JSONL of {"prompt"} in --prompts-file.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from benchmarks.common import TARGETS, TASKS, add, arguments, chosen, folders_of, save, start, stories, texts_of
from benchmarks.writing import efficiency, write
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.stopping import FixedLength

PAIRS = [*(f"{draft}:{target}" for draft in ("draft-tasks", "draft-general") for target in TARGETS), "draft-smol:qwen-like"]
REAL_PAIRS = ["real:babyllama-tok361:stories260K", "real:stories260K:babyllama-tok361"]
RULES = ["tli", "slem", "omnidraft", "lifted", "lifted-unhealed"]


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
                     temperatures=[0.0, 1.0], tokens=48,
                     prompts_file=(Path, "JSONL of other prompts, instead of the embedded tasks"))
    settings = chosen(args, "k", "rounds", "tokens")
    results = start(args.json, settings, pairs={})
    for name in args.pairs:
        if not (folders := folders_of(name)):
            continue
        pair, label = Pair(*map(load, folders)), ":".join(Path(part).name for part in folders)
        sets = {task: texts_of(task, 200) for task in args.tasks}
        if name.startswith("real:"):
            sets = {"tinystories1000": stories(200)}
        if args.prompts_file:
            lines = args.prompts_file.read_text(encoding="utf-8").splitlines()[:200]
            sets = {args.prompts_file.stem: [json.loads(line)["prompt"] for line in lines]}
        for task, temperature in product(sets, args.temperatures):
            figures = {}
            for rule in args.rules:
                options = Options(verify=rule.removesuffix("-unhealed"), stop=FixedLength(args.k),
                                  heal=not rule.endswith("-unhealed"), temperature=temperature,
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
