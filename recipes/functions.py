"""Requests for short Python functions, with and without a name and tests, from the kinds of functions.txt."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from .words import third, words

LETTERS = "aeiostrnl"
FORMS = {"plain": 55, "named": 17, "tested": 20, "opening": 8}


@dataclass(frozen=True)
class Kind:
    """One kind of function: its usual name, its arguments with their types, what it does in several wordings, its body."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    wordings: tuple[str, ...]
    body: str


def read_kinds(text: str) -> list[Kind]:
    """The kinds of a file such as functions.txt."""
    kinds = []
    text = re.sub(r"\n  (?=[^ \n])", " ", text)  # an indented line continues the head before it
    for head, body in re.findall(r"^(\w\S* \|.*)\n((?:    .*\n)+)", text, re.MULTILINE):
        name, arguments, wordings = (part.strip() for part in head.split("|"))
        pairs = tuple(tuple(item.split(":")) for item in arguments.split())
        kinds.append(Kind(name, pairs, tuple(wording.strip() for wording in wordings.split(" / ")), body))
    return kinds


TEXT = Path(__file__).with_name("functions.txt").read_text(encoding="utf-8")
KINDS = read_kinds(TEXT)
OPENINGS = re.findall(r"^(\d+) (.+)$", TEXT, re.MULTILINE)  # beginnings of requests, and how often
CONDITIONS = [line.split(" / ") for line in re.findall(r"^are .+$", TEXT, re.MULTILINE)]
OTHER_NAMES = {name: others.split() for name, others in re.findall(r"^(\w+): (.+)$", TEXT, re.MULTILINE)}
FUNCTION_NAMES, TEXTS = OTHER_NAMES["function"], words(" ".join(OTHER_NAMES["texts"]))


def draw_value(rng: random.Random, kind: str) -> object:
    """An argument of one of the types of functions.txt."""
    if kind in "lk":
        return [rng.randint(-9 if rng.random() < 0.2 else 0, 20) for _ in range(rng.randint(0 if kind == "l" else 2, 5))]
    return {"n": lambda: rng.randint(0, 30), "p": lambda: rng.randint(1, 30), "i": lambda: rng.randint(0, 6),
            "s": lambda: rng.choice(TEXTS), "w": lambda: [rng.choice(TEXTS) for _ in range(rng.randint(1, 4))],
            "t": lambda: rng.choice(LETTERS), "b": lambda: rng.random() < 0.5,
            "r": lambda: [[rng.randint(0, 9) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 3))]}[kind]()


def draw_tests(rng: random.Random, kind: Kind, name: str, program: str) -> list[str]:
    """Up to three asserts of what the program computes."""
    space: dict = {}
    exec(program, space)  # our own code
    space["print"] = lambda *_: None
    tests: list[str] = []
    for _ in range(rng.randint(2, 3)):
        values = [draw_value(rng, t) for _, t in kind.arguments]
        said = ", ".join(map(repr, values))
        test = f"assert {name}({said}) == {space[name](*values)!r}"
        if test not in tests:
            tests.append(test)
    return tests


def request(rng: random.Random, kind: Kind | None = None, forms: tuple[str, ...] = tuple(FORMS)) -> dict:
    """A request and its function, in one of several forms: plain, named, tested or an opening."""
    kind = kind or rng.choice(KINDS)
    form = rng.choices(forms, [FORMS[form] for form in forms])[0]
    wording, body, name = rng.choice(kind.wordings), kind.body, kind.name
    if "$" in name + wording + body:
        are, is_, code, label = rng.choice(CONDITIONS)
        number = str(rng.randint(2, 10))
        are, is_, code, label = (part.replace("#", number) for part in (are, is_, code, label))
        wording, name = wording.replace("$C", are).replace("$A", is_), name.replace("$n", label)
        body = body.replace("$c(n)", code)
    arguments = [argument for argument, _ in kind.arguments]
    if form in ("named", "tested") and rng.random() < 0.5:
        name = rng.choice(FUNCTION_NAMES)
        for argument in arguments:
            if rng.random() < 0.4 and (new := rng.choice(OTHER_NAMES.get(argument, [argument]))) not in arguments \
                    and not re.search(rf"\b{new}\b", body):
                body = re.sub(rf"\b{argument}\b", new, body)
                arguments[arguments.index(argument)] = new
    head = f"{name}({', '.join(arguments)})"
    program = f"def {head}:\n{body}"
    tests = draw_tests(rng, kind, name, program)
    does = third(wording)
    if form == "opening":
        start = rng.choice(["", f"# {wording}\n"])
        return {"task": "code", "prompt": f"{start}def {head}:\n", "response": body, "tests": tests, "program": program}
    if form == "plain":
        weights, texts = zip(*OPENINGS, strict=True)
        prompt = rng.choices(texts, map(int, weights))[0].format(do=wording, does=does)
        luck = rng.random()
        if luck < 0.05:
            prompt = prompt.lower()
        elif luck < 0.12:
            prompt = prompt.rstrip(".?")
        elif luck < 0.17:
            prompt = f"Question: {prompt}\nAnswer:"
    else:
        called = rng.choice([f"`{head}`", f"`{head}`", f"{head}", f"`{name}`", f"called {name}", f"named `{name}`"])
        if arguments != [argument for argument, _ in kind.arguments]:
            called = f"`{head}`"
        prompt = f"Write a Python function {called} that {does}."
        if form == "tested":
            layout = rng.choice(["Task: {}\nTests:\n{}\nSolution:", "{}\nTests:\n{}\n", "{}\n{}"])
            prompt = layout.format(prompt, "\n".join(tests))
    response = program if prompt.endswith("\n") else "\n" + program
    return {"task": "code", "prompt": prompt, "response": response, "tests": tests, "program": program}
