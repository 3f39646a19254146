"""Plain and speculative decoding beside transformers' own methods, on the same loaded models and prompts, in one process.

    python -m benchmarks.against_transformers --json benchmarks/results/against_transformers.json

The embedded pair on its three tasks, and the two models of ../shared/real (or $OMNIDRAFT_REAL_DATA) in both directions on
stories; temperatures 0 and 1. Figures are those of `omnidraft bench --against transformers`: medians over repeats of whole
calls, methods taking turns, with as many threads as the libraries choose (torch: one for each core; NumPy here: one).
UAG-TLI's excess of log p says how far its texts are from the target's law (cli/bench.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from omnidraft.engine.cpu import prepare_blas

prepare_blas()

from benchmarks.common import prompts, write_json  # noqa: E402
from omnidraft.cli.bench import beside_transformers, compare, table  # noqa: E402
from omnidraft.cli.common import load_pair  # noqa: E402
from omnidraft.cli.machine import machine  # noqa: E402
from omnidraft.options import Options  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", ROOT.parent / "shared" / "real")) / "models"
PAIRS = ["draft-tasks:qwen-like:math,code,text",
         *(f"{REAL / draft}:{REAL / target}:text" for draft, target in (
             ("babyllama-tok361", "stories260K"), ("stories260K", "babyllama-tok361"))
           if (REAL / draft).is_dir() and (REAL / target).is_dir())]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=PAIRS, help="draft:target:task,task")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("-k", type=int, default=12)
    parser.add_argument("--threshold", type=float, default=0.4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not (find_spec("torch") and find_spec("transformers")):
        print("not measured against transformers: pip install 'omnidraft[torch]'", file=sys.stderr)
        return  # `make bench` goes on
    from omnidraft.engine.transformers_generation import versions

    settings = {name: getattr(args, name) for name in ("prompts", "repeats", "tokens", "k", "threshold", "device")}
    results: dict = {"machine": machine() | versions(), "settings": settings, "pairs": {}}
    for line in args.pairs:
        draft, target, tasks = line.split(":")
        pair = load_pair(draft, target, stored=False, backend="torch", draft_backend="torch", device=args.device)
        for task in tasks.split(","):
            texts = [example["prompt"] for example in prompts(task, args.prompts)]
            for temperature in args.temperatures:
                options = Options.of(args.k, args.threshold, temperature=temperature, max_new_tokens=args.tokens)
                rows = compare(beside_transformers(pair, options), texts, pair.target, options, args.repeats, whole=True)
                name, where = f"{pair.draft.name}:{pair.target.name}", f"{task} T = {temperature:g}"
                results["pairs"].setdefault(name, {})[where] = rows
                print(f"\n{name}, {where}", table(rows, "whole calls, with reading the prompt"), sep="\n", flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
