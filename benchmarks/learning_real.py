"""Learning with a drafter that is already good, and on published data.

    python -m benchmarks.learning_real --json

Two good pairs serve prompts, greedy or at temperature 1, and learn from them: two published models
(babyllama-tok361 -> stories260K, with stories of tinystories1000) and two of the package (draft-tasks
-> qwen-like, with all its prompts). Every drafter that served (the untouched one, and each one
that the guard accepted) also writes texts for held-out prompts. Changes are paired by prompt, so
their errors are small (jackknife over the prompts). The guard warms up the default rate and lowers
it with each roll-back; smaller rates are measured too.
The embedded pair draft-general -> qwen-like serves a few prompts of each data set through
`omnidraft adapt`, as a user would. It starts from the drafter as it is (--rank 32), not from the
adapter in the package; one of every eight prompts is held out and served both ways. The published
models and data are not part of the repository: their folder is $OMNIDRAFT_REAL_DATA. Results already
in the file are not measured again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.common import REAL, ROOT, arguments, chosen, run_all, skip, start
from benchmarks.writing import learning_share, write
from omnidraft import Learner, Options, Pair, learn
from omnidraft.engine.load import load
from omnidraft.learning.online import Schedule, saved
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.metrics import summarize
from omnidraft.sampling import Uniforms
from omnidraft.stopping import Confidence, FixedLength

DATA = ("gsm8k_train1000", "mbpp_train374", "alpaca_train1000", "xsum_train300", "tinystories1000")
REAL_PAIR, OWN_PAIR = "babyllama-tok361 -> stories260K", "draft-tasks -> qwen-like"
RECIPES = {"rank 32": Recipe(), "rank 32, rate 0.0003": Recipe(rate=3e-4),
           "all weights, rate 0.00003": Recipe(rank=0, rate=3e-5)}


def material(pair: str) -> tuple[Pair, list[str]]:
    """The models, and their prompts."""
    where, folder, names = REAL / "models", REAL / "data", ["tinystories1000"]
    if pair == OWN_PAIR:
        where, folder, names = None, ROOT / "omnidraft" / "data", ["math", "code", "text"]
    texts = [json.loads(line)["prompt"] for name in names
             for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    if pair == OWN_PAIR:
        np.random.default_rng(0).shuffle(texts)
    return Pair(*(load(where / name if where else name) for name in pair.split(" -> "))), texts


def measure(pair: Pair, texts: list[str], tokens: int) -> dict[str, np.ndarray]:
    """Tokens and rounds of each text (n, 2), greedy and at temperature 1, with drafts of twelve tokens."""
    found = {}
    for temperature in (0.0, 1.0):
        options = Options(stop=FixedLength(12), temperature=temperature, max_new_tokens=tokens)
        sums = [summarize(write(pair, text, options, [i, 0])) for i, text in enumerate(texts)]
        found[f"T={temperature:g}"] = np.array([(one.tokens, one.rounds) for one in sums], float)
    return found


def compare(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Block efficiency of (n, 2) `after`, its relative change from `before`, and the error of the change."""
    def change(some: Any) -> float:
        (a, b), (c, d) = (part[some].sum(axis=0) for part in (before, after))
        return float(c / d / (a / b) - 1)

    n = len(before)
    without = np.array([change(np.arange(n) != i) for i in range(n)])
    tokens, rounds = after.sum(axis=0)
    return {"block_efficiency": round(tokens / rounds, 3), "change": round(change(slice(None)), 4),
            "error": round(float(without.std() * (n - 1) ** 0.5), 4)}


def good_already(name: str, recipe: Recipe, temperature: float, seed: int, args: Namespace) -> dict:
    """A good pair serves and learns: figures of every drafter that served, on the held-out prompts."""
    pair, texts = material(name)
    held_out, rng = texts[-args.held_out:], np.random.default_rng(seed)
    learner = Learner(pair, Trainer(pair.draft, recipe, rng), rng, Schedule(every=2, replay=6))
    options = Options(stop=Confidence(8, 0.2), temperature=temperature, max_new_tokens=args.tokens)
    curve, drafters = [], {0: pair.draft}  # key: the number of prompts served before
    for learned in learn(learner, texts[:args.prompts_served], options, Uniforms(rng)):
        curve.append(summarize(learned.rounds).block_efficiency)
        if pair.draft is not [*drafters.values()][-1]:
            drafters[len(curve)] = pair.draft
    before, found, s = {}, {}, learner.statistics
    for served, pair.draft in drafters.items():
        now = measure(pair, held_out, args.tokens)
        before = before or now
        found[served] = {at: compare(before[at], now[at]) for at in now}
    parts = np.array_split(curve, max(1, min(10, len(curve) // 4)))
    return {"drafters": found, "curve": [round(float(np.mean(part)), 3) for part in parts],
            "updates": s["updates"], "rollbacks": learner.rollbacks,
            "rate": learner.trainer.optimizer.rate, "learning_share": learning_share(s)}


def served(name: str, prompts: int) -> dict:
    """`omnidraft adapt FILE`: its first and last quarter of the prompts, or its error."""
    with tempfile.TemporaryDirectory() as empty:  # otherwise it would continue from the user's own adapter
        command = ["cli.py", "adapt", REAL / "data" / f"{name}.jsonl", "--limit", str(prompts),
                   "-n", "48", "--rank", "32", "--adapters", empty, "--no-save", "--json"]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"fails": done.stderr.strip().splitlines()[-1]}
    *each, last = map(json.loads, done.stdout.splitlines())
    written = [one["block_efficiency"] for one in each if not one["note"].startswith("prompt skipped")]
    quarter = max(1, len(written) // 4)
    ends = {name: round(float(np.mean(part)), 3) for name, part in (("first", written[:quarter]), ("last", written[-quarter:]))}
    gain, error = saved(last, "rounds")
    n, share = last.get("held_out", 0), last.get("untouched_rounds", 0.0) / max(1, last.get("held_out", 0))
    held_out = {"held_out": n, "saved": gain / share, "saved_error": error / share} if n > 3 else {"held_out": n}
    return {**{name: last[name] for name in ("prompts", "tokens", "updates", "rollbacks")}, **held_out,
            "passed_over": len(each) - len(written), **ends}


def main() -> None:
    """Measure, print and write after every part."""
    args = arguments(
        __doc__, "real_adapt", prompts_served=(240, "by each good pair"), held_out=160, tokens=96,
        prompts=(100, "served of each data set"), seeds=[0],
        pairs={"nargs": "*", "default": [REAL_PAIR, OWN_PAIR], "choices": [REAL_PAIR, OWN_PAIR]},
        recipes={"nargs": "*", "default": list(RECIPES), "choices": list(RECIPES)},
        data={"nargs": "*", "default": list(DATA), "choices": list(DATA)},
        temperatures=([0.0, 1.0], "at which the good pairs serve"))
    if not REAL.is_dir():
        skip("learning_real", "set OMNIDRAFT_REAL_DATA to a folder with the models and data")
    settings = chosen(args, "prompts_served", "held_out", "tokens")
    jobs = {("good", f"{pair}, T = {t:g}, {name}, seed {seed}"):
            partial(good_already, pair, RECIPES[name], t, seed, args)
            for pair, name, t, seed in product(args.pairs, args.recipes, args.temperatures, args.seeds)}
    jobs |= {("data", name): partial(served, name, args.prompts) for name in args.data}
    run_all(args.json, start(args.json, settings, good={}, data={}), jobs, settings)


if __name__ == "__main__":
    main()
