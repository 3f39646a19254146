"""Torch twin of `lifting.py`: the rows of both models on the device, the trie and the paths on the host.

Sums over whole rows of the target cost as much as their softmax. But which masses and laws a round compares is known
on the host, so `ragged_sums` gathers only what they consist of, and a whole law is computed only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from . import lifting
from .lifting import ROOT, Split


def upload(values: np.ndarray | Sequence, device: torch.device | str) -> Tensor:
    """Integers as an index tensor on the device, without waiting for it."""
    made = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    return made.to(device, non_blocking=torch.device(device).type == "cuda")


def ragged_sums(*tables: tuple[Tensor, Sequence[int], Sequence[Sequence[int]]]) -> list[list[float]]:
    """For each (table (R, V), rows, columns): the sums of table[rows[i], columns[i]], lists of any length; one copy for all.

    >>> ragged_sums((torch.tensor([[1.0, 2.0, 4.0]]), [0, 0], [[0, 2], []]))
    [[5.0, 0.0]]
    """
    values = []
    for table, rows, columns in tables:
        flat = np.concatenate(columns) + np.repeat(np.multiply(rows, table.shape[1]), [len(some) for some in columns])
        values.append(table.reshape(-1).index_select(0, upload(flat, table.device)))
    gathered = iter(torch.cat(values).tolist())
    return [[sum(islice(gathered, len(some)), 0.0) for some in columns] for _, _, columns in tables]


class Lifting:
    """A NumPy lifting, `host`, with index tensors on `device`, for target rows of `target_size` = V_p entries.

    >>> host = lifting.Lifting({7: (1,), 8: (1, 2)}, [None, (1,), (2,)])
    >>> Lifting(host, 9).first_law(torch.tensor([0.5, 0.2, 0.3]))
    tensor([0.0000, 0.2000, 0.3000])
    """

    def __init__(self, host: lifting.Lifting, target_size: int, device: torch.device | str = "cpu") -> None:
        self.host, self.device = host, device
        self.paths, self.walk, self.longer = host.paths, host.walk, host.longer
        begins = np.full(target_size, len(host.paths))
        begins[host.order] = [host.splits[token][0] for token in host.order.tolist()]
        self._begins = upload(begins, device)  # (V_p,) first atom of each target token, V_q where it has no split
        self._pairs = {(): [(token, path[0]) for token, path in enumerate(host.paths) if path]} | host._longer
        self._after: dict[Split, dict[int, list[int]]] = {}
        own = [path is not None and path[0] == token for token, path in enumerate(host.paths)]
        self._own = torch.tensor(own, dtype=torch.float32, device=device)  # (V_q,) 1 where a draft token begins with itself
        others = [pair for pair in self._pairs[()] if not own[pair[0]]]
        self._others = upload(np.reshape(others, (-1, 2)).T, device)  # (2, E) those that begin with another atom, and that atom

    def after(self, prefix: Split) -> dict[int, list[int]]:
        """Next atom -> the draft tokens whose path goes on with it from `prefix` (as `first_law` and `next_law` say)."""
        if prefix not in self._after:
            made = self._after[prefix] = {}
            for token, atom in self._pairs[prefix]:
                made.setdefault(atom, []).append(token)
        return self._after[prefix]

    def categories(self, node: int, target_probs: Tensor, law: Tensor) -> tuple[Tensor, Tensor]:
        """P and Q (V_q + 1,) at `node`: by the next atom, and last what ends here; Q holds where P > 0 only.

        target_probs: the target's row (V_p,), law: Q (V_q,) of the next atom. The residual is that of `Lifting.choice` (NumPy).
        """
        host, begins, end = self.host, self._begins, law.new_zeros(1)
        if node != ROOT:
            atoms, children = list(host.children[node]), host.children[node].values()
            sizes = [int(host.token[node] >= 0), *(host.last[child] - host.first[child] for child in children)]
            begins = upload(np.repeat([len(law), *atoms], sizes), law.device)  # *stop* comes first in the node's range
            target_probs = target_probs.index_select(0, upload(host.below(node), law.device))
            target_probs = target_probs / target_probs.sum()
            end = (1 - law.index_select(0, upload(atoms, law.device)).sum(0, keepdim=True)).clamp(min=0)
        target_law = target_probs.new_zeros(len(law) + 1).scatter_add_(0, begins, target_probs)
        return target_law, torch.cat([law, end])

    def first_law(self, draft_probs: Tensor) -> Tensor:
        """Q(a) (V_q,): probability that the drawn token's path begins with a; what has no path is left out."""
        return (draft_probs * self._own).index_add_(0, self._others[1], draft_probs.index_select(0, self._others[0]))

    def next_law(self, draft_probs: Tensor, prefix: Split) -> Tensor:
        """Q(a) (V_q,): law of the atom after `prefix`, given that the drawn token's path goes on from it."""
        tokens, atoms = upload(np.transpose(self._pairs[prefix]), draft_probs.device)
        some = draft_probs.index_select(0, tokens)
        total = some.sum()
        return torch.zeros_like(draft_probs).index_add_(0, atoms, some / torch.where(total > 0, total, 1.0))

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[Tensor] | Tensor,
               in_text: Split = ()) -> tuple[list[int | None], Laws]:
        """The atoms (n,) of the drawn tokens, and the laws (n, V_q) that they were drawn from; see `lifting`.

        >>> atoms, laws = Lifting(lifting.Lifting({0: (0,)}, [(0,)]), 1).reveal([0], [torch.ones(1)])
        >>> atoms, laws[0]
        ([0], tensor([1.]))
        """
        atoms: list[int | None] = []
        drawn: list[tuple[int, Split]] = []  # per atom: which row, and the atoms of its draft token before it
        for row, draft_token in enumerate(draft_tokens):
            path = self.paths[draft_token]
            if path is None:
                return [*atoms, None], Laws(self, draft_probs, [*drawn, (row, ())])
            places = range(0 if row else len(in_text), len(path))
            atoms += [path[place] for place in places]
            drawn += [(row, path[:place]) for place in places]
        return atoms, Laws(self, draft_probs, drawn)


class Laws(Sequence):
    """The laws of a round's atoms: laws[i] is Q (V_q,) of atom i, computed when it is asked for."""

    def __init__(self, lifting: Lifting, draft_probs: Sequence[Tensor] | Tensor, drawn: list[tuple[int, Split]]) -> None:
        self.lifting, self.drawn = lifting, drawn
        self.rows = [row.to(lifting.device) for row in draft_probs]

    @cached_property
    def draft_probs(self) -> Tensor:
        """The rows that the draft tokens were drawn from, (k, V_q), where the target's are."""
        return torch.stack(self.rows)

    def __len__(self) -> int:
        return len(self.drawn)

    def __getitem__(self, place: int) -> Tensor:
        row, prefix = self.drawn[place]
        q = self.rows[row]
        return self.lifting.next_law(q, prefix) if prefix else self.lifting.first_law(q)

    def parts(self, place: int, atoms: Sequence[int]) -> tuple[int, list[int], list[int]]:
        """Where the probability of `atoms` is found: the row, their draft tokens, and those it is relative to ([]: all)."""
        row, prefix = self.drawn[place]
        after = self.lifting.after(prefix)
        tokens = [token for atom in atoms for token in after.get(atom, ())]
        return row, tokens, [token for some in after.values() for token in some] if prefix else []
