"""Distillation losses in PyTorch: the comparisons of `losses`, all at once, with autograd.

Public names, arguments and order are those of `losses` (arXiv 2507.02659, Eq. 2 to 4).
draft_logits: a tensor (N, V_q) on any device. Returned are the value as a tensor, None instead of
the gradient (call `value.backward()`), and the count. Types other than float64 run in float32.

>>> value, _, count = lifted(model(ids).logits[0], example, pair)  # doctest: +SKIP
>>> (value / count).backward()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from .losses import (
    DIVERGENCES,
    FLOOR,
    TINY,
    Comparison,
    Example,
    direct_comparisons,
    lifted_comparisons,
    make_example,
)
from .pairing import Pairing

__all__ = ["DIVERGENCES", "LOSSES", "Example",
           "dm", "hybrid", "hybrid_kl", "lifted", "make_example"]
Result = tuple[Tensor, None, int]


def dm(draft_logits: Tensor, example: Example, pair: Pairing) -> Result:
    """`losses.dm` (Eq. 3)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair))


def hybrid(draft_logits: Tensor, example: Example, pair: Pairing,
           weight: float | str = 0.2) -> Result:
    """`losses.hybrid` (Eq. 3 and 4)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight))


def hybrid_kl(draft_logits: Tensor, example: Example, pair: Pairing,
              weight: float | str = 0.2) -> Result:
    """`losses.hybrid_kl` (Eq. 2)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight, True))


def lifted(draft_logits: Tensor, example: Example, pair: Pairing,
           divergence: str = "forward") -> Result:
    """`losses.lifted`, this project's own."""
    return _total(draft_logits, lifted_comparisons(draft_logits.shape, example, pair, divergence))


LOSSES = {"dm": dm, "hybrid": hybrid, "hybrid-kl": hybrid_kl, "lifted": lifted}


def _total(draft_logits: Tensor, comparisons: Iterable[Comparison]) -> Result:
    """The sum over the comparisons; 0, with a graph, where there are none."""
    comparisons = list(comparisons)
    logits = draft_logits if draft_logits.dtype == torch.float64 else draft_logits.float()
    value = logits[:0].sum()
    for kind in DIVERGENCES:
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
    """Q (B, C): softmax, sums by category, n-grams moved to their own (Eq. 2), normalised."""
    slots = np.stack([c.categories for c in group]) + 1  # (B, W); 0: in no category
    slots = torch.from_numpy(slots).to(logits.device)
    inside = slots > 0
    for b, c in enumerate(group):
        inside[b, [*c.ngram[:1]]] = True  # d_1 may have no direct token
    known = logits[:, :slots.shape[1]]  # (N, W)
    weights = known[[c.row for c in group]].masked_fill(~inside, -torch.inf).softmax(-1)  # (B, W)
    masses = weights.new_zeros(len(group), size + 1).scatter_add(1, slots, weights)
    log_probs = known.log_softmax(-1) if any(c.ngram for c in group) else known
    for b, c in enumerate(group):
        if c.ngram:
            later = range(c.row + 1, c.row + len(c.ngram))
            product = weights[b, c.ngram[0]] * log_probs[later, c.ngram[1:]].sum().exp()
            at = torch.tensor([c.categories[c.ngram[0]] + 1, c.merged + 1], device=logits.device)
            change = torch.stack([-product, product])
            masses.index_put_((torch.full_like(at, b), at), change, accumulate=True)
    return masses[:, 1:] / masses[:, 1:].sum(-1, keepdim=True)


def _divergence(target: Tensor, draft: Tensor, kind: str) -> Tensor:
    """The divergences (B,) of P (B, C) and Q (B, C)."""
    if kind == "tv":
        return 1.0 - torch.minimum(target, draft).sum(-1)
    log_ratio = (draft.clamp(min=TINY) / target.clamp(min=FLOOR)).log()
    return (draft * log_ratio).sum(-1) if kind == "reverse" else -(target * log_ratio).sum(-1)
