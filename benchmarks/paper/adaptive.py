"""The comparison of arXiv 2507.02659 in wall-clock time: learning nothing, the head, the weights, or both.

    python -m benchmarks.paper.adaptive --json

The un-adapted drafter serves a stream and learns (`lifted`, rank 32); then held-out prompts are written with what was
learned. All methods take turns prompt by prompt in one process. Results already in the file are not measured again.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from itertools import chain, product

import numpy as np

from benchmarks.common import arguments, chosen, prompts, run_all, start
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
        learned[name] = {"updates": s.updates * (schedule.steps > 0),
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
        __doc__, "adaptive", pairs=["draft-general:llama3-like", "draft-general:qwen-like"], tasks=["math"],
        stream=(64, "prompts to learn from"), prompts=(8, "held-out prompts"), tokens=64, repeats=9,
        note=("", "a remark on the run, written with its figures"))
    settings = chosen(args, "stream", "prompts", "tokens", "repeats", "note") | {"fixed": FIXED, "threshold": THRESHOLD}
    run_all(args.json, start(args.json, settings, comparison={}), {
        ("comparison", names, task): partial(comparison, names, task, args)
        for names, task in product(args.pairs, args.tasks)}, settings)


if __name__ == "__main__":
    main()
