"""Where the acceptance head's gain goes: stop rules in a cost model without noise, then in wall-clock time.

    python -m benchmarks.paper.stop_rules --json

At T = 0 the target's text is fixed. From every place in it the drafter drafts 12 tokens, once. The passes and draft tokens
of any stop rule can then be counted without running it, also those of the best possible rule, which knows what will be
kept. At T = 1 the rounds of such drafts are used, with the number of tokens that each shorter draft is expected to write
under block verification. Costs are the CPU time of a draft step, one more row, a prediction, and the rest of a round; the
unit is one target pass over one token. Heads learn from a stream, and thresholds are tuned on the same stream; all figures
are of held-out prompts. *Expected value*: the threshold at which one more token is worth its cost, tokens per time * cost.
"""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import TARGETS, TASKS, arguments, chosen, prompts, run_all, start
from benchmarks.paper.adaptive import speeds
from benchmarks.writing import draws, emitted, write, write_plainly
from omnidraft import Learner, Options, Pair, speculative
from omnidraft.drafting import Draft, Drafter
from omnidraft.engine.load import load
from omnidraft.learning.adapters import SHIPPED, Adapters
from omnidraft.learning.training import AdamW
from omnidraft.lifting import ROOT
from omnidraft.sampling import mask, process
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.translation import common_prefix, respelled
from omnidraft.verification import comparisons

LONGEST, THRESHOLD = 12, 0.4
THRESHOLDS = [round(0.05 * i, 2) for i in range(1, 19)]


class Watch(AcceptanceHead):
    """Keeps the features that it is given, and never stops the draft."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.seen: list[np.ndarray] = []

    def __call__(self, features: np.ndarray) -> float:
        self.seen.append(features)
        return np.float64(1.0)


class Place(NamedTuple):
    """A place where a round begins, and the result of its first n = 0, 1, ... draft tokens."""

    features: np.ndarray  # (m, F): first the likeliest token's, unless a token was healed; then those of the drawn tokens
    confidences: np.ndarray  # (m,) of the same tokens, as `Confidence` takes them
    healed: int  # number of drawn tokens that no stop rule sees
    rows: list[int]  # rows of the target's pass, by n
    tokens: list[float]  # tokens that the round writes, by n; at T = 1 expected ones
    labels: list[float]  # labels of the first drawn tokens that stop rules see


def at_zero(pair: Pair, texts: Sequence[str], tokens: int) -> list[list[Place]]:
    """All places in the target's greedy texts."""
    target, watch, found = pair.target, Watch(pair.draft.config.width), []
    options = Options(stop=Confidence(LONGEST, THRESHOLD, watch), max_new_tokens=tokens)
    for text in texts:
        written, ids = emitted(write_plainly(target, text, options)), target.tokenizer.encode(text, bos=True)
        spelled = target.tokenizer.pieces(written)
        sampler = pair.sampler(draws(), *options.sampling)
        lifting, drafter, places = sampler.lifting(pair.lifting, target), Drafter(pair, text, options, sampler), []
        for i, token in enumerate(written):
            room, before = len(written) - i - 1, [*drafter.ids]
            draft = drafter.draft(lifting, room) if room else Draft()
            parts = [Draft(draft.tokens[:n], [], draft.taken_back) for n in range(1, len(draft.tokens) + 1)]
            proposed = [[], *(respelled(pair, part, ids, pair.one_vocabulary).tokens[:room] for part in parts)]
            kept = drafter.follow(draft, b"".join(spelled[i:]), spelled[i:].count(b""))
            drafter.reader.replace(0, before)  # undo: this was only to see what is kept
            drafter.follow(Draft(), spelled[i], int(not spelled[i]))
            healed = len(draft.tokens) - len(draft.features)
            labels = [1.0] * (kept - healed) + [0.0] * (healed <= kept < len(draft.tokens) and room > LONGEST)
            features = np.array(watch.seen)
            places.append(Place(features, probabilities(features), healed, [len(some) + 1 for some in proposed],
                                [common_prefix(some, written[i:]) + 1 for some in proposed], labels))
            ids.append(token)
            watch.seen.clear()
        found.append(places)
    return found


