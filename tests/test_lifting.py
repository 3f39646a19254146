"""Lifting by hand: the trie of splits, masses, distributions of atoms, the walk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.lifting import ROOT, Lifting

# target tokens a, ab, abc, b, x (x has no split); draft tokens A, B, C, BA (two target tokens), Z (no path)
A, B, C, BA, Z = range(5)
SPLITS = {0: (A,), 1: (A, B), 2: (A, B, C), 3: (B,)}


@pytest.fixture
def lifting() -> Lifting:
    return Lifting(SPLITS, {BA: (3, 0)}, 5)


def test_paths(lifting):
    assert lifting.paths == [(A,), (B,), (C,), (B, A), None]


def test_masses_are_those_of_the_tokens_below(lifting):
    p = np.array([0.1, 0.3, 0.2, 0.25, 0.15])
    node_a, node_ab = (A,), (A, B)
    assert lifting.children(ROOT) == {A: 3, B: 1} and lifting.children(node_a) == {B: 2} and lifting.children((C,)) == {}
    assert p[lifting.below(node_a)].sum() == pytest.approx(0.6) and p[lifting.below(node_ab)].sum() == pytest.approx(0.5)
    assert sorted(lifting.below(node_ab).tolist()) == [1, 2]
    assert lifting.members(ROOT, len(lifting.atoms(ROOT)), 5).tolist() == [4]


def test_choice_at_the_root_and_inside(lifting):
    p, q = np.array([0.1, 0.3, 0.2, 0.25, 0.15]), np.array([0.4, 0.2, 0.1, 0.2, 0.1])
    atoms = lifting.atoms(ROOT)
    target, draft = lifting.choice(ROOT, p, lifting.distribution(q, ()))
    assert dict(zip(atoms.tolist(), target, strict=False)) == pytest.approx({A: 0.6, B: 0.25, C: 0.0, 3: 0.0, 4: 0.0})
    assert target[-1] == pytest.approx(0.15)
    assert draft.tolist() == pytest.approx([0.4, 0.4, 0.1, 0.0, 0.0, 0.0])  # B: 0.2, and 0.2 from BA
    target, draft = lifting.choice((A,), p, lifting.distribution(q, ()))
    assert target.tolist() == pytest.approx([0.5 / 0.6, 0.1 / 0.6]) and draft.tolist() == pytest.approx([0.4, 0.6])


def test_first_atoms_are_summed_over_all_tokens_that_begin_with_them():
    """Atoms count for themselves, and only other tokens are added: the results are equal, bit for bit."""
    rng = np.random.default_rng(0)
    spellings = {int(token): tuple(rng.integers(0, 40, 2)) for token in range(40, 60)}
    lifting = Lifting({t: (t,) for t in range(40)}, spellings, 64)  # the last four stand for no token
    q = rng.dirichlet(np.ones(64)).astype(np.float32)
    expected = np.zeros(64, np.float32)
    for token, path in enumerate(lifting.paths):
        if path:
            expected[path[0]] += q[token]
    assert lifting.is_atom.sum() == 40 and lifting.distribution(q, ()).tolist() == expected.tolist()


def test_walk_is_decided_by_the_next_atom_only(lifting):
    assert lifting.walk([A, A, B, B]) == ([0, 1, 3], [1, 2, 1])
    assert lifting.walk([A, B, C, A]) == ([2, 0], [3, 1])
    assert lifting.walk([C]) == ([], []) and lifting.walk([A, None]) == ([0], [1])
    assert Lifting({0: (A, B)}, {}, 3).walk([A, C]) == ([], [])  # no target token ends where the atoms leave the trie


def test_a_token_without_longer_ones_ends_with_its_last_atom():
    """Not at the next atom, which would be one comparison more; and the route ends with the target's rows."""
    route = Lifting({7: (1,), 8: (1, 2)}, {}, 3).route
    assert [step.ends for step in route([1, 1, 2])] == [-1, 7, -1, 8] and route([1, 1, 2])[-1].next_node == ()
    assert [step.row for step in route([1, 1, 2, 1])] == [0, 0, 1, 1, 2]
    assert len(route([1, 1, 2, 1], 2)) == len(route([1, 1, 2, 1], 5, 2)) == 4 and not route([1, 1, 2], 3, 0)


def test_a_route_is_that_of_the_atoms_as_they_are_now(lifting):
    """The last route is kept; it must not be taken for that of other atoms, nor of a list that has changed since."""
    atoms = [A, B]
    for change in (lambda: None, lambda: atoms.append(C), lambda: atoms.__setitem__(2, A), lambda: atoms.reverse()):
        change()
        assert lifting.route(atoms) == lifting.route([*atoms]) == Lifting(SPLITS, {BA: (3, 0)}, 5).route(atoms)
        assert lifting.walk(atoms) == Lifting(SPLITS, {BA: (3, 0)}, 5).walk(tuple(atoms))


def test_what_continues_a_prefix(lifting):
    assert lifting.after(()) == {A: [A], B: [B, BA], C: [C]} and lifting.after((B,)) == {A: [BA]}
    assert lifting.after((A,)) == lifting.after((B, A)) == lifting.after((Z, A)) == {}
    assert sorted(lifting.continuing(()).T.tolist()) == [[A, A], [B, B], [C, C], [BA, B]]
    assert lifting.continuing((B,)).tolist() == [[BA], [A]] and lifting.continuing((A,)).shape == (2, 0)


def test_reveal_of_an_expansion_and_of_a_healed_one(lifting):
    q = np.array([0.4, 0.2, 0.1, 0.2, 0.1])
    atoms, origins = lifting.reveal([BA, Z], [q, q])
    laws = [lifting.distribution(*one) for one in origins]
    assert atoms == [B, A, None] and laws[0][B] == pytest.approx(0.4) and laws[1].tolist() == [1, 0, 0, 0, 0]
    atoms, origins = lifting.reveal([BA, BA], [q, q], in_text=(B,))  # only the first token begins in the text
    assert atoms == [A, B, A] and [prefix for _, prefix in origins] == [(B,), (), (B,)]
    assert lifting.longer(B) == [BA] and lifting.longer(A) == []


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12),
       st.integers(0, 2**32 - 1))
def test_every_node_is_the_range_of_the_tokens_below_it(splits, seed):
    lifting = Lifting(dict(enumerate(splits)), {}, 4)
    p = np.random.default_rng(seed).dirichlet(np.ones(len(splits)))
    covered = {split: min(i for i, s in enumerate(splits) if s == split) for split in splits}
    pending = [ROOT]
    while pending:
        node = pending.pop()
        below = sorted(token for split, token in covered.items() if split[:len(node)] == node)
        assert sorted(lifting.below(node).tolist()) == below
        assert p[lifting.below(node)].sum() == pytest.approx(p[below].sum())
        assert lifting.token.get(node) == covered.get(node)
        pending += [(*node, atom) for atom in lifting.children(node)]
        for atom, size in lifting.children(node).items():
            assert size == len(lifting.below((*node, atom)))
