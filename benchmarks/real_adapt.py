"""Learning on data and models that this project did not make: block efficiency on held-out stories, and every data set served.

    python -m benchmarks.real_adapt --json benchmarks/results/real_adapt.json

The pair babyllama-tok361 -> stories260K (two published models with two tokenizers) serves the first stories of
tinystories1000, greedy or at temperature 1, and learns from them; measured before and after on the last ones, which it never
sees. The drafter was trained to the end on such stories, so the usual rate is too large for it: measured are what the guard
makes of that, and smaller rates. The embedded draft-general -> qwen-like serves a few prompts of each data set through
`omnidraft adapt`, as a user would. The material is not part of the repository: $OMNIDRAFT_REAL_DATA, default ../shared/real.
What the result file has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.common import write_json
from omnidraft.cli.machine import machine
from omnidraft.decoding import speculative
from omnidraft.options import Options
from omnidraft.engine.loading import load
from omnidraft.learning.online import Learner, Schedule, learn
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.metrics import summarize
from omnidraft.generation import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import Confidence, FixedLength

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", ROOT.parent / "shared" / "real"))
DATA = ("gsm8k_train1000", "mbpp_train374", "alpaca_train1000", "xsum_train300", "tinystories1000")
PAIR = ("babyllama-tok361", "stories260K")
RECIPES = {"rank 32": Recipe(), "rank 32, rate 0.0003": Recipe(rate=3e-4),
           "all weights, rate 0.00003": Recipe(rank=0, rate=3e-5)}


def measure(pair: Pair, texts: list[str], tokens: int) -> dict:
    """Held-out texts, drafts of twelve tokens (they are short), greedy and at temperature 1, there each drawn three times."""
    found = {}
    for temperature in (0.0, 1.0):
        options = Options(stop=FixedLength(12), temperature=temperature, max_new_tokens=tokens)
        rounds = [record for i, text in enumerate(texts) for draw in range(3 if temperature else 1)
                  for record in speculative(pair, text, options, Uniforms(np.random.default_rng([i, draw])))]
        s = summarize(rounds)
        found[f"T={temperature:g}"] = {
            "block_efficiency": round(s.block_efficiency, 3), "acceptance_draft": round(s.acceptance_draft, 3),
            "error": round(float(np.std([len(r.emitted) for r in rounds]) / len(rounds) ** 0.5), 3)}
    return found


def stories(recipe: Recipe, temperature: float, count: int, held_out: int, tokens: int, seed: int) -> dict:
    """The real pair before and after it has served `count` stories."""
    lines = (REAL / "data" / "tinystories1000.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines]
    pair = Pair(*(load(REAL / "models" / name) for name in PAIR))
    rng, run = np.random.default_rng(seed), {"before": measure(pair, texts[-held_out:], tokens)}
    learner = Learner(pair, Trainer(pair.draft, recipe, rng), rng, Schedule(every=2, replay=6))
    options = Options(stop=Confidence(8, 0.2), temperature=temperature, max_new_tokens=tokens)
    curve = [summarize(learned.rounds).block_efficiency for learned in learn(learner, texts[:count], options, Uniforms(rng))]
    run["curve"] = [round(float(np.mean(part)), 3) for part in np.array_split(curve, max(1, min(10, len(curve) // 4)))]
    s = learner.statistics
    return run | {"after": measure(pair, texts[-held_out:], tokens), "updates": s["updates"], "rollbacks": learner.rollbacks,
                  "rate": learner.trainer.optimizer.rate,
                  "learning_share": round(s["learning_seconds"] / (s["seconds"] + s["learning_seconds"]), 3)}


def served(path: Path, prompts: int, tokens: int) -> dict:
    """`omnidraft adapt FILE`: its first and last quarter of the prompts, or what it says where it fails."""
    done = subprocess.run([sys.executable, "cli.py", "adapt", path, "--limit", str(prompts), "-n", str(tokens), "--no-save",
                           "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"fails": done.stderr.strip().splitlines()[-1]}
    *each, last = map(json.loads, done.stdout.splitlines())
    quarter = max(1, len(each) // 4)
    ends = {name: round(float(np.mean([one["block_efficiency"] for one in part])), 3)
            for name, part in (("first", each[:quarter]), ("last", each[-quarter:]))}
    return {"prompts": last["prompts"], "tokens": last["tokens"], "updates": last["updates"],
            "passed_over": sum(one["note"].startswith("passed over") for one in each),
            "cut": any(" were cut to " in line for line in done.stderr.splitlines()), **ends}


def main() -> None:
    """Measure, print and write after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", type=int, default=480, help="to learn from")
    parser.add_argument("--held-out", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=24, help="served of each data set")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--temperatures", nargs="*", type=float, default=[0.0, 1.0], help="at which the stories are served")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not REAL.is_dir():
        print(f"{REAL} is not there, nothing is measured: set OMNIDRAFT_REAL_DATA", file=sys.stderr)
        return
    results: dict = {"stories": {}, "data": {}}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    results["machine"] = machine()
    results["settings"] = {"pair": " -> ".join(PAIR), "stories": args.stories, "held_out": args.held_out, "tokens": args.tokens}
    jobs = {("stories", f"T = {t:g}, {name}, seed {seed}"): (lambda recipe=RECIPES[name], t=t, seed=seed: stories(
        recipe, t, args.stories, args.held_out, args.tokens, seed))
        for name in args.recipes for t in args.temperatures for seed in args.seeds}
    jobs |= {("data", name): (lambda name=name: served(REAL / "data" / f"{name}.jsonl", args.prompts, 48)) for name in DATA}
    for (part, name), job in jobs.items():
        if name in results[part]:
            continue
        results[part][name] = job()
        print(f"{name}: {results[part][name]}", flush=True)
        if args.json:
            write_json(args.json, results)


if __name__ == "__main__":
    main()
