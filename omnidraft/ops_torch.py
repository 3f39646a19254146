"""Torch twin of `ops.py`: logits, probabilities and drawn tokens stay on the models' device.

Copied from it are, in each round: the drafted tokens, once, at their end; a healed token; what verification compares and
draws (see `verification_torch`); and with a stop rule that asks for it, every drafted token with its probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import lifting, ops, sampling, sampling_torch
from .lifting_torch import Lifting, upload
from .sampling_torch import Uniforms, in_place, mask, process
from .stopping_torch import AcceptanceHead
from .translation_torch import Translated
from .verification_torch import exact_match, greedy, lossless, rejection_sampling

__all__ = ["exact_match", "greedy", "lossless", "mask", "process", "rejection_sampling", "Translated"]
LOOK = False  # unless the stop rule asks: the host would wait for the device
inference = torch.inference_mode


def draws(uniforms: sampling.Uniforms | Uniforms) -> Uniforms:
    """The same draws for weights on a device."""
    return uniforms if isinstance(uniforms, Uniforms) else Uniforms(uniforms)


def lift(host: lifting.Lifting, target: Any) -> Lifting:
    """The lifting's twin for a target's rows, made once."""
    place = target.vocab_size, target.device
    if place not in host.twins:
        host.twins[place] = Lifting(host, *place)
    return host.twins[place]


def to_host(tokens: Sequence[Tensor], size: int) -> list[int]:
    """Tokens drawn from a vocabulary of `size`, in one copy; raises OmnidraftError where the logits were broken."""
    return sampling_torch.to_host(torch.cat([token.view(1) for token in tokens]), size) if len(tokens) else []


def to_numpy(logits: Tensor) -> np.ndarray:
    """Rows of logits for whoever wants NumPy's."""
    return logits.cpu().numpy()


def wait(logits: Tensor) -> Tensor:
    """The logits once they are there, so that the seconds of a model are its own."""
    if logits.is_cuda:
        torch.cuda.synchronize(logits.device)
    return logits


def new_cache(model: Any) -> Any:
    """A cache with which `model.forward` gives tensors."""
    return model.new_cache(on_device=True)


def head_of(given: Any, model: Any) -> Any:
    """The twin of a stop rule's acceptance head, on the drafter's device; None if it has none."""
    return given and AcceptanceHead.of({name: torch.as_tensor(array, device=model.device)
                                        for name, array in given.parameters.items()})


def allow(ids: Sequence[int], model: Any) -> Tensor:
    """What to add to a row of logits (V,) so that all but `ids` are ruled out."""
    row = torch.full((model.vocab_size,), -torch.inf, device=model.device)
    return row.index_fill_(0, upload(ids, model.device), 0.0)


def rows(logits: Tensor, make: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """What `make` gives for each row of logits (n, V): on a device made at once, else when it is asked for."""
    return sampling.Rows(logits, make) if sampling_torch.on_host(logits) else make(logits)


def best(logits: Tensor) -> Tensor:
    """The argmax (n,) of each row (n, V); of a broken one -1, which `to_host` refuses."""
    if sampling_torch.on_host(logits):
        array = in_place(logits)
        return torch.from_numpy(np.where(np.isfinite(array.max(-1)), array.argmax(-1), -1))
    places = logits.argmax(-1)
    return torch.where(logits.gather(-1, places[:, None])[:, 0].abs() < torch.inf, places, -1)


def look(token: Tensor, row: Tensor, temperature: float) -> tuple[int, float]:
    """A drawn token and its probability, in one copy; `row` (V,) holds probabilities, at temperature 0 logits."""
    if sampling_torch.on_host(row):
        [place] = to_host([token], len(row))
        return ops.look(place, in_place(row), temperature)
    token = token.view(1)
    prob = row.index_select(0, token.clamp(0, len(row) - 1)) if temperature else row.softmax(-1).amax(-1, keepdim=True)
    drawn, probability = torch.cat([token.to(row.dtype), prob]).tolist()
    return int(drawn), probability


def peak(row: Tensor, temperature: float) -> float:
    """The largest probability of such a row: that of the token that temperature 0 draws."""
    if sampling_torch.on_host(row):
        return ops.peak(in_place(row), temperature)
    return (row if temperature else row.softmax(-1)).amax().item()


def entropy(row: Tensor, temperature: float) -> float:
    """Entropy in nats of such a row."""
    return torch.special.entr(row if temperature else row.softmax(-1)).sum().item()
