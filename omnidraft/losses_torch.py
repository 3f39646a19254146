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

from . import losses
from .losses import DIVERGENCES, FLOOR, TINY, Comparison, Example, make_example
from .pairing import Pairing

__all__ = ["DIVERGENCES", "LOSSES", "Example",
           "dm", "hybrid", "hybrid_kl", "lifted", "make_example"]
Result = tuple[Tensor, None, int]


def dm(draft_logits: Tensor, example: Example, pair: Pairing) -> Result:
    """Sum of KL(q' || p), renormalised on the shared tokens, at direct pairs (Eq. 3)."""
    return _total(draft_logits, losses.direct_comparisons(draft_logits.shape, example, pair))


def hybrid(draft_logits: Tensor, example: Example, pair: Pairing,
           weight: float | str = 0.2) -> Result:
    """dm + weight * sum of -log q(d_j) over the draft tokens of n-grams (Eq. 3 and 4)."""
    comparisons = losses.direct_comparisons(draft_logits.shape, example, pair, weight)
    return _total(draft_logits, comparisons)


def hybrid_kl(draft_logits: Tensor, example: Example, pair: Pairing,
              weight: float | str = 0.2) -> Result:
    """dm + weight * KL(q' || p) over the shared tokens and t, once per n-gram (Eq. 2)."""
    comparisons = losses.direct_comparisons(draft_logits.shape, example, pair, weight, merge=True)
    return _total(draft_logits, comparisons)


def lifted(draft_logits: Tensor, example: Example, pair: Pairing,
           divergence: str = "forward") -> Result:
    """Sum of "forward" KL(P || Q), "reverse" KL(Q || P) or "tv" over verification's choices."""
    comparisons = losses.lifted_comparisons(draft_logits.shape, example, pair, divergence)
    return _total(draft_logits, comparisons)


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
    ngrams = [(b, c) for b, c in enumerate(group) if c.ngram]
    if ngrams:
        log_probs = known.log_softmax(-1)
        rest = [sum(log_probs[c.row + j, d] for j, d in enumerate(c.ngram) if j) for _, c in ngrams]
        products = torch.stack([weights[b, c.ngram[0]] * r.exp()
                                for (b, c), r in zip(ngrams, rest, strict=True)])
        at = [(b, int(c.categories[c.ngram[0]]) + 1, c.merged + 1) for b, c in ngrams]
        b, first, merged = torch.tensor(at, device=logits.device).T
        masses = masses.index_put((b, first), -products, accumulate=True)
        masses = masses.index_put((b, merged), products, accumulate=True)
    return masses[:, 1:] / masses[:, 1:].sum(-1, keepdim=True)


def _divergence(target: Tensor, draft: Tensor, kind: str) -> Tensor:
    """The divergences (B,) of P (B, C) and Q (B, C)."""
    if kind == "tv":
        return 1.0 - torch.minimum(target, draft).sum(-1)
    log_ratio = (draft.clamp(min=TINY) / target.clamp(min=FLOOR)).log()
    return (draft * log_ratio).sum(-1) if kind == "reverse" else -(target * log_ratio).sum(-1)