def probabilities(features: np.ndarray) -> np.ndarray:
    """The drafter's probability (m,) of the tokens with these features: the confidence at T = 0."""
    return AcceptanceHead((features.shape[-1] - 1) // 2)(features) if len(features) else np.zeros(0)


def norms(rows: Sequence[np.ndarray], first: bool) -> np.ndarray:
    """The L2 norms of the rows that tokens were drawn from, the confidence at T = 1; `first`: that of the first row twice."""
    found = [float(row @ row) ** 0.5 for row in rows]
    return np.array(found[:first] + found)


class Rounds(Learner):
    """Collects the rounds of sampled texts as places; it does not learn."""

    def __init__(self, pair: Pair, watch: Watch) -> None:  # only what `_labels` needs
        self.pair, self.head = pair, watch
        self.places: list[Place] = []

    def observe(self, draft: Any, proposals: Any, logits: np.ndarray, *rest: Any) -> None:
        """Record a round, unless the end of the text cut it short."""
        features, lifting = np.array(self.head.seen), proposals.lifting
        self.head.seen.clear()
        if not proposals.atoms or lifting.walk(proposals.atoms)[0] != proposals.tokens:
            return
        probs, healed = process(mask(logits.copy(), self.pair.target.tokenizer.size)), len(draft.tokens) - len(draft.features)
        in_text, rows, tokens = () if draft.taken_back is None else lifting.paths[draft.taken_back], [1], [1.0]
        for n in range(1, len(draft.tokens) + 1):
            atoms, origins = lifting.reveal(draft.tokens[:n], draft.probs[:n], in_text)
            steps = [*comparisons(atoms, origins, lifting, probs)]
            rows.append(len(lifting.walk(atoms)[0]) + 1)
            tokens.append(1 + sum(step.after for step in steps if step.ends >= 0))
            if steps and (node := steps[-1].next_node) != ROOT and node in lifting.token and steps[-1].after:
                p = probs[steps[-1].row]  # the atoms ended: the node's own token adds a bonus token
                tokens[-1] += steps[-1].after * float(p[lifting.token[node]] / p[lifting.below(node)].sum())
        labels = self._labels(draft, proposals, logits, rest[1], rest[2])[healed:]
        confidences = norms(draft.probs[healed:], len(features) > len(draft.features))
        self.places.append(Place(features, confidences, healed, rows, tokens, labels))


def at_one(pair: Pair, texts: Sequence[str], tokens: int) -> list[list[Place]]:
    """The rounds of texts sampled at temperature 1, each as a separate text, because no round leads to another."""
    watch = Watch(pair.draft.config.width)
    rounds = Rounds(pair, watch)
    options = Options(stop=Confidence(LONGEST, THRESHOLD, watch), max_new_tokens=tokens, temperature=1.0)
    for seed, text in enumerate(texts):
        rounds.begin(options)
        list(speculative(pair, text, options, draws([0, seed]), rounds))
    return [[place] for place in rounds.places]


def learn(texts: list[list[Place]], steps: int) -> AcceptanceHead:
    """A head trained on the labels of these places."""
    features, _, labels = pooled(texts)
    head = AcceptanceHead((features.shape[1] - 1) // 2)
    optimizer = AdamW(head.parameters, 1e-3, decay=0.0)
    for some in np.random.default_rng(0).integers(len(labels), size=(steps, 256)):
        optimizer.step(head.loss(features[some], labels[some], 1.0)[1])
    return head


def pooled(texts: list[list[Place]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, F), confidences (n,) and labels (n,) of all labelled tokens."""
    found = []
    for place in (place for places in texts for place in places):
        first = not place.healed  # the likeliest token's has no label
        found += zip(place.features[first:], place.confidences[first:], place.labels, strict=False)
    features, confidences, labels = zip(*found, strict=True)
    return np.array(features, np.float32), np.array(confidences), np.array(labels, np.float32)


def predictions(place: Place, head: AcceptanceHead | None) -> list[float]:
    """What the rule multiplies: the predictions of the head, or the confidences."""
    if head is None or not len(place.features):
        return place.confidences.tolist()
    return head(place.features).tolist()


def count(texts: list[list[Place]], head: AcceptanceHead | None, threshold: float) -> dict[str, float]:
    """What the confidence rule needs per token, with this head if there is one: passes, rows, steps and predictions."""
    sums: dict[str, float] = defaultdict(float)
    for places in texts:
        i = 0
        while i < len(places):
            place = places[i]
            predicted, n, steps, looks = predictions(place, head), 0, 0, 0
            if len(place.rows) > 1 and not place.healed:
                steps, looks = 1, 1  # the first row decides whether to draft at all
            if len(place.rows) > 1 and (place.healed or predicted[0] >= threshold):
                n, certain = place.healed, 1.0
                for one in predicted[not place.healed:]:
                    n, looks, certain = n + 1, looks + 1, certain * one
                    if certain < threshold:
                        break
                steps = n + place.healed
            for name, value in {"passes": 1, "rows": place.rows[n] - 1, "steps": steps, "predictions": looks,
                                "tokens": place.tokens[n]}.items():
                sums[name] += value
            i += int(place.tokens[n])
    return {name: value / sums["tokens"] for name, value in sums.items()}


def cost(counted: dict[str, float], costs: dict[str, float], predictions: bool) -> float:
    """The cost of a token, in target passes over one token."""
    return (counted["passes"] * (1 + costs["rest"]) + counted["rows"] * costs["row"] + counted["steps"] * costs["step"]
            + predictions * counted["predictions"] * costs["prediction"])


def best(texts: list[list[Place]], costs: dict[str, float]) -> float:
    """The cost of a token under the best rule: it knows what will be kept, up to the end of the text."""
    total = 0.0
    for places in texts:
        ahead = [0.0] * (len(places) + LONGEST + 2)
        for i in reversed(range(len(places))):
            place = places[i]
            ahead[i] = min(1 + costs["rest"] + costs["row"] * (rows - 1) + costs["step"] * (n + place.healed * (n > 0))
                           + ahead[min(len(places), i + int(tokens))]
                           for n, (rows, tokens) in enumerate(zip(place.rows, place.tokens, strict=True)))
        total += ahead[0]
    return total / sum(map(len, texts))


def quality(scores: np.ndarray, labels: np.ndarray) -> dict:
    """How well scores (n,) rank accepted above rejected tokens, and how far they are from the labels."""
    above, below = scores[labels > 0.5][:, None], scores[labels <= 0.5]
    bins = np.minimum((scores * 10).astype(int), 9)
    off = sum(abs((scores - labels)[bins == i].sum()) for i in range(10)) / len(labels)
    loss = -np.log(np.clip(np.where(labels > 0.5, scores, 1 - scores), 1e-4, 1)).mean()
    curve = (above > below).mean() + (above == below).mean() / 2  # area under the ROC curve
    return {"auc": round(float(curve), 3), "calibration_error": round(float(off), 3),
            "cross_entropy": round(float(loss), 3)}


def measured(pair: Pair, text: str, repeats: int = 40) -> dict[str, float]:
    """Median CPU time of the parts of a round, in target passes over one token."""
    draft, target, spent = pair.draft, pair.target, defaultdict(list)
    caches, head = (draft.new_cache(), target.new_cache()), AcceptanceHead(draft.config.width)
    caches[0].keeps_hidden = True
    for model, cache in zip((draft, target), caches, strict=True):
        model.forward([300] * 96, cache)

    def timed(name: str, run: Callable[[], Any], times: int = 1) -> None:
        began = thread_time()
        for _ in range(times):
            run()
        spent[name].append((thread_time() - began) / times)

    for _ in range(repeats):
        for name, rows in (("pass", 1), ("wide", 9)):
            timed(name, partial(target.forward, [300] * rows, caches[1], rows=rows))
            caches[1].rewind(96)
        timed("step", partial(draft.forward, [300], caches[0]), 8)
        seen = caches[0].hidden[-1], draft.embedding[300], 0.7
        timed("prediction", lambda seen=seen: float(head(head.features(*seen))), 8)
        caches[0].rewind(96)
    one, wide, step, prediction = (median(spent[name]) for name in ("pass", "wide", "step", "prediction"))
    rounds, row = write(pair, text, Options(stop=FixedLength(6), max_new_tokens=96))[1:], (wide / one - 1) / 8
    return {"step": step / one, "row": row, "prediction": prediction / one, "rest": median(
        r.seconds["other"] / r.seconds["target"] * (1 + row * len(r.proposals)) for r in rounds)}


def compare(places: Callable[[Pair, Sequence[str], int], list[list[Place]]], pair: Pair, texts: Sequence[str],
            costs: dict[str, float], args: Namespace) -> tuple[dict, dict[str, tuple[float, AcceptanceHead | None]]]:
    """Speedups over plain decoding in the cost model; for confidence and head, the tuned threshold and the head."""
    found, stream = (places(pair, some, args.tokens) for some in (texts[:args.prompts], texts[args.prompts:]))
    heads = {"confidence": None, "head": learn(stream, args.steps)}
    results, tuned, plain = {}, {}, 1 + costs["rest"]
    features, confidences, labels = pooled(found)
    for name, head in heads.items():
        learned = head is not None
        trials, worth = {t: count(stream, head, t) for t in THRESHOLDS}, THRESHOLD
        threshold, free = (min(trials, key=lambda t, timed=timed: cost(trials[t], costs, timed)) for timed in (learned, False))
        for _ in range(20):  # tokens per time * the cost of one more token
            worth = (costs["step"] + costs["row"] + learned * costs["prediction"]) / cost(
                count(stream, head, worth), costs, learned)
        own = {"default": THRESHOLD, "tuned": threshold, "expected value": worth}
        counted = {how: count(found, head, t) for how, t in own.items()}
        results[name] = {"threshold": threshold, "worth": worth, **quality(head(features) if head else confidences, labels),
                         **{how: plain / cost(one, costs, learned) for how, one in counted.items()},
                         "without its time": plain / cost(count(found, head, free), costs, False), "counted": counted["tuned"]}
        tuned[name] = threshold, head
    results["sweep"] = {f"{t:g}": plain / cost(count(found, heads["confidence"], t), costs, False) for t in THRESHOLDS}
    results["best"] = plain / best(found, costs) if places is at_zero else None
    return results, tuned


def run(names: str, task: str, args: Namespace) -> dict:
    """One pair and task."""
    draft, target = names.split(":")
    pair, examples = Pair(load(draft.removesuffix("+adapter")), load(target)), prompts(task, args.prompts + args.stream)
    if draft.endswith("+adapter"):
        pair.draft = Adapters(SHIPPED).load(pair).drafter(pair.draft)
    texts = [example["prompt"] for example in examples]
    costs = measured(pair, texts[0])
    cold, tuned = compare(at_zero, pair, texts, costs, args)
    warm, _ = compare(at_one, pair, texts, costs, args)
    settings = {"plain": (pair, None), "default": (pair, Confidence(LONGEST, THRESHOLD)),
                **{name: (pair, Confidence(LONGEST, threshold, head))
                   for name, (threshold, head) in tuned.items()}}
    clock = speeds(settings, examples[:args.timed], args.tokens, args.repeats)
    base = np.array(clock["default"].pop("speeds"))
    ratios = {name: float(np.median(np.array(clock[name].pop("speeds")) / base)) for name in ("confidence", "head")}
    return {"costs": costs, "T=0": cold, "T=1": warm, "clock": ratios}


def main() -> None:
    """Measure, print and write after every part."""
    args = arguments(__doc__, "stop_rules", tasks=TASKS,
                     pairs=[f"{draft}:{target}" for draft in ("draft-tasks", "draft-general+adapter") for target in TARGETS],
                     stream=(64, "prompts to learn from"), prompts=(24, "held-out prompts"),
                     timed=(8, "of them timed by the clock"), tokens=64, repeats=3, steps=(200, "training steps of the head"),
                     note=("", "a remark on the run, written with its figures"))
    settings = chosen(args, "stream", "prompts", "timed", "tokens", "repeats", "steps", "note") | {"threshold": THRESHOLD}
    run_all(args.json, start(args.json, settings, pairs={}), {
        ("pairs", names, task): partial(run, names, task, args) for names, task in product(args.pairs, args.tasks)}, settings)


if __name__ == "__main__":
    main()
