"""The adapters that ship: the general drafter learns the texts that each target writes for prompts of the three tasks.

    python -m recipes.adapters                    draft-general for qwen-like and llama3-like
    python -m recipes.adapters --targets llama3-like --texts 2000
    python -m recipes.adapters --more --seed 1    continue from the adapters in the package, with other prompts

It does in bulk what `omnidraft adapt` does. Texts of a lossless pair have the target's distribution, whatever the drafter. So
here the target alone writes them, many at a time, every other one greedy, for fresh prompts (never the held-out ones). Each
text is learned once and replayed about once, and the learning rate falls to zero over the last part. The adapters are stored
in half precision, each below 1 MB.
"""

from __future__ import annotations

import argparse
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from time import perf_counter

import numpy as np

import omnidraft as od
from omnidraft.learning.adapters import SHIPPED, Adapter, Adapters
from omnidraft.learning.online import Schedule, Statistics
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import Example, make_example
from omnidraft.metrics import summarize

from . import world
from .batch import write

NEW, REPLAYED, MEMORY, TOKENS = 4, 4, 512, 256  # new and replayed texts in a step, texts kept for replay, tokens of a text
CONSTANT = 0.5  # share of the steps before the rate begins to fall


def fresh_prompts(count: int, seed: int) -> list[str]:
    """Prompts of the three tasks in turn: math, code, text, math, ..."""
    each = [world.fresh_prompts(task, -(-count // 3), seed) for task in world.ASKED]
    return [prompt for turn in zip(*each, strict=True) for prompt in turn][:count]


def texts_of(pair: od.Pair, prompts: list[str], rng: np.random.Generator) -> Iterator[Example]:
    """The target's texts for the prompts, in the order in which they end; in turn greedy and at temperature 1."""
    asked = ((pair.target.tokenizer.encode(prompt, bos=True), i % 2 == 1) for i, prompt in enumerate(prompts))
    for number, ids, probs in write(pair.target, asked, od.Uniforms(rng), TOKENS):
        yield make_example(pair, prompts[number], ids, probs)


def learn_target(draft: str, target: str, count: int, seed: int, more: bool = False) -> od.Learner:
    """Learn `count` texts; prints a line every 480."""
    pair, rng = od.Pair(od.load(draft), od.load(target)), np.random.default_rng(seed)
    recipe, schedule = Recipe(rank=64), Schedule(every=10 ** 9, held_out=0)
    learner = Adapters(SHIPPED).resume(pair, recipe, schedule, rng) if more else od.Learner(
        pair, Trainer(pair.draft, recipe, rng), rng, schedule)
    trainer, before = learner.trainer, learner.statistics.updates
    print(f"{target}: {served(learner, 24, rng):.2f} tokens per target pass", flush=True)
    memory, values, began, seen = deque(maxlen=MEMORY), [], perf_counter(), 0
    texts = texts_of(pair, fresh_prompts(count, seed), rng)
    while some := list(islice(texts, NEW)):
        trainer.optimizer.rate = recipe.step_size(trainer.base) * min(1.0, (1 - seen / count) / (1 - CONSTANT))
        again = [memory[i] for i in rng.permutation(len(memory))[:REPLAYED]]
        values.append(trainer.step(pair, [*some, *again]))
        memory.extend(some)
        seen += len(some)
        if len(values) % 120 == 0:
            print(f"{target}: {seen} texts, loss {np.mean(values[-120:]):.3f}, {perf_counter() - began:.0f} s", flush=True)
    # Later learning starts with a small part of the usual rate, because here the rate has fallen to zero.
    pair.draft, learner.statistics = trainer.model(), Statistics(updates=before + len(values), rate_share=1 / 16)
    print(f"{target}: {served(learner, 48, rng):.2f} tokens per target pass", flush=True)
    return learner


def served(learner: od.Learner, count: int, rng: np.random.Generator) -> float:
    """Block efficiency of fresh prompts, which are added to the learner's statistics."""
    prompts = fresh_prompts(count, int(rng.integers(1 << 30)))
    rounds = [r for learned in od.learn(learner, prompts, od.Options(max_new_tokens=TOKENS), od.Uniforms(rng))
              for r in learned.rounds]
    return summarize(rounds).block_efficiency


def main() -> None:
    """Learn and store the adapters one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft-general")
    parser.add_argument("--targets", nargs="*", default=["qwen-like", "llama3-like"])
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--more", action="store_true", help="continue from the adapters in the package")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for target in args.targets:
        learner = learn_target(args.draft, target, args.texts, args.seed, args.more)
        halves = {name: array.astype(np.float16) for name, array in learner.trainer.served.items()}
        adapter = Adapter(replace(learner.trainer.lora, parameters=halves), statistics=learner.statistics)
        if not args.more:  # otherwise an adapter of older weights with the same names would stay
            shutil.rmtree(SHIPPED / f"{args.draft}--{target}", ignore_errors=True)
        folder = Adapters(SHIPPED).save(learner.pair, adapter)
        print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
