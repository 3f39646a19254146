"""The generators of word problems and prose: format, splits, right arithmetic, clean language (recipes/*_text.py)."""

from __future__ import annotations

import random
import re
import zlib

import pytest

from recipes import math_text, story_text

DRAWS = 2000
MODULES = {"math": math_text, "text": story_text}
EQUATION = re.compile(r"(?<![\d+*/-] )(?<!\d)(\d+) ([-+*/]) (\d+) = (\d+)")


@pytest.fixture(scope="module", params=sorted(MODULES))
def drawn(request) -> tuple[str, list[dict], list[dict]]:
    """Task, training draws and held-out draws."""
    module, rng = MODULES[request.param], random.Random(3)
    return (request.param, [module.generate(rng) for _ in range(DRAWS)],
            [module.generate(rng, held_out=True) for _ in range(DRAWS // 4)])


@pytest.mark.parametrize("task", sorted(MODULES))
def test_same_seed_same_examples(task):
    first, second = random.Random(11), random.Random(11)
    for held_out in (False, True) * 20:
        assert MODULES[task].generate(first, held_out) == MODULES[task].generate(second, held_out)


def test_format(drawn):
    task, training, held_out = drawn
    for example in training + held_out:
        assert example["task"] == task
        ends = ("\nAnswer:", "\nEquations:")[:1 if example in held_out else 2] if task == "math" else ":"
        assert example["prompt"].endswith(ends)
        assert example["prompt"].count("\n") == 1
        assert re.match(r" [A-Z0-9\"]", example["response"])
        words = len(example["response"].split())
        # a math example in training may be its equations alone
        assert (6 <= words <= 90) if task == "math" else (55 <= words <= 140), example["response"]


def test_training_and_held_out_share_nothing(drawn):
    task, training, held_out = drawn
    unseen = set(MODULES[task].HELD_OUT)
    assert not {e["prompt"] for e in training} & {e["prompt"] for e in held_out}
    for example in training:
        assert example["seen_template"] and example["template"] not in unseen
        asked = example["prompt"].replace("Equations:", "Answer:")  # the same problem, asked in two ways
        assert zlib.crc32(asked.encode()) % 16 != 0 and asked not in {e["prompt"] for e in held_out}
    for example in held_out:
        assert example["seen_template"] == (example["template"] not in unseen)
        assert not example["seen_template"] or zlib.crc32(example["prompt"].encode()) % 16 == 0
    share = sum(e["seen_template"] for e in held_out) / len(held_out)
    assert 0.4 < share < 0.6


def test_variety(drawn):
    task, training, held_out = drawn
    module = MODULES[task]
    templates = {e["template"] for e in training + held_out}
    assert templates - {"drill"} == set(module.KINDS if task == "text" else module.TEMPLATES) | set(module.HELD_OUT)
    assert len(templates) >= {"math": 26, "text": 14}[task]
    assert len(module.HELD_OUT) >= {"math": 5, "text": 3}[task]
    assert len({e["prompt"] for e in training}) > 0.95 * DRAWS


def test_language_is_clean(drawn):
    _, training, held_out = drawn
    for example in training + held_out:
        text = example["prompt"] + example["response"]
        assert not re.search(r"  |[\[\]{}|_]| [,.;?!]|\.\.|,,|[,;:]\.|\b(\w+) \1\b(?!-)", text), text
        assert not re.search(r"\ba [aeio](?!ne\b)\w|\ban [bcdfgjklmnpqrstvwxyz]", text, re.IGNORECASE), text
        assert not re.search(r"(?<![-+*/=\d] )\b1 (?!\w+[su]s\b|times|less)[a-z]+s\b", text), text
        assert not re.search(r"[.?!] [a-z]", text), text
        assert not re.search(r"\bi\b", text), text


def test_every_equation_and_answer_is_right():
    rng = random.Random(8)
    for number in range(DRAWS):
        example = math_text.generate(rng, held_out=number % 4 == 0)
        solution, _, marked = example["response"].rpartition("\n#### ")
        equations = EQUATION.findall(solution)
        assert equations and solution.count(" = ") == len(equations), solution
        for a, operation, b, result in equations:
            exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[operation]
            assert exact == int(result), solution
        assert marked == str(example["answer"]) == equations[-1][3]
        assert example["answer"] >= 0


def test_prose_keeps_to_its_prompt():
    """What the prompt names (capitalized names, the thing found or lost) comes back in the text."""
    rng = random.Random(4)
    for _ in range(DRAWS // 2):
        example = story_text.generate(rng)
        request, text = example["prompt"].partition("\n")[0], example["response"]
        names = re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", request)
        if example["template"] in ("diary", "directions"):  # "by Ann" need not come back
            names = [name for name in names if not re.search(rf"(by|Tell|to) {name}", request)]
        for name in names:
            assert name in text, (name, example)
        for thing in re.findall(r"(?:finds|gives|found) an? ([a-z]+)", request):
            assert thing in text, (thing, example)
