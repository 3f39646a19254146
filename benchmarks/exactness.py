"""How far each rule is from the target: its first tokens by enumeration, and greedy texts token for token.

    python -m benchmarks.exactness --json

The first figures are those of `omnidraft check exactness --worlds 2000`. Greedy texts are written in float64 with every
rule and draft length from 1 to 16, by the embedded pairs and, in both directions, by the two models of
$OMNIDRAFT_REAL_DATA; where PyTorch is installed, also with both models in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import islice, product
from typing import Any

from benchmarks.common import REAL_PAIRS, TASKS, arguments, chosen, folders_of, run_all, start, texts_of
from benchmarks.efficiency import PAIRS
from benchmarks.writing import emitted, write, write_plainly
from omnidraft import Options, Pair
from omnidraft.cli.inspect import exactness_report
from omnidraft.engine.load import load
from omnidraft.exactness import check
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES

GREEDY = {"numpy": {"prompts": 2, "tokens": 32, "k": [1, 16]},  # prompts of each task
          "torch": {"prompts": 1, "tokens": 16, "k": [1, 16]}}


def same_texts(pair: Pair, prompts: int, tokens: int, k: list[int]) -> dict[str, int]:
    """How many greedy texts equal plain decoding's, over all tasks, rules and draft lengths."""
    encode, room = pair.target.tokenizer.encode, pair.target.context_size - tokens
    same = []
    for task in TASKS:
        fitting = (text for text in texts_of(task, 200) if len(encode(text)) < room)
        for text in islice(fitting, prompts):
            expected = emitted(write_plainly(pair.target, text, Options(max_new_tokens=tokens)))
            for rule, length in product(RULES, range(k[0], k[1] + 1)):
                options = Options(verify=rule, stop=FixedLength(length), max_new_tokens=tokens)
                same.append(emitted(write(pair, text, options)) == expected)
    return {"same": sum(same), "of": len(same)}


def by_enumeration(rule: str, worlds: int) -> dict[str, Any]:
    """The distances from the target's distribution, and the conditions that were met."""
    found = check(rule, worlds)
    print(exactness_report([found]), flush=True)
    return {"runs": found.runs, "mean": found.mean, "worst": found.worst, "conditions": dict(sorted(found.conditions.items()))}


def greedy(folders: tuple[str, str], backend: str) -> dict[str, int]:
    """The same texts as plain decoding, for a pair."""
    return same_texts(Pair(*(load(part, "float64", backend, "cpu") for part in folders)), **GREEDY[backend])


def main() -> None:
    """Enumerate, compare, print and write after every part."""
    args = arguments(__doc__, "exactness", worlds=2000, pairs=PAIRS + REAL_PAIRS)
    jobs: dict[tuple, Callable[[], dict]] = {("rules", rule): partial(by_enumeration, rule, args.worlds) for rule in RULES}
    backends = [backend for backend in GREEDY if backend == "numpy" or find_spec("torch")]
    for backend, name in product(backends, args.pairs):
        if folders := folders_of(name):
            jobs["greedy", backend, "pairs", name.removeprefix("real:")] = partial(greedy, folders, backend)
    settings = chosen(args, "worlds")
    empty = {backend: GREEDY[backend] | {"pairs": {}} for backend in backends}
    run_all(args.json, start(args.json, settings, rules={}, greedy=empty), jobs, settings)


if __name__ == "__main__":
    main()
