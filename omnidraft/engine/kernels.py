"""Matrix products for passes of 1-16 tokens: a weight layout chosen by a short measurement.

The gain of speculative decoding depends on them. One token is a matrix-vector product (gemv), which
reads the weights once. Several are a matrix product (gemm), for which BLAS first copies the weights
into another order: with plain `x @ W` two tokens cost 2.4 times as much as one. Four remedies:

- *alone*: one gemv per token while the matrix is in the cache; a second costs half of the first;
- *padding* to a multiple of 2 or 4 tokens, for which OpenBLAS's kernels are made (3 cost more);
- *blocks* of 64 outputs, which OpenBLAS's AVX-512 kernels multiply without a copy (one token is
  then often cheaper if padded to two);
- *packing*: a second copy of the weights, packed once for OpenBLAS's AVX2 kernel (`packed`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from . import packed

BLOCK = 64  # outputs per block, if there are blocks


@dataclass(frozen=True)
class Layout:
    """How the weights are stored and how passes run over them."""

    block: int = 0  # outputs per block; 0: all outputs of a matrix in one block
    alone: int = 1  # passes of up to this many tokens: one gemv per token
    multiple: int = 1  # longer passes: one gemm, padded to a multiple of this many tokens
    packed: bool = False  # up to 32 tokens, this gemm uses weights that were packed once

    def __str__(self) -> str:
        return (f"{f'blocks of {self.block} outputs' if self.block else 'plain matrices'}, "
                f"gemv per token up to {self.alone}, gemm{' on packed weights' * self.packed} "
                f"padded to multiples of {self.multiple}")


class Linear:
    """x W^T + b for a few tokens x (m, in); W (out, in) is kept as (blocks, in, outputs per block).

    >>> Linear(np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]))(np.array([[1.0, 1.0]]))
    array([[3., 7., 1.]])
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None,
                 layout: Layout = Layout()):
        self.outputs, self.layout, self.bias = len(weight), layout, bias
        self.blocks = packed.panels(weight, layout.block or self.outputs)
        self.matrix = self.blocks[0] if len(self.blocks) == 1 and layout.alone else None
        use_packed = layout.packed and weight.dtype == np.float32 and packed.kernel()
        self.panels = packed.panels(weight) if use_packed else None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if len(x) == 1 and self.matrix is not None:  # the simple case, without the general overhead
            y = x @ self.matrix
        else:
            y = multiply(x, self.blocks, self.layout, self.panels)[:, :self.outputs]
        return y if self.bias is None else y + self.bias


def multiply(x: np.ndarray, blocks: np.ndarray, layout: Layout,
             panels: np.ndarray | None = None) -> np.ndarray:
    """Tokens (m, in) times weights (blocks, in, outputs): (m, blocks · outputs, or 8 · panels)."""
    tokens = len(x)
    if tokens <= layout.alone:  # (blocks, m, 1, outputs): all tokens use a block before the next
        y = x[:, None] @ blocks[:, None]
    elif panels is not None and tokens <= packed.LONGEST:
        return packed.product(x, panels)
    else:
        y = (packed.padded(x, layout.multiple) @ blocks)[:, :tokens]  # (blocks, m, outputs)
    return y.swapaxes(0, 1).reshape(tokens, -1)


@cache
def choose_layout(shapes: tuple[tuple[int, int], ...], dtype: str = "float32",
                  twice: bool = False) -> Layout:
    """The fastest layout for matrices with these shapes (in, out); measured once per process.

    It times passes over up to a million made-up weights, for about 30 ms, with packed weights if
    they may be stored `twice` and `packed` has a kernel, otherwise with blocks.
    """
    begin = time.perf_counter()
    numbers = np.full(1_000_000, 0.01, dtype)
    sample: list[tuple[np.ndarray, np.ndarray]] = []  # tokens (8, in); weights, a view of `numbers`
    for inputs, outputs in shapes:
        outputs = min(-(-outputs // BLOCK), len(numbers) // (inputs * BLOCK)) * BLOCK
        weights, numbers = np.split(numbers, [inputs * outputs])
        if outputs:
            sample.append((np.full((8, inputs), 0.01, dtype), weights))

    def seconds(kind: Layout, m: int) -> float:
        """Time one pass of m tokens over the whole sample."""
        start = time.perf_counter()
        for x, weights in sample:
            inputs = x.shape[1]
            blocks = weights.reshape(-1, inputs, kind.block or len(weights) // inputs)
            panels = weights.reshape(-1, inputs, packed.OUTPUTS) if kind.packed else None
            multiply(x[:m], blocks, kind, panels)
        return time.perf_counter() - start

    has_kernel = twice and dtype == "float32" and packed.kernel() is not None
    kinds = [Layout(), Layout(packed=True) if has_kernel else Layout(BLOCK)]
    passes = [(2, 1), (2, 2), (0, 1), (0, 2), (0, 4), (0, 8)]  # (most tokens alone, tokens)
    best = {kind: [float("inf")] * len(passes) for kind in kinds}
    for repeat in range(12):
        for kind, times in best.items():  # keep the minimum: other programs only slow a pass down
            times[:] = [min(before, seconds(replace(kind, alone=alone, multiple=2), m))
                        for before, (alone, m) in zip(times, passes, strict=True)]
        if repeat >= 2 and time.perf_counter() - begin > 0.03:
            break
    return decide(best)


def decide(times: Mapping[Layout, list[float]]) -> Layout:
    """The layout with the lowest total cost of passes of 1, 2, 4 and 8 tokens.

    `times` has for each kind of layout, plain matrices first, the cost of 1 and 2 tokens alone and
    of 1 (padded to two), 2, 4 and 8 in one gemm. Blocks must be faster by a quarter.
    """
    found = {}
    for kind, (one, two, padded, *gemm) in times.items():
        multiple = 4 if kind.packed or gemm[0] > gemm[1] else 2  # if two tokens cost more than four
        alone = [one + (m - 1) * (two - one) for m in range(1, 9)]
        together = [float(np.interp(m + -m % multiple, (2, 4, 8), gemm)) for m in range(1, 9)]
        together[0] = padded if multiple == 2 else together[0]
        up_to = next((m for m in range(6) if alone[m] > together[m]), 6)
        cost = sum(alone[m - 1] if m <= up_to else together[m - 1] for m in (1, 2, 4, 8))
        found[replace(kind, alone=up_to, multiple=multiple)] = cost * (1.25 if kind.block else 1)
    return min(found, key=found.get)
