"""Adaptive drafting in wall-clock time: fixed lengths, stop rules and the learned head.

    python -m benchmarks.paper.adaptive --json

*Sweep*: every rule writes the same greedy texts; all settings of a task take turns prompt by prompt
in one process. The head learns online on other prompts of the same kind, with the paper's schedule:
an update every 8 prompts, joint or interleaved (the drafter does not learn). *Comparison* (as in
arXiv 2507.02659): the un-adapted drafter serves a stream and learns nothing, only the head, only its
weights (`lifted`, rank 32), or both; then held-out prompts are measured. Results already in the file
are not measured again.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import numpy as np

from benchmarks.common import (
    TARGETS,
    TASKS,
    arguments,
    chosen,
    prompts,
    run_all,
    start,
)
from benchmarks.writing import learning_share, take_turns, write, write_plainly
from omnidraft import Learner, Options, Pair, Round, learn
from omnidraft.engine.load import load
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.metrics import summarize
from omnidraft.sampling import Uniforms
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from recipes.world import fresh_prompts

NOTHING = Schedule(every=10 ** 9, guard=0)
METHODS = {"fixed k": NOTHING, "adapt only": Schedule(every=2, steps=0, head="joint", guard=0),
           "distill only": Schedule(every=2, replay=6),
           **{how: Schedule(every=2, replay=6, head=how) for how in ("joint", "interleaved")}}
FIXED, THRESHOLD = 4, 0.4  # used in the comparison


@dataclass(frozen=True)
class EntropyBound(FixedLength):
    """Stop once 1 - sqrt(weight * H(q)), a lower bound on the acceptance, falls below `threshold`.

    H is the entropy of the last token's row (arXiv 2410.18351; AdaEDL also moves the threshold with
    the acceptance rate).

    >>> stop = EntropyBound(threshold=0.4, weight=0.2)
    >>> flat = stop.bound(np.full(8, 1 / 8))  # 1 - sqrt(0.2 log 8) = 0.355
    >>> stop([flat, stop.bound(np.array([1.0, 0.0]))]), stop([flat])
    (False, True)
    """

    limit: int = 12
    threshold: float = 0.4
    weight: float = 0.2
    looks = True

    def bound(self, row: np.ndarray) -> float:
        """A token's confidence from the row of probabilities (V,) that it was drawn from."""
        some = row[row > 0]
        entropy = -float((some * np.log(some)).sum())  # in nats
        return 1.0 - (self.weight * max(0.0, entropy)) ** 0.5

    def __call__(self, confidences: list[float]) -> bool:
        """True where the last token's bound is below the threshold."""
        return confidences[-1] < self.threshold


def serve(pair: Pair, texts: list[str], schedule: Schedule, options: Options,
          head: AcceptanceHead | None = None, recipe: Recipe | None = None) -> Learner:
    """Serve the prompts and learn from them."""
    rng = np.random.default_rng(0)
    learner = Learner(pair, Trainer(pair.draft, recipe or Recipe(), rng), rng, schedule, head)
    for _ in learn(learner, texts, options, Uniforms(rng)):
        pass
    return learner


def speeds(settings: dict[str, tuple[Pair, FixedLength | None]], examples: list[dict], tokens: int,
           repeats: int) -> dict:
    """Figures by name of the settings; each is a pair and its stop rule, or None for plain decoding.

    Tokens per second are also given separately for prompts from templates seen in training.
    """
    def decode(pair: Pair, stop: FixedLength | None, text: str) -> list[Round]:
        if stop is None:
            return write_plainly(pair.target, text, Options(max_new_tokens=tokens))
        return write(pair, text, Options(stop=stop, max_new_tokens=tokens))

    ways, found = {name: partial(decode, *how) for name, how in settings.items()}, {}
    texts = [example["prompt"] for example in examples]
    for name, runs in take_turns(ways, texts, repeats).items():
        all_of_it = [summarize(chain(*run)) for run in runs]
        seen = [summarize(chain(*(rounds for rounds, example in zip(run, examples, strict=True)
                                  if example["seen_template"]))) for run in runs]
        rates, seen_rates = ([s.tokens_per_second for s in some] for some in (all_of_it, seen))
        found[name] = {"speeds": [round(rate, 1) for rate in rates],
                       "tokens_per_second": round(float(np.median(rates)), 1),
                       "seen_tokens_per_second": round(float(np.median(seen_rates)), 1),
                       **{key: round(getattr(all_of_it[-1], key), 3)
                          for key in ("block_efficiency", "acceptance_draft", "drafted_per_round")}}
    return found


