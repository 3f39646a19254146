"""Tokens per second before and after learning, and when learning has paid for itself.

    python -m benchmarks.learning_wall_clock --json

The un-adapted drafter serves a stream of prompts (each seed has its own) and learns meanwhile, with
an update every two prompts, in which it learns `--replay` earlier texts again. Then plain decoding,
the un-adapted and the adapted pair (and `--yardstick`, trained offline) take turns on held-out
prompts, greedy with confidence stop. Half of these prompts are of kinds that the stream did not
have; the other half is also reported separately. Learning has paid off, compared with another way
of decoding, after n tokens, where n (1 / its tokens per second - 1 / those of the adapted pair) =
seconds of learning. Results already in the file are not measured again.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from itertools import product

from benchmarks.common import arguments, chosen, prompts, run_all, start
from benchmarks.paper.adaptive import serve, speeds
from benchmarks.writing import learning_share
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.stopping import Confidence
from recipes.world import fresh_prompts


def run(target: str, task: str, seed: int, args: Namespace) -> dict:
    """One pair, task and stream."""
    base, goal, stop = load(args.draft), load(target), Confidence()
    pair, schedule = Pair(base, goal), Schedule(every=2, replay=args.replay, memory=2048)
    options = Options(stop=Confidence(8, 0.2), temperature=args.temperature,
                      max_new_tokens=args.tokens)
    learner = serve(pair, fresh_prompts(task, args.stream, 5 + seed), schedule, options,
                    recipe=Recipe(rank=args.rank))
    ways = {"plain": (pair, None), "before": (Pair(base, goal), stop), "after": (pair, stop),
            "yardstick": (Pair(load(args.yardstick), goal), stop)}
    found = speeds(ways, prompts(task, args.prompts), args.tokens, args.repeats)
    s, after, rate = learner.statistics, found["after"], "tokens_per_second"
    learning = s["learning_seconds"]
    row = {"learning_seconds": round(learning, 1), "serving_seconds": round(s["seconds"], 1),
           "learning_share": learning_share(s), "updates": s["updates"],
           "rollbacks": learner.rollbacks, "tokens_served": s["tokens"],
           "paid_in_the_stream_after": s.get("paid_after_tokens")}
    for name in ("plain", "before"):
        row[f"to_{name}"] = round(after[rate] / found[name][rate], 3)
        row[f"seen_to_{name}"] = round(after[f"seen_{rate}"] / found[name][f"seen_{rate}"], 3)
        gain = 1 / found[name][rate] - 1 / after[rate]
        row[f"pays_against_{name}_after"] = round(learning / gain) if gain > 0 else None
    for name, figures in found.items():
        row[name] = {key: value for key, value in figures.items() if key != "speeds"}
    return row


def main() -> None:
    """Learn, measure, print and write after every pair and task."""
    args = arguments(
        __doc__, "wall_clock", draft="draft-general", yardstick="draft-tasks",
        targets=["qwen-like"], tasks=["math", "text", "code"], tokens=96, repeats=5,
        rank=(0, "0 is full fine-tuning"),
        stream=(1000, "prompts to learn from"), replay=(14, "earlier texts in each update"),
        temperature=(1.0, "temperature of the texts to learn from"),
        seeds=([0, 1, 2], "seeds of the stream's prompts"), prompts=(24, "held-out prompts"))
    how = (f"{f'rank {args.rank}' if args.rank else 'all weights'}, {args.stream} texts "
           f"at T = {args.temperature:g}")
    settings = chosen(args, "prompts", "tokens", "repeats", "replay")
    run_all(args.json, start(args.json, settings, runs={}), {
        ("runs", f"{args.draft} -> {target}, {task}: {how}, seed {seed}"):
            partial(run, target, task, seed, args)
        for target, task, seed in product(args.targets, args.tasks, args.seeds)}, settings)


if __name__ == "__main__":
    main()
