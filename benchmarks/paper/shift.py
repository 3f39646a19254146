"""Distribution shift: another task, another target and back, several targets at once.

    python -m benchmarks.paper.shift --stream 256 --parts task --json
    (the other parts with --stream 64)

*task*: one target; prompts of one task and then of another, with and without the n-gram cache, with
and without learning; also a drafter that learned only on the second task. Every seed has its own
prompts. *target*: X, then Y, then X again, each with its own adapter, saved on disk and loaded by
name. *three*: all targets in one process, with prompts in turn, compared with processes that serve
only one. Everything at temperature 1, with `lifted`, LoRA rank 32, an update every two prompts, six
draft tokens per round (*three*: as many as the acceptance head allows). Results already in the file
are not measured again.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np

from benchmarks.common import TARGETS, arguments, chosen, run_all, sparkline, start, texts_of
from benchmarks.writing import efficiency, emitted, write
from omnidraft import Adapters, Options, Pair, Round, learn
from omnidraft.engine.load import load
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.metrics import summarize
from omnidraft.ngram_cache import NGramCache
from omnidraft.sampling import Uniforms
from omnidraft.stopping import Confidence, FixedLength
from recipes.world import fresh_prompts

POINTS, HELD_OUT = 8, 48  # points of a curve before and after a shift; held-out prompts
LEARNING, NOT_LEARNING = Schedule(every=2, replay=6), Schedule(every=10 ** 9, guard=0)
WITH_HEAD = Schedule(every=2, replay=6, head="interleaved")
CACHED = {"with the cache": True, "without the cache": False}


class Run:
    """A drafter that serves one target: its learner, its draws, and its rounds by prompt."""

    def __init__(self, pair: Pair, schedule: Schedule, tokens: int, seed: int,
                 store: Adapters | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.learner = (store or Adapters("/nowhere")).resume(pair, Recipe(), schedule, rng)
        stop = Confidence(8, 0.2, self.learner.head) if self.learner.head else FixedLength(6)
        self.options = Options(stop=stop, temperature=1.0, max_new_tokens=tokens)
        self.uniforms, self.rounds = Uniforms(rng), []

    def serve(self, texts: list[str]) -> Run:
        """Serve the prompts and learn from them."""
        served = learn(self.learner, texts, self.options, self.uniforms)
        self.rounds += [learned.rounds for learned in served]
        return self


def made(draft: Any, target: Any, cached: bool = True) -> Pair:
    """A pair with the cache filled from the two tokenizers, or with an empty one."""
    return Pair(draft, target, None if cached else NGramCache())


def curve(rounds: list[list[Round]], stream: int) -> dict:
    """Acceptance and block efficiency by groups of prompts."""
    size = max(1, stream // POINTS)
    groups = [summarize(chain(*rounds[i:i + size])) for i in range(0, len(rounds), size)]
    return {"stream": stream, "group": size, "shift_at": POINTS,
            "acceptance": [round(s.acceptance_draft, 3) for s in groups],
            "block_efficiency": [round(s.block_efficiency, 3) for s in groups]}


def held_out(pair: Pair, task: str, tokens: int) -> dict:
    """Figures of held-out prompts of the task, with six draft tokens per round."""
    options = Options(stop=FixedLength(6), temperature=1.0, max_new_tokens=tokens)
    rounds = [write(pair, text, options, i) for i, text in enumerate(texts_of(task, HELD_OUT))]
    found = efficiency([*chain(*rounds)])
    return {"acceptance": found["acceptance_draft"], "block_efficiency": found["block_efficiency"]}


def task_shift(args: Namespace, cached: bool, learning: bool, seed: int) -> dict:
    """Task A, then B; with learning also a drafter that saw only B."""
    base, target, (_, task) = load(args.draft), load(args.targets[0]), args.tasks
    schedule = LEARNING if learning else NOT_LEARNING
    first, second = (fresh_prompts(task, args.stream, 3 + seed) for task in args.tasks)

    def serve(*streams: list[str]) -> dict:
        run = Run(made(base, target, cached), schedule, args.tokens, seed)
        for texts in streams:
            run.serve(texts)
        after = held_out(run.learner.pair, task, args.tokens)
        return curve(run.rounds, args.stream) | {"after": after}

    found = serve(first, second)
    if learning:
        alone = found["alone"] = serve(second)
        found["recovered"] = {key: round(value / alone["after"][key], 3)
                              for key, value in found["after"].items()}
    return found


def target_shift(args: Namespace, cached: bool) -> dict:
    """Targets X, Y, X, each with its adapter on disk; X is measured before and after Y."""
    base, task, rounds = load(args.draft), args.tasks[0], []
    x, y = (load(name) for name in args.targets[:2])
    with tempfile.TemporaryDirectory() as folder:
        store = Adapters(folder)
        for part, target in enumerate((x, y, x)):
            run = Run(made(base, target, cached), LEARNING, args.tokens, part, store)
            if part == 2:
                returning = held_out(run.learner.pair, task, args.tokens)
            rounds += run.serve(fresh_prompts(task, args.stream, 4 + part)).rounds
            if part == 0:
                leaving = held_out(run.learner.pair, task, args.tokens)
            store.keep(run.learner)
    return curve(rounds, args.stream) | {"back_at": 2 * POINTS, "leaving": leaving,
                                         "returning": returning}


def three_targets(args: Namespace) -> dict:
    """Prompts in turn to all targets that share one base drafter, and to one target at a time."""
    base, texts = load(args.draft), fresh_prompts(args.tasks[0], args.stream, 7)
    goals = {name: load(name) for name in args.targets}
    together = {name: Run(made(base, goal), WITH_HEAD, args.tokens, 0)
                for name, goal in goals.items()}
    for text, run in product(texts, together.values()):
        run.serve([text])
    found, whole = {}, 4 * base.parameters
    for name, run in together.items():
        alone = Run(made(load(args.draft), goals[name]), WITH_HEAD, args.tokens, 0).serve(texts)
        one, other = ([*chain(*served.rounds)] for served in (run, alone))
        learner = run.learner
        sizes = {"lora": sum(array.nbytes for array in learner.trainer.parameters.values()),
                 "head": sum(array.nbytes for array in learner.head.parameters.values()),
                 "cache": sum(4 * (len(ngram) + 1) for ngram, _, _ in learner.pair.cache.items())}  # ids of four bytes
        found[name] = {
            "together": round(summarize(one).acceptance_draft, 4),
            "alone": round(summarize(other).acceptance_draft, 4),
            "same_tokens": emitted(one) == emitted(other), "bytes": sizes, "drafter_bytes": whole,
            "share": round(sum(sizes.values()) / whole, 3)}
    return found


def main() -> None:
    """Run, print the curves, and write after every part."""
    args = arguments(
        __doc__, "shift", draft="draft-general", targets=TARGETS, tasks=["math", "code"], tokens=64,
        stream=(64, "prompts before and after a shift"), parts=["task", "target", "three"],
        seeds=([0, 1, 2], "seeds of the task shifts that learn; the others use 0"))
    settings = chosen(args, "draft", "targets", "tasks", "tokens")
    results = start(args.json, settings, task={}, target={}, three={})
    jobs = {}
    for name, cached in CACHED.items():
        for seed in args.seeds:
            key = "task", f"{name}, learning, seed {seed}"
            jobs[key] = partial(task_shift, args, cached, True, seed)
        jobs["task", name] = partial(task_shift, args, cached, False, 0)
        jobs["target", name] = partial(target_shift, args, cached)
    jobs["three", "alternating"] = partial(three_targets, args)
    run_all(args.json, results, {key: job for key, job in jobs.items() if key[0] in args.parts}, settings)
    for part, name in jobs:
        if curve := results[part].get(name, {}).get("acceptance"):
            print(f"{part}, {name}: {sparkline(curve)}")


if __name__ == "__main__":
    main()
