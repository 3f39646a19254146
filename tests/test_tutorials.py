"""The lessons run as a reader would run them, are short, use the glossary's terms, and check answers correctly."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "tutorials"
LESSONS = sorted(TUTORIALS.glob("[0-9][0-9]_*.py"))
EMBEDDED = ROOT / "omnidraft" / "engine" / "embedded"
embedded = pytest.mark.skipif(not all((EMBEDDED / name).is_dir() for name in ("draft-general", "draft-tasks", "qwen-like")),
                              reason="the embedded models are not made yet: run `make models`")


@embedded
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_lesson_runs_without_torch(lesson, tmp_path):
    for name in ("torch", "transformers"):  # fake modules that end the run if they are imported
        (tmp_path / f"{name}.py").write_text(f"import sys\nsys.exit('{name} was imported')\n")
    (tmp_path / "sitecustomize.py").write_text(  # prints the number of threads that BLAS gets by default
        "import atexit, os\natexit.register(lambda: print(os.environ.get('OPENBLAS_NUM_THREADS'), 'thread of BLAS'))\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONUTF8": "1", "NO_COLOR": "1"}
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        environment.pop(name, None)
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", lesson], cwd=tmp_path, env=environment,
                          timeout=600, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and not done.stderr, done.stderr
    asked = re.findall(r'^check\("(.+?)", ', lesson.read_text(encoding="utf-8"), re.M)
    assert len(asked) >= 2 and all(f"{question} open.\n" in done.stdout for question in asked)
    assert "\033" not in done.stdout and "█" in done.stdout
    assert done.stdout.endswith("1 thread of BLAS\n")  # more can take up to six times the CPU time next to other work


def test_there_are_ten_lessons():
    assert [lesson.name[:2] for lesson in LESSONS] == ["01", "02", "03", "04", "05", "06", "07", "08", "09", "10"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_lesson_has_its_parts_and_sources(lesson):
    text = lesson.read_text(encoding="utf-8")
    headings = re.findall(r"^# ## (The equation|By hand|The real thing|Exercises)", text, re.MULTILINE)
    assert sorted(headings) == ["By hand", "Exercises", "The equation", "The real thing"] and headings[-1] == "Exercises"
    assert all((ROOT / path).is_file() for path in re.findall(r"omnidraft/[\w/]+\.py", text))
    assert ("show(" in text or "\ndef " in text) and re.search(r"\bbars?\(|draw_trie\(|█", text) and "assert " in text
    assert not re.search(r"^#     .*\*\*", text, re.MULTILINE)  # in an equation's block the stars would be visible
    heading = next(line for line in text.splitlines() if line.startswith("# ## The equation"))
    assert re.search(r"\(.*(arXiv \d{4}\.\d{5}, |this project's own).*\)", heading)
    for node in ast.walk(ast.parse(text)):  # a, b = ... only for two values of the same kind
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            kinds = {(type(value), ast.dump(value.func) if isinstance(value, ast.Call) else "") for value in node.value.elts}
            assert len(kinds) == 1, ast.unparse(node)
    for cell in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:  # prose cells contain only prose
        assert not cell.startswith(" [markdown]") or all(
            line.startswith("#") for line in cell.splitlines()[1:] if line.strip())


def test_the_lessons_are_an_evening_s_reading():
    assert sum(len(lesson.read_text(encoding="utf-8")) for lesson in LESSONS) <= 80_000


def test_terms_are_in_the_glossary():
    rows = (TUTORIALS / "GLOSSARY.md").read_text(encoding="utf-8").lower().splitlines()
    terms = {term.strip(" `") for row in rows if row.startswith("|") for term in row.split("|")[1].split(",")}
    for lesson in LESSONS:
        prose = " ".join(line[2:] for line in lesson.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        for term in re.findall(r"\*\*([^*]+)\*\*", prose):
            forms = {term.lower(), term.lower().removesuffix("s"), term.lower().removesuffix("ed") + "ing"}
            assert forms & terms, f"{term!r} of {lesson.name} is not in the glossary"


def test_no_term_is_used_before_its_lesson():
    rows = [[cell.strip() for cell in row.strip("|").split("|")]
            for row in (TUTORIALS / "GLOSSARY.md").read_text(encoding="utf-8").splitlines() if row.startswith("|")][2:]
    explained = {name.strip(" `"): min(map(int, re.findall(r"\d+", where)), default=99)
                 for names, _, where in rows for name in names.split(",")}
    for number, lesson in enumerate(LESSONS, 1):
        prose = " ".join(line[2:] for line in lesson.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        prose = prose.replace("`omnidraft tutorial", "`")  # the command, not the rule
        for term in sorted(explained, key=len, reverse=True):  # "block efficiency" is not "block"
            plural = re.sub(r"y$", "(?:y|ies)", re.escape(term))
            prose, times = re.subn(rf"(?<![\w-]){plural}(?:s|ed)?(?![\w-])", "_", prose, flags=re.IGNORECASE)
            assert not times or number >= explained[term], f"{term!r} of {lesson.name} is from lesson {explained[term]}"


# ------------------------------------------------------------------------------------------------------- the exercises

def beta(p, q):
    return float(np.minimum(p, q).sum())


RIGHT = {
    "1.1": beta([0.1, 0.6, 0.3], [0.4, 0.4, 0.2]),
    "1.2": 0.2 + (1 - beta([0.5, 0.3, 0.2], [0.2, 0.7, 0.1])) * 0.5,
    "2.1": " né".encode(),
    "2.2": "ĠĊ",
    "2.3": lambda draft, target: sorted({*np.cumsum(draft).tolist()} & {*np.cumsum(target).tolist()}),
    "3.1": [11, 40],
    "3.2": ("CD", "AD"),
    "4.1": [0.6 - 0.6 * 0.5, 0.4, 0.6 * 0.5],
    "4.2": 0.3 * 0.5,
    "5.1": 0.1 / 0.6,
    "5.2": (0.1 / 0.6) / 0.5,
    "6.1": [0.4 * (0.2 / 0.5) / 0.2, 0.4],
    "6.2": 1 / 3,
    "7.1": 0.5 * np.log(0.5 / (2 / 3)) + 0.5 * np.log(0.5 / (1 / 3)),
    "7.2": abs(0.4 - 0.5),
    "8.1": 3,
    "8.2": 0.75 / (0.75 + 6 * 0.25),
    "9.1": 8 * (300 + 100),
    "9.2": 12 / (1 / 200 - 1 / 300),
    "10.1": 2.2 / 1.2,
    "10.2": 52 / 16,
}
WRONG = {
    "1.1": 0.6, "1.2": 0.5,
    "2.1": "▁né".encode(), "2.2": " \n", "2.3": lambda draft, target: np.cumsum(draft).tolist(),
    "3.1": [10, 12], "3.2": ("AD", "CD"),
    "4.1": [0.6, 0.4, 0.3], "4.2": 0.3,
    "5.1": 0.1, "5.2": 0.5, "6.1": [0.4, 0.4], "6.2": 0.25,
    "7.1": 0.5 * np.log(4 / 3) + 0.5 * np.log(2 / 3), "7.2": 0.2,
    "8.1": 2, "8.2": 0.75,
    "9.1": 300 * 100, "9.2": 12 * 300, "10.1": 2.2 / 1.08, "10.2": 4,
}


@pytest.fixture(scope="module")
def exercises():
    sys.path.insert(0, str(TUTORIALS))
    try:
        import helpers
        yield helpers
    finally:
        sys.path.remove(str(TUTORIALS))


def test_right_answers_are_right(exercises, capsys):
    assert set(RIGHT) == set(WRONG) == set(exercises.ANSWERS)
    for exercise, answer in RIGHT.items():
        assert exercises.check(exercise, answer), exercise
        assert capsys.readouterr().out == f"{exercise} right.\n"


def test_wrong_answers_get_a_hint(exercises, capsys):
    for exercise, answer in WRONG.items():
        for wrong in (answer, "nonsense", -1, [], object()):
            assert not exercises.check(exercise, wrong), exercise
            told = capsys.readouterr().out
            assert " object at 0x" not in told.replace(repr(wrong), "")
            assert told.startswith(f"{exercise} not yet") and f"Hint: {exercises.ANSWERS[exercise][1]}." in told


def test_hints_do_not_give_the_answer_away(exercises):
    for exercise, right in RIGHT.items():
        hint = exercises.ANSWERS[exercise][1]
        if isinstance(right, int | float):
            assert not any(np.isclose(float(n), right, atol=1e-3) for n in re.findall(r"\d+(?:\.\d+)?", hint)), exercise
        elif not callable(right):
            assert str(right).strip("()[]b") not in hint, exercise


def test_answers_may_come_in_another_type(exercises):
    assert exercises.check("3.1", np.array([11, 40])) and exercises.check("3.1", (11.0, 40.0))
    assert exercises.check("4.1", np.array(RIGHT["4.1"])) and exercises.check("5.1", np.float32(1 / 6))
    assert exercises.check("3.2", ["CD", "AD"])
    assert exercises.check("1.1", "0.7") and exercises.check("2.1", "b' n\\xc3\\xa9'") and exercises.check("2.2", "ĠĊ")  # typed


def test_a_function_that_is_not_written_yet_is_open(exercises, capsys):
    assert not exercises.check("2.3", lambda draft, target: ...)
    assert not exercises.check("2.3", lambda draft, target: None)
    assert capsys.readouterr().out == "2.3 open.\n2.3 open.\n"


def test_a_wrong_function_is_shown_the_call(exercises, capsys):
    assert not exercises.check("2.3", lambda draft, target: draft)
    call = "([4, 1, 2, 2], [4, 5]) should give [4, 9], yours [4, 1, 2, 2]."
    assert capsys.readouterr().out.startswith(f"2.3 not yet. {call} Hint: ")


def test_the_lesson_answers_are_those_of_the_package(exercises):
    """The small examples of exercises 3.2 and 4.2, run with the package's own code."""
    from omnidraft.ngram_cache import NGramCache
    from omnidraft.translation import Direct, merge
    from omnidraft.verification import rejection_sampling

    left = []
    for policy in ("lru", "lfu"):
        cache, names = NGramCache(2, policy), {(n, n): name for n, name in enumerate("ABCD")}
        for step in "+A A A +B B +C +D".split():
            ngram = next(ngram for ngram, name in names.items() if name == step[-1])
            assert cache.insert(ngram, ngram[0]) if step[0] == "+" else cache.touch(ngram)
        left.append("".join(sorted(names[ngram] for ngram, _, _ in cache.items())))
    assert tuple(left) == RIGHT["3.2"]

    rows = [np.array([0.6, 0.4]), np.array([0.5, 0.5])]
    target = {0: 0.3, 1: 0.4, 2: 0.3}

    def first_token(draws):
        draft = [draws.choose(row) for row in rows]
        made = merge(draft, rows, Direct(np.array([0, 1])), lambda d, i: (2, 2) if d[i:i + 2] == [0, 1] else None, {},
                     lambda q: np.append(q, 0.0))
        return rejection_sampling(made.tokens, made.rows, np.array([list(target.values())] * 3), draws).emitted[0]

    assert np.isclose(exercises.total_variation(exercises.distribution_of(first_token), target), RIGHT["4.2"])


