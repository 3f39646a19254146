"""What a drafter learns from the texts that it helps to write: block efficiency and acceptance before and after, every loss.

    python -m benchmarks.learning --json benchmarks/results/learning.json

Lossless texts have the target's distribution whoever drafts. So the texts of a task are written once, by plain decoding at
temperature 1, and every recipe learns from the same ones in the same order: one pass, an update every two texts, six earlier
texts replayed. Measured are held-out prompts, drafts of six tokens, under `lossless` and under the paper's rule. The gap is
that between the un-adapted drafter and `--yardstick`, which was trained offline on everything that the targets saw.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.common import fresh_prompts, prompts, write_json
from omnidraft.cli.machine import machine
from omnidraft.decoding import speculative
from omnidraft.options import Options
from omnidraft.engine.loading import load
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import Example, make_example
from omnidraft.metrics import summarize
from omnidraft.generation import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength
from recipes.batch import write

LOSSES = {"dm": {"loss": "dm"}, "hybrid": {"loss": "hybrid"}, "hybrid, dynamic weight": {"loss": "hybrid", "weight": "dynamic"},
          "lifted, forward": {"divergence": "forward"}, "lifted, reverse": {"divergence": "reverse"},
          "lifted, tv": {"divergence": "tv"}}
HELD_OUT, EVERY, REPLAY = 24, 2, 6


def write_texts(pair: Pair, task: str, count: int, tokens: int, seed: int) -> list[Example]:
    """Texts of the target at temperature 1 for fresh prompts of the task, with its rows, in the order of the prompts."""
    fresh = fresh_prompts(task, count, seed)
    ids = ((pair.target.tokenizer.encode(prompt, bos=True), True) for prompt in fresh)
    written = sorted(write(pair.target, ids, Uniforms(np.random.default_rng(seed)), tokens), key=lambda text: text[0])
    return [make_example(pair, prompt, ids, rows) for prompt, (_, ids, rows) in zip(fresh, written, strict=True)]


def measure(pair: Pair, task: str, seed: int) -> dict:
    """Held-out prompts at temperature 0.01 and 1 under `lossless` and `omnidraft`."""
    found = {}
    for rule in ("lossless", "omnidraft"):
        for temperature in (0.01, 1.0):
            options = Options(verify=rule, temperature=temperature, stop=FixedLength(6), max_new_tokens=64)
            rounds = [record for i, example in enumerate(prompts(task, HELD_OUT)) for record in
                      speculative(pair, example["prompt"], options, Uniforms(np.random.default_rng([seed, i])))]
            s = summarize(rounds)
            error = np.std([len(r.emitted) for r in rounds]) / len(rounds) ** 0.5
            found[f"{rule} T={temperature:g}"] = {
                "block_efficiency": round(s.block_efficiency, 3), "error": round(float(error), 3),
                "acceptance_draft": round(s.acceptance_draft, 3), "acceptance_proposed": round(s.acceptance_proposed, 3)}
    return found


def learned(draft: str, pair: Pair, texts: list[Example], recipe: Recipe, seed: int) -> tuple[Pair, dict]:
    """One pass over the texts; the pair with the drafter that learned, and what it took."""
    rng, base = np.random.default_rng(seed), load(draft)
    trainer, began, values = Trainer(base, recipe, rng), perf_counter(), []
    for i in range(0, len(texts), EVERY):
        replay = [texts[j] for j in rng.permutation(i)[:REPLAY]]
        values.append(trainer.step(pair, texts[i:i + EVERY] + replay))
    after = Pair(trainer.model(), pair.target, pair.cache)
    return after, {"seconds": round(perf_counter() - began, 1), "updates": len(values),
                   "loss": [round(float(np.mean(part)), 4) for part in np.array_split(values, 4)]}


def main() -> None:
    """Learn, measure, print and write after every recipe; what a result file has already is not run again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft-general")
    parser.add_argument("--yardstick", default="draft-tasks")
    parser.add_argument("--targets", nargs="*", default=["qwen-like"])
    parser.add_argument("--tasks", nargs="*", default=["math", "code", "text"])
    parser.add_argument("--losses", nargs="*", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--ranks", nargs="*", type=int, default=[32, 0], help="0 is full fine-tuning")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"runs": {}}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["machine"] = machine()
    results["settings"] = {"texts": args.texts, "tokens": args.tokens, "every": EVERY, "replay": REPLAY}
    for target in args.targets:
        for task in args.tasks:
            for seed in args.seeds:
                pair = Pair(load(args.draft), load(target))
                texts: list[Example] = []
                wanted = {"before": (args.draft, None), "yardstick": (args.yardstick, None)} | {
                    f"{name}, {f'rank {rank}' if rank else 'all weights'}": (args.draft, Recipe(**LOSSES[name], rank=rank))
                    for rank in args.ranks for name in args.losses}
                for name, (draft, recipe) in wanted.items():
                    key = f"{args.draft} -> {target}, {task}, seed {seed}: {name}"
                    if key in results["runs"]:
                        continue
                    run: dict = {}
                    if recipe is None:
                        after = Pair(load(draft), pair.target)
                    else:
                        texts = texts or write_texts(pair, task, args.texts, args.tokens, seed)
                        after, run = learned(draft, pair, texts, recipe, seed)
                    run |= measure(after, task, seed)
                    results["runs"][key] = run
                    figures = ", ".join(f"{k} {v['block_efficiency']:.2f} {v['acceptance_proposed']:.3f}"
                                        for k, v in run.items() if isinstance(v, dict))
                    print(f"{key}: {figures}", flush=True)
                    if args.json:
                        write_json(args.json, results)


if __name__ == "__main__":
    main()
