"""What a drafter learns from the texts it helps to write: before and after, with every loss, and by the clock.

    python -m benchmarks.learning --json

Lossless texts have the target's distribution, whatever the drafter. So the texts of a task are
written once, by plain decoding at temperature 1, and every recipe learns from the same texts in the
same order: one pass, an update every two texts, six earlier texts replayed. Measurements use
held-out prompts and drafts of six tokens, under `lossless` and under the paper's rule. The gap is
the difference between the un-adapted drafter and `--yardstick`, which was trained offline on
everything that the targets saw.

By the clock, the un-adapted drafter serves a stream of `--texts` prompts at temperature 1 and learns meanwhile (all weights,
14 earlier texts replayed). Then plain decoding, the un-adapted and the adapted pair, and the yardstick take turns on held-out
prompts, greedy with confidence stop; half of these are of kinds that the stream did not have. Learning has paid off after n
tokens, where n (1 / plain tokens per second - 1 / those of the adapted pair) = seconds of learning. Results already in the
file are not measured again; other recipes, targets and seeds are added by naming them.
"""

from __future__ import annotations

from argparse import Namespace
from functools import lru_cache, partial
from itertools import product
from time import perf_counter

import numpy as np

from benchmarks.common import TASKS, arguments, chosen, prompts, run_all, start, texts_of
from benchmarks.paper.adaptive import serve, speeds
from benchmarks.writing import draws, efficiency, learning_share, write
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import Example, make_example
from omnidraft.stopping import Confidence, FixedLength
from recipes import batch
from recipes.world import fresh_prompts

LOSSES = {"dm": {"loss": "dm"}, "hybrid": {"loss": "hybrid"},
          "hybrid, dynamic weight": {"loss": "hybrid", "weight": "dynamic"},
          **{f"lifted, {name}": {"divergence": name} for name in ("forward", "reverse", "tv")}}
HELD_OUT, EVERY, REPLAY = 24, 2, 6
CLOCK = {"prompts": 24, "tokens": 96, "repeats": 5, "replay": 14}


@lru_cache(maxsize=1)
def examples(draft: str, target: str, task: str, count: int, tokens: int,
             seed: int) -> tuple[Pair, list[Example]]:
    """The pair, and its target's texts with their rows at temperature 1, in the order of the prompts."""
    pair, fresh = Pair(load(draft), load(target)), fresh_prompts(task, count, seed)
    ids = ((pair.target.tokenizer.encode(prompt, bos=True), True) for prompt in fresh)
    written = sorted(batch.write(pair.target, ids, draws(seed), tokens), key=lambda text: text[0])
    return pair, [make_example(pair, prompt, ids, rows)
                  for prompt, (_, ids, rows) in zip(fresh, written, strict=True)]


def measure(pair: Pair, task: str, seed: int) -> dict:
    """Figures of held-out prompts at temperatures 0.01 and 1, under `lossless` and `omnidraft`."""
    found = {}
    for rule, temperature in product(("lossless", "omnidraft"), (0.01, 1.0)):
        options = Options(verify=rule, temperature=temperature, stop=FixedLength(6),
                          max_new_tokens=64)
        found[f"{rule} T={temperature:g}"] = efficiency([
            record for i, text in enumerate(texts_of(task, HELD_OUT))
            for record in write(pair, text, options, [seed, i])])
    return found


def learned(draft: str, pair: Pair, texts: list[Example], recipe: Recipe,
            seed: int) -> tuple[Pair, dict]:
    """One pass over the texts: the pair with the drafter that learned, and the cost of learning."""
    rng = np.random.default_rng(seed)
    trainer, began, values = Trainer(load(draft), recipe, rng), perf_counter(), []
    for i in range(0, len(texts), EVERY):
        replay = [texts[j] for j in rng.permutation(i)[:REPLAY]]
        values.append(trainer.step(pair, texts[i:i + EVERY] + replay))
    seconds, parts = perf_counter() - began, np.array_split(values, 4)
    return Pair(trainer.model(), pair.target, pair.cache), {
        "seconds": round(seconds, 1), "updates": len(values),
        "loss": [round(float(np.mean(part)), 4) for part in parts]}


