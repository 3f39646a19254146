"""What block verification adds: expected tokens per target pass, on the same rounds at T = 1.

    python -m benchmarks.block --json

For every round that `lifted` verifies: the number of tokens that it is expected to write, given its
draft. Once as a block, and once as if each comparison were judged alone (the product of all
min(1, P/Q)). Both are exact; the gain's standard error treats the rounds as independent. The CPU
time of verification, with the softmax of the target's rows, is the median of five runs in a row.
Published models (real:DRAFT:TARGET) are folders in $OMNIDRAFT_REAL_DATA; they continue stories.
"""

from __future__ import annotations

from statistics import median
from time import thread_time
from typing import Any

import numpy as np

from benchmarks.common import TARGETS, TASKS, add, arguments, chosen, folders_of, save, start, stories, texts_of
from benchmarks.efficiency import REAL_PAIRS
from benchmarks.writing import draws
from omnidraft import Options, Pair, speculative
from omnidraft.engine.load import load
from omnidraft.lifting import ROOT
from omnidraft.sampling import Rows, mask, process
from omnidraft.stopping import FixedLength
from omnidraft.verification import comparisons, lifted, ratio

PAIRS = [*(f"draft-tasks:{target}" for target in TARGETS), *REAL_PAIRS]


class Expected:
    """Takes the place of a learner; keeps (alone, as a block, seconds) of each round."""

    def __init__(self, size: int) -> None:
        self.size, self.uniforms = size, draws(1)
        self.rounds: list[tuple[float, float, float]] = []

    def observe(self, draft: Any, proposals: Any, logits: np.ndarray, *_: Any) -> None:
        """Record a round that drafted something."""
        if not proposals.atoms:
            return
        lifting, masked, times = proposals.lifting, mask(logits.copy(), self.size), []
        rows = Rows(masked, process)
        given, limit = (proposals.atoms, proposals.origins, lifting, rows), None
        if len(lifting.walk(proposals.atoms)[0]) >= len(rows):
            limit = len(rows) - 1  # the end of the text leaves no room for another token
        for _ in range(5):
            began = thread_time()
            lifted(*given[:3], Rows(masked, process), self.uniforms, limit)
            times.append(thread_time() - began)
        alone = before = 1.0
        found = np.ones(2)  # a round always writes one token
        for step in comparisons(*given, limit):
            alone *= ratio(step.target_prob, step.draft_prob)
            before = step.after
            found += np.array([alone, before]) * (step.ends >= 0)
        if (node := step.next_node) != ROOT and node in lifting.token and before:
            p = rows[step.row]  # the atoms ended: the node's own token adds a bonus token
            found += np.array([alone, before]) * p[lifting.token[node]] / p[lifting.below(node)].sum()
        self.rounds.append((*found, median(times)))


def measure(pair: Pair, texts: list[str], k: int, least: int, tokens: int) -> dict[str, float]:
    """Means over at least `least` rounds."""
    seen = Expected(pair.target.tokenizer.size)
    options = Options(stop=FixedLength(k), temperature=1.0, max_new_tokens=tokens)
    for i in range(100 * len(texts)):
        list(speculative(pair, texts[i % len(texts)], options, draws([0, i]), seen))
        if len(seen.rounds) >= least:
            break
    alone, block, seconds = np.array(seen.rounds).T
    assert (block >= alone - 1e-6).all()
    gain, error = (block - alone).mean(), (block - alone).std() / len(block) ** 0.5
    return {"alone": alone.mean(), "block": block.mean(), "gain": 100 * gain / alone.mean(),
            "gain_error": 100 * error / alone.mean(), "rounds": len(block),
            "microseconds": 1e6 * float(np.median(seconds))}


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "block", pairs=PAIRS, tasks=TASKS, k=6, rounds=300, tokens=48)
    settings = chosen(args, "k", "rounds", "tokens")
    results = start(args.json, settings, pairs={})
    for name in args.pairs:
        if not (folders := folders_of(name)):
            continue
        pair, published = Pair(*map(load, folders)), name.startswith("real:")
        name = name.removeprefix("real:")
        sets = {task: texts_of(task, 200) for task in args.tasks}
        if published:
            sets = {"stories": [" ".join(text.split()[:12]) for text in stories(200)]}
        for task, texts in sets.items():
            found = measure(pair, texts, args.k, args.rounds, args.tokens)
            add(results, ("pairs", name, task), found, settings, folders if published else ())
            print(f"{name} {task}:", "{alone:.3f} alone, {block:.3f} as a block: "
                  "{gain:+.1f} ± {gain_error:.1f} %; {microseconds:.0f} µs".format(**found), flush=True)
            save(args.json, results)


if __name__ == "__main__":
    main()
