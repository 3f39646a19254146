"""Wall-clock speed of speculative decoding against plain decoding by the same engine, every pair and task.

    python -m benchmarks.speed --json benchmarks/results/speed.json
    python -m benchmarks.speed --backend torch --pairs draft-tasks:qwen-like --json benchmarks/results/speed_torch.json
    (the same with --draft-backend torch and speed_both_torch.json)

For each prompt plain and speculative decoding alternate; a figure is the median over repeats of (tokens/s speculative) /
(tokens/s plain) over all prompts of the task, and apart over those of the kinds that training showed and of the others. Greedy,
confidence stop, no loading and no prefill time. Greedy texts are compared too: they may differ only where the target's two best
logits tie within float32 rounding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from omnidraft.engine.cpu import prepare_blas

prepare_blas()

import numpy as np  # noqa: E402

from benchmarks.common import prompts, write_json  # noqa: E402
from omnidraft.cli.demo import is_tie  # noqa: E402
from omnidraft.cli.machine import machine  # noqa: E402
from omnidraft.decoding import plain, speculative  # noqa: E402
from omnidraft.options import Options  # noqa: E402
from omnidraft.engine.loading import load_two  # noqa: E402
from omnidraft.learning.adapters import SHIPPED, Adapters  # noqa: E402
from omnidraft.metrics import computed_speedup, speedup, summarize  # noqa: E402
from omnidraft.generation import Pair  # noqa: E402
from omnidraft.sampling import Uniforms  # noqa: E402
from omnidraft.stopping import Confidence  # noqa: E402

PAIRS = ["draft-tasks:qwen-like", "draft-tasks:llama3-like", "draft-tasks:sibling", "draft-general:qwen-like",
         *(f"draft-general+adapter:{target}" for target in ("qwen-like", "llama3-like", "sibling"))]  # what the package brings
TASKS = ("math", "code", "text")


def compare(pair: Pair, examples: list[dict], options: Options, repeats: int) -> dict:
    """One pair on one task."""
    ratios, computed, plain_speed, fast_speed = [], [], [], []
    apart: dict[str, list[float]] = {}
    texts_same = ties = 0
    for repeat in range(repeats + 1):
        slow_rounds, fast_rounds = [], []
        kinds: dict[str, tuple[list, list]] = {}
        for text, seen in ((example["prompt"], example["seen_template"]) for example in examples):
            ids = pair.target.tokenizer.encode(text, bos=True)
            one = list(plain(pair.target, ids, options, Uniforms([])))
            other = list(speculative(pair, text, options, Uniforms([])))
            slow_rounds += one
            fast_rounds += other
            for both, rounds in zip(kinds.setdefault("seen" if seen else "unseen", ([], [])), (one, other), strict=True):
                both.extend(rounds)
            if repeat == 0:
                written = [[token for r in rounds for token in r.emitted] for rounds in (one, other)]
                texts_same += written[0] == written[1]
                ties += written[0] != written[1] and is_tie(pair.target, ids, *written)
        if repeat == 0:
            continue  # the first pass warms up
        slow, fast = summarize(slow_rounds), summarize(fast_rounds)
        ratios.append(speedup(fast, slow))
        computed.append(computed_speedup(fast, slow))
        for kind, (one, other) in kinds.items():
            apart.setdefault(kind, []).append(speedup(summarize(other), summarize(one)))
        plain_speed.append(slow.tokens_per_second)
        fast_speed.append(fast.tokens_per_second)
    return {"speeds": list(zip(plain_speed, fast_speed, strict=True)), "tokens": slow.tokens,
            "speedup": round(float(np.median(ratios)), 3), "speedup_range": [round(min(ratios), 3), round(max(ratios), 3)],
            "computed_speedup": round(float(np.median(computed)), 3),
            "plain_tokens_per_second": round(float(np.median(plain_speed)), 1),
            "speculative_tokens_per_second": round(float(np.median(fast_speed)), 1),
            "block_efficiency": round(fast.block_efficiency, 3), "acceptance_draft": round(fast.acceptance_draft, 3),
            "acceptance_proposed": round(fast.acceptance_proposed, 3), "drafted_per_round": round(fast.drafted_per_round, 2),
            "apart": {kind: round(float(np.median(found)), 3) for kind, found in apart.items()},
            "overhead": round(fast.overhead, 4), "prompts": len(examples), "same_text": texts_same, "ties": ties}


def together(rows: list[dict]) -> float:
    """The speedup over the prompts of all tasks: their tokens by the sum of their times, median over repeats."""
    took = [[sum(row["tokens"] / row["speeds"][repeat][way] for row in rows) for way in (0, 1)]
            for repeat in range(len(rows[0]["speeds"]))]
    return round(float(np.median([slow / fast for slow, fast in took])), 3)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=PAIRS)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("-k", type=int, default=12)
    parser.add_argument("--threshold", type=float, default=0.4)
    parser.add_argument("--verify", default="lossless")
    parser.add_argument("--payoff", action="store_true")
    parser.add_argument("--backend", default="numpy", help="torch: the target in transformers, a small drafter in NumPy")
    parser.add_argument("--draft-backend", default="auto", help="with --backend torch: torch for the drafter too")
    parser.add_argument("--compile", action="store_true", help="with torch: the drafter too, through torch.compile")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    options = Options(verify=args.verify, stop=Confidence(args.k, args.threshold), max_new_tokens=args.tokens,
                      payoff=args.payoff)
    settings = {name: getattr(args, name) for name in ("k", "threshold", "verify", "payoff", "repeats", "backend",
                                                       "draft_backend", "compile")}
    results: dict = {"machine": machine(), "settings": settings, "pairs": {}, "together": {}}
    if args.backend == "torch":
        from omnidraft.engine.transformers_generation import versions

        results["machine"] |= versions()
    for name in args.pairs:
        draft, target = name.split(":")
        how = {"backend": args.backend}
        if args.backend == "torch":
            how |= {"device": "cpu", "draft_backend": args.draft_backend, "compile": args.compile}
        pair = Pair(*load_two(draft.removesuffix("+adapter"), target, **how))
        if draft.endswith("+adapter"):
            pair.draft = Adapters(SHIPPED).load(pair).drafter(pair.draft)
        for task in args.tasks:
            row = compare(pair, prompts(task, args.prompts), options, args.repeats)
            results["pairs"].setdefault(name, {})[task] = row
            print(f"{name} {task}: {row}", flush=True)
        results["together"][name] = together(list(results["pairs"][name].values()))
        print(f"{name}, all tasks together: {results['together'][name]}", flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
