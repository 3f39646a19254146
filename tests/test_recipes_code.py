"""The text recipes for code: examples run, formats hold, the held-out part is never trained on."""

from __future__ import annotations

import ast
import gc
import random
import zlib

import pytest

from recipes import code_text, stdlib_text


def _draws(seed: int, count: int, held_out: bool = False) -> list[dict]:
    rng = random.Random(seed)
    return [code_text.generate(rng, held_out) for _ in range(count)]


@pytest.fixture(scope="module")
def training() -> list[dict]:
    return _draws(1, 1000)


@pytest.fixture(scope="module")
def held_out() -> list[dict]:
    return _draws(2, 150, held_out=True)


def test_same_seed_gives_same_examples():
    assert _draws(7, 40) == _draws(7, 40)
    assert _draws(7, 5) != _draws(8, 5)


def test_there_are_many_kinds():
    names = [kind.name for kind in code_text.ALL_KINDS]
    assert len(names) == len(set(names)) >= 55
    assert 10 <= len(code_text.HELD_OUT_KINDS) <= 12
    assert not {kind.name for kind in code_text.HELD_OUT_KINDS} & {kind.name for kind in code_text.TRAINING_KINDS}


@pytest.mark.parametrize("kind", code_text.ALL_KINDS, ids=lambda kind: kind.name)
def test_every_body_of_a_kind_agrees(kind):
    """All bodies of a kind are the same function: each one passes the asserts computed with any other."""
    rng = random.Random(kind.name)
    for _ in range(4):
        slots = code_text._slots(rng, kind)
        tests = None
        for body in kind.bodies:
            one = code_text.Kind(kind.name, kind.types, kind.held_out, kind.names, kind.phrases, kind.truth, (body,))
            source = code_text._source(rng, one, slots, "Same.")
            tests = tests or code_text._tests(rng, kind, slots["F"], source)
            assert tests
            exec("\n".join([source, *tests]), {})  # its asserts are the check


def test_format_and_asserts(training, held_out):
    for example in training + held_out:
        prompt, response = example["prompt"], example["response"]
        assert example["task"] == "code"
        assert prompt.startswith("Task: Write a Python function `") and prompt.endswith("\nSolution:")
        head, tests = prompt.removesuffix("\nSolution:").split("\nTests:\n")
        assert "` that " in head and head.endswith(".") and "$" not in prompt + response
        assert tests.split("\n") == example["tests"] and len(example["tests"]) in (2, 3)
        assert response.startswith("\ndef ") and response.endswith("\n") and not response.endswith("\n\n")
        function = ast.parse(response).body[0]
        signature = f"{function.name}({', '.join(argument.arg for argument in function.args.args)})"
        assert f"`{signature}`" in head and ast.get_docstring(function)
        exec(response + tests, {})


def test_examples_vary_and_keep_their_size(training):
    assert len({example["prompt"] for example in training}) > 990
    assert len({example["response"] for example in training}) > 950
    sizes = sorted(len(example["prompt"] + example["response"]) for example in training)
    assert sizes[50] > 250 and sizes[-50] < 700


def test_split_is_disjoint(training, held_out):
    unseen = {kind.name for kind in code_text.HELD_OUT_KINDS}
    assert all(zlib.crc32(example["prompt"].encode()) % 16 for example in training)
    assert not unseen & {example["template"] for example in training}
    for example in held_out:
        assert example["seen_template"] == (example["template"] not in unseen)
        if example["seen_template"]:
            assert zlib.crc32(example["prompt"].encode()) % 16 == 0
    assert 0.3 < sum(not example["seen_template"] for example in held_out) / len(held_out) < 0.7


SAMPLE = '''"""A module that is here to be read by the test of the library recipe, and by nobody else, ever.

It has two paragraphs."""

# One comment line is code,
# but three of them are a note to the reader,
# and the recipe keeps such notes as prose.


def double(value: int) -> int:  # a comment: with a colon
    """Return twice the value: this sentence is long enough to be kept as a piece of prose on its own."""
    total = value + value
    # the sum is the answer
    return total if total != 1 else double(value + 0) // 2
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sample.py").write_text(SAMPLE, encoding="utf-8")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "skipped.py").write_text(SAMPLE.replace("twice", "double"), encoding="utf-8")
    return tmp_path


def test_library_pieces(folder):
    pieces = stdlib_text.documents(folder)
    assert [piece["kind"] for piece in pieces] == ["prose", "prose", "prose", "code"]
    assert pieces[0]["text"].endswith("It has two paragraphs.")
    assert pieces[2]["text"].startswith("One comment line is code,\nbut three")
    code = pieces[3]["text"]
    assert code.startswith("def double") and "# the sum is the answer" in code
    cut = stdlib_text._head_end(code)
    assert code[:cut].endswith('on its own."""') and code[cut:].startswith("\n    total =")


@pytest.fixture
def without_garbage_collection():
    """Syntax trees have no cycles; searching millions of their nodes for some takes a third of the test's time."""
    gc.disable()
    yield
    gc.enable()


def test_library_of_this_python(without_garbage_collection):
    found = stdlib_text.documents()
    library = stdlib_text.Library(found)
    characters = {kind: sum(len(d["text"]) for d in found if d["kind"] == kind) for kind in ("prose", "code")}
    assert characters["prose"] > 500_000 and characters["code"] > 2_000_000
    assert len({d["text"] for d in found}) == len(found)
    rng, again = random.Random(3), random.Random(3)
    draws = [library.generate(rng, held_out=number % 2 == 1) for number in range(200)]
    assert draws == [library.generate(again, held_out=number % 2 == 1) for number in range(200)]
    for number, draw in enumerate(draws):
        whole = draw["prompt"] + draw["response"]
        assert draw["task"] == "library" and draw["template"] in ("prose", "code")
        assert stdlib_text.is_held_out(whole.removesuffix("\n")) == (number % 2 == 1)
    assert any(draw["prompt"] for draw in draws)
