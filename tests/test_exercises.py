"""The building exercises: the solutions pass, typical mistakes are detected, and the message names the failing case."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXERCISES = ROOT / "tutorials" / "exercises"
MISTAKES = {  # step: (text in the solution, its replacement, part of the message)
    1: [("draws.choose(residual)", "draws.choose(p[i])", "not distributed as the target's own"),  # samples from p itself
        ("min(1, p[i][x] / q[i][x])", "p[i][x]", "not distributed as the target's own"),  # p instead of p / q
        ("return [*written, draws.choose(residual)]", "x = draws.choose(residual)", "not distributed as the target"),  # no stop
        ("for i, x in enumerate(draft):", "for i, x in enumerate(draft[:1]):\n        p = p[:2]\n        draft = draft[:1]",
         "mean number of tokens"),
        ("return [*written, draws.choose(p[len(draft)])]", "return written or [draws.choose(p[0])]", "wanted 1.6"),  # no bonus
        ("choose(p[len(draft)])", "choose(p[len(draft) - 1])", "not distributed as the target's own")],  # an earlier row
    2: [("range(len(draft) - place, 1, -1)", "range(2, len(draft) - place + 1)", "draft f la ke"),  # tries the shortest first
        ("place += length", "place += 1", "wanted"),  # n-grams overlap
        ("return proposals\n            prop", "place += 1\n                continue\n            prop", "wanted"),  # continues
        ("        for length", "        if draft[place] not in direct:\n            return proposals\n        for length",
         "draft ke s"),  # finds an n-gram only where there is a direct token
        ("append(direct[draft[place]])", "append(draft[place])", "wanted ..F.., yours ..f.."),  # proposes draft tokens
        ("append(ngrams[ngram])", 'append("".join(ngram))', "wanted ..FLA.., yours ..fla..")],
    3: [("mass[node] / mass[parent]", "mass[node]", "the choice at node"),  # not relative to the node
        ('    mass[()] = sum(p.values())', "    # mass[()]", "the choice at the root"),  # the uncovered tokens are lost
        ("range(len(split) + 1)", "range(len(split), len(split) + 1)", "the choice at"),  # inner nodes get no mass of their own
        ("1 - sum(choice.values())", "(0.0 if node else 1 - sum(choice.values()))", "stop  "),  # a node's own token never ends
        ("for token, split in splits.items():", "for token in splits:\n        split = tuple(token)", "the choice")],
    4: [('proposal = atom if atom in P else "stop"', "proposal = atom", "not distributed as P"),  # no stop
        ("max(0, P[c] - Q[c])", "P[c]", "not distributed as P"),  # the residual is P itself
        ('Q["stop"] = 1 - sum(Q[child] for child in P if child != "stop")', 'Q["stop"] = q[atom]', "not distributed as P"),
        ('    if "stop" in P:', '    if "none" in P:\n        Q["none"] = 1 - sum(Q.values())\n    if "stop" in P:',
         "none  ")],  # as if the uncovered tokens were drafted
    5: [("drawn(x) - sum(drawn(n) for n in nearest)", "drawn(x)", "the first proposal"),  # Eq. 1 without the correction
        ("for n in nearest", "for n in longer", "the first proposal"),  # subtracts nested n-grams twice
        ("+ list(ngrams)", "", "ab "),  # the n-grams themselves are forgotten
        ("row(letters[:i])", "row(())", "after a")],  # every letter from the first row
    6: [("end - len(ids) - 1", "end - len(ids)", "too many draft tokens"),  # no place for the target's own token
        ("min(k, end - len(ids) - 1)", "k", "too many draft tokens"),
        ("for i, atom in enumerate(path)]", "for i, atom in enumerate(path) if atom >= 0]", "not distributed"),  # no path
        ("(atom, j, path[:i])", "(atom, j, ())", "not distributed|mean number of target passes"),  # no earlier atoms
        ("            before = choose(q[-1])\n            tokens.append(before)", "            tokens.append(choose(q[-1]))",
         "mean number of target passes|not distributed"),  # every draft token from the first row
        ('text += "".join(target.words[token] for token in written)', "pass", "mean number of target passes")],  # not read
    7: [("r = min(1, r * P[x] / Q[x])", "r = min(1, P[x] / Q[x])", "not distributed"),  # judged one by one, kept as a block
        ("before[n] == 1 or draws.accept(Z / (Z + 1 - before[n]))", "True", "not distributed|mean number"),  # one step
        ("return n, draws.choose(residual)", "return n, draws.choose(P)", "not distributed"),
        ("np.maximum(0, before[n] * P - Q)", "np.maximum(0, P - Q)", "not distributed"),  # without r
        ("draws.accept(Z / (Z + 1 - before[n]))", "draws.accept(before[n])", "not distributed|mean number"),
        ("            return n, draws", "            return n and n - 1, draws", "not distributed|mean number")],  # one too few
}


@pytest.fixture(scope="module")
def steps():
    sys.path.insert(0, str(EXERCISES))
    try:
        spec = importlib.util.spec_from_file_location("reader_steps", EXERCISES / "test_steps.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(EXERCISES))


@pytest.mark.parametrize("step", MISTAKES)
def test_the_solution_passes_and_mistakes_are_named(steps, step, tmp_path):
    stem, check, name = steps.grade.STEPS[step]
    path = EXERCISES / "solutions" / f"step{step}_{stem}.py"
    check(steps.written(path, name))
    source = path.read_text(encoding="utf-8")
    for number, (right, wrong, said) in enumerate(MISTAKES[step]):
        assert source.count(right) == 1, right
        changed = tmp_path / f"wrong{number}.py"
        changed.write_text(source.replace(right, wrong), encoding="utf-8")
        with pytest.raises(steps.grade.Wrong, match=said) as wrong:
            check(steps.written(changed, name))
        for wanted, given in re.findall(r"wanted (\d\.\d+), yours (\d\.\d+)$", str(wrong.value)):
            assert wanted != given  # enough decimals to show the difference


def test_a_stub_explains_itself_and_is_not_written_yet(steps):
    for step, (stem, check, name) in steps.grade.STEPS.items():
        path = EXERCISES / f"step{step}_{stem}.py"
        head = path.read_text(encoding="utf-8").splitlines()[0]
        assert head.startswith('"""Lesson ') and f", step {step}: " in head
        with pytest.raises(NotImplementedError, match="hint: "):
            check(steps.written(path, name))


def test_the_reader_is_shown_the_case_and_no_traceback(tmp_path):
    for path in EXERCISES.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace(
            "sys.path.append(str(Path(__file__).resolve().parent.parent))", f"sys.path.append({str(EXERCISES.parent)!r})"),
            encoding="utf-8")
    (tmp_path / "step2_merge.py").write_text("def merge(draft, direct, ngrams):\n    return [direct.get(d) for d in draft]\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-k", "step1 or step2", tmp_path], cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "2 failed" in done.stdout
    assert "draft ke\n\nwanted [], yours [None]" in done.stdout
    assert "raceback" not in done.stdout and "exception" not in done.stdout
    assert "not written yet; hint: " in done.stdout
