"""Torch twin of `verification.py`: the same rules, for rows of both models on any device.

A rule decides on the host, from few numbers, so it is the same code. Whole rows stay on the device:
they are summed by `lifting_torch.Lifting` and drawn from by `sampling_torch.Uniforms`, in which
these functions wrap what they are given. The host waits for at most four copies a round: what the
proposals need, the sums of the residuals, and one or two drawn tokens. (The decoding loop makes
both once for a text, by `sampling_torch.Sampler`, and calls the functions of `verification`.)
"""

from collections.abc import Sequence

from torch import Tensor

from . import lifting_torch, sampling, sampling_torch, verification
from .lifting import Lifting, Origin
from .verification import RULES, Verdict, ratio, residual

__all__ = ["RULES", "Verdict", "acceptances", "exact_match", "lifted", "ratio",
           "rejection_sampling", "residual"]


def exact_match(proposals: Sequence[int], choices: Tensor) -> Verdict:
    """As `verification.exact_match`, for choices (m + 1,) on a device; one copy.

    >>> import torch
    >>> exact_match([5, 7], torch.tensor([5, 6, 2]))  # 7 is rejected, and 6 is written instead
    Verdict(emitted=[5, 6], last='recovered')
    """
    return verification.exact_match(proposals, choices.tolist())


def rejection_sampling(proposals: Sequence[int], draft_probs: Sequence[Tensor],
                       target_probs: Sequence[Tensor], uniforms: sampling.Uniforms,
                       proposed: Sequence[Tensor] | None = None) -> Verdict:
    """As `verification.rejection_sampling`; two copies."""
    uniforms = sampling_torch.wrapped(uniforms)
    return verification.rejection_sampling(proposals, draft_probs, target_probs, uniforms, proposed)


def lifted(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
           target_probs: Tensor, uniforms: sampling.Uniforms, limit: int | None = None) -> Verdict:
    """As `verification.lifted`, for target_probs (m + 1, V_p) on a device; up to four copies."""
    twin, origins = _there(lifting, origins, target_probs)
    uniforms = sampling_torch.wrapped(uniforms)
    return verification.lifted(atoms, origins, twin, target_probs, uniforms, limit)


def acceptances(atoms: Sequence[int | None], origins: Sequence[Origin], lifting: Lifting,
                target_probs: Tensor) -> list[float]:
    """As `verification.acceptances`; one copy."""
    twin, origins = _there(lifting, origins, target_probs)
    return verification.acceptances(atoms, origins, twin, target_probs)


def _there(lifting: Lifting, origins: Sequence[Origin],
           target_probs: Tensor) -> tuple[Lifting, list[Origin]]:
    """The lifting, and the drafter's rows, on the device of the target's rows."""
    device = target_probs.device
    if not isinstance(lifting, lifting_torch.Lifting):
        lifting = lifting_torch.Lifting(lifting, device)
    return lifting, [(row.to(device), prefix) for row, prefix in origins]
