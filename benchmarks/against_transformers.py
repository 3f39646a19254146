"""Plain and speculative decoding next to transformers' own methods, on the same loaded models.

    python -m benchmarks.against_transformers --json

The embedded pair on its three tasks, and the two models of $OMNIDRAFT_REAL_DATA in both directions
on stories; temperatures 0 and 1. Figures are those of `omnidraft bench --against transformers`:
medians over repeats of whole calls in one process, methods taking turns, with as many threads as
the libraries choose (torch: one for each core; NumPy here: one). UAG-TLI's excess of log p says how
far its texts are from the target's distribution (cli/bench.py).
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import product

from benchmarks.common import arguments, chosen, save, skip, start, texts_of
from benchmarks.same_text import REAL_PAIRS
from omnidraft import Options, pair
from omnidraft.cli.bench import beside_transformers, compare, table

PAIRS = ["draft-tasks:qwen-like:math,code,text", *(f"{pair}:text" for pair in REAL_PAIRS[::-1])]
SETTINGS = ("prompts", "repeats", "tokens", "k", "threshold", "device")


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "against_transformers", pairs=(PAIRS, "draft:target:task,task"),
                     prompts=12, repeats=3, tokens=96, temperatures=[0.0, 1.0], k=12, threshold=0.4,
                     device="cpu")
    if not (find_spec("torch") and find_spec("transformers")):
        skip("transformers", "pip install 'omnidraft[torch]'")
    from omnidraft.cli.transformers_generation import versions

    results = start(None, chosen(args, *SETTINGS), pairs={})
    results["machine"] |= versions()
    for line in args.pairs:
        draft, target, tasks = line.split(":")
        models = pair(draft, target, backend="torch", draft_backend="torch", device=args.device)
        name = f"{models.draft.name}:{models.target.name}"
        for task, at in product(tasks.split(","), args.temperatures):
            options = Options.of(args.k, args.threshold, temperature=at, max_new_tokens=args.tokens)
            methods, where = beside_transformers(models, options), f"{task} T = {at:g}"
            rows = compare(methods, texts_of(task, args.prompts), models.target, options,
                           args.repeats, whole=True)
            results["pairs"].setdefault(name, {})[where] = rows
            print(f"\n{name}, {where}", flush=True)
            print(table(rows, "whole calls, with reading the prompt"))
    save(args.json, results)


if __name__ == "__main__":
    main()
