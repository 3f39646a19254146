"""Lifting: both models' distributions expressed over the drafter's sub-tokens ("atoms").

This project's own. It makes p and q comparable, whatever the two tokenizers are. An example: the
target writes a, b and ab with p = 0.4, 0.2, 0.4; the drafter a, b and ba with q = 0.5, 0.2, 0.3.

Target side. Every covered target token t has one *split* s(t) into draft tokens: the draft token
with the same bytes if there is one, else its n-gram. The draft tokens in splits are the *atoms*.
Here s(a) = (a), s(b) = (b), s(ab) = (a, b). The splits form a trie; a node is a prefix of a split,
and its mass is the sum of p(t) at or below it:

    root 1.0 ──┬── a 0.8 ──── a, b 0.4    at the root:  P(a) = 0.8, P(b) = 0.2
               └── b 0.2                  at node (a):  P(b) = 0.4 / 0.8, P(*stop*) = 0.4 / 0.8

*Stop* means that the token of the node ends: the text goes on at the root, with the next row p.

Draft side. Every draft token has a *path* of atoms: itself if it is an atom, else the splits of the
target tokens that spell it, else none. Here ba has the path (b, a) = s(b) s(a), two target tokens
(an expansion). A round draws draft tokens and reveals their atoms one at a time:

    first atom:             Q(a) = 0.5, Q(b) = 0.2 + 0.3
    after the b of ba:      Q(a) = 1
    after all of a token:   the next one is drawn, from the next row q

Each atom proposes the child of the node that it leads to, or *stop* if there is none. The draft a,
ba is the atoms a, b, a. They propose a, then its child b, where ab ends; then a, from the root.
P and Q of every proposal are known, so a rule can judge them (`verification.lifted`).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

Split = tuple[int, ...]  # a node of the trie is a prefix of a split
Origin = tuple[Any, Split]  # of an atom: its token's row (V_q,), and that token's earlier atoms
ROOT, TINY = (), np.finfo(np.float32).tiny


class Comparison(NamedTuple):
    """One step of a round through the trie: P and Q are compared at `node`, where an atom proposes.

    In the example above, the second atom of the draft a, ba has place 1, node (a,), child (b,),
    ends ab, and next_node ROOT. `row` is 0, since no target token has ended before.
    """

    place: int  # index of the atom that proposes
    row: int  # index of the target's row
    node: Split
    child: Split  # the atom, if it proposes a child of the node, else ()
    stop: bool  # does the atom propose *stop*?
    ends: int  # the target token that enters the text if the proposal is accepted, or -1
    next_node: Split  # the node after that
    stopped_at: Split  # the node at which the same atom has just proposed *stop*, or ROOT
    target_prob: float = 0.0  # P of the proposal (from here on set by `verification.comparisons`)
    draft_prob: float = 0.0  # Q of the proposal
    stop_prob: float = 1.0  # Q of that *stop*: now the atom is no child of `stopped_at`
    before: float = 1.0  # r of `verification.lifted` before this comparison,
    after: float = 1.0  # and after it
    later: tuple[float, ...] = ()  # Q of the proposals that follow; 0 if the rows may hold zeros


class Lifting:
    """The trie of splits (target side) and the paths of atoms (draft side); fixed during a round.

    splits: target token -> its split; if several tokens share a split, the lowest id is covered.
    spellings: draft token (not an atom) -> the target tokens that spell it; draft_size: V_q.
    The example above, with target tokens 7 (a), 8 (b), 9 (ab), and draft tokens 1 (a), 2 (b),
    3 (ba); draft token 0 has no path:

    >>> lifting = Lifting({7: (1,), 8: (2,), 9: (1, 2)}, {3: (8, 7)}, 4)
    >>> lifting.paths, lifting.token
    ([None, (1,), (2,), (2, 1)], {(1,): 7, (1, 2): 9, (2,): 8})
    >>> lifting.children(ROOT), lifting.children((1,)), lifting.below((1,)).tolist()
    (Counter({1: 2, 2: 1}), Counter({2: 1}), [7, 9])
    """

    def __init__(self, splits: dict[int, Split], spellings: dict[int, Sequence[int]],
                 draft_size: int) -> None:
        self.splits = splits
        self.paths: list[Split | None] = [None] * draft_size  # per draft token: its atoms, or None
        for token, spelling in spellings.items():
            parts = [splits.get(target_token) for target_token in spelling]
            if None not in parts:
                self.paths[token] = tuple(chain.from_iterable(parts))
        for atom in set(chain.from_iterable(splits.values())):
            self.paths[atom] = (atom,)
        # The trie: each split -> its token (the lowest if several share it), in the order of the
        # splits. subtle: the nodes need not be stored, as what is below one is a range: (a), (a, b)
        # below node (a), and then (b).
        self.token: dict[Split, int] = {}
        for split, token in sorted(zip(splits.values(), splits, strict=True)):
            self.token.setdefault(split, token)
        self.order = np.array(list(self.token.values()), np.int64)
        self._ordered = list(self.token)
        # Nearly every draft token is an atom: 1.0 for these, so that their q counts for themselves.
        self.is_atom = np.array([path == (i,) for i, path in enumerate(self.paths)], np.float32)
        # The trie does not change: what these return for a node or a prefix is computed once.
        for name in ("below", "children", "atoms", "categories", "after", "continuing"):
            setattr(self, name, cache(getattr(self, name)))

    # ---- target side ----------------------------------------------------------------------------
    def below(self, node: Split) -> np.ndarray:
        """Target tokens (n,) whose split passes through `node`, its own token first."""
        first = bisect_left(self._ordered, node)
        end = bisect_left(self._ordered, node + (inf,))  # after every split that begins with node
        return self.order[first:end]

    def own(self, node: Split) -> np.ndarray:
        """The target token whose split is `node`: (1,), or (0,) if there is none."""
        return self.below(node)[:node in self.token]

    def children(self, node: Split) -> Counter[int]:
        """Atoms that lead to children of `node` -> how many tokens are at or below each child.

        Ascending; at the root of the example {a: 2, b: 1}, at node (a) {b: 1}.
        """
        inside = self.below(node)[len(self.own(node)):]  # without the node's own token
        return Counter([self.splits[token][len(node)] for token in inside.tolist()])

    def atoms(self, node: Split) -> np.ndarray:
        """The atoms (C,) that lead to the children of `node`; at the root all draft tokens."""
        if node == ROOT:
            return np.arange(len(self.paths))
        return np.array(list(self.children(node)), np.int64)

    def categories(self, node: Split, target_size: int) -> np.ndarray:
        """The category (n,) of each target token possible at `node`: its place in `atoms`.

        C, the one after the last, is *stop* inside the trie, and uncovered tokens at the root.
        At node (a) of the example `below` is a, ab, `atoms` is (b), so the categories are 1, 0.
        """
        found = self.children(node)
        counts = list(found.values())
        if node == ROOT:
            category = np.full(target_size, len(self.paths))  # not covered
            category[self.order] = np.repeat(list(found), counts)
            return category
        # As in `below`: the node's own token comes first, then child after child.
        places = [len(found)] + list(range(len(found)))
        return np.repeat(places, [len(self.own(node))] + counts)

    def members(self, node: Split, category: int, target_size: int) -> np.ndarray:
        """The target tokens in one of the `categories` of `node`."""
        atoms = self.atoms(node)
        if category < len(atoms):
            child = (int(atoms[category]),)
            return self.below(node + child)
        if node != ROOT:
            return self.own(node)
        return np.flatnonzero(self.categories(node, target_size) == category)

    def choice(self, node: Split, target_probs: np.ndarray,
               atom_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P and Q (C + 1,) over the categories of `node`: its `atoms` (C,), and the rest.

        target_probs: the target's row (V_p,); atom_probs: Q (V_q,) of the next atom. Inside the
        trie the rest is *stop*, the node's own token t_n: P(child) = mass(child) / mass(node),
        P(stop) = p(t_n) / mass(node), Q(stop) = 1 - sum Q(child), as any atom that is not a child
        proposes *stop*. At the root: uncovered tokens, Q = 0; atoms that begin no split have P = 0.
        """
        P = self.masses(node, target_probs)  # (C + 1,)
        Q = P * 0  # (C + 1,): zeros, of the same kind as P
        if node == ROOT:
            Q[:-1] = atom_probs  # also of atoms that begin no split
        else:
            Q[:-1] = atom_probs.take(self.index(self.atoms, node))  # the children
            Q[-1] = (1.0 - Q.sum()).clip(0)  # *stop*: any other atom
        return P, Q

    def masses(self, node: Split, target_probs: np.ndarray) -> np.ndarray:
        """P (C + 1,) of `choice`: the target's row (V_p,) summed over the categories of `node`."""
        category = self.index(self.categories, node, len(target_probs))  # (n,)
        size = len(self.atoms(node)) + 1
        if node == ROOT:
            return self.added(category, target_probs, size)
        inside = target_probs[self.index(self.below, node)]  # (n,)
        masses = self.added(category, inside, size)
        return masses / masses.sum().clip(TINY)

    def route(self, atoms: Sequence[int | None], rows: float = inf,
              limit: int | None = None) -> list[Comparison]:
        """The comparisons of a round in which every proposal is accepted; P and Q are not set yet.

        They end with the atoms, with the target's `rows` or the first `limit` of them, or where the
        atom is not a child and no token ends at the node.
        In the example the second 1 is not a child of node (1,): it proposes *stop*, and 7 ends.

        >>> route = Lifting({7: (1,), 8: (1, 2)}, {}, 3).route([1, 1, 2])
        >>> [(step.place, step.node, step.stop, step.ends) for step in route]
        [(0, (), False, -1), (1, (1,), True, 7), (1, (), False, -1), (2, (1,), False, 8)]
        """
        made = []
        place = row = 0
        node = stopped_at = ROOT
        if limit is not None:
            rows = min(limit, rows)
        while place < len(atoms) and row < rows:
            child = ()
            if atoms[place] in self.children(node):
                child = (atoms[place],)
            stop = not child and node != ROOT
            here = node + child
            if child and self.children(here):  # deeper in the trie
                ends = -1
                next_node = here
            else:  # a token ends here; if the atom is no child, the one before it does
                ends = self.token.get(here, -1)
                next_node = ROOT
            made.append(Comparison(place, row, node, child, stop, ends, next_node, stopped_at))
            if next_node == ROOT and ends < 0:
                break
            place += len(child)
            row += ends >= 0
            stopped_at = node if stop else ROOT
            node = next_node
        return made

    def walk(self, atoms: Sequence[int | None]) -> tuple[list[int], list[int]]:
        """Target tokens that the atoms spell along their route, and how many atoms each takes.

        A token that ends with the last atom counts, even if longer ones begin with the same atoms.
        """
        route = self.route(atoms)
        ends = {}  # number of atoms up to there -> the token that ends there
        for step in route:
            if step.ends >= 0:
                ends[step.place + len(step.child)] = step.ends
        if route and route[-1].next_node in self.token:
            ends[len(atoms)] = self.token[route[-1].next_node]
        lengths = [end - start for start, end in pairwise([0, *ends])]
        return list(ends.values()), lengths

    # ---- draft side -----------------------------------------------------------------------------
    def distribution(self, draft_probs: np.ndarray, prefix: Split) -> np.ndarray:
        """Q (V_q,) of the atom after `prefix`, given that the drawn token's path continues it.

        draft_probs: the row (V_q,) that it was drawn from. Tokens without a path are left out.
        """
        # Without the tokens that are atoms themselves: `is_atom` adds these below.
        tokens, atoms = self.index(self.continuing, prefix, False)
        probs = draft_probs.take(tokens)  # (n,)
        if prefix:
            return self.added(atoms, probs / probs.sum().clip(TINY), len(draft_probs))
        own = draft_probs * self.is_atom
        return self.added(atoms, probs, len(draft_probs), own)

    def after(self, prefix: Split) -> dict[int, list[int]]:
        """Next atom -> the draft tokens whose path continues `prefix` with that atom."""
        candidates = range(len(self.paths))
        if prefix:
            candidates = self.after(prefix[:-1]).get(prefix[-1], ())
        found = {}
        for token in candidates:
            path = self.paths[token] or ()
            if len(path) > len(prefix):
                found.setdefault(path[len(prefix)], []).append(token)
        return found

    def continuing(self, prefix: Split, atoms: bool = True) -> np.ndarray:
        """Draft tokens (`atoms` too?) whose path continues `prefix`; their next atoms: (2, n)."""
        found = self.after(prefix)
        tokens = np.array([*chain.from_iterable(found.values())], np.int64)
        sizes = [len(some) for some in found.values()]
        next_atoms = np.repeat(np.array([*found], np.int64), sizes)
        pairs = np.stack([tokens, next_atoms])
        return pairs if atoms else pairs[:, tokens != next_atoms]

    def longer(self, draft_token: int) -> list[int]:
        """Draft tokens whose path extends this token's path; if there are any, it can be healed."""
        path = self.paths[draft_token]
        if path is None:
            return []
        return sorted(chain.from_iterable(self.after(path).values()))

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[np.ndarray],
               in_text: Split = ()) -> tuple[list[int | None], list[Origin]]:
        """The atoms of the drawn tokens, and the origin of each.

        A token without a path has None as its atom. `in_text`: the atoms of a healed context token.
        The first path begins with them, and they are in the text already.

        >>> Lifting({7: (1,), 8: (2,)}, {3: (7, 8)}, 4).reveal([1, 3], ["row 1", "row 2"])
        ([1, 1, 2], [('row 1', ()), ('row 2', ()), ('row 2', (1,))])
        """
        atoms = []
        origins = []
        for draft_token, row in zip(draft_tokens, draft_probs, strict=True):
            path = self.paths[draft_token] or (None,)
            for place in range(len(in_text), len(path)):
                atoms.append(path[place])
                origins.append((row, path[:place]))
            in_text = ()
        return atoms, origins

    # ---- what the Torch twin replaces: read index(f, x) as f(x), and `added` as np.add.at --------
    def index(self, ids: Callable[..., np.ndarray], *of: Any) -> Any:
        """ids(*of): (n,) ids that index rows of probabilities; a tensor with `sampling_torch`."""
        return ids(*of)

    add_at = np.add.at  # (made, index, values), in place; PyTorch's models on a CPU have a faster

    def added(self, index: Any, values: Any, size: int, made: Any = None) -> Any:
        """Values (n,) summed by their index: (size,); added to `made`, in place, if it is given."""
        if made is None:
            made = np.zeros(size, values.dtype)
        self.add_at(made, index, values)
        return made
