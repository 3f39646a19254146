"""Greedy speculative text against plain decoding, token for token, in float64: every pair, task, rule and draft length.

    python -m benchmarks.same_text --json benchmarks/results/same_text.json
    python -m benchmarks.same_text --backend torch --prompts 1 --tokens 16 --json benchmarks/results/same_text_torch.json

The embedded pairs and, in both directions, the two models of ../shared/real (or $OMNIDRAFT_REAL_DATA), where they are.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from benchmarks.against_transformers import REAL
from benchmarks.common import prompts, write_json
from benchmarks.efficiency import PAIRS, TASKS
from omnidraft.cli.machine import machine
from omnidraft.decoding import plain, speculative
from omnidraft.options import Options
from omnidraft.engine.loading import BACKENDS, load
from omnidraft.generation import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES

REAL_PAIRS = [f"{REAL / draft}:{REAL / target}" for draft, target in (
    ("stories260K", "babyllama-tok361"), ("babyllama-tok361", "stories260K")) if (REAL / draft).is_dir()]


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=PAIRS + REAL_PAIRS)
    parser.add_argument("--backend", choices=BACKENDS, default="numpy")
    parser.add_argument("--prompts", type=int, default=2, help="of each task")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("-k", type=int, default=16, help="draft lengths are those from 1 to this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"machine": machine(), "backend": args.backend, "prompts": args.prompts, "tokens": args.tokens,
                     "k": [1, args.k], "pairs": {}}
    for name in args.pairs:
        pair = Pair(*(load(part, "float64", args.backend, "cpu") for part in name.split(":")))
        name = f"{pair.draft.name}:{pair.target.name}"
        encode, room = pair.target.tokenizer.encode, pair.target.context_size - args.tokens
        texts = [text for task in TASKS for text in islice(
            (e["prompt"] for e in prompts(task, 200) if len(encode(e["prompt"])) < room), args.prompts)]
        same = total = 0
        for text in texts:
            ids = pair.target.tokenizer.encode(text, bos=True)
            options = Options(max_new_tokens=args.tokens)
            expected = [t for r in plain(pair.target, ids, options, Uniforms([])) for t in r.emitted]
            for rule in RULES:
                for k in range(1, args.k + 1):
                    options = Options(verify=rule, stop=FixedLength(k), max_new_tokens=args.tokens)
                    same += expected == [t for r in speculative(pair, text, options, Uniforms([])) for t in r.emitted]
                    total += 1
        results["pairs"][name] = {"same": same, "of": total}
        print(f"{name}: {same} of {total} texts are the same", flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
