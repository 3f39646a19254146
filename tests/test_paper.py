"""tutorials/paper.py: short, NumPy only, each of the paper's components, and what it prints."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from omnidraft.exactness import distribution_of

FILE = Path(__file__).resolve().parent.parent / "tutorials" / "paper.py"


@pytest.fixture(scope="module")
def paper():
    spec = importlib.util.spec_from_file_location("paper", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def models(paper):
    """An equal token (h, a, !), an n-gram (ha), a draft token without a counterpart (-), a target's of its own (?)."""
    return paper.Model("h a ! -", "aah!h!aahah!"), paper.Model("h a ha ! ?", "haha!ahha!haha!aha!?")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_it_is_one_short_file_of_numpy():
    source = FILE.read_text(encoding="utf-8")
    lines = source.splitlines()
    imported = {alias.name for node in ast.parse(source).body if isinstance(node, ast.Import) for alias in node.names}
    assert len(lines) <= 197 and max(map(len, lines)) <= 100 and imported == {"numpy", "re"}
    heads = [number for number, line in enumerate(lines) if line.startswith("# ---- ")]
    assert [lines[number][7] for number in heads] == [*"12345678"]
    assert max(np.diff([*heads, len(lines)])) <= 36  # a part fits a screen


def test_what_it_prints():
    """As a reader runs it: every component adds its part, the head saves drafts, and the rule is biased."""
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True, check=True, timeout=600)
    *rows, a_round, last = done.stdout.splitlines()
    tokens, drafted, speed, bias = zip(*(map(float, re.findall(r"\d+\.\d+", row)) for row in rows), strict=True)
    assert tokens[1] > tokens[0] + 0.1 and tokens[2] > tokens[1] + 0.5
    assert drafted[3] < drafted[2] - 0.5 and tokens[3] > 0.95 * tokens[2] and speed[4] > speed[3] > speed[2]
    assert "(merged)" in a_round and "\033[36;4mha" in a_round
    assert bias[0] < 0.001 and 0.5 > bias[1] > bias[2] > 0.005 and "mini.py" in last


def test_direct_map_and_cache(paper, models):
    draft, target = models
    assert paper.direct_map(draft, target).tolist() == [0, 1, 3, -1]
    cache = paper.NGramCache()
    cache.insert([2, 0, 4], draft, target)  # h is one draft token, and no draft tokens spell "?"
    assert dict(cache) == {(0, 1): 2}
    assert cache.longest_match([0, 1, 0]) == (0, 1) and cache.longest_match([1, 0]) == (1,)


def test_the_least_recently_used_ngram_is_evicted(paper):
    draft, target = paper.Model("a b", "ab"), paper.Model("aa ab ba bb", "aabb")
    cache = paper.NGramCache()
    cache.size = 2
    cache.insert([0, 1], draft, target)
    cache.longest_match([0, 0, 1])  # uses aa
    cache.insert([2], draft, target)
    assert set(cache) == {(0, 0), (1, 0)}


def test_equations_1_and_2(paper, models):
    draft, target = models
    direct, cache = paper.direct_map(draft, target), paper.NGramCache({(0, 1): 2})
    rows = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.6, 0.2, 0.1], [0.3, 0.3, 0.3, 0.1]])
    (first, ngram, q), (second, alone, other) = paper.translate([0, 1, 2], rows, direct, cache, 5)
    assert (first, ngram, second, alone) == (2, (0, 1), 3, (2,))
    np.testing.assert_allclose(q, [0.4 - 0.24, 0.3, 0.24, 0.2, 0])
    np.testing.assert_allclose(other, [0.3, 0.3, 0, 0.3, 0])
    assert [token for token, *_ in paper.translate([2, 3, 0], rows, direct, cache, 5)] == [3]  # "-" ends it


def test_without_merges_the_rule_is_exact_and_with_them_it_is_not(paper):
    same = paper.Model("h a !", "aah!h!aahah!"), paper.Model("h a !", "haha!ahha!haha!aha!")
    assert paper.bias(*same, paper.NGramCache()) < 1e-12
    merging = paper.Model("h a !", "aah!h!aahah!"), paper.Model("h a ha !", "haha!ahha!haha!aha!")
    assert paper.bias(*merging, paper.NGramCache({(0, 1): 2})) > 0.005


class Enumerated:
    """NumPy's generator for `distribution_of`: every outcome of its draws is tried."""

    def __init__(self, draws):
        self.draws = draws

    def random(self):
        return self

    def __ge__(self, ratio):
        return not self.draws.accept(min(1.0, ratio))

    def choice(self, size, p):
        return self.draws.choose(p)


@pytest.mark.parametrize(("words", "exact"), [("h a !", True), ("h a ha !", False)])
def test_every_outcome_of_a_round(paper, words, exact):
    """The loop as it runs, with drafts of two tokens: the distribution of the first token that it writes."""
    draft, target = paper.Model("h a !", "aah!h!aahah!"), paper.Model(words, "haha!ahha!haha!aha!")

    def first(draws):
        cache = paper.NGramCache({} if exact else {(0, 1): 2})
        return int(next(paper.speculate(draft, target, cache, "!", 1, Enumerated(draws), k=2)).written[0])

    found = distribution_of(first)
    wanted = paper.softmax(target.logits[target.encode("!")[-1]])
    assert sum(found.values()) == pytest.approx(1)
    distance = sum(abs(found.get(token, 0.0) - share) for token, share in enumerate(wanted)) / 2
    assert distance < 1e-12 if exact else distance > 0.005


def test_the_gradient_of_the_hybrid_loss(paper, models, rng):
    draft, target = models
    rounds = [*paper.speculate(draft, target, paper.NGramCache(), "ha", 40, rng)]
    assert {2, 3} <= {token for *_, written in rounds for token in written}  # both terms are in it
    _, gradient = paper.hybrid(draft, target, rounds)
    for place in np.ndindex(draft.logits.shape):
        losses = []
        for step in (1e-5, -2e-5):
            draft.logits[place] += step
            losses.append(paper.hybrid(draft, target, rounds)[0])
        draft.logits[place] += 1e-5
        np.testing.assert_allclose((losses[0] - losses[1]) / 2e-5, gradient[place], atol=1e-6)


def test_the_head_learns_what_is_accepted_and_still_proposes_the_token_that_stops(paper, models, rng):
    draft, target = models
    head = paper.Head(4)
    for _ in range(60):
        rounds = [*paper.speculate(draft, target, paper.NGramCache(), "ha", 40, rng)]
        head.learn(rounds)
    labels = [(own[0], own[1], min(1, p[0][proposals[0][0]] / proposals[0][2][proposals[0][0]]))
              for own, proposals, p, _ in rounds if proposals and len(proposals[0][1]) == 1]
    likely = {(one, other): label for one, other, label in labels}
    best, worst = max(likely, key=likely.get), min(likely, key=likely.get)
    assert likely[worst] < 0.7 < likely[best] and head.f[worst] < head.f[best] - 1
    head.gamma = 0.0  # any doubt stops a draft, but not before its first token
    assert {len(own) for own, *_ in paper.speculate(draft, target, paper.NGramCache(), "ha", 9, rng, head)} <= {1, 2}
