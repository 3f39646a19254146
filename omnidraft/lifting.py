"""Lifting: both models' distributions expressed over the drafter's sub-tokens ("atoms").

This project's own. Every covered target token t has one *split* s(t) into draft tokens: the draft
token with the same bytes if there is one, else its n-gram. The splits form a trie; the mass of a
node is the sum of p(t) at or below it. Every draft token has a *path* of atoms: itself if it is an
atom, else the splits of the target tokens that spell it, else none. A round draws draft tokens and
reveals their atoms one at a time. The distribution of each next atom is known for both models, so
rejection sampling can compare them (`verification.lifted`), whatever the two tokenizers are.

    target token " problem"  -> split ("▁prob", "lem")          two atoms, an n-gram (merge)
    draft token  "▁9"        -> path  ("▁", "9") = s(" ") s("9") one draft token, two target tokens
                                                                (expansion)
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

Split = tuple[int, ...]  # a node of the trie is a prefix of a split
ROOT, TINY = (), np.finfo(np.float32).tiny


class Choice(NamedTuple):
    """One comparison: the next atom proposes a child of the node, else *stop*: a token ends."""

    place: int  # index of the atom that proposes
    row: int  # index of the target's row
    node: Split
    stop: bool
    ends: int  # the target token that enters the text if the proposal is accepted, or -1
    next_node: Split
    narrowed: Split  # the node at which the same atom has just proposed *stop*, or ROOT
    target_prob: float = 0.0  # P
    draft_prob: float = 0.0  # Q
    left: float = 1.0  # Q of that *stop*: the atom is now known not to be a child of `narrowed`
    before: float = 1.0  # r of `verification.lifted` before this comparison,
    after: float = 1.0  # and after it
    behind: int = 0  # number of comparisons that follow this one,
    most: float = 1.0  # and an upper bound for r after any of them


class Lifting:
    """The trie of splits (target side) and the paths of atoms (draft side); fixed during a round.

    splits: target token -> its split; if several tokens share a split, the lowest id is covered.
    spellings: draft token (not an atom) -> the target tokens that spell it; draft_size: V_q.

    >>> lifting = Lifting({7: (1,), 8: (1, 2)}, {3: (7, 8)}, 4)
    >>> lifting.paths, lifting.order.tolist(), lifting.token, lifting.children(ROOT)
    ([None, (1,), (2,), (1, 1, 2)], [7, 8], {(1, 2): 8, (1,): 7}, Counter({1: 2}))
    """

    def __init__(self, splits: dict[int, Split], spellings: dict[int, Sequence[int]],
                 draft_size: int) -> None:
        self.splits, self._kept = splits, {}
        self.paths: list[Split | None] = [None] * draft_size  # per draft token: its atoms, or None
        for token, spelling in spellings.items():
            if None not in (parts := [*map(splits.get, spelling)]):
                self.paths[token] = tuple(chain.from_iterable(parts))
        for atom in {*chain.from_iterable(splits.values())}:
            self.paths[atom] = (atom,)
        # Each split -> the lowest token with it. In split order what is below a node is a range.
        self.token = dict(sorted(zip(splits.values(), splits, strict=True), reverse=True))
        self.order = np.array([*self.token.values()][::-1], np.int64)
        self._sorted = [*self.token][::-1]
        # Nearly every draft token is an atom that no other's path begins with.
        begun = Counter(path[0] for path in self.paths if path)
        self.alone = np.array([p == (i,) and begun[i] == 1 for i, p in enumerate(self.paths)])

    def kept(self, what: Any, make: Callable[[], Any]) -> Any:
        """The result of `make`, computed once."""
        if what not in self._kept:
            self._kept[what] = make()
        return self._kept[what]

    index = kept  # ids (..., n) that index rows of probabilities: tensors with `lifting_torch`

    def added(self, index: Any, values: Any, size: int) -> Any:
        """Values (n,) summed by their index: (size,)."""
        made = np.zeros(size, values.dtype)
        np.add.at(made, index, values)
        return made

    # ---- target side ----------------------------------------------------------------------------
    def below(self, node: Split) -> np.ndarray:
        """Target tokens (n,) whose split passes through `node`, its own token first."""
        return self.kept(("below", node), lambda: self.order[slice(*(
            bisect_left(self._sorted, end) for end in (node, (*node, inf))))])

    def children(self, node: Split) -> Counter[int]:
        """Atoms that lead to children of `node` -> how many tokens are at or below each child."""
        return self.kept(("children", node), lambda: Counter(
            self.splits[to][len(node)] for to in self.below(node)[node in self.token:].tolist()))

    def atoms(self, node: Split) -> np.ndarray:
        """The atoms (C,) that lead to the children of `node`."""
        return self.kept(("atoms", node), lambda: np.array([*self.children(node)], np.int64))

    def categories(self, node: Split, target_size: int) -> np.ndarray:
        """The category (n,) of each target token that is possible at `node`.

        The category is the number of the child that a token is at or below, else C.
        """
        sizes = [*self.children(node).values()]
        below, category = self.below(node), np.full(target_size, len(sizes))
        category[below[node in self.token:]] = np.repeat(np.arange(len(sizes)), sizes)
        return category if node == ROOT else category[below]

    def members(self, node: Split, category: int, target_size: int) -> np.ndarray:
        """The target tokens in one of the `categories` of `node`."""
        if category < len(atoms := self.atoms(node)):
            return self.below((*node, int(atoms[category])))
        return (np.flatnonzero(self.categories(node, target_size) == category) if node == ROOT
                else self.below(node)[:node in self.token])

    def choice(self, node: Split, target_probs: np.ndarray,
               draft_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The atoms (C,) of the children of `node`; P and Q (C + 1,) of these and of the rest.

        target_probs: the target's row (V_p,); draft_probs: Q (V_q,) of the next atom. Inside the
        trie the rest is *stop*, the node's own token t_n: P(child) = mass(child) / mass(node),
        P(stop) = p(t_n) / mass(node), Q(stop) = 1 - sum Q(child), as any atom that is not a child
        proposes *stop*. At the root it is the uncovered tokens, which no atom proposes: Q = 0.
        """
        atoms, size = self.atoms(node), len(target_probs)
        category = self.index(("categories", node, size), lambda: self.categories(node, size))
        if node != ROOT:
            target_probs = target_probs[self.index(("below", node), lambda: self.below(node))]
        masses = self.added(category, target_probs, len(atoms) + 1)
        drafted = draft_probs[self.index(("atoms and one", node), lambda: np.append(atoms, 0))]
        drafted[-1] = 0.0
        if node != ROOT:
            masses = masses / masses.sum().clip(TINY)
            drafted[-1] = (1.0 - drafted.sum()).clip(0)
        return atoms, masses, drafted

    def route(self, atoms: Sequence[int | None]) -> Iterator[Choice]:
        """The comparisons of a round in which every proposal is accepted; P and Q are not set yet.

        They end with the atoms, or where the atom is not a child and no token ends at the node.
        """
        place, row, node, narrowed = 0, 0, ROOT, ROOT
        while place < len(atoms):
            is_child = atoms[place] in self.children(node)
            here, stop = (*node, atoms[place]) if is_child else node, not is_child and node != ROOT
            whole = not (is_child and self.children(here))
            ends = self.token.get(here, -1) if whole else -1  # a token, if this is accepted
            next_node = ROOT if whole else here
            yield Choice(place, row, node, stop, ends, next_node, narrowed)
            if whole and ends < 0:
                return
            place, row = place + is_child, row + whole
            node, narrowed = next_node, node if stop else ROOT

    def walk(self, atoms: Sequence[int | None]) -> tuple[list[int], list[int]]:
        """Target tokens that the atoms spell along their route, and how many atoms each takes.

        A token that ends with the last atom counts, even if longer ones begin with the same atoms.
        """
        steps = [step for step in self.route([*atoms, None]) if step.ends >= 0]
        taken = [step.place + (not step.stop) for step in steps]  # atoms up to each end
        return [step.ends for step in steps], [b - a for a, b in pairwise([0, *taken])]

    # ---- draft side -----------------------------------------------------------------------------
    def distribution(self, draft_probs: np.ndarray, prefix: Split) -> np.ndarray:
        """Q (V_q,) of the atom after `prefix`, given that the drawn token's path continues it.

        draft_probs: the row (V_q,) that it was drawn from. Tokens without a path are left out.
        """
        pairs = self.continuing(prefix)
        tokens, atoms = self.index(("adds", prefix), lambda: (
            pairs if prefix else pairs[:, ~self.alone[pairs[1]]]))
        some = draft_probs[tokens]
        if prefix:
            return self.added(atoms, some / some.sum().clip(TINY), len(draft_probs))
        alone = draft_probs * self.index("alone", lambda: self.alone)
        return self.added(atoms, some, len(draft_probs)) + alone

    def after(self, prefix: Split) -> dict[int, list[int]]:
        """Next atom -> the draft tokens whose path continues `prefix` with that atom."""
        def make() -> dict[int, list[int]]:
            size, found = len(prefix), {}
            inside = self.after(prefix[:-1]).get(prefix[-1], ()) if size else range(len(self.paths))
            for token in inside:
                for atom in (self.paths[token] or ())[size:size + 1]:
                    found.setdefault(atom, []).append(token)
            return found
        return self.kept(("after", prefix), make)

    def continuing(self, prefix: Split) -> np.ndarray:
        """The draft tokens whose path continues `prefix`, and their next atoms: (2, n)."""
        pairs = ((token, atom) for atom, some in self.after(prefix).items() for token in some)
        return self.kept(("continuing", prefix),
                         lambda: np.array([*pairs], np.int64).reshape(-1, 2).T)

    def longer(self, draft_token: int) -> list[int]:
        """Draft tokens whose path extends this token's path; if there are any, it can be healed."""
        path = self.paths[draft_token]
        return sorted(self.continuing(path)[0].tolist()) if path else []

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[np.ndarray],
               in_text: Split = ()) -> tuple[list[int | None], list[tuple[np.ndarray, Split]]]:
        """The atoms of the drawn tokens; for each its token's row and that token's earlier atoms.

        A token without a path has None as its atom. `in_text`: the atoms of a healed context token.
        The first path begins with them, and they are in the text already.
        """
        atoms: list[int | None] = []
        drawn: list[tuple[np.ndarray, Split]] = []
        for draft_token, row in zip(draft_tokens, draft_probs, strict=True):
            path = self.paths[draft_token] or (None,)
            atoms += path[len(in_text):]
            drawn += [(row, path[:place]) for place in range(len(in_text), len(path))]
            in_text = ()
        return atoms, drawn

    def sums(self, wanted: Iterable[tuple[np.ndarray, Any]]) -> Iterator[float]:
        """For each (row, ids), the sum of row[ids], computed when it is asked for."""
        return (float(row[ids[0]] if len(ids) == 1 else row[ids].sum()) if len(ids) else 0.0
                for row, ids in wanted)
