"""What users write, for type checkers: `# error` marks the lines that must be errors, `# type:` the type of what is written.

It is read by mypy (tests/test_types.py) and never run.
"""

from pathlib import Path

import numpy as np

import omnidraft
from omnidraft import Generation, Options
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.metrics import speedup, summarize
from omnidraft.stopping import Confidence, FixedLength


def right(folder: Path) -> None:
    pair = omnidraft.pair(str(folder), "qwen-like")
    other = omnidraft.pair(folder, "qwen-like", backend="torch", dtype="bfloat16")
    one: Generation = pair.generate("Once", max_new_tokens=8, do_sample=True, temperature=0.7)
    print(one.text.upper(), one.finish_reason == "eos", one.tokens[0] + 1, one.rounds[0].accepted)
    several: list[Generation] = pair.generate(["Once", "Ann"], max_new_tokens=8)
    print(several, pair.generate(np.array([5, 9])), pair.generate([{"role": "user", "content": "Hi"}], stop_strings="."))
    for piece in pair.stream("Once", do_sample=True):
        print(piece.strip())
    options = Options.of(draft_length=4, temperature=0.5, stop=FixedLength(3))
    print(Options(stop=Confidence(limit=3), eos_token_id=[1, 2], do_sample=True), other)
    rounds = list(omnidraft.speculative(pair, "Once", options, omnidraft.Uniforms(np.random.default_rng(0))))
    print(speedup(summarize(rounds), summarize(rounds)))
    learner = omnidraft.Adapters(folder).resume(pair, Recipe(rank=8), Schedule(every=2), np.random.default_rng(0))
    for learned in omnidraft.learn(learner, ["a"], options, omnidraft.Uniforms(np.random.default_rng(0))):
        print(learned.loss + 1, learned.note.upper())


def wrong(pair: omnidraft.Pair, one: Generation) -> None:
    print(one.txt)  # error
    print(Options(temprature=1))  # error
    print(pair.generate("Once", stop_strings=5))  # error
    print(pair.stream("Once", seed="0"))  # error
    print(omnidraft.load("x", backend=3))  # error
