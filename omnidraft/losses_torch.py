"""Distillation losses in PyTorch: the comparisons of `losses`, all at once, with autograd.

draft_logits: a tensor (N, V_q) on any device; all types but float64 are computed in float32.
Returned are the value (call its `backward()`), None instead of the gradient, and the count.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from . import losses
from .losses import Comparison, Example, direct_comparisons, lifted_comparisons, make_example
from .pairing import Pairing

__all__ = ["LOSSES", "Example", "dm", "hybrid", "lifted", "make_example"]
Result = tuple[Tensor, None, int]


def dm(draft_logits: Tensor, example: Example, pair: Pairing) -> Result:
    """`losses.dm` (Eq. 3)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair))


def hybrid(draft_logits: Tensor, example: Example, pair: Pairing,
           weight: float | str = 0.2) -> Result:
    """`losses.hybrid` (Eq. 3 and 4)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight))


def lifted(draft_logits: Tensor, example: Example, pair: Pairing,
           divergence: str = "forward") -> Result:
    """`losses.lifted`, this project's own."""
    return _total(draft_logits, lifted_comparisons(draft_logits.shape, example, pair, divergence))


LOSSES = {"dm": dm, "hybrid": hybrid, "lifted": lifted}


def _total(draft_logits: Tensor, comparisons: Iterable[Comparison]) -> Result:
    """The sum over the comparisons; 0, with a graph, where there are none."""
    comparisons = list(comparisons)
    logits = draft_logits if draft_logits.dtype == torch.float64 else draft_logits.float()
    value = logits[:0].sum()
    for kind in losses.DIVERGENCES:
        group = [c for c in comparisons if c.divergence == kind]
        if group:
            targets = np.zeros((len(group), max(len(c.target) for c in group)))  # (B, C) P
            for row, c in zip(targets, group, strict=True):
                row[:len(c.target)] = c.target / c.target.sum(dtype=float)
            weights = logits.new_tensor([c.weight for c in group])  # (B,)
            drafts = _draft(logits, group, targets.shape[1])
            target = torch.from_numpy(targets).to(logits)
            value = value + weights @ _divergence(target, drafts, kind)
    return value, None, len(comparisons)


def _draft(logits: Tensor, group: list[Comparison], size: int) -> Tensor:
    """Q (B, C): softmax over the categories' tokens, summed by category."""
    slots = np.stack([c.categories for c in group]) + 1  # (B, W); 0: in no category
    slots = torch.from_numpy(slots).to(logits.device)
    rows = logits[[c.row for c in group], :slots.shape[1]].masked_fill(slots == 0, -torch.inf)
    masses = rows.new_zeros(len(group), size + 1).scatter_add(1, slots, rows.softmax(-1))
    return masses[:, 1:]


def _divergence(target: Tensor, draft: Tensor, kind: str) -> Tensor:
    """The divergences (B,) of P (B, C) and Q (B, C)."""
    if kind == "tv":
        return 1.0 - torch.minimum(target, draft).sum(-1)
    log_ratio = (draft.clamp(min=losses.TINY) / target.clamp(min=losses.FLOOR)).log()
    return (draft * log_ratio).sum(-1) if kind == "reverse" else -(target * log_ratio).sum(-1)
