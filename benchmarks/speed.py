"""Wall-clock speed of speculative decoding, compared with plain decoding by the same engine.

    python -m benchmarks.speed --json

Plain decoding, speculative decoding by default (it drafts where that pays), and speculative
decoding that always drafts take turns at every prompt. A figure is the median over repeats of
(tokens/s speculative) / (tokens/s plain), over all prompts of the task, and separately over prompts
of kinds seen in training and over the others. Greedy, with confidence stop, without loading and
prefill time. Greedy texts are compared too: they may differ only where the target's two best logits
are equal within float32 rounding.
"""

from __future__ import annotations

from itertools import chain
from statistics import median

from benchmarks.common import TARGETS, TASKS, arguments, chosen, prompts, save, start
from benchmarks.writing import emitted, take_turns, write, write_plainly
from omnidraft import Adapters, Options, Pair, pair
from omnidraft.cli.bench import is_tie
from omnidraft.learning.adapters import SHIPPED
from omnidraft.metrics import computed_speedup, speedup, summarize
from omnidraft.stopping import Confidence

PAIRS = [*(f"draft-tasks:{target}" for target in TARGETS), "draft-general:qwen-like",
         *(f"draft-general+adapter:{target}" for target in TARGETS)]  # the adapters in the package
FIGURES = ("block_efficiency", "acceptance_draft", "acceptance_proposed", "drafted_per_round",
           "overhead")
SETTINGS = ("prompts", "tokens", "k", "threshold", "verify", "repeats")


def compare(models: Pair, examples: list[dict], options: Options, repeats: int) -> dict:
    """One pair on one task."""
    texts = [example["prompt"] for example in examples]
    runs = take_turns({"plain": lambda text: write_plainly(models.target, text, options),
                       "speculative": lambda text: write(models, text, options, by_default=True),
                       "always": lambda text: write(models, text, options)}, texts, repeats)

    def sums(way: str, kinds: tuple[bool, ...] = (True, False)) -> list:
        """A summary of each repeat, for prompts whose template was seen in training (True) or not."""
        return [summarize(chain(*(rounds for rounds, example in zip(run, examples, strict=True)
                                  if example["seen_template"] in kinds))) for run in runs[way]]

    slow, fast, always = (sums(way) for way in runs)
    ratios = [*map(speedup, fast, slow)]
    kinds = {"seen": True, "unseen": False}
    apart = {name: median(map(speedup, sums("speculative", (kind,)), sums("plain", (kind,))))
             for name, kind in kinds.items() if any(e["seen_template"] == kind for e in examples)}
    written = [(text, emitted(one), emitted(other)) for text, one, other in zip(
        texts, runs["plain"][0], runs["speculative"][0], strict=True)]
    target, encode, last = models.target, models.target.tokenizer.encode, fast[-1]
    rates = [[s.tokens_per_second for s in some] for some in (slow, fast, always)]
    return {"speeds": [*zip(*rates, strict=True)], "tokens": last.tokens,
            "speedup": round(median(ratios), 3),
            "speedup_range": [round(min(ratios), 3), round(max(ratios), 3)],
            "always_drafting": round(median(map(speedup, always, slow)), 3),
            "computed_speedup": round(median(map(computed_speedup, fast, slow)), 3),
            "plain_tokens_per_second": round(median(rates[0]), 1),
            "speculative_tokens_per_second": round(median(rates[1]), 1),
            **{name: round(getattr(last, name), 3) for name in FIGURES},
            "apart": {name: round(ratio, 3) for name, ratio in apart.items()},
            "prompts": len(texts), "same_text": sum(one == other for _, one, other in written),
            "ties": sum(one != other and is_tie(target, encode(text, bos=True), one, other)
                        for text, one, other in written)}


def together(rows: list[dict], way: int = 1) -> float:
    """The speedup over all tasks' prompts: tokens divided by the sum of times, median over repeats."""
    took = [[sum(row["tokens"] / row["speeds"][repeat][one] for row in rows) for one in (0, way)]
            for repeat in range(len(rows[0]["speeds"]))]
    return round(median(slow / fast for slow, fast in took), 3)


def main() -> None:
    """Measure, print and write."""
    args = arguments(
        __doc__, "speed", pairs=PAIRS, tasks=TASKS, prompts=12, repeats=5, tokens=128, k=12,
        threshold=0.4, verify="lifted")
    options = Options(verify=args.verify, stop=Confidence(args.k, args.threshold),
                      max_new_tokens=args.tokens)
    results = start(None, chosen(args, *SETTINGS), pairs={}, together={}, always={})
    for name in args.pairs:
        draft, target = name.split(":")
        models = pair(draft.removesuffix("+adapter"), target)
        if draft.endswith("+adapter"):
            models.draft = Adapters(SHIPPED).load(models).drafter(models.draft)
        rows = results["pairs"][name] = {}
        for task in args.tasks:
            rows[task] = compare(models, prompts(task, args.prompts), options, args.repeats)
            print(f"{name} {task}: {rows[task]}", flush=True)
        results["together"][name] = together([*rows.values()])
        results["always"][name] = together([*rows.values()], way=2)
        print(f"{name}, all tasks together: {results['together'][name]}, always drafting {results['always'][name]}", flush=True)
    save(args.json, results)


if __name__ == "__main__":
    main()
