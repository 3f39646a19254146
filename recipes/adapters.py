"""The adapters that ship: the general drafter serves each target prompts of the three tasks, and learns it while it does.

    python -m recipes.adapters                    draft-general for qwen-like, llama3-like and sibling
    python -m recipes.adapters --targets sibling --prompts 300

What `omnidraft adapt` does, with three differences: the prompts are fresh ones of all tasks (never the held-out ones), every
other text is greedy, and the learning rate falls to zero over the last third. Stored in half precision, below 1 MB each.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from time import perf_counter

import numpy as np

import omnidraft as od
from omnidraft.adapters import SHIPPED, Adapter, Adapters

from . import code_text, math_text, story_text


def fresh_prompts(count: int, seed: int) -> list[str]:
    """Prompts as training had them, bare arithmetic and "Equations:" left out: math, code, text, math, ..."""
    rng, prompts = random.Random(seed), []
    while len(prompts) < count:
        example = (math_text, code_text, story_text)[len(prompts) % 3].generate(rng)
        if example["template"] != "drill" and not example["prompt"].endswith("Equations:"):
            prompts.append(example["prompt"])
    return prompts


def learn_target(draft: str, target: str, count: int, seed: int) -> od.Learner:
    """Serve `count` prompts and learn from them; prints a line every 50."""
    pair, rng = od.Pair(od.load(draft), od.load(target)), np.random.default_rng(seed)
    trainer = od.Trainer(pair.draft, od.Recipe(), rng)
    learner, rate = od.Learner(pair, trainer, rng, od.Schedule(every=2, replay=6)), trainer.optimizer.rate
    greedy, recent, began = od.Options(max_new_tokens=112), [], perf_counter()
    sampled = replace(greedy, temperature=1.0)
    for i, prompt in enumerate(fresh_prompts(count, seed)):
        trainer.optimizer.rate = rate * min(1.0, 3 * (1 - i / count))
        for learned in od.learn(learner, [prompt], sampled if i // 3 % 2 else greedy, od.Uniforms(rng)):
            recent += learned.rounds
        if (i + 1) % 50 == 0:
            print(f"{target}: {i + 1} prompts, {od.summarize(recent).block_efficiency:.2f} tokens per target pass, "
                  f"{learner.rollbacks} rolled back, {perf_counter() - began:.0f} s", flush=True)
            recent = []
    return learner


def main() -> None:
    """Learn and store one adapter after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft-general")
    parser.add_argument("--targets", nargs="*", default=["qwen-like", "llama3-like", "sibling"])
    parser.add_argument("--prompts", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for target in args.targets:
        learner = learn_target(args.draft, target, args.prompts, args.seed)
        adapter = Adapter(replace(learner.trainer.lora, parameters=learner.trainer.served), statistics=learner.statistics)
        folder = Adapters(SHIPPED).save(learner.pair, adapter, learner.trainer.base, np.float16)
        print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
