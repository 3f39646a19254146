"""Tokens per second before and after learning, what learning cost, and after how many tokens it has paid for itself.

    python -m benchmarks.wall_clock --json benchmarks/results/wall_clock.json

The un-adapted drafter serves a stream of prompts (each seed has its own) and learns on the way, as `omnidraft adapt` does.
Then plain decoding, the un-adapted and the adapted pair (and `--yardstick`, trained offline) take turns with held-out prompts,
greedy with confidence stop; half of them are of kinds that the stream did not have, and the others are told apart too.
Learning has paid off against another way of decoding after n tokens, where n (1 / its tokens per second - 1 / those of the
adapted pair) = seconds of learning. What the result file has already is not run again.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

from benchmarks.adaptive import serve, take_turns
from benchmarks.common import fresh_prompts, prompts, write_json
from omnidraft.cli.machine import machine
from omnidraft.options import Options
from omnidraft.engine.loading import load
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.generation import Pair
from omnidraft.stopping import Confidence


def run(draft: str, target: str, yardstick: str, task: str, seed: int, recipe: Recipe, args: argparse.Namespace) -> dict:
    """One pair, task and stream."""
    base, goal = load(draft), load(target)
    pair = Pair(base, goal)
    options = Options(stop=Confidence(8, 0.2), temperature=args.temperature, max_new_tokens=args.tokens)
    learner = serve(pair, fresh_prompts(task, args.stream, 5 + seed), Schedule(every=2, replay=6), options, recipe=recipe)
    texts, stop = prompts(task, args.prompts), Confidence()
    seen = {example["prompt"] for example in texts if example["seen_template"]}
    found = take_turns({"plain": (pair, None), "before": (Pair(base, goal), stop), "after": (pair, stop),
                        "yardstick": (Pair(load(yardstick), goal), stop)},
                       [example["prompt"] for example in texts], args.tokens, args.repeats, seen)
    s, after = learner.statistics, found["after"]["tokens_per_second"]
    row = {"learning_seconds": round(s["learning_seconds"], 1), "serving_seconds": round(s["seconds"], 1),
           "learning_share": round(s["learning_seconds"] / (s["seconds"] + s["learning_seconds"]), 3), "updates": s["updates"],
           "rollbacks": learner.rollbacks, "tokens_served": s["tokens"], "paid_in_the_stream_after": s.get("paid_after_tokens")}
    for name in ("plain", "before"):
        slower = found[name]["tokens_per_second"]
        row[f"to_{name}"] = round(after / slower, 3)
        row[f"seen_to_{name}"] = round(found["after"]["seen_tokens_per_second"] / found[name]["seen_tokens_per_second"], 3)
        row[f"pays_against_{name}_after"] = round(s["learning_seconds"] / (1 / slower - 1 / after)) if after > slower else None
    return row | {name: {key: value for key, value in figures.items() if key != "speeds"} for name, figures in found.items()}


def main() -> None:
    """Learn, measure, print and write after every pair and task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft-general")
    parser.add_argument("--yardstick", default="draft-tasks")
    parser.add_argument("--targets", nargs="*", default=["qwen-like"])
    parser.add_argument("--tasks", nargs="*", default=["math", "text", "code"])
    parser.add_argument("--rank", type=int, default=0, help="0 is full fine-tuning")
    parser.add_argument("--stream", type=int, default=1000, help="prompts to learn from")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the texts to learn from")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], help="of the stream's prompts")
    parser.add_argument("--prompts", type=int, default=24, help="held-out prompts")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"runs": {}}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["machine"] = machine()
    results["settings"] = {"prompts": args.prompts, "tokens": args.tokens, "repeats": args.repeats}
    for target, task, seed in product(args.targets, args.tasks, args.seeds):
        key = (f"{args.draft} -> {target}, {task}: {f'rank {args.rank}' if args.rank else 'all weights'}, {args.stream} "
               f"texts at T = {args.temperature:g}, seed {seed}")
        if key in results["runs"]:
            continue
        results["runs"][key] = run(args.draft, target, args.yardstick, task, seed, Recipe(rank=args.rank), args)
        print(f"{key}: {results['runs'][key]}", flush=True)
        if args.json:
            write_json(args.json, results)


if __name__ == "__main__":
    main()
