"""How often the embedded targets are right: greedy answers to held-out prompts, checked.

    python -m benchmarks.quality --json
    python -m benchmarks.quality --targets FOLDER --prompts 50 --show 3

math and sums: the number after "####" is the answer. code: the function parses and passes the
asserts, whatever its name, in its own process with a time limit; `plain` are requests in plain
words. text: a story ends, does not repeat any eight words three times, keeps the pronoun and
contains the words that were asked for. other: the honest answer to everything else. Prompts of
trained kinds (drawn with their own seed) and hand-written ones are reported separately; --typed
takes problems by other authors, {"prompt": ..., "answer": ...} per line. With --json, stories with
hand-written openings are written to stories.md in the same folder: only a reader can judge them.
"""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, TARGETS, arguments, save, start
from benchmarks.writing import emitted, write_plainly
from omnidraft import Options
from omnidraft.engine.load import load
from omnidraft.text.files import write_text
from recipes.functions import KINDS, request
from recipes.other import ANSWER, other
from recipes.problems import bare_sum
from recipes.world import ASKED, SEED, hand_written

TYPED = ROOT / "recipes" / "guests.jsonl"  # problems by authors who had not read the generator, never trained on
DRAW = ASKED | {"sums": bare_sum, "other": other,
                "plain": lambda rng: request(rng, rng.choice(KINDS), ("plain",))}

COMMON = set("""write tell make please story stories short about once there upon time long who with
that wants named loses lost little small brave finds goes learns gives give trip bedtime want can
scared would could like likes where begins something children her you some and the for tale dreams
thing makes visits visit cannot wait asks hear my daughter funny someone""".split())


def answer(model: Any, prompt: str, limit: int) -> str:
    """Greedy continuation of `prompt` by plain decoding, up to the end of the context."""
    options = Options(max_new_tokens=limit)
    written = emitted(write_plainly(model, prompt, options))
    return model.tokenizer.decode_bytes(written).decode("utf-8", "replace")


def passes(prompt: str, text: str, tests: list[str]) -> tuple[bool, bool]:
    """Whether the text parses and passes the asserts, whatever the function's name."""
    program = prompt + text if prompt.startswith(("def ", "# ")) else text
    try:
        ast.parse(program)
    except (SyntaxError, ValueError):
        return False, False
    defined = re.search(r"def (\w+)", program)
    expected = re.search(r"assert (\w+)", " ".join(tests))
    alias = f"\n{expected[1]} = {defined[1]}" if defined and expected else ""
    command = [sys.executable, "-I", "-c", "\n".join([program + alias, *tests])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=5)
    except subprocess.TimeoutExpired:
        return True, False
    return True, done.returncode == 0


def story(prompt: str, text: str) -> dict[str, bool]:
    """The properties of a story that a program can check."""
    asked = re.search("story|tale|tell|about", prompt, re.IGNORECASE)
    whole = (text if asked else prompt + text).lower()
    words = whole.split()
    eights = Counter(tuple(words[i:i + 8]) for i in range(len(words) - 7))
    topic = [word for word in re.findall(r"[a-z]{3,}", prompt.lower()) if word not in COMMON]
    return {"ends": text.rstrip().endswith((".", "!", '"')),
            "no_loop": max(eights.values(), default=0) < 3,
            "pronouns": not (re.search(r"\b(he|him|his)\b", whole)
                             and re.search(r"\b(she|her)\b", whole)),
            "topic": not asked or all(word.rstrip("s")[:4] in whole for word in topic)}


def check(task: str, example: dict, text: str) -> dict[str, bool]:
    """The properties of one answer; the last entry says whether it is right."""
    if task in ("math", "typed", "sums"):
        _, mark, number = text.rpartition("####")
        right = bool(mark) and number.strip() == str(example["answer"])
        return {"marked": bool(mark), "right": right}
    if task in ("code", "plain"):
        parses, right = passes(example["prompt"], text, example["tests"])
        return {"parses": parses, "passes": right}
    if task == "other":
        return {"honest": text.strip() == ANSWER.strip()}
    found = story(example["prompt"], text)
    return found | {"all": all(found.values())}


def examples_of(task: str, count: int, typed: Path = TYPED) -> list[dict]:
    """Drawn prompts, then hand-written ones; at most 50 drawn where answers are long or much alike."""
    if task == "typed":
        lines = typed.read_text(encoding="utf-8").splitlines()[:count]
        return [{"seen_template": False} | json.loads(line) for line in lines]
    rng = random.Random(f"{task}/{SEED}/quality")  # a seed that neither training nor the prompt files use
    many = count if task in ("math", "code") else min(count, 50)
    drawn = [DRAW[task](rng) for _ in range(many)]
    return [{"seen_template": True} | example for example in drawn] + [
        {"seen_template": False} | example for example in hand_written(task)[:count]]


def main() -> None:
    """Answer, check, print and write."""
    args = arguments(__doc__, "quality", targets=TARGETS, tasks=[*DRAW, "typed"], prompts=200,
                     typed=(TYPED, "problems by other authors"),
                     show=(0, "print this many wrong answers per task"))
    results, stories = start(None, prompts=args.prompts, targets={}), []
    for name, task in product(args.targets, args.tasks):
        model, rows = load(name), {"all": [], "seen": [], "unseen": []}
        shown = 0
        for example in examples_of(task, args.prompts, args.typed):
            text = answer(model, example["prompt"], 256)
            marks = check(task, example, text)
            for part in ("all", "seen" if example["seen_template"] else "unseen"):
                rows[part].append(marks)
            if task == "text" and not example["seen_template"]:
                stories.append(f"**{example['prompt']}**{text.rstrip()} ({name})")
            if not [*marks.values()][-1] and shown < args.show:
                shown += 1
                print(f"--- {name} {task}: {example['prompt']!r}\n{text}\n")
        if not rows["all"]:
            continue
        figures = {key: {part: round(float(np.mean([row[key] for row in some])), 3)
                         for part, some in rows.items() if some} for key in rows["all"][0]}
        results["targets"].setdefault(name, {})[task] = figures
        print(f"{name:12} {task:5} {json.dumps(figures)}", flush=True)
    save(args.json, results)
    if args.json and stories:
        write_text(args.json.with_name("stories.md"), "\n\n".join(stories) + "\n")


if __name__ == "__main__":
    main()
