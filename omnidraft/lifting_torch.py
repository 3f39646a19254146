"""Torch twin of `lifting.py`: the same trie and paths, for rows of both models on any device.

Which masses a round compares is known on the host, so `sums` gathers only what they consist of, in
one copy, and a whole distribution is computed only where a rejection asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import lifting
from .lifting import ROOT, Split


def upload(ids: np.ndarray | Sequence[int], device: torch.device | str) -> Tensor:
    """Ids (n,) as an index tensor on the device, without waiting for it."""
    made = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))
    return made.to(device, non_blocking=torch.device(device).type == "cuda")


def on_host(tensor: Tensor) -> bool:
    """Whether reading a number of it makes nobody wait."""
    return tensor.is_cpu


class Lifting(lifting.Lifting):
    """The NumPy lifting `host` for tensors on `device`; what adds up whole rows is done there.

    >>> host = lifting.Lifting({7: (1,), 8: (1, 2)}, [None, (1,), (2,)])
    >>> Lifting(host).distribution(torch.tensor([0.5, 0.2, 0.3]), ())
    tensor([0.0000, 0.2000, 0.3000])
    """

    def __init__(self, host: lifting.Lifting, device: torch.device | str = "cpu") -> None:
        vars(self).update(vars(host))  # shared, not copied
        self.host, self.device = host, device

    def choice(self, node: int, target_probs: Tensor,
               draft_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The atoms (C,) of the children of `node`, and P and Q (C + 1,); see `lifting`."""
        atoms, below, of_child = self._kept(node, lambda: self._indices(node))
        masses = target_probs.index_select(0, below)
        own = len(below) - len(of_child)  # 1 where a token ends at the node: it comes first
        draft_masses, end = draft_probs.index_select(0, atoms), masses[:own].sum(0, keepdim=True)
        children = masses.new_zeros(len(atoms)).index_add_(0, of_child, masses[own:])
        if node == ROOT:
            size = len(target_probs)
            uncovered = self._kept((size,), lambda: upload(self.uncovered(size), self.device))
            end = target_probs.index_select(0, uncovered).sum(0, keepdim=True)
            draft_end = torch.zeros_like(end)
        else:
            total = masses.sum()
            children, end = children / total, end / total
            draft_end = (1.0 - draft_masses.sum(0, keepdim=True)).clamp(min=0)
        return atoms, torch.cat([children, end]), torch.cat([draft_masses, draft_end])

    def _indices(self, node: int) -> tuple[Tensor, Tensor, Tensor]:
        """The children's atoms (C,), the tokens below the node, and which child each is below."""
        sizes = [self.last[child] - self.first[child] for child in self.children[node].values()]
        of_child = np.repeat(np.arange(len(sizes)), sizes)
        parts = [*self.children[node]], self.below(node), of_child
        return tuple(upload(ids, self.device) for ids in parts)

    def _kept(self, what: Any, make: Callable[[], Any]) -> Any:
        """Index tensors, made and uploaded once for a device."""
        key = str(self.device), what
        if key not in self._tensors:
            self._tensors[key] = make()
        return self._tensors[key]

    def distribution(self, draft_probs: Tensor, prefix: Split) -> Tensor:
        """Q (V_q,) of the atom after `prefix`, given that the path continues; see `lifting`."""
        if not prefix:
            first = self._kept("first", lambda: upload(self.first_atom, self.device))
            return draft_probs.new_zeros(len(self.paths) + 1).index_add_(0, first, draft_probs)[1:]
        tokens, atoms = upload(np.transpose(self._longer[prefix]), draft_probs.device)
        some = draft_probs.index_select(0, tokens)
        total = some.sum()
        return torch.zeros_like(draft_probs).index_add_(
            0, atoms, some / torch.where(total > 0, total, 1.0))

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[Tensor],
               in_text: Split = ()) -> tuple[list[int | None], list[tuple[Tensor, Split]]]:
        """The atoms of the drawn tokens and what each was drawn from; see `lifting`."""
        rows = [row.to(self.device) for row in draft_probs]
        return super().reveal(draft_tokens, rows, in_text)

    def sums(self, wanted: Iterable[tuple[Tensor, Any]]) -> Iterator[float]:
        """For each (row, ids) the sum of row[ids]; one copy for all rows that are on a device."""
        if on_host(torch.empty(0, device=self.device)):
            yield from (sum(row.numpy()[ids].tolist()) for row, ids in wanted)
            return
        if not (wanted := list(wanted)):
            return
        rows, ids = zip(*wanted, strict=True)
        sizes = [len(some) for some in ids]
        places = upload(np.concatenate(ids), self.device).split(sizes)
        found = [row.index_select(0, place) for row, place in zip(rows, places, strict=True)]
        values = iter(torch.cat(found).tolist())
        yield from (sum(islice(values, size), 0.0) for size in sizes)
