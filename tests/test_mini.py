"""tutorials/mini.py: short, NumPy only, exact before and after it learns, and with the package's rule and loss."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rounds import RoundWorld

from omnidraft import losses
from omnidraft.exactness import distribution_of
from omnidraft.losses import Term
from omnidraft.verification import lifted

FILE = Path(__file__).resolve().parent.parent / "tutorials" / "mini.py"


@pytest.fixture(scope="module")
def mini():
    spec = importlib.util.spec_from_file_location("mini", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def models(mini):
    """Small vocabularies with every case: equal tokens, n-grams (ha, ha!), an expansion (ah), unmatched ones (?, -)."""
    draft, target = mini.Model("h a ah ! -", "aah!h!aahah!"), mini.Model("h a ha ha! ?", "haha!ahha!haha!ahaha!aha!")
    return draft, target, mini.Trie(draft, target)


def draws(numbers):
    """Choices by uniform numbers, as the package makes them."""
    def choose(weights):
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, next(numbers) * sums[-1], "right"))
    return choose


def test_it_is_one_short_file_of_numpy():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    imported = {alias.name for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.Import) for alias in node.names}
    assert len(lines) <= 200 and max(map(len, lines)) <= 100 and imported == {"numpy", "re"}


def test_it_learns_and_stays_exact():
    """As a reader runs it: more tokens a pass after one update, and no error before and after."""
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True, check=True, timeout=600)
    found = [line.split() for line in done.stdout.splitlines()]
    assert [words[:2] for words in found] == [["before", "learning:"], ["after", "one"]]
    tokens, errors = [float(words[-6]) for words in found], [float(words[-1]) for words in found]
    assert tokens[1] > tokens[0] + 0.2 and max(errors) < 1e-12


def test_every_outcome_together_is_the_targets_distribution(mini, models):
    assert max(mini.distance(models, temperature, new=2) for temperature in (0, 0.5, 1)) < 1e-12
    assert mini.distance(models, 0, new=4) < 1e-12


@pytest.mark.parametrize("fault", ["shares", "drafts"])
def test_the_proof_sees_a_fault(mini, models, monkeypatch, fault):
    right = mini.shares

    def sharper(probs, groups):
        row = right(probs, groups)
        return row ** 2 / (row ** 2).sum() if (len(probs) == 5) == (fault == "shares") else row
    if fault == "shares":
        monkeypatch.setattr(mini, "shares", sharper)
    else:  # it forgets that the atom after *stop* is known to be no child
        kept = mini.Trie.drafts
        monkeypatch.setattr(mini.Trie, "drafts", lambda self, node, before, barred: kept(self, node, before, ()))
    assert mini.distance(models, 1, new=2 if fault == "shares" else 3) > 1e-3


def test_a_round_has_the_packages_distribution(mini):
    """For drafts of random worlds, with merges, expansions, unmatched and duplicated tokens, and zeros in the rows."""
    rng, seen = np.random.default_rng(0), set()
    for seed in range(12):
        world = RoundWorld(seed)
        trie, lifting, tokens = as_trie(mini, world.lifting, len(world.target)), world.lifting, []
        while len(tokens) < 3:
            row = world.row("q", tuple(tokens))
            tokens.append(int(rng.choice(len(row), p=row)))
        q = [world.row("q", tuple(tokens[:j])) for j in range(len(tokens))]
        atoms, origins = lifting.reveal(tokens, q)
        proposals, _ = lifting.walk(atoms)
        p = world.target_rows(proposals)
        wanted = distribution_of(lambda draws: tuple(lifted(atoms, origins, lifting, p, draws).emitted))  # noqa: B023
        given = [(atom, j, trie.paths[d][:i]) for j, d in enumerate(tokens) for i, atom in enumerate(trie.paths[d])]
        found, waiting = dict.fromkeys(wanted, 0.0), [[]]
        while waiting:
            choose = mini.Every(waiting.pop())
            written, steps = mini.verify(given, q, p, trie, choose)
            found[tuple(written)] += choose.weight
            waiting += choose.others
            seen |= {"inside" for step in steps if step.node}
            seen |= {len(written)} | {"expansion" for _, _, before in given if before}
            seen |= {"unmatched" for path in trie.paths if path == (-1,)}
        assert found == pytest.approx(wanted, abs=1e-12), seed
    assert {"inside", 1, 2, 3, "expansion", "unmatched"} <= seen


def as_trie(mini, lifting, target_size):
    """The package's trie as a Trie of mini.py."""
    trie = object.__new__(mini.Trie)
    trie.token, trie.paths = lifting.token, [path or (-1,) for path in lifting.paths]
    nodes = {split[:depth] for split in lifting.token for depth in range(len(split) + 1)} | {()}
    trie.groups = {}
    for node in nodes:
        children = [atom for atom in lifting.atoms(node).tolist() if len(lifting.below((*node, atom)))]
        trie.groups[node] = {atom: lifting.below((*node, atom)).tolist() for atom in children}
        rest = lifting.own(node) if node else sorted({*range(target_size)} - {*lifting.order.tolist()})
        trie.groups[node][None] = [int(token) for token in rest]
    return trie


def test_the_gradient_is_that_of_the_package(mini, models):
    """Of the same comparisons, by `losses`, whose gradients are checked against central differences."""
    draft, target, trie = models
    rounds, compared = mini.speculate(*models, "ha", 4, 60, 1, draws(iter(np.random.default_rng(0).random, None))), 0
    for _, steps in rounds:
        for before, step in steps:
            P, node, drafts = step.P, step.node, step.groups
            categories = np.full(len(draft.words), -1)
            for place, (atom, tokens) in enumerate(drafts.items()):
                if node or atom is not None:
                    categories[tokens] = place
            held = [bool(tokens) and (bool(node) or atom is not None) for atom, tokens in drafts.items()]
            term = Term(0, categories, P * held, "forward")
            _, wanted, _ = losses._total(draft.logits[[before]], [term])
            assert mini.gradient(step, draft.rows(before, 1)) == pytest.approx(wanted[0], abs=1e-12)
            compared += 1
    assert compared > 40
