"""Torch twin of `verification.py`: the same rules, for rows of both models on any device.

Whole rows stay on the device, where they are compared and drawn from. The host decides, as in NumPy
and from a few numbers, which come in as few copies, however long the draft is. `lifting`, `origins`
and `uniforms` are those of the twins. `exact_match` compares ids, so it has no twin.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .lifting import Comparison, Origin
from .lifting_torch import Lifting
from .sampling_torch import Uniforms
from .verification import Verdict, judged, labels, p_and_q, ratio, summed, written


def residual(target_probs: Tensor, draft_probs: Tensor, scale: float = 1.0) -> Tensor:
    """Weights max(0, scale p - q) (V,); at scale 1, p itself if all of them are 0 (p = q)."""
    left = (scale * target_probs - draft_probs).clamp(min=0)
    if scale == 1:
        left += target_probs * (left.max() == 0)  # subtle: an `if` would wait for the device
    return left


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[Tensor],
                       target_probs: Tensor, uniforms: Uniforms,
                       proposed: Sequence[Tensor | float] | None = None) -> Verdict:
    """As in NumPy; two copies: p and q of all proposals, and the token that is drawn."""
    m = len(proposals)
    if not proposed:
        proposed = [draft_probs[row][token] for row, token in enumerate(proposals)]
    wanted = [target_probs[row, token] for row, token in enumerate(proposals)]
    proposed = [torch.as_tensor(q).to(p) for p, q in zip(wanted, proposed, strict=True)]
    chances = torch.stack([*wanted, *proposed]).tolist() if m else []  # (2 m,)
    for row, (p, q) in enumerate(zip(chances[:m], chances[m:], strict=True)):
        if not uniforms.accept(ratio(p, q)):
            left = residual(target_probs[row], draft_probs[row])  # (V_p,)
            return Verdict([*proposals[:row], uniforms.choose(left)], "recovered")
    return Verdict([*proposals, uniforms.choose(target_probs[m])], "bonus")


def lifted(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
           target_probs: Tensor, uniforms: Uniforms, limit: int | None = None) -> Verdict:
    """As in NumPy; up to four copies: of `comparisons`, of `keep`, one or two drawn tokens."""
    steps = list(comparisons(atoms, origins, lifting, target_probs, limit))
    ended = keep(steps, origins, lifting, target_probs, uniforms)
    return written(*ended, lifting, target_probs, uniforms)


def keep(steps: list[Comparison], origins: Sequence[Origin], lifting: Lifting, target_probs: Tensor,
         uniforms: Uniforms) -> tuple[list[Comparison], Comparison | None, Any]:
    """As in NumPy; one copy: the Z of all residuals that may be needed."""
    if not steps or uniforms.accept(steps[-1].after):
        return steps, None, None
    draws = [uniforms.next() for _ in steps]
    last = max(i for i, step in enumerate(steps) if step.before == 1)  # there h = 1
    back = [i for i in range(len(steps) - 1, last, -1) if draws[i] < steps[i].before]
    left = {i: residual(*p_and_q(steps[i], origins, lifting, target_probs), steps[i].before)
            for i in [*back, last]}
    sums = torch.stack([left[i].sum() for i in back]).tolist() if back else []  # Z
    for i, z in zip(back, sums, strict=True):
        if draws[i] < z / (z + (1 - steps[i].before)):  # h
            return steps[:i], steps[i], left[i]
    return steps[:last], steps[last], left[last]


def comparisons(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Tensor, limit: int | None = None) -> Iterator[Comparison]:
    """As in NumPy; one copy: the entries of rows that are summed, and of each p its first one.

    That one is NaN where the row is broken.
    """
    route = lifting.route(atoms, len(target_probs), limit)
    wanted = []
    for step in route:
        q, p = origins[step.place][0], target_probs[step.row]
        proposing, possible, tokens = summed(step, origins, lifting)
        wanted += [(q, proposing), (q, possible), (p, tokens), (p, [0])]
    sums = lifting.sums(wanted)
    groups = zip(sums, sums, sums, sums, strict=True)  # subtle: one iterator, so the next four
    return judged(route, ((some, all_, mass + 0 * first) for some, all_, mass, first in groups))


def acceptances(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Tensor) -> list[float]:
    """As in NumPy; one copy."""
    return labels(comparisons(atoms, origins, lifting, target_probs))