def quality(scores: np.ndarray, labels: np.ndarray) -> dict:
    """How well scores (n,) rank accepted above rejected tokens, and how far they are from the labels."""
    above, below = scores[labels > 0.5][:, None], scores[labels <= 0.5]
    bins = np.minimum((scores * 10).astype(int), 9)
    off = sum(abs((scores - labels)[bins == i].sum()) for i in range(10)) / len(labels)
    loss = -np.log(np.clip(np.where(labels > 0.5, scores, 1 - scores), 1e-4, 1)).mean()
    curve = (above > below).mean() + (above == below).mean() / 2  # area under the ROC curve
    return {"auc": round(float(curve), 3), "calibration_error": round(float(off), 3),
            "cross_entropy": round(float(loss), 3)}


def sweep(names: str, task: str, args: Namespace) -> dict:
    """Every rule on held-out prompts; how well heads and confidence predict acceptance there."""
    pair, examples = Pair(*map(load, names.split(":"))), prompts(task, args.prompts + args.stream)
    texts = [example["prompt"] for example in examples]
    texts, stream, heads = texts[:args.prompts], texts[args.prompts:], {}
    for how in ("joint", "interleaved"):
        heads[how] = AcceptanceHead(pair.draft.config.width)
        options = Options(stop=Confidence(8, 0.1, heads[how]), max_new_tokens=args.tokens)
        serve(pair, stream, Schedule(every=8, steps=0, head=how, guard=0), options, heads[how])
    blank = AcceptanceHead(pair.draft.config.width)  # untrained, it predicts the drafter's own confidence
    options = Options(stop=Confidence(8, 0.05, blank), max_new_tokens=args.tokens)
    seen = serve(pair, texts, NOTHING, options, blank).labelled
    labels = np.array([label for _, label in seen])
    predicted = {name: np.array([head(x) for x, _ in seen])
                 for name, head in {"confidence": blank, **heads}.items()}
    rules = {f"k = {k}": FixedLength(k) for k in range(1, 13)} | {
        "confidence": Confidence(12, THRESHOLD), "entropy bound": EntropyBound(12)}
    for how, head in heads.items():
        rules[f"{how} head"] = Confidence(12, THRESHOLD, head)
    settings = {"plain": (pair, None), **{name: (pair, rule) for name, rule in rules.items()}}
    found = speeds(settings, examples[:args.prompts], args.tokens, args.repeats)
    fixed = {name: found[name]["tokens_per_second"] for name in found if name.startswith("k = ")}
    best = max(fixed, key=fixed.get)
    fastest = np.array(found[best]["speeds"])
    for name, figures in found.items():
        figures["to_best_fixed"] = round(float(np.median(figures.pop("speeds") / fastest)), 3)
        if hasattr(rules.get(name), "threshold"):
            figures["threshold"] = round(rules[name].threshold, 3)
    return {"best_fixed": best, "repeats": args.repeats, "rules": found, "labels": len(labels),
            "quality": {name: quality(scores, labels) for name, scores in predicted.items()}}


def comparison(names: str, task: str, args: Namespace) -> dict:
    """The paper's comparison: each method serves the whole stream, then held-out prompts."""
    texts, (base, goal) = fresh_prompts(task, args.stream, 2), map(load, names.split(":"))
    settings, learned = {"plain": (Pair(base, goal), None)}, {"plain": {}}
    for name, schedule in METHODS.items():
        pair, head = Pair(base, goal), None
        if schedule.head != "none":
            head = AcceptanceHead(base.config.width)
        stop = Confidence(12, THRESHOLD, head) if head else FixedLength(FIXED)
        settings[name], learned[name] = (pair, stop), {"updates": 0}
        if schedule is NOTHING:
            continue
        options = Options(stop=stop, max_new_tokens=args.tokens)
        s = serve(pair, texts, schedule, options, head).statistics
        learned[name] = {"updates": s["updates"] * (schedule.steps > 0),
                         "learning_share": learning_share(s)}
    found = speeds(settings, prompts(task, args.prompts), args.tokens, args.repeats)
    plain = np.array(found["plain"]["speeds"])
    for name, figures in found.items():
        ratio = float(np.median(figures.pop("speeds") / plain))
        figures |= {"speedup": round(ratio, 3), **learned[name]}
    return found


def main() -> None:
    """Measure, print and write after every part."""
    args = arguments(
        __doc__, "adaptive", pairs=[f"draft-tasks:{target}" for target in TARGETS], tasks=TASKS,
        compare=["draft-general:llama3-like", "draft-general:qwen-like"], compare_tasks=["math"],
        stream=(64, "prompts to learn from"), prompts=(8, "held-out prompts"), tokens=64, repeats=9,
        note=("", "a remark on the run, written with its figures"))
    settings = chosen(args, "stream", "prompts", "tokens", "repeats", "note")
    settings |= {"fixed": FIXED, "threshold": THRESHOLD}
    parts = {sweep: (args.pairs, args.tasks), comparison: (args.compare, args.compare_tasks)}
    run_all(args.json, start(args.json, settings, sweep={}, comparison={}), {
        (part.__name__, names, task): partial(part, names, task, args)
        for part, wanted in parts.items() for names, task in product(*wanted)}, settings)


if __name__ == "__main__":
    main()
