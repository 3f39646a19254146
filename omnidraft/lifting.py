"""Lifting: both models' distributions seen over the drafter's sub-tokens ("atoms"). This project's
own.

Every covered target token t has one *split* s(t) into draft tokens: the draft token with the same
bytes if there is one, else its n-gram. The splits form a trie; p(t) summed at or below a node is
the node's mass. Every draft token has a *path* of atoms: itself if it is an atom, else the splits
of the target tokens that spell it, else none. Draw draft tokens and reveal their atoms one at a
time: the distribution of each next atom is known for both models, so ordinary rejection sampling
compares them (`verification.lifted`), whatever the two tokenizers are.

    target token " problem"  -> split ("▁prob", "lem")          two atoms, an n-gram (merge)
    draft token  "▁9"        -> path  ("▁", "9") = s(" ") s("9") one draft token, two target tokens
                                                                (expansion)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

ROOT = 0
Split = tuple[int, ...]


@dataclass
class Lifting:
    """The trie of splits (target side) and the paths of atoms (draft side); fixed during a round.

    splits: target token -> its split; of several tokens with one split the lowest id is covered.
    paths: one entry per draft token, its atoms, or None where no target token spells it.

    >>> lifting = Lifting({7: (1,), 8: (1, 2)}, [None, (1,), (2,)])
    >>> lifting.children[ROOT], lifting.token, lifting.order.tolist()
    ({1: 1}, [-1, 7, 8], [7, 8])
    """

    splits: dict[int, Split]
    paths: list[Split | None]
    order: np.ndarray = field(init=False)  # (covered,) target tokens by split; a node is a range
    first: list[int] = field(init=False)  # per node: where its range begins,
    last: list[int] = field(init=False)  # and where it ends
    token: list[int] = field(init=False)  # per node: the target token that ends there, or -1
    children: list[dict[int, int]] = field(init=False)  # per node: atom -> child node
    first_atom: np.ndarray = field(init=False)  # (V_q,) first atom of a path + 1, or 0: no path

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
            both = zip(before, split, strict=False)
            shared = sum(1 for _ in takewhile(lambda atoms: atoms[0] == atoms[1], both))
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
        self.first_atom = np.array([path[0] + 1 if path else 0 for path in self.paths], np.int64)
        self._longer: dict[Split, list[tuple[int, int]]] = {}  # prefix -> draft tokens, next atoms
        for draft_token, path in enumerate(self.paths):
            for cut in range(1, len(path or ())):
                self._longer.setdefault(path[:cut], []).append((draft_token, path[cut]))
        self._after: dict[Split, dict[int, list[int]]] = {}
        self._atoms: dict[int, np.ndarray] = {}
        self._categories: dict[tuple[int, int], tuple[Any, np.ndarray]] = {}
        self._tensors: dict[Any, Any] = {}  # index tensors of `lifting_torch`, by device and use

    # ---- target side ----------------------------------------------------------------------------
    def below(self, node: int) -> np.ndarray:
        """Target tokens (n,) whose split passes through `node`, its own token first."""
        return self.order[self.first[node]:self.last[node]]

    def members(self, node: int, category: int, target_size: int) -> np.ndarray:
        """The target tokens of one of the `categories` at `node`."""
        atoms = self.atoms(node)
        if category < len(atoms):
            return self.below(self.children[node][int(atoms[category])])
        if node != ROOT:
            return self.below(node)[:1]
        return np.flatnonzero(self.categories(ROOT, target_size)[1] == category)

    def choice(self, node: int, target_probs: np.ndarray,
               draft_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The atoms (C,) of the children of `node`, and P and Q (C + 1,) of them and of what ends
        here.

        target_probs: the target's row (V_p,); draft_probs: Q (V_q,) of the next atom. Inside the
        trie what ends is the node's own token, *stop*: P(child) = mass(child) / mass(node), P(stop)
        = p(t_n) / mass(node), Q(stop) = 1 - sum Q(child), since any atom that is no child proposes
        it. At the root it is the uncovered tokens, which no atom proposes: Q = 0.
        """
        atoms, draft_end = self.atoms(node), 0.0
        tokens, category = self.categories(node, len(target_probs))
        masses = np.zeros(len(atoms) + 1, target_probs.dtype)
        np.add.at(masses, category, target_probs[tokens])
        drafted = draft_probs[atoms]
        if node != ROOT:
            masses, draft_end = masses / (masses.sum() or 1.0), max(0.0, 1.0 - drafted.sum())
        return atoms, masses, np.append(drafted, draft_end)

    def atoms(self, node: int) -> np.ndarray:
        """The atoms (C,) that lead to the children of `node`."""
        if node not in self._atoms:
            self._atoms[node] = np.array(list(self.children[node]), np.int64)
        return self._atoms[node]

    def categories(self, node: int, target_size: int) -> tuple[Any, np.ndarray]:
        """The target tokens (n,) that `node` leaves possible, and of each: which child it is below,
        or C if it ends here."""
        key = node, target_size
        if key not in self._categories:
            sizes = [self.last[child] - self.first[child] for child in self.children[node].values()]
            below, of_child = self.below(node), np.repeat(np.arange(len(sizes)), sizes)
            if node == ROOT:
                category = np.full(target_size, len(sizes))
                category[below] = of_child
                self._categories[key] = slice(None), category
            else:  # the node's own token comes first
                own = [len(sizes)] * (self.token[node] >= 0)
                self._categories[key] = below, np.append(own, of_child).astype(np.int64)
        return self._categories[key]

    def walk(self, atoms: Sequence[int | None]) -> tuple[list[int], list[int]]:
        """Target tokens that the atoms spell, and how many atoms each takes; greedy, as in
        matching.

        Each end is decided by the next atom only. The walk ends where an atom is no child and
        nothing ends there (a dead end). A token that ends where the atoms end is part of it, though
        longer tokens may begin with it.
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

    # ---- draft side -----------------------------------------------------------------------------
    def distribution(self, draft_probs: np.ndarray, prefix: Split) -> np.ndarray:
        """Q (V_q,) of the atom after `prefix`, given that the drawn token's path continues with
        one.

        draft_probs: the row (V_q,) of the drawn token. What has no path is left out.
        """
        if not prefix:
            return np.bincount(self.first_atom, draft_probs, len(self.paths) + 1)[1:]
        tokens, atoms = np.transpose(self._longer[prefix])
        some = np.bincount(atoms, draft_probs[tokens], len(self.paths))
        return some / (some.sum() or 1.0)

    def after(self, prefix: Split) -> dict[int, list[int]]:
        """Next atom -> the draft tokens whose path continues `prefix` with it."""
        if prefix not in self._after:
            pairs = self._longer.get(prefix, ()) if prefix else (
                (token, path[0]) for token, path in enumerate(self.paths) if path)
            made = self._after[prefix] = {}
            for token, atom in pairs:
                made.setdefault(atom, []).append(token)
        return self._after[prefix]

    def longer(self, draft_token: int) -> list[int]:
        """Draft tokens whose path begins with this token's and is longer: the cases for healing."""
        path = self.paths[draft_token]
        return sorted({token for token, _ in self._longer.get(path, ())}) if path else []

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[np.ndarray],
               in_text: Split = ()) -> tuple[list[int | None], list[tuple[np.ndarray, Split]]]:
        """The atoms of the drawn tokens; for each, its token's row and the atoms of the token
        before it.

        The last atom is None if its token has no path. `in_text`: the atoms of a healed context
        token, which the first path begins with and the text has already.

        >>> row = np.array([1.0])
        >>> Lifting({0: (0,)}, [(0,)]).reveal([0], [row]) == ([0], [(row, ())])
        True
        """
        atoms: list[int | None] = []
        drawn: list[tuple[np.ndarray, Split]] = []
        for draft_token, row in zip(draft_tokens, draft_probs, strict=True):
            path = self.paths[draft_token]
            if path is None:
                return [*atoms, None], [*drawn, (row, ())]
            for place in range(len(in_text), len(path)):
                atoms.append(path[place])
                drawn.append((row, path[:place]))
            in_text = ()
        return atoms, drawn

    def sums(self, wanted: Iterable[tuple[np.ndarray, Any]]) -> Iterator[float]:
        """For each (row, ids) the sum of row[ids], when it is asked for."""
        return (float(row[ids].sum()) for row, ids in wanted)


def build_lifting(splits: dict[int, Split], spellings: dict[int, Sequence[int]],
                  draft_size: int) -> Lifting:
    """Lifting from the covered splits, and the target tokens that spell draft tokens that are no
    atoms.

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
