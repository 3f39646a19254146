"""The four tasks, their shares of the training tokens, and the prompt files of the package.

    python -m recipes.world [FOLDER]      math.jsonl, code.jsonl and text.jsonl, by default in omnidraft/data

Of 200 prompts per task, those of trained kinds come from a seed that training does not use; the others were written by hand
(typed.jsonl, unseen.jsonl); `seen_template` marks the difference. One in three is hand-written, until they are used up.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .functions import request
from .other import other
from .problems import bare_sum, many_sums, problem, unfamiliar
from .stories import story

HERE, PROMPTS, SEED = Path(__file__).parent, 200, 1_000_003


def math(rng: random.Random) -> dict:
    """A word problem; or bare sums, for about an eighth of the tokens."""
    luck = rng.random()
    if luck < 0.19:
        return bare_sum(rng) if luck < 0.16 else many_sums(rng)
    return unfamiliar(rng, problem(rng)) if luck < 0.24 else problem(rng)


TASKS: dict[str, Callable[[random.Random], dict]] = {"math": math, "code": request, "text": story, "other": other}
MIX = {"math": 0.54, "code": 0.05, "text": 0.37, "other": 0.04}  # the shares of the last training, mostly about sums
# What a trained model is asked: no lists of sums, and no functions that have already begun.
ASKED = {"math": problem, "code": partial(request, forms=("plain", "named", "tested")), "text": story}


def fresh_prompts(task: str, count: int, seed: int) -> list[str]:
    """Prompts of trained kinds; neither training nor the prompt files draw them."""
    rng = random.Random(f"{task}/{seed}")
    return [ASKED[task](rng)["prompt"] for _ in range(count)]


def hand_written(task: str) -> list[dict]:
    """Hand-written prompts: problems with their answers, requests with their tests, story openings, anything else."""
    file = HERE / ("typed.jsonl" if task == "math" else "unseen.jsonl")
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [{"task": task} | example for example in found if example.get("task", task) == task]


def prompts(task: str) -> list[dict]:
    """The examples of a prompt file; no prompt occurs twice."""
    rng, unseen, found = random.Random(SEED), hand_written(task)[::-1], {}
    while len(found) < PROMPTS:
        typed = len(found) % 3 == 2 and bool(unseen)
        example = {"seen_template": not typed} | (unseen.pop() if typed else ASKED[task](rng))
        found.setdefault(example["prompt"], example)
    return list(found.values())


def main() -> None:
    """Write each file, completely or not at all."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE.parent / "omnidraft" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for task in ASKED:
        part = folder / f"{task}.part"
        part.write_text("".join(json.dumps(example, ensure_ascii=False) + "\n" for example in prompts(task)), encoding="utf-8")
        os.replace(part, folder / f"{task}.jsonl")


if __name__ == "__main__":
    main()
