"""Distribution shift: another task, another target and back, three targets at once; data, curves in the terminal, pictures.

    python -m benchmarks.shift --stream 256 --parts task --json benchmarks/results/shift.json
    (the other parts with --stream 64; --png benchmarks/results for pictures)

*task*: one target, prompts of one task and then of another, with and without the n-gram cache, with and without learning; and a
drafter that learned on the second task alone, for every seed (each with prompts of its own). *target*: X, then Y, then X again,
each with an adapter of its own, kept on disk and taken up by name. *three*: three targets in one process, prompts in turn,
against processes that serve one only.
Everything at temperature 1, `lossless`, LoRA rank 32, an update every two prompts, six draft tokens a round (*three*: as many
as the acceptance head says). What the result file has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.common import fresh_prompts, prompts, write_json
from omnidraft.cli.machine import machine
from omnidraft.cli.render import sparkline
from omnidraft.decoding import Round, speculative
from omnidraft.options import Options
from omnidraft.engine.loading import load
from omnidraft.learning.adapters import Adapters
from omnidraft.learning.online import Schedule, learn
from omnidraft.learning.training import Recipe
from omnidraft.metrics import summarize
from omnidraft.ngram_cache import NGramCache
from omnidraft.generation import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import Confidence, FixedLength

POINTS, HELD_OUT = 8, 48  # of a curve before a shift and after it; prompts
LEARNING, NOT_LEARNING = Schedule(every=2, replay=6), Schedule(every=10 ** 9, guard=0)
WITH_HEAD = Schedule(every=2, replay=6, head="interleaved")


class Run:
    """One drafter for one target while it serves: its learner, draws, and the rounds of every prompt."""

    def __init__(self, pair: Pair, schedule: Schedule, tokens: int, seed: int, store: Adapters | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.learner = (store or Adapters("/nowhere")).resume(pair, Recipe(), schedule, rng)
        stop = Confidence(8, 0.2, self.learner.head) if self.learner.head else FixedLength(6)
        self.options = Options(stop=stop, temperature=1.0, max_new_tokens=tokens)
        self.uniforms, self.rounds = Uniforms(rng), []

    def serve(self, texts: list[str]) -> list[list[Round]]:
        """The rounds of each prompt."""
        served = [learned.rounds for learned in learn(self.learner, texts, self.options, self.uniforms)]
        self.rounds += served
        return served


def made(draft: object, target: object, cached: bool = True) -> Pair:
    """A pair with the cache filled from the two tokenizers, or with none at all."""
    return Pair(draft, target, None if cached else NGramCache(), prefill=cached)


def curve(rounds: list[list[Round]], stream: int) -> dict:
    """Acceptance and block efficiency by groups of prompts."""
    size = max(1, stream // POINTS)
    groups = [summarize(r for one in rounds[i:i + size] for r in one) for i in range(0, len(rounds), size)]
    return {"stream": stream, "group": size, "acceptance": [round(s.acceptance_draft, 3) for s in groups],
            "block_efficiency": [round(s.block_efficiency, 3) for s in groups]}


def held_out(pair: Pair, task: str, tokens: int) -> dict:
    """Held-out prompts of the task, six draft tokens a round."""
    options = Options(stop=FixedLength(6), temperature=1.0, max_new_tokens=tokens)
    s = summarize(record for i, example in enumerate(prompts(task, HELD_OUT)) for record in speculative(
        pair, example["prompt"], options, Uniforms(np.random.default_rng(i))))
    return {"acceptance": round(s.acceptance_draft, 3), "block_efficiency": round(s.block_efficiency, 3)}


def task_shift(args: argparse.Namespace, cached: bool, learning: bool, seed: int) -> dict:
    """Task A, then B; with learning also a drafter that saw B alone."""
    base, target = load(args.draft), load(args.targets[0])
    first, second = (fresh_prompts(task, args.stream, 3 + seed) for task in args.tasks)
    schedule = LEARNING if learning else NOT_LEARNING
    run = Run(made(base, target, cached), schedule, args.tokens, seed)
    run.serve(first)
    run.serve(second)
    after = held_out(run.learner.pair, args.tasks[1], args.tokens)
    found = curve(run.rounds, args.stream) | {"shift_at": POINTS, "after": after}
    if learning:
        alone = Run(made(base, target, cached), schedule, args.tokens, seed)
        alone.serve(second)
        found["alone"] = curve(alone.rounds, args.stream) | {"after": held_out(alone.learner.pair, args.tasks[1], args.tokens)}
        found["recovered"] = {name: round(value / found["alone"]["after"][name], 3) for name, value in after.items()}
    return found


def target_shift(args: argparse.Namespace, cached: bool) -> dict:
    """Targets X, Y, X, each with its own adapter on disk; X measured when it is left and when it is back."""
    base, task, rounds, ends, switches = load(args.draft), args.tasks[0], [], [], []
    x, y = (load(name) for name in args.targets[:2])
    with tempfile.TemporaryDirectory() as folder:
        store = Adapters(folder)
        for part, target in enumerate((x, y, x)):
            pair, began = made(base, target, cached), perf_counter()
            run = Run(pair, LEARNING, args.tokens, part, store)
            switches.append(round(perf_counter() - began, 3))
            if part == 2:
                ends.append(held_out(run.learner.pair, task, args.tokens))
            rounds += run.serve(fresh_prompts(task, args.stream, 4 + part))
            if part == 0:
                ends.append(held_out(run.learner.pair, task, args.tokens))
            store.keep(run.learner)
    return curve(rounds, args.stream) | {"shift_at": POINTS, "back_at": 2 * POINTS, "leaving": ends[0], "returning": ends[1],
                            "switch_seconds": switches[2]}


def three_targets(args: argparse.Namespace) -> dict:
    """Prompts in turn to three targets that share one base drafter, and the same by one target at a time."""
    base, texts = load(args.draft), fresh_prompts(args.tasks[0], args.stream, 7)
    goals = {name: load(name) for name in args.targets}
    together = {name: Run(made(base, goal), WITH_HEAD, args.tokens, 0) for name, goal in goals.items()}
    for text in texts:
        for run in together.values():
            run.serve([text])
    found = {}
    for name, run in together.items():
        alone = Run(made(load(args.draft), goals[name]), WITH_HEAD, args.tokens, 0)
        alone.serve(texts)
        written = [[token for one in r.rounds for record in one for token in record.emitted] for r in (run, alone)]
        one, other = (summarize(record for one in r.rounds for record in one) for r in (run, alone))
        learner, began = run.learner, perf_counter()
        learner.trainer.model()
        took = perf_counter() - began
        sizes = {"lora": sum(array.nbytes for array in learner.trainer.parameters.values()),
                 "head": sum(array.nbytes for array in learner.head.parameters.values()),
                 "cache": learner.pair.cache.size_bytes}
        found[name] = {"together": round(one.acceptance_draft, 4), "alone": round(other.acceptance_draft, 4),
                       "same_tokens": written[0] == written[1], "bytes": sizes, "drafter_bytes": memory(base),
                       "share": round(sum(sizes.values()) / memory(base), 3),
                       "share_of_parameters": round(sum(sizes.values()) / (4 * base.parameters), 3),
                       "switch_seconds": round(took, 4)}
    return found


def memory(model: object) -> int:
    """Bytes of all arrays that a model holds, each once: its weights in the layout that its kernels want, tables, embedding."""
    seen: dict[int, int] = {}

    def walk(thing: object, depth: int) -> None:
        if isinstance(thing, np.ndarray):
            while isinstance(thing.base, np.ndarray):
                thing = thing.base
            seen[id(thing)] = thing.nbytes
        elif depth < 8:
            for part in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else vars(
                    thing).values() if hasattr(thing, "__dict__") else ():
                walk(part, depth + 1)

    walk(model, 0)
    return sum(seen.values())


def picture(results: dict, folder: Path) -> None:
    """The curves as PNG files (the extra `plot`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("--png needs matplotlib: pip install 'omnidraft[plot]'")
    for part in ("task", "target"):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        for name, run in results[part].items():
            places = [(i + 0.5) * run["group"] for i in range(len(run["acceptance"]))]
            axes.plot(places, run["acceptance"], marker=".", label=name)
        for at in {run[key] * run["group"] for run in results[part].values() for key in ("shift_at", "back_at") if key in run}:
            axes.axvline(at, color="grey", linestyle=":")
        axes.set(xlabel="prompts", ylabel="share of draft tokens kept", title=f"{part} shift")
        axes.legend(frameon=False)
        figure.savefig(folder / f"shift_{part}.png", dpi=150)


def main() -> None:
    """Run, print the curves, write after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", default="draft-general")
    parser.add_argument("--targets", nargs=3, default=["qwen-like", "llama3-like", "sibling"])
    parser.add_argument("--tasks", nargs=2, default=["math", "code"])
    parser.add_argument("--stream", type=int, default=64, help="prompts before and after a shift")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of the task shifts that learn; the rest has 0")
    parser.add_argument("--parts", nargs="*", default=["task", "target", "three"])
    parser.add_argument("--png", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"task": {}, "target": {}, "three": {}}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["machine"] = machine()
    results["settings"] = {"draft": args.draft, "targets": args.targets, "tasks": args.tasks, "tokens": args.tokens}
    named = {True: "with the cache", False: "without the cache"}
    jobs = {("task", f"{named[cached]}{f', learning, seed {seed}' if learning else ''}"): (
        lambda cached=cached, learning=learning, seed=seed: task_shift(args, cached, learning, seed))
        for cached in (True, False) for learning in (True, False) for seed in (args.seeds if learning else [0])}
    jobs |= {("target", named[cached]): (lambda cached=cached: target_shift(args, cached)) for cached in (True, False)}
    jobs[("three", "alternating")] = lambda: three_targets(args)
    for (part, name), job in jobs.items():
        if name in results[part] or part not in args.parts:
            continue
        run = results[part][name] = job()
        rest = {key: value for key, value in run.items() if key not in ("acceptance", "block_efficiency", "alone")}
        print(f"{part}, {name}: {sparkline(run['acceptance']) if 'acceptance' in run else ''} {rest}", flush=True)
        if args.json:
            write_json(args.json, results)
    if args.png:
        picture(results, args.png)


if __name__ == "__main__":
    main()
