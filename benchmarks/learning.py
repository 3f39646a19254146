"""What a drafter learns from the texts it helps to write: before and after, with every loss.

    python -m benchmarks.learning --json

Lossless texts have the target's distribution, whatever the drafter. So the texts of a task are
written once, by plain decoding at temperature 1, and every recipe learns from the same texts in the
same order: one pass, an update every two texts, six earlier texts replayed. Measurements use
held-out prompts and drafts of six tokens, under `lossless` and under the paper's rule. The gap is
the difference between the un-adapted drafter and `--yardstick`, which was trained offline on
everything that the targets saw. Results already in the file are not measured again.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import product
from time import perf_counter

import numpy as np

from benchmarks.common import TASKS, arguments, chosen, run_all, start, texts_of
from benchmarks.writing import draws, efficiency, write
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import Example, make_example
from omnidraft.stopping import FixedLength
from recipes import batch
from recipes.world import fresh_prompts

LOSSES = {"dm": {"loss": "dm"}, "hybrid": {"loss": "hybrid"},
          "hybrid, dynamic weight": {"loss": "hybrid", "weight": "dynamic"},
          **{f"lifted, {name}": {"divergence": name} for name in ("forward", "reverse", "tv")}}
HELD_OUT, EVERY, REPLAY = 24, 2, 6


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


def main() -> None:
    """Learn, measure, print and write after every recipe."""
    args = arguments(
        __doc__, "learning", draft="draft-general", yardstick="draft-tasks", targets=["qwen-like"],
        tasks=TASKS, losses={"nargs": "*", "default": list(LOSSES), "choices": list(LOSSES)},
        ranks=([32, 0], "0 is full fine-tuning"), seeds=[0], texts=400, tokens=100)
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
    run_all(args.json, start(args.json, settings, runs={}), jobs, settings)


if __name__ == "__main__":
    main()
