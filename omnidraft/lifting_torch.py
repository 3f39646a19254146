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
        atoms = self._kept(("atoms", node), lambda: upload(self.atoms(node), self.device))
        tokens, category = self._kept(("categories", node, len(target_probs)), lambda: [
            upload(ids, self.device) if isinstance(ids, np.ndarray) else ids
            for ids in self.categories(node, len(target_probs))])
        masses = target_probs.new_zeros(len(atoms) + 1)
        masses.index_add_(0, category, target_probs[tokens])
        drafted = draft_probs.index_select(0, atoms)
        draft_end = drafted.new_zeros(1)
        if node != ROOT:
            masses = masses / masses.sum()
            draft_end = (1.0 - drafted.sum(0, keepdim=True)).clamp(min=0)
        return atoms, masses, torch.cat([drafted, draft_end])

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
        """For each (row, ids) the sum of row[ids]; one copy for all."""
        if not (wanted := list(wanted)):
            return
        rows, ids = zip(*wanted, strict=True)
        sizes = [len(some) for some in ids]
        places = upload(np.concatenate(ids), self.device).split(sizes)
        found = [row.index_select(0, place) for row, place in zip(rows, places, strict=True)]
        values = iter(torch.cat(found).tolist())
        yield from (sum(islice(values, size), 0.0) for size in sizes)
