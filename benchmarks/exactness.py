"""How far each rule's distribution of the first two tokens is from the target's, by enumeration.

    python -m benchmarks.exactness --json

The enumeration that tests/test_exactness.py asserts on, summed up: total variation, mean and worst
over random vocabularies.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.common import ROOT, arguments, save

sys.path.insert(0, str(ROOT / "tests"))

from enumeration import total_variation  # noqa: E402
from test_exactness import VOCABULARIES, World  # noqa: E402

RULES = ("lossless", "lossless, healing", "tli", "slem", "omnidraft")


def main() -> None:
    """Enumerate, print and write."""
    args, gaps = arguments(__doc__, "exactness"), {rule: [] for rule in RULES}
    for seed in range(VOCABULARIES):
        world = World(seed)
        truth = world.truth()
        rounds = {"lossless": world.lossless, "slem": world.slem}
        if (world.draft_to_target >= 0).any():
            rounds["tli"] = lambda draws, w=world: w.translated(draws, "tli")
        if world.k > 1 and any(len(split) > 1 for split in world.splits.values()):
            rounds["omnidraft"] = lambda draws, w=world: w.translated(draws, "omnidraft")
        for rule, one in rounds.items():
            gaps[rule].append(total_variation(world.two_tokens(one), truth))
        for context in range(len(world.draft)):
            if world.lifting.longer(context):
                found = world.two_tokens(lambda draws, w=world, c=context: w.healed(draws, c))
                gaps["lossless, healing"].append(total_variation(found, truth))
    results = {rule: {"cases": len(some), "mean": float(np.mean(some)), "worst": float(max(some))}
               for rule, some in gaps.items()}
    for rule, figures in results.items():
        print(f"{rule:18} {figures}")
    save(args.json, {"vocabularies": VOCABULARIES, "k": [1, 2, 3], "total_variation": results})


if __name__ == "__main__":
    main()
