"""Adaptive drafting by the wall clock: fixed lengths against stop rules and the learned head, and what learning adds to it.

    python -m benchmarks.adaptive --json benchmarks/results/adaptive.json

*Sweep*: every rule writes the same greedy texts; all settings of a task take turns prompt by prompt in one process, so whatever
slows the machine slows them all. The head learns online on other prompts of the same kind (the drafter stays as it is), on the
paper's schedule: an update every 8 prompts, joint or interleaved. Thresholds of `throughput` are tuned while it runs.
*Comparison* (as in arXiv 2507.02659): the un-adapted drafter serves a stream and learns nothing, the head only, its weights
only (`lifted`, rank 32), or both; then held-out prompts. What the result file has already is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from omnidraft.engine.cpu import prepare_blas

prepare_blas()

import numpy as np  # noqa: E402

from benchmarks.common import fresh_prompts, prompts, write_json  # noqa: E402
from omnidraft.cli.machine import machine  # noqa: E402
from omnidraft.decoding import plain, speculative  # noqa: E402
from omnidraft.engine.loading import load  # noqa: E402
from omnidraft.generation import Pair  # noqa: E402
from omnidraft.learning.online import Learner, Schedule, learn  # noqa: E402
from omnidraft.learning.training import Recipe, Trainer  # noqa: E402
from omnidraft.metrics import summarize  # noqa: E402
from omnidraft.options import Options  # noqa: E402
from omnidraft.sampling import Uniforms  # noqa: E402
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength, Stop, Throughput  # noqa: E402

TARGETS, LENGTHS = ("sibling", "qwen-like", "llama3-like"), range(1, 13)
METHODS = {"fixed k": Schedule(every=10 ** 9, guard=0), "adapt only": Schedule(every=2, steps=0, head="joint", guard=0),
           "distill only": Schedule(every=2, replay=6), "joint": Schedule(every=2, replay=6, head="joint"),
           "interleaved": Schedule(every=2, replay=6, head="interleaved")}
FIXED, THRESHOLD = 4, 0.4  # of the comparison


@dataclass(frozen=True)
class EntropyBound(Stop):
    """Stop once 1 - sqrt(weight * H(q)) falls below `threshold`: a bound from below on the acceptance (arXiv 2410.18351).

    H is the entropy of the last token's row q (V_q,); the paper's AdaEDL moves the threshold with the acceptance rate.
    """

    limit: int = 12
    threshold: float = 0.4
    weight: float = 0.2

    def bound(self, q: np.ndarray) -> float:
        """A token's confidence from the row of probabilities (V_q,) that it was drawn from."""
        entropy = -float((q * np.log(np.maximum(q, 1e-30))).sum())
        return 1.0 - (self.weight * max(0.0, entropy)) ** 0.5

    def __call__(self, confidences: list[float]) -> bool:
        """True where the last token's bound is below the threshold."""
        return confidences[-1] < self.threshold


def serve(pair: Pair, texts: list[str], schedule: Schedule, options: Options, head: AcceptanceHead | None = None,
          recipe: Recipe | None = None) -> Learner:
    """Serve the prompts and learn on the way."""
    rng = np.random.default_rng(0)
    learner = Learner(pair, Trainer(pair.draft, recipe or Recipe(), rng), rng, schedule, head)
    for _ in learn(learner, texts, options, Uniforms(rng)):
        pass
    return learner


def take_turns(settings: dict, texts: list[str], tokens: int, repeats: int, seen: Collection[str] = ()) -> dict:
    """Figures by name of `settings`, each a pair and its stop rule or None for plain decoding; the first repeat warms up.

    Of the texts in `seen` the tokens per second are given apart too.
    """
    summaries: dict = {name: [] for name in settings}
    apart: dict = {name: [] for name in settings}
    for repeat in range(repeats + 1):
        rounds: dict = {name: [] for name in settings}
        some: dict = {name: [] for name in settings}
        for turn, text in enumerate(texts):
            names = list(settings)
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                pair, stop = settings[name]
                options = Options(max_new_tokens=tokens, **({"stop": stop} if stop else {}))
                ids = pair.target.tokenizer.encode(text, bos=True)
                written = list(speculative(pair, text, options, Uniforms([])) if stop else plain(
                    pair.target, ids, options, Uniforms([])))
                rounds[name] += written
                some[name] += written if text in seen else ()
        for name in settings if repeat else ():
            summaries[name].append(summarize(rounds[name]))
            apart[name].append(summarize(some[name]).tokens_per_second if seen else 0.0)
    return {name: {"speeds": [round(s.tokens_per_second, 1) for s in found],
                   "tokens_per_second": round(float(np.median([s.tokens_per_second for s in found])), 1),
                   **({"seen_tokens_per_second": round(float(np.median(apart[name])), 1)} if seen else {}),
                   "block_efficiency": round(found[-1].block_efficiency, 3),
                   "acceptance_draft": round(found[-1].acceptance_draft, 3),
                   "drafted_per_round": round(found[-1].drafted_per_round, 2)} for name, found in summaries.items()}


def quality(scores: np.ndarray, labels: np.ndarray) -> dict:
    """How well scores (n,) order accepted above rejected tokens (area under the curve) and how far off they are on average."""
    above, below = scores[labels > 0.5][:, None], scores[labels <= 0.5]
    bins = np.minimum((scores * 10).astype(int), 9)
    off = sum(abs((scores - labels)[bins == i].sum()) for i in range(10)) / len(labels)
    loss = -np.log(np.clip(np.where(labels > 0.5, scores, 1 - scores), 1e-4, 1)).mean()
    return {"auc": round(float((above > below).mean() + (above == below).mean() / 2), 3),
            "calibration_error": round(float(off), 3), "cross_entropy": round(float(loss), 3)}


