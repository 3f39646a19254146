"""Torch twin of `losses.py`: the same terms on the drafter's device, differentiated by autograd.

What is compared is decided on the host, from ids alone. The rows of both models stay on the device.
Those of the target may be an array or a tensor of any float type.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import losses
from .losses import FLOOR, TINY, Example, Term
from .pairing import Pairing
from .sampling_torch import Lifting, upload

Result = tuple[Tensor, Tensor]  # the sum, which can be differentiated, and the number of terms


def dm(draft_logits: Tensor, example: Example, pair: Pairing) -> Result:
    """As `losses.dm`, for logits (N, V_q)."""
    return hybrid(draft_logits, example, pair, weight=0.0)


def hybrid(draft_logits: Tensor, example: Example, pair: Pairing,
           weight: float | str = 0.2) -> Result:
    """As `losses.hybrid`."""
    example, index = _on_device(draft_logits, example)
    terms = losses.hybrid_terms(draft_logits.shape, example, pair, weight, index)
    return _total(draft_logits, terms)


def lifted(draft_logits: Tensor, example: Example, pair: Pairing,
           divergence: str = "forward") -> Result:
    """As `losses.lifted`: `loss, count = lifted(...)`, and then `(loss / count).backward()`."""
    lifting = Lifting(pair.lifting, draft_logits.device)
    example, index = _on_device(draft_logits, example)
    terms = losses.lifted_terms(draft_logits.shape, example, pair, divergence, lifting, index)
    return _total(draft_logits, terms)


LOSSES = {"dm": dm, "hybrid": hybrid, "lifted": lifted}


def _on_device(draft_logits: Tensor, example: Example) -> tuple[Example, Any]:
    """The example with its rows on the drafter's device, and what makes index tensors there."""
    device, dtype = draft_logits.device, torch.promote_types(draft_logits.dtype, torch.float32)
    rows = torch.as_tensor(example.target_probs).to(device, dtype)  # (M, V_p)
    return replace(example, target_probs=rows), partial(upload, device=device)


def _total(draft_logits: Tensor, terms: Iterable[Term]) -> Result:
    """The sum of the terms; those with the same categories, B of them, are computed together."""
    rows = draft_logits.unbind()  # subtle: indexing would make a gradient (N, V_q) for each group
    value = count = draft_logits[:0].sum()  # subtle: without any term `backward` gives zeros
    groups: dict[Any, list[Term]] = {}
    for term in terms:
        groups.setdefault((id(term.categories), term.divergence), []).append(term)
    for group in groups.values():
        categories = group[0].categories  # (W,)
        logits = torch.stack([rows[term.row][:len(categories)] for term in group])  # (B, W)
        target = torch.stack([term.target for term in group])  # (B, C)
        values, counts = _divergence(target, logits, categories, group[0].divergence)  # (B,)
        weights = torch.stack([values.new_zeros(()) + term.weight for term in group])
        value, count = value + weights @ values, count + counts.sum()
    return value, count.detach()


def _divergence(target: Tensor, logits: Tensor, categories: Tensor,
                kind: str) -> tuple[Tensor, Tensor]:
    """Divergences (B,) of P and Q (B, C), and which count: 1, or 0 for those without any P."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    least = torch.finfo(logits.dtype).min  # not -inf: perhaps no token is in any category
    q = logits.masked_fill(categories < 0, least).softmax(-1)  # (B, W)
    Q = q.new_zeros(len(q), target.shape[1] + 1)  # one more, at index 0, for no category
    Q = Q.scatter_add(1, (categories + 1).expand_as(q), q)[:, 1:]
    mass = target.to(q.dtype).sum(-1, keepdim=True)  # (B, 1)
    P = target / mass.clamp(min=TINY)
    log_ratio = Q.clamp(min=TINY).log() - P.clamp(min=FLOOR).log()
    if kind == "tv":
        values = 1 - torch.minimum(P, Q).sum(-1)
    elif kind == "reverse":
        values = (Q * log_ratio).sum(-1)
    else:
        values = -(P * log_ratio).sum(-1)
    counts = (mass[:, 0] > 0).to(values)  # subtle: not an `if`, which would wait for the device
    return values * counts, counts
