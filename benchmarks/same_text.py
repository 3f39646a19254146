"""Greedy speculative text against plain decoding, token for token, in float64: every pair, task, rule and draft length.

    python -m benchmarks.same_text --json benchmarks/results/same_text.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.common import prompts, write_json
from benchmarks.efficiency import PAIRS, TASKS
from omnidraft.decoding import Options, plain, speculative
from omnidraft.machine import machine
from omnidraft.models import load
from omnidraft.pairing import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=PAIRS)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lengths = range(1, 13)
    results: dict = {"machine": machine(), "prompts": args.prompts, "tokens": args.tokens, "k": [1, 12], "pairs": {}}
    for name in args.pairs:
        pair = Pair(*(load(part, "float64") for part in name.split(":")))
        texts = [example["prompt"] for task in TASKS for example in prompts(task, args.prompts)]
        same = total = 0
        for text in texts:
            ids = pair.target.tokenizer.encode(text, bos=True)
            options = Options(max_new_tokens=args.tokens)
            expected = [t for r in plain(pair.target, ids, options, Uniforms([])) for t in r.emitted]
            for rule in RULES:
                for k in lengths:
                    options = Options(verify=rule, stop=FixedLength(k), max_new_tokens=args.tokens)
                    same += expected == [t for r in speculative(pair, text, options, Uniforms([])) for t in r.emitted]
                    total += 1
        results["pairs"][name] = {"same": same, "of": total}
        print(f"{name}: {same} of {total} texts are the same", flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