def sweep(pair: Pair, task: str, args: argparse.Namespace) -> dict:
    """Every rule on held-out prompts, and how well the heads and the drafter's own confidence predict acceptance there."""
    texts = [example["prompt"] for example in prompts(task, args.prompts + args.stream)]
    heads, texts, stream = {}, texts[:args.prompts], texts[args.prompts:]
    for how in ("joint", "interleaved"):
        heads[how] = AcceptanceHead(pair.draft.config.width)
        serve(pair, stream, Schedule(every=8, steps=0, head=how, guard=0),
              Options(stop=Confidence(8, 0.1, heads[how]), max_new_tokens=args.tokens), heads[how])
    blank = AcceptanceHead(pair.draft.config.width)  # predicts the drafter's own confidence
    seen = serve(pair, texts, Schedule(every=10 ** 9, guard=0), Options(
        stop=Confidence(8, 0.05, blank), max_new_tokens=args.tokens), blank).labelled
    labels = np.array([label for _, label in seen])
    predicted = {name: np.array([head(x) for x, _ in seen]) for name, head in {"confidence": blank, **heads}.items()}
    rules = {f"k = {k}": FixedLength(k) for k in LENGTHS} | {
        "confidence": Confidence(12, THRESHOLD), "entropy bound": EntropyBound(12), "throughput": Throughput(12)}
    for how, head in heads.items():
        rules |= {f"{how} head": Confidence(12, THRESHOLD, head), f"{how} head, throughput": Throughput(12, head)}
    found = take_turns({"plain": (pair, None)} | {name: (pair, rule) for name, rule in rules.items()}, texts, args.tokens,
                       args.repeats)
    best = max((name for name in found if name.startswith("k = ")), key=lambda name: found[name]["tokens_per_second"])
    fastest = np.array(found[best]["speeds"])
    for name, figures in found.items():
        figures["to_best_fixed"] = round(float(np.median(figures.pop("speeds") / fastest)), 3)
        if hasattr(rules.get(name), "threshold"):
            figures["threshold"] = round(rules[name].threshold, 3)
    return {"best_fixed": best, "repeats": args.repeats, "rules": found, "labels": len(labels),
            "quality": {name: quality(scores, labels) for name, scores in predicted.items()}}


def comparison(draft: str, target: str, task: str, args: argparse.Namespace) -> dict:
    """The paper's comparison for one target and task: each method serves the stream from the start, then held-out prompts."""
    texts, goal, base = fresh_prompts(task, args.stream, 2), load(target), load(draft)
    settings, learned = {}, {}
    for name, schedule in METHODS.items():
        pair, head = Pair(base, goal), None if schedule.head == "none" else AcceptanceHead(base.config.width)
        stop = FixedLength(FIXED) if head is None else Confidence(12, THRESHOLD, head)
        settings[name] = pair, stop
        s = {"updates": 0} if name == "fixed k" else serve(pair, texts, schedule, Options(
            stop=stop, max_new_tokens=args.tokens), head).statistics
        learned[name] = {"updates": s["updates"] * (schedule.steps > 0)} | (
            {"learning_share": round(s["learning_seconds"] / (s["seconds"] + s["learning_seconds"]), 3)} if len(s) > 1 else {})
    found = take_turns({"plain": (pair, None), **settings}, [e["prompt"] for e in prompts(task, args.prompts)], args.tokens,
                       args.repeats)
    for name, figures in found.items():
        ratios = np.array(figures["speeds"]) / found["plain"]["speeds"]
        figures |= {"speedup": round(float(np.median(ratios)), 3), **learned.get(name, {})}
    return {name: {key: value for key, value in figures.items() if key != "speeds"} for name, figures in found.items()}


def main() -> None:
    """Measure, print and write after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=[f"draft-tasks:{name}" for name in TARGETS])
    parser.add_argument("--tasks", nargs="*", default=["math", "code", "text"])
    parser.add_argument("--compare", nargs="*", default=["draft-general:sibling", "draft-general:qwen-like"])
    parser.add_argument("--compare-tasks", nargs="*", default=["math"])
    parser.add_argument("--stream", type=int, default=64, help="prompts to learn from")
    parser.add_argument("--prompts", type=int, default=8, help="held-out prompts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"sweep": {}, "comparison": {}}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["machine"] = machine()
    results["settings"] = {"stream": args.stream, "prompts": args.prompts, "tokens": args.tokens, "repeats": args.repeats,
                           "fixed": FIXED, "threshold": THRESHOLD}
    jobs = [("sweep", name, task) for name in args.pairs for task in args.tasks] + [
        ("comparison", name, task) for name in args.compare for task in args.compare_tasks]
    for part, name, task in jobs:
        if task in results[part].setdefault(name, {}):
            continue
        if part == "sweep":
            row = sweep(Pair(*map(load, name.split(":"))), task, args)
            for rule, figures in row["rules"].items():
                print(f"{name} {task} {rule}: {figures}", flush=True)
            print(f"{name} {task} best fixed {row['best_fixed']}, {row['quality']}", flush=True)
        else:
            row = comparison(*name.split(":"), task, args)
            for method, figures in row.items():
                print(f"{name} {task} {method}: {figures}", flush=True)
        results[part][name][task] = row
        if args.json:
            write_json(args.json, results)


if __name__ == "__main__":
    main()
