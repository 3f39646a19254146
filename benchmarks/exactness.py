"""How far each rule's law of the first two tokens is from the target's: exact enumeration over random vocabularies.

    python -m benchmarks.exactness --json benchmarks/results/exactness.json

The same enumeration that tests/test_exactness.py asserts on, summed up: total variation, mean and worst over the vocabularies.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from benchmarks.common import write_json

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from enumeration import total_variation  # noqa: E402
from test_exactness import VOCABULARIES, World  # noqa: E402


def main() -> None:
    """Enumerate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    gaps: dict[str, list[float]] = {"lossless": [], "lossless, healing": [], "tli": [], "slem": [], "omnidraft": []}
    for seed in range(VOCABULARIES):
        world = World(seed)
        rounds = {"lossless": world.lossless, "slem": world.slem,
                  "omnidraft": lambda draws, w=world: w.translated(draws, "omnidraft")}
        if (world.draft_to_target >= 0).any():
            rounds["tli"] = lambda draws, w=world: w.translated(draws, "tli")
        for rule, round_ in rounds.items():
            if rule != "omnidraft" or (world.k > 1 and any(len(s) > 1 for s in world.splits.values())):
                gaps[rule].append(total_variation(world.two_tokens(round_), world.truth()))
        for context in range(len(world.draft)):
            if world.lifting.longer(context):
                law = world.two_tokens(lambda draws, w=world, c=context: w.healed(draws, c))
                gaps["lossless, healing"].append(total_variation(law, world.truth()))
    results = {rule: {"cases": len(some), "mean": float(np.mean(some)), "worst": float(max(some))}
               for rule, some in gaps.items()}
    for rule, figures in results.items():
        print(f"{rule:18} {figures}")
    if args.json:
        write_json(args.json, {"vocabularies": VOCABULARIES, "k": [1, 2, 3], "total_variation": results})


if __name__ == "__main__":
    main()
