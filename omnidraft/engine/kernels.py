"""Matrix products for passes of 1–16 tokens: the weight layout, and its choice by a short measurement.

This decides what speculative decoding gains. One token is a matrix-vector product (gemv): it streams the weights once,
as fast as memory delivers them. Two or more are a matrix product (gemm), for which BLAS first repacks the weights:
with plain `x @ W` a pass of 2 tokens costs 2.4 times one token. Four cures, three of them on one array (blocks, in, outputs):

- *alone*: each token its own gemv while the matrix is still in the cache; the second then costs half of the first;
- *padding* the pass to a multiple of 4 tokens, for which OpenBLAS' AVX2 kernels are made (3 tokens cost more than 4);
- *blocks* of 64 outputs: OpenBLAS' AVX-512 kernels multiply matrices this small without repacking them;
- *packing* the weights once, for OpenBLAS' AVX2 kernel (`packed`), at the price of a second copy of them.

Which of them pay depends on the processor, the BLAS and the model's size, so `choose_layout` tries.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from . import packed

BLOCK = 64  # outputs per block where there are blocks
SAMPLE = 1_000_000  # weights that the measurement runs over


@dataclass(frozen=True)
class Layout:
    """How the weights lie and how passes run over them.

    >>> Layout(alone=3, multiple=4).padded(5)
    8
    """

    block: int = 0  # outputs per block, 0 = all outputs of a matrix in one
    alone: int = 1  # passes of up to this many tokens: one gemv per token
    multiple: int = 1  # longer passes: one gemm, padded to a multiple of this many tokens
    packed: bool = False  # and up to 32 tokens that gemm runs on weights packed once
    milliseconds: float = 0.0  # what the choice took

    def padded(self, tokens: int) -> int:
        """The number of tokens, zeros included, that a gemm over `tokens` tokens runs with."""
        return -(-tokens // self.multiple) * self.multiple

    def __str__(self) -> str:
        matrices = f"blocks of {self.block} outputs" if self.block else "plain matrices"
        padding = f" padded to multiples of {self.multiple}" if self.multiple > 1 else ""
        tokens = f"{self.alone} token{'s' * (self.alone > 1)}"
        gemm = "gemm on packed weights" if self.packed else "gemm"
        measured = f" (measured in {self.milliseconds:.0f} ms)" if self.milliseconds else ""
        return f"{matrices}, one gemv per token up to {tokens}, {gemm}{padding} above{measured}"


class Linear:
    """x W^T + b for a few tokens x (m, in) at a time; the weight (out, in) is kept as (blocks, in, outputs per block).

    >>> Linear(np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]))(np.array([[1.0, 1.0]]))
    array([[3., 7., 1.]])
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None, layout: Layout = Layout()):
        self.outputs, inputs = weight.shape
        self.layout, self.bias = layout, bias
        block = layout.block or self.outputs
        blocks = -(-self.outputs // block)
        rows = np.zeros((blocks * block, inputs), weight.dtype)
        rows[:self.outputs] = weight
        self.blocks = np.ascontiguousarray(rows.reshape(blocks, block, inputs).transpose(0, 2, 1))
        self.matrix = self.blocks[0] if blocks == 1 else None
        self.panels = packed.panels(weight) if layout.packed and weight.dtype == np.float32 and packed.kernel() else None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if len(x) == 1 and self.matrix is not None:  # the plain case, spared what the general one costs in Python
            y = x @ self.matrix
        else:
            y = multiply(x, self.blocks, self.layout, self.panels)[:, :self.outputs]
        return y if self.bias is None else y + self.bias


def multiply(x: np.ndarray, blocks: np.ndarray, layout: Layout, panels: np.ndarray | None = None) -> np.ndarray:
    """Tokens (m, in) times weights (blocks, in, outputs), as `layout` says: (m, blocks · outputs, or 8 · panels)."""
    tokens = len(x)
    if tokens <= layout.alone:
        y = x[:, None] @ blocks[:, None]  # (blocks, m, 1, outputs): all tokens meet a block before the next is read
    elif panels is not None and tokens <= packed.LONGEST:
        return packed.product(x, panels)
    else:
        if tokens % layout.multiple:
            x = np.concatenate((x, np.zeros((layout.padded(tokens) - tokens, x.shape[1]), x.dtype)))
        y = (x @ blocks)[:, :tokens]  # (blocks, m, outputs)
    return y.swapaxes(0, 1).reshape(tokens, -1)


@cache
def choose_layout(shapes: tuple[tuple[int, int], ...], dtype: str = "float32", twice: bool = False) -> Layout:
    """The fastest layout for a model whose matrices have these shapes (in, out; one layer's and the head).

    Tries passes of 1, 2, 4 and 8 tokens over a sample of at most a million made-up weights, which takes 30 ms; the same
    shapes are tried once in a process. Packed weights are tried where the weights may lie in memory `twice` and `packed` has a
    kernel; else blocks, which are chosen only where they are clearly faster (by a quarter).

    >>> print(choose_layout(((320, 640), (320, 320), (320, 1728), (864, 320), (320, 4096))))  # doctest: +SKIP
    plain matrices, one gemv per token up to 1 token, gemm on packed weights padded to multiples of 4 above (measured in 30 ms)
    """
    begin = time.perf_counter()
    numbers = np.full(SAMPLE, 0.01, dtype)
    sample: list[tuple[int, int, int]] = []  # (first number, in, out), out a multiple of BLOCK
    used = 0
    for inputs, outputs in shapes:
        outputs = min(-(-outputs // BLOCK), (SAMPLE - used) // (inputs * BLOCK)) * BLOCK
        if outputs:
            sample.append((used, inputs, outputs))
            used += inputs * outputs
    tokens = {inputs: np.full((8, inputs), 0.01, dtype) for _, inputs, _ in sample}

    def seconds(kind: Layout, m: int) -> float:
        """One pass of m tokens over the whole sample."""
        start = time.perf_counter()
        for first, inputs, outputs in sample:
            weights = numbers[first:first + inputs * outputs]
            multiply(tokens[inputs][:m], weights.reshape(-1, inputs, kind.block or outputs), kind,
                     weights.reshape(-1, inputs, packed.OUTPUTS) if kind.packed else None)
        return time.perf_counter() - start

    has_kernel = twice and dtype == "float32" and packed.kernel() is not None
    kinds = [Layout(), Layout(packed=True) if has_kernel else Layout(BLOCK)]
    tries = [(replace(kind, alone=alone), m) for kind in kinds for alone, m in ((2, 1), (2, 2), (0, 2), (0, 4), (0, 8))]
    best = dict.fromkeys(tries, float("inf"))
    for repeat in range(12):
        for one in tries:
            best[one] = min(best[one], seconds(*one))  # other programs only ever make a try slower
        if repeat >= 2 and time.perf_counter() - begin > 0.03:
            break
    found = list(best.values())
    (plain, layout), (other, second) = _plan(kinds[0], found[:5]), _plan(kinds[1], found[5:])
    if (1 if has_kernel else 1.25) * other < plain:
        layout = second
    return replace(layout, milliseconds=1e3 * (time.perf_counter() - begin))


def _plan(kind: Layout, seconds: list[float]) -> tuple[float, Layout]:
    """What passes of 1, 2, 4 and 8 tokens cost together, and the layout for that, from the five times measured."""
    one, two, *gemm = seconds
    multiple = packed.TOKENS if kind.packed or gemm[0] > gemm[1] else 1  # two tokens dearer than four
    padded = Layout(multiple=multiple).padded
    alone = [one + (m - 1) * (two - one) for m in range(1, 9)]
    together = [float(np.interp(padded(m), (2, 4, 8), gemm)) for m in range(1, 9)]
    up_to = next((m for m in range(1, 6) if alone[m] > together[m]), 6)
    cost = sum(alone[m - 1] if m <= up_to else together[m - 1] for m in (1, 2, 4, 8))
    return cost, replace(kind, alone=up_to, multiple=multiple)
