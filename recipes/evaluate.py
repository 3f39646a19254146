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

from . import functions, stories
from .other import ANSWER, other
from .problems import bare_sum, problem
from .world import HERE, SEED, hand_written

COMMON = set("""write tell make please story short about once there upon time long who with that wants
named loses lost little small brave finds goes learns gives give trip bedtime want can scared
who""".split())


def answer(model, prompt: str, limit: int = 200) -> str:
    """Greedy continuation of `prompt`."""
    ids = model.tokenizer.encode(prompt, bos=True)
    records = plain(model, ids, Options(max_new_tokens=limit), Uniforms([]))
    return model.tokenizer.decode_bytes([token for record in records for token in record.emitted]).decode("utf-8", "replace")


def right_sum(text: str, expected: int) -> bool:
    """Whether the marked result is the expected one."""
    return text.rpartition("####")[2].strip() == str(expected)


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
    whole = (prompt.split("\n")[-1] if not re.search(r"story", prompt, re.IGNORECASE) else "") + text
    spoken = whole.lower().split()
    faults = []
    eights = Counter(tuple(spoken[i:i + 8]) for i in range(len(spoken) - 7))
    if eights and max(eights.values()) > 2:
        faults.append("loop")
    if not text.rstrip().endswith((".", "!", '"')):
        faults.append("no end")
    if re.search(r"\b(he|him|his)\b", whole, re.IGNORECASE) and re.search(r"\b(she|her)\b", whole, re.IGNORECASE):
        faults.append("pronouns")
    topic = [word.lower() for word in re.findall(r"[A-Za-z]{3,}", prompt) if word.lower() not in COMMON]
    if re.search("story", prompt, re.IGNORECASE):
        missing = [word for word in topic if word.rstrip("s")[:4] not in whole.lower()]
        faults += ["topic: " + " ".join(missing)] if missing else []
    return faults


def main() -> None:
    """Answer, check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--typed", type=Path, help="JSON lines with prompt and answer",
                        default=HERE / "typed.jsonl")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=int, default=3, help="print this many wrong answers of each sort")
    args = parser.parse_args()
    model, rng, figures = load(args.model), random.Random(SEED), {}

    def report(name: str, rights: list[bool], wrong: list[tuple[str, str]]) -> None:
        figures[name] = [sum(rights), len(rights)]
        print(f"{name}: {sum(rights)} of {len(rights)}", flush=True)
        for prompt, text in wrong[:args.show]:
            print(f"    {prompt!r} -> {text!r}")

    def sums(name: str, examples: list[dict]) -> None:
        said = [(e["prompt"], answer(model, e["prompt"], 80), e["answer"]) for e in examples]
        rights = [right_sum(text, expected) for _, text, expected in said]
        report(name, rights, [(prompt, text) for (prompt, text, _), ok in zip(said, rights, strict=True) if not ok])

    def codes(name: str, examples: list[dict]) -> None:
        said = [(e["prompt"], answer(model, e["prompt"]), e["tests"]) for e in examples]
        marks = [passes(*one) for one in said]
        report(name + ", parses", [mark[0] for mark in marks], [])
        report(name, [mark[1] for mark in marks], [one[:2] for one, mark in zip(said, marks, strict=True) if not mark[1]])

    def texts(task: str) -> list[str]:
        return [example["prompt"] for example in hand_written(task)]

    if args.typed:
        sums("typed problems", [json.loads(line) for line in args.typed.read_text().splitlines()])
    sums("problems of trained kinds", [problem(rng) for _ in range(args.count)])
    sums("bare sums", [bare_sum(rng) for _ in range(args.count // 2)])
    codes("functions", [functions.request(rng) for _ in range(args.count)])
    plain_requests = [functions.request(rng, kind, ("plain",)) for kind in rng.sample(functions.KINDS, 20)]
    codes("plain requests", plain_requests)
    codes("functions as typed", hand_written("code"))
    drawn = [stories.story(rng)["prompt"] for _ in range(20)]
    for name, prompts in (("stories as typed", texts("text")), ("stories as trained", drawn)):
        told = [(prompt, answer(model, prompt)) for prompt in prompts]
        faults = [story_faults(*one) for one in told]
        report(name, [not fault for fault in faults],
               [(f"{one[0]} {fault}", one[1]) for one, fault in zip(told, faults, strict=True) if fault])
    drawn = [other(rng)["prompt"] for _ in range(40)]
    for name, prompts in (("unrelated as typed", texts("other")), ("unrelated as trained", drawn)):
        said = [(prompt, answer(model, prompt, 40)) for prompt in prompts]
        wrong = [one for one in said if one[1].strip() != ANSWER.strip()]
        report(name, [one not in wrong for one in said], wrong)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
