"""Torch twin of `lifting.py`: the same trie and paths, for rows of both models on any device."""

from collections.abc import Iterable, Iterator, Sequence
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
    """The NumPy lifting `host` for tensors on `device`; sums over whole rows are done there."""

    def __init__(self, host: lifting.Lifting, device: torch.device | str = "cpu") -> None:
        vars(self).update(vars(host), host=host, device=device)  # shared, not copied

    def uploaded(self, what: Any, ids: Any) -> Tensor:
        """Ids as a tensor, uploaded once for a device."""
        return self.kept((str(self.device), what), lambda: upload(ids, self.device))

    def choice(self, node: int, target_probs: Tensor,
               draft_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = len(target_probs)
        tokens, category = self.categories(node, size)
        atoms = self.uploaded(("atoms", node), self.atoms(node))
        if node != ROOT:
            target_probs = target_probs[self.uploaded(("tokens", node), tokens)]
        masses = target_probs.new_zeros(len(atoms) + 1)
        masses.index_add_(0, self.uploaded(("categories", node, size), category), target_probs)
        drafted = draft_probs.index_select(0, atoms)
        draft_end = drafted.new_zeros(1)
        if node != ROOT:
            masses = masses / masses.sum()
            draft_end = (1.0 - drafted.sum(0, keepdim=True)).clamp(min=0)
        return atoms, masses, torch.cat([drafted, draft_end])

    def distribution(self, draft_probs: Tensor, prefix: Split) -> Tensor:
        tokens, atoms = self.uploaded(("continuing", prefix), self.continuing(prefix))
        some = draft_probs.index_select(0, tokens)
        if prefix:
            some = some / some.sum().clamp(min=torch.finfo(some.dtype).tiny)
        return torch.zeros_like(draft_probs).index_add_(0, atoms, some)

    def reveal(self, draft_tokens: Sequence[int], draft_probs: Sequence[Tensor],
               in_text: Split = ()) -> tuple[list[int | None], list[tuple[Tensor, Split]]]:
        rows = [row.to(self.device) for row in draft_probs]
        return super().reveal(draft_tokens, rows, in_text)

    def sums(self, wanted: Iterable[tuple[Tensor, Any]]) -> Iterator[float]:
        """For each (row, ids) the sum of row[ids]; one copy for all, of these entries only."""
        if not (wanted := list(wanted)):
            return
        rows, ids = zip(*wanted, strict=True)
        sizes = [len(some) for some in ids]
        places = upload(np.concatenate(ids), self.device).split(sizes)
        found = [row.index_select(0, place) for row, place in zip(rows, places, strict=True)]
        values = iter(torch.cat(found).tolist())
        yield from (sum(islice(values, size), 0.0) for size in sizes)
