"""The adapters that ship: the general drafter learns the texts that each target writes for prompts of the three tasks.

    python -m recipes.adapters                    draft-general for qwen-like, llama3-like and sibling
    python -m recipes.adapters --targets sibling --texts 2000

What `omnidraft adapt` does, in bulk: texts of a lossless pair have the target's law whoever drafts, so here the target writes
them alone, many at a time in Torch, every other one greedy, for fresh prompts (never the held-out ones). Each is learned once
and replayed about once, and the learning rate falls to zero over the last part. Stored in half precision, below 1 MB each.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

import omnidraft as od
from omnidraft.adapters import SHIPPED, Adapter, Adapters
from omnidraft.losses import Example, make_example
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.sampling import mask, process

from . import code_text, math_text, story_text

AT_ONCE, NEW, REPLAYED, MEMORY, TOKENS = 32, 4, 4, 1024, 112  # texts in a pass, in a step, kept; tokens of a text
CONSTANT = 0.5  # share of the steps before the rate begins to fall


def fresh_prompts(count: int, seed: int) -> list[str]:
    """Prompts as training had them, bare arithmetic and "Equations:" left out: math, code, text, math, ..."""
    rng, prompts = random.Random(seed), []
    while len(prompts) < count:
        example = (math_text, code_text, story_text)[len(prompts) % 3].generate(rng)
        if example["template"] != "drill" and not example["prompt"].endswith("Equations:"):
            prompts.append(example["prompt"])
    return prompts


def write(pair: od.Pair, prompts: list[str], sampled: bool, tokens: int = TOKENS) -> Iterator[Example]:
    """Texts of the target for the prompts, at temperature 1 or greedy, with its rows in half precision."""
    target = pair.target
    ids = [target.tokenizer.encode(prompt, bos=True) for prompt in prompts]
    longest, end = max(map(len, ids)), target.eos_ids[0]
    padded = torch.tensor([[end] * (longest - len(text)) + text for text in ids])
    shown = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in ids])
    with torch.inference_mode():
        made = target.model.generate(padded, attention_mask=shown, do_sample=sampled, max_new_tokens=tokens,
                                     **{"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sampled else {},
                                     pad_token_id=end, output_logits=True, return_dict_in_generate=True)
    rows = torch.stack(made.logits, 1).float().numpy()  # (B, steps, V)
    for prompt, written, logits in zip(prompts, made.sequences[:, longest:].tolist(), rows, strict=True):
        length = next((i + 1 for i, token in enumerate(written) if token in target.eos_ids), len(written))
        law = process(mask(logits[:length], target.tokenizer.size)).astype(np.float16)
        yield make_example(pair, prompt, written[:length], law)


def parts(items: list, size: int) -> Iterator[list]:
    """The items, so many at a time."""
    return (items[i:i + size] for i in range(0, len(items), size))


def single(example: Example) -> Example:
    """The text with rows in single precision, for the sums in the loss."""
    return replace(example, target_probs=example.target_probs.astype(np.float32))


def learn_target(draft: str, target: str, count: int, seed: int) -> od.Learner:
    """Learn `count` texts; prints a line every 480."""
    torch.manual_seed(seed)
    pair, rng = od.Pair(od.load(draft), od.load(target)), np.random.default_rng(seed)
    writer = od.Pair(pair.draft, TransformersModel.load(pair.target.folder, device="cpu"))
    trainer = od.Trainer(pair.draft, od.Recipe(rank=64), rng)
    learner, rate = od.Learner(pair, trainer, rng, od.Schedule(every=10 ** 9)), trainer.optimizer.rate
    print(f"{target}: {served(learner, 24, rng):.2f} tokens per target pass", flush=True)
    memory, values, began, seen = deque(maxlen=MEMORY), [], perf_counter(), 0
    for prompts in parts(fresh_prompts(count, seed), 15 * AT_ONCE):
        prompts.sort(key=len)  # texts of a pass begin after prompts of about one length
        texts = [text for i, some in enumerate(parts(prompts, AT_ONCE)) for text in write(writer, some, bool(i % 2))]
        rng.shuffle(texts)
        for some in parts(texts, NEW):
            trainer.optimizer.rate = rate * min(1.0, (1 - seen / count) / (1 - CONSTANT))
            again = [memory[i] for i in rng.permutation(len(memory))[:REPLAYED]]
            values.append(trainer.step(pair, [single(text) for text in (*some, *again)]))
            memory.extend(some)
            seen += len(some)
        print(f"{target}: {seen} texts, loss {np.mean(values[-120:]):.3f}, {perf_counter() - began:.0f} s", flush=True)
    # Who learns on begins with a small part of the usual rate, for here it has fallen to zero.
    pair.draft, learner.statistics = trainer.model(), {"updates": len(values), "rate_share": 1 / 16}
    print(f"{target}: {served(learner, 48, rng):.2f} tokens per target pass", flush=True)
    return learner


def served(learner: od.Learner, count: int, rng: np.random.Generator) -> float:
    """Block efficiency of fresh prompts, which the learner's statistics take in."""
    prompts = fresh_prompts(count, int(rng.integers(1 << 30)))
    rounds = [r for learned in od.learn(learner, prompts, od.Options(max_new_tokens=TOKENS), od.Uniforms(rng))
              for r in learned.rounds]
    return od.summarize(rounds).block_efficiency


def main() -> None:
    """Learn and store one adapter after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft-general")
    parser.add_argument("--targets", nargs="*", default=["qwen-like", "llama3-like", "sibling"])
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for target in args.targets:
        learner = learn_target(args.draft, target, args.texts, args.seed)
        adapter = Adapter(replace(learner.trainer.lora, parameters=learner.trainer.served), statistics=learner.statistics)
        folder = Adapters(SHIPPED).save(learner.pair, adapter, learner.trainer.base, np.float16)
        print(f"{folder}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
