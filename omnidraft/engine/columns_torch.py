"""Passes of a few tokens by PyTorch on a CPU: W x^T instead of x W^T.

What verification gains depends on what a few tokens cost at once (see `kernels`). With x W^T four
cost twice one; with W x^T MKL reads the weights as they lie. Measured with
125 M parameters in float32 on an AVX2 CPU, a pass over 4 tokens takes 70 instead of 101 ms; over
8 and more the two were equal within the noise.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear, pad

FULL = (4, 8, 16)  # the numbers of columns that MKL's kernels are made for
SAMPLE = 16_000_000  # weights that `pays` runs over
CACHED = 2_000_000  # weights that fit a processor's cache: then there is nothing to gain


class Columns(Linear):
    """A linear layer that multiplies 2 to 16 tokens as columns: the same numbers.

    >>> Columns(2, 3)(torch.ones(1, 5, 2)).shape
    torch.Size([1, 5, 3])
    """

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b for x (..., in): one product with the tokens as columns if they are few."""
        tokens = x.shape[:-1].numel()
        if not 1 < tokens <= FULL[-1]:
            return linear(x, self.weight, self.bias)
        full = next(full for full in FULL if full >= tokens)
        columns = pad(x.reshape(tokens, -1), (0, 0, 0, full - tokens)).t()  # (in, full)
        y = torch.mm(self.weight, columns)  # (out, full)
        if self.bias is not None:
            y += self.bias[:, None]
        return y.t()[:tokens].reshape(*x.shape[:-1], -1)


def with_columns(model: Any) -> Any:
    """The model with `Columns` for its linear layers, on the same weights; `model` stays as it is.

    >>> with_columns(model).lm_head.weight is model.lm_head.weight  # doctest: +SKIP
    True
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)  # subtle: what `shared` holds is not copied
    for part in other.modules():
        if type(part) is Linear:  # subtle: quantized layers and adapters are of derived classes
            part.__class__ = Columns
    return other


def pays(model: Any) -> bool:
    """Whether 4 tokens are faster as columns, measured on some of the model's matrices (50 ms)."""
    parts = [part for part in model.modules() if type(part) is Linear]
    while sum(part.weight.numel() for part in parts) > SAMPLE:
        parts.pop()
    if sum(part.weight.numel() for part in parts) < CACHED or model.dtype != torch.float32:
        return False
    best = {Linear: float("inf"), Columns: float("inf")}
    with torch.no_grad():
        for kind in 5 * [*best]:
            began = time.perf_counter()
            for part in parts:
                kind.forward(part, part.weight.new_ones(FULL[0], part.in_features))
            best[kind] = min(best[kind], time.perf_counter() - began)
    return best[Columns] < 0.8 * best[Linear]