def test_the_answers_of_lessons_6_and_7_are_those_of_the_package():
    from omnidraft.losses import _divergence
    from omnidraft.stopping import AcceptanceHead, Confidence

    assert np.isclose(_divergence(np.array([2, 1]) / 3, np.array([0.5, 0.5]), "reverse")[0], RIGHT["7.1"])
    assert np.isclose(_divergence(np.array([0.4, 0.6]), np.array([0.5, 0.5]), "tv")[0], RIGHT["7.2"])
    stop, predicted = Confidence(threshold=1 - 0.4), [0.9, 0.8, 0.7, 0.6]
    assert [stop(predicted[:i]) for i in (1, 2, 3)].index(True) + 1 == RIGHT["8.1"]
    head = AcceptanceHead(1)
    head.parameters["out.bias"][:] = np.log(RIGHT["8.2"] / (1 - RIGHT["8.2"]))
    assert np.isclose(head.loss(np.zeros((4, 3)), np.array([1, 1, 1, 0]))[1]["out.bias"], 0, atol=1e-7)


def test_the_hybrid_loss_of_lesson_7_is_that_of_the_package():
    """Its functions alone, on a text with a direct token, an n-gram, and tokens that are not in the direct map."""
    from omnidraft import losses
    from omnidraft.sampling import process

    lesson = {"np": np, "process": process}
    for node in ast.parse((TUTORIALS / "07_distillation.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in ("forward_kl", "reverse_kl", "hybrid"):
            exec(ast.unparse(node), lesson)
    rng = np.random.default_rng(0)
    z, p = rng.normal(size=(3, 3)), rng.dirichlet(np.ones(4), 2)
    splits, direct = {0: (0,), 2: (1,), 3: (1, 2)}, np.array([0, 2, -1])
    pair = SimpleNamespace(
        draft=SimpleNamespace(tokenizer=SimpleNamespace(size=3)), cache=SimpleNamespace(split_of=splits.get),
        alignment=SimpleNamespace(draft_to_target=direct, target_to_draft=np.array([0, -1, 1, -1])))
    example = losses.Example([9, 0, 1, 2], [0, 3], p, [1, 2])
    value, gradient, count = losses.hybrid(z, example, pair, weight=0.3)
    terms = list(lesson["hybrid"](z, [(0, p[0]), (3, p[1])], splits, direct, weight=0.3))
    assert [j for j, _, _ in terms] == [0, 1, 2] and count == 3
    assert np.isclose(sum(loss for _, loss, _ in terms), value) and np.allclose([slope for *_, slope in terms], gradient)
