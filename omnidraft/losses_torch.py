"""Distillation losses in PyTorch: the same comparisons as in `losses`, all at once, differentiated by autograd.

Public names, arguments and order are those of `losses` (arXiv 2507.02659, Eq. 2 to 4; `lifted` is this project's own).
draft_logits: a tensor (N, V_q) on any device. Returned are the value as a tensor of no dimensions, None instead of the
gradient (call `value.backward()`), and the count. float64 is kept, every other type is computed in float32.

>>> logits = model(torch.tensor([example.draft_ids])).logits[0]  # doctest: +SKIP
>>> value, _, count = lifted(logits, example, pair); (value / count).backward()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from .losses import DIVERGENCES, FLOOR, TINY, Comparison, Example, direct_comparisons, lifted_comparisons, make_example
from .pairing import Pairing as Pair

__all__ = ["DIVERGENCES", "LOSSES", "Example", "dm", "hybrid", "hybrid_kl", "lifted", "make_example"]
Result = tuple[torch.Tensor, None, int]


def dm(draft_logits: torch.Tensor, example: Example, pair: Pair) -> Result:
    """Sum of KL(q' || p), both restricted to shared tokens and renormalised, where the text has a direct pair (Eq. 3)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair))


def hybrid(draft_logits: torch.Tensor, example: Example, pair: Pair, weight: float | str = 0.2) -> Result:
    """dm + weight * sum of -log q(d_j) over the draft tokens of n-grams (Eq. 3 and 4); weight "dynamic" is p(t)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight))


def hybrid_kl(draft_logits: torch.Tensor, example: Example, pair: Pair, weight: float | str = 0.2) -> Result:
    """dm + weight * KL(q' || p) over the shared tokens and t, once for each n-gram (Eq. 2, renormalised)."""
    return _total(draft_logits, direct_comparisons(draft_logits.shape, example, pair, weight, merge=True))


def lifted(draft_logits: torch.Tensor, example: Example, pair: Pair, divergence: str = "forward") -> Result:
    """Sum of "forward" KL(P || Q), "reverse" KL(Q || P) or "tv" over the choices of lossless verification for the text."""
    return _total(draft_logits, lifted_comparisons(draft_logits.shape, example, pair, divergence))


LOSSES = {"dm": dm, "hybrid": hybrid, "hybrid-kl": hybrid_kl, "lifted": lifted}


def _total(draft_logits: torch.Tensor, comparisons: Iterable[Comparison]) -> Result:
    """The sum over the comparisons; 0, with a graph, where there are none."""
    comparisons = list(comparisons)
    logits = draft_logits if draft_logits.dtype == torch.float64 else draft_logits.float()
    value = logits[:0].sum()
    for kind in DIVERGENCES:
        group = [comparison for comparison in comparisons if comparison.divergence == kind]
        if group:
            weights = logits.new_tensor([comparison.weight for comparison in group])  # (B,)
            value = value + weights @ _divergence(_target_laws(group).to(logits), _draft_laws(logits, group), kind)
    return value, None, len(comparisons)


def _target_laws(group: list[Comparison]) -> torch.Tensor:
    """P (B, C) of all comparisons, the shorter ones with zeros at their end."""
    laws = np.zeros((len(group), max(len(comparison.target_law) for comparison in group)))
    for row, comparison in zip(laws, group, strict=True):
        row[:len(comparison.target_law)] = comparison.target_law / comparison.target_law.sum(dtype=float)
    return torch.from_numpy(laws)


def _draft_laws(logits: torch.Tensor, group: list[Comparison]) -> torch.Tensor:
    """Q (B, C) of all comparisons: softmax, sums by category, n-grams moved to their own (Eq. 2), normalised."""
    slots = torch.from_numpy(np.stack([comparison.categories for comparison in group]) + 1).to(logits.device)  # (B, W)
    size = max(len(comparison.target_law) for comparison in group) + 1  # slot 0: outside
    rows = torch.tensor([comparison.row for comparison in group], device=logits.device)
    ngrams = [(b, comparison) for b, comparison in enumerate(group) if comparison.ngram]
    inside = slots > 0
    for b, comparison in ngrams:
        inside[b, comparison.ngram[0]] = True  # d_1 may have no direct token
    known = logits[:, :slots.shape[1]]  # (N, W)
    weights = known[rows].masked_fill(~inside, -torch.inf).softmax(-1)  # (B, W)
    masses = weights.new_zeros(len(group), size).scatter_add(1, slots, weights)
    if ngrams:
        log_probs = known.log_softmax(-1)
        products = torch.stack([
            weights[b, c.ngram[0]] * torch.stack([log_probs[c.row + j, d] for j, d in enumerate(c.ngram[1:], 1)]).sum().exp()
            for b, c in ngrams])
        places = torch.tensor([b for b, _ in ngrams], device=logits.device)
        first = slots[places, torch.tensor([c.ngram[0] for _, c in ngrams], device=logits.device)]
        merged = torch.tensor([c.merged + 1 for _, c in ngrams], device=logits.device)
        masses = masses.index_put((places, first), -products, accumulate=True)
        masses = masses.index_put((places, merged), products, accumulate=True)
    return masses[:, 1:] / masses[:, 1:].sum(-1, keepdim=True)


def _divergence(target_laws: torch.Tensor, draft_laws: torch.Tensor, kind: str) -> torch.Tensor:
    """Divergence (B,) of P (B, C) and Q (B, C)."""
    if kind == "tv":
        return 1.0 - torch.minimum(target_laws, draft_laws).sum(-1)
    log_ratio = (draft_laws.clamp(min=TINY) / target_laws.clamp(min=FLOOR)).log()
    return (draft_laws * log_ratio).sum(-1) if kind == "reverse" else -(target_laws * log_ratio).sum(-1)
