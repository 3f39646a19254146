"""Matrix products for passes of 1-16 tokens: a weight layout chosen by a short measurement.

The gain of speculative decoding depends on them. One token is a matrix-vector product (gemv), which
reads the weights once. Several are a matrix product (gemm), for which BLAS first copies the weights
into another order: with plain `x @ W` two tokens cost 2.4 times as much as one. Four remedies:

- *alone*: one gemv per token while the matrix is in the cache; a second costs half of the first,
  but a whole one if the matrix is larger than the cache;
- *padding* to a multiple of 2, 4 or 8 tokens, for which OpenBLAS's kernels are made (3 cost more);
- *blocks* of 64 outputs, which OpenBLAS's AVX-512 kernels multiply without a copy (one token is
  then often cheaper if padded to two);
- *packing* the weights once for OpenBLAS's AVX2 kernel (`packed`), which runs passes of any length.
  A small model keeps its plain weights as well, if a gemv over them is faster for one token.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from . import packed

BLOCK = 64  # outputs per block, if there are blocks
SMALL, LARGE = 2**20, 2**24  # weights that are timed for a small model, for a large one (64 MB)
WORTH = 1.05  # a second copy of the weights must save so much


@dataclass(frozen=True)
class Layout:
    """How the weights are stored and how passes run over them."""

    block: int = 0  # outputs per block; 0: all outputs of a matrix in one block
    alone: int = 1  # passes of up to this many tokens: one gemv per token
    multiple: int = 1  # longer passes: one gemm, padded to a multiple of this many tokens
    packed: bool = False  # this gemm uses packed weights; the plain ones are kept if `alone`

    def __str__(self) -> str:
        weights = f"blocks of {self.block} outputs" if self.block else "plain matrices"
        if self.packed and not self.alone:
            return "packed weights, padded to multiples of 4"
        on = " on packed weights" if self.packed else ""
        return (f"{weights}, gemv per token up to {self.alone}, gemm{on} padded to multiples of "
                f"{self.multiple}")


class Linear:
    """x W^T + b for a few tokens x (m, in).

    W (out, in) is kept as `panels` (`packed`), as `blocks` (blocks, in, outputs per block), or, if
    that is faster for one token, as both.

    >>> Linear(np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]))(np.array([[1.0, 1.0]]))
    array([[3., 7., 1.]])
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None,
                 layout: Layout = Layout()):
        (self.outputs, self.inputs), self.layout, self.bias = weight.shape, layout, bias
        use_packed = layout.packed and weight.dtype == np.float32 and packed.kernel()
        self.panels = packed.panels(weight) if use_packed else None
        self.blocks = self.matrix = None
        if layout.alone or not use_packed:
            self.blocks = packed.panels(weight, layout.block or self.outputs)
            if len(self.blocks) == 1 and layout.alone:
                self.matrix = self.blocks[0]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if len(x) == 1 and self.matrix is not None:  # the simple case, without the general overhead
            y = x @ self.matrix
        else:
            y = multiply(x, self.blocks, self.layout, self.panels)[:, :self.outputs]
        return y if self.bias is None else y + self.bias

    @property
    def weights(self) -> list[np.ndarray]:
        """The arrays that hold the weights: one, or two if the weights are kept twice."""
        return [array for array in (self.panels, self.blocks) if array is not None]


def multiply(x: np.ndarray, blocks: np.ndarray | None, layout: Layout,
             panels: np.ndarray | None = None) -> np.ndarray:
    """Tokens (m, in) times weights (blocks, in, outputs): (m, blocks · outputs, or 8 · panels)."""
    tokens = len(x)
    if tokens <= layout.alone:  # (blocks, m, 1, outputs): all tokens use a block before the next
        y = x[:, None] @ blocks[:, None]
    elif panels is not None:
        return packed.product(x, panels)
    else:
        y = (packed.padded(x, layout.multiple) @ blocks)[:, :tokens]  # (blocks, m, outputs)
    return y.swapaxes(0, 1).reshape(tokens, -1)


@cache
def choose_layout(shapes: tuple[tuple[int, int], ...], dtype: str = "float32",
                  large: bool = False) -> Layout:
    """The fastest layout for matrices with these shapes (in, out); measured once per process.

    It times passes over up to a million made-up weights, for about 30 ms. For a `large` model they
    are 16 million, in about 0.4 s: what holds for weights in the processor's cache does not hold
    for larger ones. Packed weights are timed if `packed` has a kernel, otherwise blocks. A large
    model keeps its weights once: it has plain or packed ones.
    """
    begin = time.perf_counter()
    numbers = np.full(LARGE if large else SMALL, 0.01, dtype)
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

    has_kernel = dtype == "float32" and packed.kernel() is not None
    kinds = [Layout(), Layout(packed=True) if has_kernel else Layout(BLOCK)]
    passes = [(2, 1), (2, 2), (0, 1), (0, 2), (0, 4), (0, 8)]  # (most tokens alone, tokens)
    best = {kind: [float("inf")] * len(passes) for kind in kinds}
    for repeat in range(12):
        for kind, times in best.items():  # keep the minimum: other programs only slow a pass down
            times[:] = [min(before, seconds(replace(kind, alone=alone, multiple=2), m))
                        for before, (alone, m) in zip(times, passes, strict=True)]
        if repeat >= 2 and time.perf_counter() - begin > 0.03:
            break
    if large and has_kernel:  # no plain weights next to packed ones, so no gemv over them
        best[kinds[1]][:2] = [float("inf")] * 2
    return decide(best)


def decide(times: Mapping[Layout, list[float]]) -> Layout:
    """The layout with the lowest total cost of passes of 1, 2, 4 and 8 tokens.

    `times` has for each kind of layout, plain matrices first, the cost of 1 and 2 tokens alone and
    of 1 (padded to two, unless packed), 2, 4 and 8 in one gemm. Blocks must be faster by a quarter.
    In the result no pass of 2 to 8 tokens costs more than a longer one: it is padded instead.
    """
    found = {}
    for kind, (one, two, single, *gemm) in times.items():
        if kind.packed:  # a gemv needs a second copy of the weights
            one, two = WORTH * one, WORTH * two
        further = two - one  # what each token after the first costs, alone
        alone = [one, *(two + (m - 2) * further for m in range(2, 9))]
        multiple = padding(kind, gemm)
        together = [float(np.interp(m + -m % multiple, (2, 4, 8), gemm)) for m in range(1, 9)]
        if kind.packed or multiple == 2:
            together[0] = single
        up_to = next((m for m in range(6) if alone[m] > together[m]), 6)
        cost = sum(alone[m - 1] if m <= up_to else together[m - 1] for m in (1, 2, 4, 8))
        found[replace(kind, alone=up_to, multiple=multiple)] = cost * (1.25 if kind.block else 1)
    return min(found, key=found.get)


def padding(kind: Layout, gemm: list[float]) -> int:
    """How many tokens a gemm is padded to a multiple of, given the cost of 2, 4 and 8."""
    if kind.packed:
        return packed.TOKENS
    two, four, eight = gemm
    if four > eight:
        return 8
    return 4 if two > four else 2
