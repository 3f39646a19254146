"""How right a model is: greedy answers to prompts that training did not see, checked.

    python -m recipes.evaluate FOLDER [--typed problems.jsonl] [--count 200] [--json FILE] [--show 3]

What is "as typed" was written by hand: typed.jsonl by someone who has not read the generator, unseen.jsonl of other kinds.

Sums are right if the number after "####" is; functions if they pass their asserts, in a process of their own with a time limit;
stories if they end, repeat no eight words three times, keep the pronoun and hold the topic's words; everything else if the
honest answer comes. The examples are drawn with a seed that training does not use.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from omnidraft.decoding import Options, plain
from omnidraft.engine.loading import load
from omnidraft.sampling import Uniforms

from .functions import KINDS, request
from .other import ANSWER, other
from .problems import bare_sum, problem
from .stories import story
from .world import SEED, hand_written

COMMON = set("""write tell make please story short about once there upon time long who with that wants
named loses lost little small brave finds goes learns gives give trip bedtime want can scared
who""".split())


def answer(model, prompt: str, limit: int = 200) -> str:
    """Greedy continuation of `prompt`."""
    ids = model.tokenizer.encode(prompt, bos=True)
    records = plain(model, ids, Options(max_new_tokens=limit), Uniforms([]))
    return model.tokenizer.decode_bytes([token for record in records for token in record.emitted]).decode("utf-8", "replace")


def passes(prompt: str, text: str, tests: list[str]) -> tuple[bool, bool]:
    """Whether what was written parses, and passes the asserts, whatever the function is called."""
    program = prompt + text if prompt.rstrip().endswith(":") and "def " in prompt else text
    try:
        ast.parse(program)
    except (SyntaxError, ValueError):
        return False, False
    defined, expected = re.search(r"def (\w+)", program), re.search(r"assert (\w+)", " ".join(tests))
    alias = f"\n{expected[1]} = {defined[1]}\n" if defined and expected else "\n"
    try:
        done = subprocess.run([sys.executable, "-I", "-c", program + alias + "\n".join(tests)], capture_output=True, timeout=5)
    except subprocess.TimeoutExpired:
        return True, False
    return True, done.returncode == 0


def story_faults(prompt: str, text: str) -> list[str]:
    """What is wrong with a story as far as a program can tell."""
    asked = re.search("story", prompt, re.IGNORECASE)
    whole = text.lower() if asked else (prompt.split("\n")[-1] + text).lower()
    spoken = whole.split()
    eights = Counter(tuple(spoken[i:i + 8]) for i in range(len(spoken) - 7))
    topic = [word for word in re.findall(r"[a-z]{3,}", prompt.lower()) if word not in COMMON] if asked else []
    missing = [word for word in topic if word.rstrip("s")[:4] not in whole]
    found = {"loop": max(eights.values(), default=0) > 2, "no end": not text.rstrip().endswith((".", "!", '"')),
             "pronouns": re.search(r"\b(he|him|his)\b", whole) and re.search(r"\b(she|her)\b", whole),
             "topic: " + " ".join(missing): missing}
    return [name for name, wrong in found.items() if wrong]


def faults(example: dict, text: str) -> list[str]:
    """What is wrong with an answer to an example of any task."""
    if example["task"] == "math":
        return [] if text.rpartition("####")[2].strip() == str(example["answer"]) else ["wrong"]
    if example["task"] == "code":
        parses, right = passes(example["prompt"], text, example["tests"])
        return [] if right else ["fails"] if parses else ["does not parse"]
    if example["task"] == "text":
        return story_faults(example["prompt"], text)
    return [] if text.strip() == ANSWER.strip() else ["another answer"]


def main() -> None:
    """Answer, check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--typed", type=Path, help="in place of typed.jsonl: JSON lines with prompt and answer")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=int, default=3, help="print this many wrong answers of each sort")
    args = parser.parse_args()
    model, rng, figures = load(args.model), random.Random(SEED), {}
    typed = [json.loads(line) | {"task": "math"} for line in args.typed.read_text().splitlines()] if args.typed else []
    sorts = {
        "typed problems": typed or hand_written("math"),
        "problems of trained kinds": [problem(rng) for _ in range(args.count)],
        "bare sums": [bare_sum(rng) for _ in range(args.count // 2)],
        "functions": [request(rng) for _ in range(args.count)],
        "plain requests": [request(rng, kind, ("plain",)) for kind in rng.sample(KINDS, 20)],
        "functions as typed": hand_written("code"),
        "stories as typed": hand_written("text"), "stories as trained": [story(rng) for _ in range(20)],
        "unrelated as typed": hand_written("other"), "unrelated as trained": [other(rng) for _ in range(40)]}
    for name, examples in sorts.items():
        said = [(example["prompt"], answer(model, example["prompt"])) for example in examples]
        found = [faults(example, text) for example, (_, text) in zip(examples, said, strict=True)]
        figures[name] = [found.count([]), len(found), found.count(["does not parse"])]
        print(f"{name}: {found.count([])} of {len(found)}", flush=True)
        for (prompt, text), wrong in [one for one in zip(said, found, strict=True) if one[1]][:args.show]:
            print(f"    {prompt!r} -> {text!r} {wrong}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
