"""Learning on published models and data: held-out stories, and every data set served.

    python -m benchmarks.learning_real --json

The pair babyllama-tok361 -> stories260K (two published models with two tokenizers) serves the first
stories of tinystories1000, greedy or at temperature 1, and learns from them; measured before and
after on the last ones, which it never sees. The drafter was trained to the end on such stories, so
the usual rate is too large for it: measured are what the guard makes of that (the default is warmed
up and falls with each roll-back), and smaller rates.
The embedded draft-general -> qwen-like serves a few prompts of each data set through
`omnidraft adapt`, as a user would, from the drafter as it is (--rank 32), not from the adapter in
the package; of each eight prompts one is held out and served both ways. The material is not part of
the repository: its folder is $OMNIDRAFT_REAL_DATA. What the result file has already is not run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from functools import partial
from itertools import product

import numpy as np

from benchmarks.common import REAL, ROOT, arguments, chosen, run_all, skip, start
from benchmarks.writing import efficiency, learning_share, write
from omnidraft import Learner, Options, Pair, learn
from omnidraft.engine.loading import load
from omnidraft.learning.online import Schedule, saved
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.metrics import summarize
from omnidraft.sampling import Uniforms
from omnidraft.stopping import Confidence, FixedLength

DATA = ("gsm8k_train1000", "mbpp_train374", "alpaca_train1000", "xsum_train300", "tinystories1000")
PAIR = ("babyllama-tok361", "stories260K")
RECIPES = {"rank 32": Recipe(), "rank 32, rate 0.0003": Recipe(rate=3e-4),
           "all weights, rate 0.00003": Recipe(rank=0, rate=3e-5)}


def measure(pair: Pair, texts: list[str], tokens: int) -> dict:
    """Drafts of twelve tokens (they are short), greedy and three times at temperature 1."""
    found = {}
    for temperature, times in ((0.0, 1), (1.0, 3)):
        options = Options(stop=FixedLength(12), temperature=temperature, max_new_tokens=tokens)
        found[f"T={temperature:g}"] = efficiency([
            record for (i, text), draw in product(enumerate(texts), range(times))
            for record in write(pair, text, options, [i, draw])])
    return found


def stories(recipe: Recipe, temperature: float, seed: int, args: Namespace) -> dict:
    """The real pair before and after it has served stories."""
    lines = (REAL / "data" / "tinystories1000.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines]
    held_out = texts[-args.held_out:]
    pair, rng = Pair(*(load(REAL / "models" / name) for name in PAIR)), np.random.default_rng(seed)
    before = measure(pair, held_out, args.tokens)
    learner = Learner(pair, Trainer(pair.draft, recipe, rng), rng, Schedule(every=2, replay=6))
    options = Options(stop=Confidence(8, 0.2), temperature=temperature, max_new_tokens=args.tokens)
    curve = [summarize(learned.rounds).block_efficiency
             for learned in learn(learner, texts[:args.stories], options, Uniforms(rng))]
    parts, s = np.array_split(curve, max(1, min(10, len(curve) // 4))), learner.statistics
    return {"before": before, "curve": [round(float(np.mean(part)), 3) for part in parts],
            "after": measure(pair, held_out, args.tokens), "updates": s["updates"],
            "rollbacks": learner.rollbacks, "rate": learner.trainer.optimizer.rate,
            "learning_share": learning_share(s)}


def served(name: str, prompts: int) -> dict:
    """`omnidraft adapt FILE`: its first and last quarter of the prompts, or its error."""
    with tempfile.TemporaryDirectory() as empty:  # else it would go on from what this machine's user has
        command = ["cli.py", "adapt", REAL / "data" / f"{name}.jsonl", "--limit", str(prompts),
                   "-n", "48", "--rank", "32", "--adapters", empty, "--no-save", "--json"]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {"fails": done.stderr.strip().splitlines()[-1]}
    *each, last = map(json.loads, done.stdout.splitlines())
    quarter = max(1, len(each) // 4)
    ends = {name: round(float(np.mean([one["block_efficiency"] for one in part])), 3)
            for name, part in (("first", each[:quarter]), ("last", each[-quarter:]))}
    gain, error = saved(last, "rounds")
    n, share = last.get("held_out", 0), last.get("untouched_rounds", 0.0) / max(1, last.get("held_out", 0))
    held_out = {"held_out": n, "saved": gain / share, "saved_error": error / share} if n > 1 else {"held_out": n}
    return {**{name: last[name] for name in ("prompts", "tokens", "updates", "rollbacks")}, **held_out,
            "passed_over": sum(one["note"].startswith("passed over") for one in each),
            "cut": any(" were cut to " in line for line in done.stderr.splitlines()), **ends}


def main() -> None:
    """Measure, print and write after every part."""
    args = arguments(
        __doc__, "real_adapt", stories=(480, "to learn from"), held_out=32, tokens=96,
        prompts=(24, "served of each data set"), seeds=[0],
        recipes={"nargs": "*", "default": list(RECIPES), "choices": list(RECIPES)},
        data={"nargs": "*", "default": list(DATA), "choices": list(DATA)},
        temperatures=([0.0, 1.0], "at which the stories are served"))
    if not REAL.is_dir():
        skip("learning_real", "set OMNIDRAFT_REAL_DATA to a folder with the models and data")
    settings = {"pair": " -> ".join(PAIR), **chosen(args, "stories", "held_out", "tokens")}
    jobs = {("stories", f"T = {t:g}, {name}, seed {seed}"):
            partial(stories, RECIPES[name], t, seed, args)
            for name, t, seed in product(args.recipes, args.temperatures, args.seeds)}
    jobs |= {("data", name): partial(served, name, args.prompts) for name in args.data}
    run_all(args.json, start(args.json, settings, stories={}, data={}), jobs)


if __name__ == "__main__":
    main()
