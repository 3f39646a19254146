"""The adapters of draft-smol for published models: each target writes texts once, and the drafter learns them several times.

    python -m recipes.real_adapters QWEN.gguf TEXTS --prompts PROMPTS.jsonl
    python -m recipes.real_adapters LARGER.gguf OTHER_TEXTS --prompts PROMPTS.jsonl --start draft-smol--QWEN

The target alone writes a text for each prompt, every other one greedy, else at temperature 1, as lossless texts have its
distribution whatever drafts them. The folder TEXTS keeps each text with the most probable tokens at each of its places, and a
second run continues there. The last prompts only measure what was learned. `--start`: begin with another target's adapter.
The adapter is stored in the package, in half precision, below 2 MB.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import omnidraft as od
from omnidraft.learning.adapters import SHIPPED, Adapter, Adapters, manifest_of, read
from omnidraft.learning.online import Statistics
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import Example, make_example
from omnidraft.pairs.conversation import template_of
from omnidraft.pairs.prompts import ids_of

from .batch import write

KEPT = 64  # most probable tokens that are kept at each place of a text
HELD_OUT = 24  # prompts that only measure
BATCH = 8  # texts in a step of learning
WARM, CONSTANT = 10, 0.5  # steps in which the rate rises, share of the steps after which it falls to zero


def prompts_in(path: Path, pair: od.Pair, longest: int) -> list[tuple[list[int], list[int]]]:
    """The ids that target and drafter read for each prompt of a file of JSON lines; chats if the target has a template.

    Prompts of more than `longest` target tokens are left out.
    """
    texts = [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]
    chats = template_of(pair.target)[0]
    prompts = (ids_of(pair, [{"role": "user", "content": text}] if chats else text) for text in texts)
    return [prompt for prompt in prompts if len(prompt[0]) <= longest]


def write_texts(pair: od.Pair, prompts: list[tuple[list[int], list[int]]], folder: Path, args: argparse.Namespace) -> None:
    """Write the texts of all prompts that have no file yet."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = [number for number in range(len(prompts)) if not (folder / f"{number}.npz").exists()]
    some = [(prompts[number], number % 2 == 1) for number in todo]
    uniforms = od.Uniforms(np.random.default_rng([args.seed, len(todo)]))
    written = write(pair.target, [(ids, sampled) for (ids, _), sampled in some], uniforms, args.tokens, limit=args.length)
    for count, (place, ids, probs) in enumerate(written, 1):
        top = np.argpartition(-probs, KEPT, axis=-1)[:, :KEPT]
        kept = np.take_along_axis(probs, top, axis=-1)
        with (folder / "part").open("wb") as file:  # subtle: a text is there wholly, or not at all
            np.savez(file, ids=np.array(ids), top=top, probs=kept / kept.sum(axis=-1, keepdims=True))
        (folder / "part").rename(folder / f"{todo[place]}.npz")
        if count % BATCH == 0:
            print(f"{count} of {len(todo)} texts", flush=True)


def example(pair: od.Pair, prompt: list[int], path: Path) -> Example:
    """A text that was written, as the losses read it."""
    with np.load(path) as stored:
        probs = np.zeros((len(stored["ids"]), pair.target.vocab_size), np.float32)
        np.put_along_axis(probs, stored["top"], stored["probs"], axis=-1)
        return make_example(pair, prompt, stored["ids"].tolist(), probs)


def learn(pair: od.Pair, prompts: list[list[int]], folder: Path, args: argparse.Namespace) -> Trainer:
    """Learn all texts but the held-out ones `args.epochs` times; prints how many tokens of drafts along the latter are kept."""
    rng = np.random.default_rng(args.seed)
    trainer = Trainer(pair.draft, Recipe(rank=args.rank, rate=args.rate), rng)
    if args.start:
        start = Adapters(SHIPPED).named(args.start)
        lora = read(start, manifest_of(start), draft=pair.draft).lora
        for name, array in lora.parameters.items():
            trainer.parameters[name][...] = trainer.served[name][...] = array
    texts = [(prompt, folder / f"{number}.npz") for number, prompt in enumerate(prompts)]
    texts, measured = texts[:-HELD_OUT], [example(pair, *text) for text in texts[-HELD_OUT:]]
    steps = args.epochs * len(texts) // BATCH
    order = np.concatenate([rng.permutation(len(texts)) for _ in range(args.epochs)])
    for step in range(steps):
        if step % 20 == 0:
            print(f"step {step} of {steps}: {trainer.expected_acceptance(pair, measured):.3f} kept", flush=True)
        trainer.optimizer.rate = args.rate * min(1.0, (step + 1) / WARM, (1 - step / steps) / (1 - CONSTANT))
        trainer.step(pair, [example(pair, *texts[place]) for place in order[step * BATCH:(step + 1) * BATCH]])
    print(f"at the end: {trainer.expected_acceptance(pair, measured):.3f} kept", flush=True)
    return trainer


def measure(pair: od.Pair, learned: Any, prompts: list[tuple[list[int], list[int]]], tokens: int) -> Statistics:
    """Both drafters' rounds for the held-out prompts, greedy; later learning begins with a small part of the usual rate."""
    statistics, options = Statistics(rate_share=1 / 16), od.Options(max_new_tokens=tokens)
    adapted = od.Pair(learned, pair.target)
    for prompt in prompts:
        rounds, untouched = (list(od.speculative(one, prompt, options, od.Uniforms([]))) for one in (adapted, pair))
        statistics.count(rounds, untouched, changed=False)  # what counts as saved later is the time of its user
    return statistics


def main() -> None:
    """Write the texts, learn them, measure, and store the adapter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a published model that the NumPy engine runs")
    parser.add_argument("texts", type=Path, help="folder")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines, each with a prompt; the last only measure")
    parser.add_argument("--draft", default="draft-smol")
    parser.add_argument("--start", help="an adapter to begin with")
    parser.add_argument("--tokens", type=int, default=96, help="most of a text")
    parser.add_argument("--length", type=int, default=640, help="most tokens of a prompt and its text")
    parser.add_argument("--rank", type=int, default=24)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pair = od.Pair(od.load(args.draft), od.load(args.target))
    prompts = prompts_in(args.prompts, pair, args.length - args.tokens)
    write_texts(pair, prompts, args.texts, args)
    trainer = learn(pair, [prompt for _, prompt in prompts], args.texts, args)
    halves = {name: array.astype(np.float16) for name, array in trainer.served.items()}
    lora = replace(trainer.lora, parameters=halves)
    adapter = Adapter(lora)
    adapter.statistics = measure(pair, adapter.drafter(pair.draft), prompts[-HELD_OUT:], args.tokens)
    adapter.statistics.updates = int(trainer.optimizer.steps.item())
    folder = Adapters(SHIPPED).save(pair, adapter)
    print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
