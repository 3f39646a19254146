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
        ('    if "stop" in P:', '    if "rest" in P:\n        Q["rest"] = 1 - sum(Q.values())\n    if "stop" in P:',
         "rest  ")],  # as if the uncovered tokens were drafted
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
    8: [("if data and (", "if (", "roles .*\n\nwanted .-1"),  # special tokens are equal by bytes
        (" or split(data) == (t,)", "", "its tokenizer writes b'a' as 1"),  # the first of equal spellings
        ("data not in by_bytes or split(data) == (t,)", "True", "its tokenizer writes b'a' as 0"),  # the last one
        ("        if role in target_roles:\n            found[d] = target_roles[role]", "        pass", "'bos': 0"),
        ("target_roles[role]", "t", "wanted"),
        ("by_bytes.get(data, -1)", "by_bytes.get(data, 0)", "wanted .0, -1")],
    9: [("    return loss, gradient", "    return loss", "a loss and a gradient"),
        ("q = softmax(z[row, shared])", "q = softmax(z[row])[shared]", "9 hybrid: the loss\n"),  # cut, but not renormalised
        ("p[mapped] / p[mapped].sum()", "p[mapped]", "9 hybrid: the loss\n"),
        ("p[mapped] / p[mapped].sum()", "p[shared] / p[shared].sum()", "9 hybrid: the loss\n"),  # the rows' tokens mixed up
        ("loss += q @ log_ratio", "loss -= np.exp(log_ratio) @ log_ratio", "9 hybrid: the loss\n"),
        ("q * (log_ratio - q @ log_ratio)", "q * log_ratio", "the gradient at row 0"),
        ("loss -= lam * np.log(q[d])", "loss -= np.log(q[d])", "lam 0.2"),
        ("gradient[row, d] -= lam", "gradient[row, d] -= 1", "the gradient at row 0 is wrong\n.*lam 0.2"),
        ("-= lam\n            row += 1", "-= lam", "hybrid: the loss\n"),  # every draft token from the same row
        ("    return loss, gradient", "    return loss + np.nan, gradient", "yours nan")],
    10: [("        draft.append(d)", "        if 1 - all_accepted > gamma:\n            break\n        draft.append(d)",
          "how probable each draft is"),  # the token that stops is dropped
         ("all_accepted *=", "all_accepted =", "how probable each draft is"),  # the last P instead of the product
         ("while len(draft) < k and not 1 - all_accepted > gamma", "while len(draft) < k", "how probable each draft is"),
         ("draws.choose(q[x])", "draws.choose(q[before])", "how probable each draft is"),
         ("y = min(1, p[x, d] / q[x, d])", "y = p[x, d] / q[x, d]", "f after learning"),
         ("probability(f, x, d) - y", "y - probability(f, x, d)", "f after learning"),  # up the slope
         ("        f[x, d] -= rate * (probability(f, x, d) - y)\n        x = d",
          "        f[x, d] -= rate * (probability(f, x, d) - y)", "f after learning"),  # every token after the same one
         ("    return draft, f", "    return draft", "a draft, and the table f")],
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
        head, _, lesson, *_ = path.read_text(encoding="utf-8").splitlines()
        assert head.startswith('"""Lesson ') and f", step {step}: " in head
        number, title, file = re.fullmatch(r'lesson (\d), "(.+)", tutorials/(\S+)', steps.grade.lesson_of(step)).groups()
        assert head.startswith(f'"""Lesson {number}, ') and lesson == f'The lesson is "{title}", in tutorials/{file}.'
        first = (ROOT / "tutorials" / file).read_text(encoding="utf-8").splitlines()[1]
        assert first.split(":")[0] == f"# # {number} · {title}"  # what follows a colon is left out
        with pytest.raises(NotImplementedError, match="hint: "):
            check(steps.written(path, name))


def test_the_reader_is_shown_the_case_and_no_traceback(tmp_path):
    for path in EXERCISES.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace(
            "sys.path.append(str(Path(__file__).resolve().parent.parent))", f"sys.path.append({str(EXERCISES.parent)!r})"),
            encoding="utf-8")
    (tmp_path / "step2_merge.py").write_text("def merge(draft, direct, ngrams):\n    return [direct.get(d) for d in draft]\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-k", "step2 or step10", tmp_path], cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "2 failed" in done.stdout
    assert "draft ke\n\nwanted [], yours [None]" in done.stdout
    assert "raceback" not in done.stdout and "exception" not in done.stdout
    assert "not written yet; hint: " in done.stdout


def test_a_file_without_imports_is_graded(steps, tmp_path):
    for step, (stem, _, name) in steps.grade.STEPS.items():
        source = (EXERCISES / "solutions" / f"step{step}_{stem}.py").read_text(encoding="utf-8")
        path = tmp_path / f"step{step}_{stem}.py"
        path.write_text(re.sub(r"^(import numpy as np|from mini import verify)$", "", source, flags=re.M), encoding="utf-8")
        if step != 6:  # the same check took seconds above: here only that the name is known
            assert steps.grade.said(step, tmp_path) == ""
        else:
            assert steps.written(path, name).__globals__["verify"] is steps.grade.mini.verify


@pytest.mark.parametrize(("source", "said"), [
    ("", "step1_verify.py has no function 'verify'"),
    ("def verify(draft, q, p, draws):\n    return []", "a draft of 1 writes 1 to 2 tokens\n\nyours: []"),
    ("def verify(draft, q, p, draws):\n    pass", "what verify of step1_verify.py returned\nTypeError"),
    ("def verify(draft, q, p, draws):\n    return nothing", "line 2 of step1_verify.py\nNameError: name 'nothing'"),
    ("def verify(draft, q, p, draws):\n    return [", "line 2 of step1_verify.py\nSyntaxError: "),
])
def test_a_file_that_cannot_be_run_gets_a_helpful_line(steps, tmp_path, source, said):
    (tmp_path / "step1_verify.py").write_text(source, encoding="utf-8")
    assert said in steps.grade.said(1, tmp_path)