def clock(args: Namespace, target: str, task: str, seed: int) -> dict:
    """Tokens per second before and after learning from one stream, and when learning has paid for itself."""
    base, goal, stop = load(args.draft), load(target), Confidence()
    pair, schedule = Pair(base, goal), Schedule(every=EVERY, replay=CLOCK["replay"], memory=2048)
    options = Options(stop=Confidence(8, 0.2), temperature=1.0, max_new_tokens=CLOCK["tokens"])
    learner = serve(pair, fresh_prompts(task, args.texts, 5 + seed), schedule, options, recipe=Recipe(rank=0))
    ways = {"plain": (pair, None), "before": (Pair(base, goal), stop), "after": (pair, stop),
            "yardstick": (Pair(load(args.yardstick), goal), stop)}
    found = speeds(ways, prompts(task, CLOCK["prompts"]), CLOCK["tokens"], CLOCK["repeats"])
    s, after, rate = learner.statistics, found["after"], "tokens_per_second"
    row = {"learning_seconds": round(s.learning_seconds, 1), "serving_seconds": round(s.seconds, 1),
           "learning_share": learning_share(s), "updates": s.updates, "rollbacks": learner.rollbacks}
    for name in ("plain", "before"):
        row[f"to_{name}"] = round(after[rate] / found[name][rate], 3)
        row[f"seen_to_{name}"] = round(after[f"seen_{rate}"] / found[name][f"seen_{rate}"], 3)
    gain = 1 / found["plain"][rate] - 1 / after[rate]
    row["pays_against_plain_after"] = round(s.learning_seconds / gain) if gain > 0 else None
    return row | found


def main() -> None:
    """Learn, measure, print and write after every recipe."""
    args = arguments(
        __doc__, "learning", draft="draft-general", yardstick="draft-tasks", targets=["qwen-like"],
        tasks=TASKS, losses={"nargs": "*", "default": ["lifted, forward", "dm", "hybrid"], "choices": list(LOSSES)},
        ranks=([32], "0 is full fine-tuning"), seeds=[0], texts=2000, tokens=100,
        by_clock={"nargs": "*", "default": ["math", "code"], "choices": TASKS})
    settings = chosen(args, "texts", "tokens") | {"every": EVERY, "replay": REPLAY, "held_out": HELD_OUT}

    def run(draft: str, target: str, task: str, seed: int, recipe: Recipe | None) -> dict:
        if recipe is None:
            return measure(Pair(load(draft), load(target)), task, seed)
        pair, texts = examples(draft, target, task, args.texts, args.tokens, seed)
        after, took = learned(draft, pair, texts, recipe, seed)
        return took | measure(after, task, seed)

    wanted = {"before": (args.draft, None), "yardstick": (args.yardstick, None)}
    for rank, loss in product(args.ranks, args.losses):
        recipe = Recipe(**LOSSES[loss], rank=rank)
        wanted[f"{loss}, {f'rank {rank}' if rank else 'all weights'}"] = args.draft, recipe
    jobs = {}
    for target, task, seed in product(args.targets, args.tasks, args.seeds):
        where = f"{args.draft} -> {target}, {task}, seed {seed}"
        for name, (draft, recipe) in wanted.items():
            jobs["runs", f"{where}: {name}"] = partial(run, draft, target, task, seed, recipe)
    results = start(args.json, settings, runs={}, clock={})
    run_all(args.json, results, jobs, settings)
    run_all(args.json, results, {
        ("clock", f"{args.draft} -> {target}, {task}: all weights, {args.texts} texts at T = 1, seed {seed}"):
            partial(clock, args, target, task, seed)
        for target, task, seed in product(args.targets, args.by_clock, args.seeds)}, CLOCK)


if __name__ == "__main__":
    main()
