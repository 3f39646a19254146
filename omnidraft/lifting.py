"""Lifting: both models' distributions seen as distributions over the drafter's sub-tokens ("atoms"). This project's own.

Every covered target token t has one *split* s(t) into draft tokens: the draft token with the same bytes if there is one,
else its n-gram. The splits form a trie; p(t) summed at or below a node is the node's mass. Every draft token has a
*path* of atoms: itself if it is an atom, else the splits of the target tokens that spell it, else none. Drawing draft
tokens and revealing their atoms one at a time, the law of each next atom is known for both models, so ordinary rejection
sampling compares them (`verification.lossless`), whatever the two tokenizers are.

    target token " problem"  -> split ("▁prob", "lem")          two atoms, an n-gram (merge)
    draft token  "▁9"        -> path  ("▁", "9") = s(" ") s("9") one draft token, two target tokens (expansion)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .sampling import Rows

ROOT = 0
Split = tuple[int, ...]


@dataclass
class Lifting:
    """The trie of splits (target side) and the paths of atoms (draft side); fixed during a round.

    splits: target token -> its split; of several tokens with one split the lowest id is covered, the others are not.
    paths: one entry per draft token, its atoms or None where no target token spells it.

    >>> lifting = Lifting({7: (1,), 8: (1, 2)}, [None, (1,), (2,)])
    >>> lifting.children[ROOT], lifting.token, lifting.order.tolist()
    ({1: 1}, [-1, 7, 8], [7, 8])
    """

    splits: dict[int, Split]
    paths: list[Split | None]
    order: np.ndarray = field(init=False)  # (covered,) target tokens sorted by split: every node is a range of it
    first: list[int] = field(init=False)  # per node: where its range begins,
    last: list[int] = field(init=False)  # and where it ends
    token: list[int] = field(init=False)  # per node: the target token that ends there, or -1
    children: list[dict[int, int]] = field(init=False)  # per node: atom -> child node

    def __post_init__(self) -> None:
        unique: dict[Split, int] = {}
        for token in sorted(self.splits):
            unique.setdefault(self.splits[token], token)
        ordered = sorted(unique)
        self.order = np.array([unique[split] for split in ordered], dtype=np.int64)
        self.first, self.last, self.token, self.children = [0], [len(ordered)], [-1], [{}]
        trail = [ROOT]  # the nodes from the root to the split before
        before: Split = ()
        for position, split in enumerate(ordered):
            shared = 0
            while shared < len(before) and shared < len(split) and before[shared] == split[shared]:
                shared += 1
            for node in trail[shared + 1:]:
                self.last[node] = position
            del trail[shared + 1:]
            for atom in split[shared:]:
                self.children[trail[-1]][atom] = len(self.first)
                trail.append(len(self.first))
                self.first.append(position)
                self.last.append(len(ordered))
                self.token.append(-1)
                self.children.append({})
            self.token[trail[-1]] = unique[split]
            before = split
        self.twins: dict[Any, Any] = {}  # `lifting_torch` ones by width and device
        self.categories: dict[Any, Any] = {}  # those of `losses.lifted_comparisons`
        self._uncovered: tuple[int, np.ndarray] | None = None
        self._child_arrays: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        # First atom of every draft token, shifted by one so that "no path" is 0.
        self._first_atom = np.array([path[0] + 1 if path else 0 for path in self.paths], dtype=np.int64)
        self._longer: dict[Split, list[tuple[int, int]]] = {}  # prefix -> draft tokens that go on from it, next atom
        for draft_token, path in enumerate(self.paths):
            for cut in range(1, len(path or ())):
                self._longer.setdefault(path[:cut], []).append((draft_token, path[cut]))

    # ---- target side ------------------------------------------------------------------------------------------------
    def ordered(self, target_probs: np.ndarray) -> np.ndarray:
        """A target row (V_p,) in trie order (covered,), so that the tokens below a node lie side by side."""
        return target_probs[self.order].astype(np.float64, copy=False)

    def mass(self, ordered: np.ndarray, node: int) -> float:
        """mass_p(node): probability of the target tokens at or below `node`."""
        return float(ordered[self.first[node]:self.last[node]].sum())

    def child_masses(self, ordered: np.ndarray, node: int) -> tuple[np.ndarray, np.ndarray]:
        """Atoms (C,) of the node's children and their masses (C,)."""
        if node not in self._child_arrays:
            self._child_arrays[node] = (np.array(list(self.children[node]), dtype=np.int64),
                                        np.array([self.first[n] for n in self.children[node].values()], dtype=np.int64))
        atoms, first = self._child_arrays[node]
        return atoms, np.add.reduceat(ordered[:self.last[node]], first) if len(first) else np.zeros(0)

    def below(self, node: int) -> np.ndarray:
        """Target tokens whose split passes through `node` (itself included)."""
        return self.order[self.first[node]:self.last[node]]

    def uncovered(self, target_size: int) -> np.ndarray:
        """Target tokens without a split, of the ids below `target_size` = V_p."""
        if self._uncovered is None or self._uncovered[0] != target_size:
            free = np.ones(target_size, dtype=bool)
            free[self.order] = False
            self._uncovered = target_size, np.flatnonzero(free)
        return self._uncovered[1]

    def target_law(self, node: int, target_probs: np.ndarray, ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The children's atoms (C,) at `node`, and P (C + 1,) of its categories, the last one being what ends here.

        target_probs: the target's row (V_p,), ordered: the same in trie order. In a node the last category is *stop*:
        P(c) = mass(c) / mass(n), P(stop) = p(t_n) / mass(n). At the root it is the uncovered tokens.
        """
        atoms, masses = self.child_masses(ordered, node)
        if node == ROOT:
            return atoms, np.append(masses, target_probs[self.uncovered(len(target_probs))].sum())
        stop = target_probs[self.token[node]] if self.token[node] >= 0 else 0.0
        return atoms, np.append(masses, stop) / self.mass(ordered, node)

    def choice(self, node: int, target_probs: np.ndarray, ordered: np.ndarray,
               law: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `target_law` gives, and Q (C + 1,) of the same categories from the law (V_q,) of the next atom.

        Any atom that is no child proposes *stop*: Q(stop) = 1 - sum_c Q(c). The uncovered tokens no atom proposes: Q = 0.
        """
        atoms, target_law = self.target_law(node, target_probs, ordered)
        draft_law = law[atoms]
        return atoms, target_law, np.append(draft_law, 0.0 if node == ROOT else max(0.0, 1.0 - draft_law.sum()))

    def walk(self, atoms: Sequence[int | None]) -> tuple[list[int], list[int]]:
        """Target tokens that the atoms spell, each decided by the next atom only, and how many atoms each takes.

        The walk ends where an atom is no child and nothing ends there (a dead end). A token that ends where the atoms
        end is part of it, though longer tokens may begin with it.
        """
        tokens, lengths, node, depth = [], [], ROOT, 0
        for atom in [*atoms, None]:
            if node != ROOT and atom not in self.children[node]:
                if self.token[node] < 0:
                    break
                tokens.append(self.token[node])
                lengths.append(depth)
                node, depth = ROOT, 0
            if atom not in self.children[node]:
                break
            node, depth = self.children[node][atom], depth + 1
        return tokens, lengths

    # ---- draft side -------------------------------------------------------------------------------------------------
    def first_law(self, draft_probs: np.ndarray) -> np.ndarray:
        """Q(a) (V_q,): probability that the drawn token's path begins with a; what has no path is left out."""
        return np.bincount(self._first_atom, weights=draft_probs, minlength=len(self.paths) + 1)[1:]

    def next_law(self, draft_probs: np.ndarray, prefix: Split) -> np.ndarray:
        """Q(a) (V_q,): law of the atom after `prefix`, given that the drawn token's path goes on from it."""
        law = np.zeros(len(self.paths))
        for draft_token, atom in self._longer[prefix]:
            law[atom] += draft_probs[draft_token]
        total = law.sum()
        return law / total if total > 0 else law

    def longer(self, draft_token: int) -> list[int]:
        """Draft tokens whose path begins with this token's and goes on: the cases for healing."""
        path = self.paths[draft_token]
        return sorted({token for token, _ in self._longer.get(path, ())}) if path else []

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[np.ndarray],
               in_text: Split = ()) -> tuple[list[int | None], Sequence[np.ndarray]]:
        """The atoms of the drawn tokens, and the law (V_q,) that each was drawn from, given the atoms before it.

        The last atom is None if its token has no path. `in_text` are the atoms of a healed context token: the first token's
        path begins with them, and the text has them already. A law is computed when it is asked for.

        >>> atoms, laws = Lifting({0: (0,)}, [(0,)]).reveal([0], [np.array([1.0])])
        >>> atoms, laws[0]
        ([0], array([1.]))
        """
        atoms: list[int | None] = []
        drawn: list[tuple[np.ndarray, Split]] = []  # per atom: the row, and the atoms of its draft token before it
        for draft_token, row in zip(draft_tokens, draft_probs, strict=True):
            path = self.paths[draft_token]
            if path is None:
                atoms.append(None)
                drawn.append((row, ()))
                break
            for place in range(len(in_text), len(path)):
                atoms.append(path[place])
                drawn.append((row, path[:place]))
            in_text = ()
        return atoms, Rows(drawn, lambda some: self.next_law(*some) if some[1] else self.first_law(some[0]))


def build_lifting(splits: dict[int, Split], spellings: dict[int, Sequence[int]], draft_size: int) -> Lifting:
    """Lifting from the covered splits and, for draft tokens that are no atoms, the target tokens that spell them.

    splits: target token -> draft tokens; spellings: draft token -> target tokens; draft_size = V_q.

    >>> build_lifting({0: (4,), 1: (5,)}, {6: (0, 1)}, 7).paths
    [None, None, None, None, (4,), (5,), (4, 5)]
    """
    paths: list[Split | None] = [None] * draft_size
    for token, spelling in spellings.items():
        if all(target in splits for target in spelling):
            paths[token] = tuple(atom for target in spelling for atom in splits[target])
    for split in splits.values():
        for atom in split:
            paths[atom] = (atom,)
    return Lifting(splits, paths)
