"""Matrix products for passes of 1-16 tokens: a weight layout chosen by a short measurement.

The gain of speculative decoding depends on them. One token is a matrix-vector product (gemv), which
reads the weights once. Several are a matrix product (gemm), for which BLAS first copies the weights
into another order: with plain `x @ W` two tokens cost 2.4 times as much as one. Four remedies:

- *alone*: one gemv per token while the matrix is in the cache; a second costs half of the first,
  but a whole one if the matrix is larger than the cache;
- *padding* to a multiple of 2, 4 or 8 tokens, for which OpenBLAS's kernels are made (3 cost more);
- *blocks* of 64 outputs, which OpenBLAS's AVX-512 kernels multiply without a copy (one token is
  then often cheaper if padded to two);
- *packing* the weights once for OpenBLAS's AVX2 kernel, which runs passes of any length. A small
  model keeps its plain weights as well, if a gemv over them is faster for one token.

Below: products in any layout, then the packed ones, then the choice of a layout.
"""

import ctypes
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

BLOCK = 64  # outputs per block, if there are blocks
OUTPUTS = 8  # per panel of packed weights
TOKENS = 4  # per panel of packed tokens
GROUP = 12  # tokens for which the kernel reads the packed weights once
CACHED = 2**18  # bytes of packed weights at a time: half of a usual second-level cache
SMALL = 2**20  # weights that are timed for a small model
LARGE = 2**24  # weights that are timed for a large model (64 MB)
WORTH = 1.05  # a second copy of the weights must save so much
CLEARLY = 1.25  # blocks must save so much
# what is timed: passes of so many tokens, of which so many at most run alone
PASSES = ((2, 1), (2, 2), (0, 1), (0, 2), (0, 4), (0, 8))


@dataclass(frozen=True)
class Layout:
    """How the weights are stored and how passes run over them."""

    block: int = 0  # outputs per block; 0: all outputs of a matrix in one block
    alone: int = 1  # passes of up to this many tokens: one gemv per token
    multiple: int = 1  # longer passes: one gemm, padded to a multiple of this many tokens
    packed: bool = False  # this gemm uses packed weights; the plain ones are kept if `alone`

    def __str__(self) -> str:
        if self.packed and not self.alone:
            return "packed weights, padded to multiples of 4"
        weights = f"blocks of {self.block} outputs" if self.block else "plain matrices"
        on = " on packed weights" if self.packed else ""
        return (f"{weights}, gemv per token up to {self.alone}, gemm{on} padded to multiples of "
                f"{self.multiple}")


class Linear:
    """x W^T + b for a few tokens x (m, in).

    W (out, in) is kept as `panels` (packed), as `blocks` (blocks, in, outputs per block), or, if
    that is faster for one token, as both. A `weight` of that `shape` may come in pieces, some rows
    each, so that it is never in memory twice.

    >>> Linear(np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]))(np.array([[1.0, 1.0]]))
    array([[3., 7., 1.]])
    """

    def __init__(self, weight: np.ndarray | Iterator[np.ndarray], bias: np.ndarray | None = None,
                 layout: Layout = Layout(), shape: tuple[int, int] | None = None,
                 dtype: Any = np.float32, room: "Room | None" = None):
        if isinstance(weight, np.ndarray):
            shape, dtype = weight.shape, weight.dtype
            weight = iter([weight])
        self.outputs = shape[0]
        self.layout = layout
        self.bias = bias
        self.panels: np.ndarray | None = None
        self.blocks: np.ndarray | None = None
        self.matrix: np.ndarray | None = None  # the only block, if a single token runs alone
        if layout.packed and dtype == np.float32 and kernel():
            self.panels = no_panels(shape, dtype, room=room)
        if layout.alone or self.panels is None:
            self.blocks = no_panels(shape, dtype, layout.block or self.outputs, room)
            if len(self.blocks) == 1 and layout.alone:
                self.matrix = self.blocks[0]
        first = 0
        for rows in weight:
            for panels in (self.panels, self.blocks):
                if panels is not None:
                    put(panels, first, rows)
            first += len(rows)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if len(x) == 1 and self.matrix is not None:  # the simple case, without the general overhead
            y = x @ self.matrix
        else:
            y = multiply(x, self.blocks, self.layout, self.panels)[:, :self.outputs]
        return y if self.bias is None else y + self.bias

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of W with these numbers (...,): (..., in)."""
        panels = self.blocks if self.panels is None else self.panels
        outputs = panels.shape[2]
        return panels[numbers // outputs, :, numbers % outputs]


def multiply(x: np.ndarray, blocks: np.ndarray | None, layout: Layout,
             panels: np.ndarray | None = None) -> np.ndarray:
    """Tokens (m, in) times weights (blocks, in, outputs): (m, blocks · outputs, or 8 · panels)."""
    tokens = len(x)
    if tokens <= layout.alone:  # (blocks, m, 1, outputs): all tokens use a block before the next
        y = x[:, None] @ blocks[:, None]
    elif panels is not None:
        return packed_product(x, panels)
    else:
        y = (padded(x, layout.multiple) @ blocks)[:, :tokens]  # (blocks, m, outputs)
    return y.swapaxes(0, 1).reshape(tokens, -1)


def padded(rows: np.ndarray, multiple: int) -> np.ndarray:
    """Rows (m, n), padded with rows of zeros up to a multiple of `multiple` rows."""
    missing = -len(rows) % multiple
    if not missing:
        return rows
    made = np.zeros((len(rows) + missing, rows.shape[1]), rows.dtype)
    made[:len(rows)] = rows
    return made


def no_panels(shape: tuple[int, int], dtype: Any, outputs: int = OUTPUTS,
              room: "Room | None" = None) -> np.ndarray:
    """Memory for a weight (out, in) in panels (panels, in, outputs), with zeros at the end.

    It is taken from `room`, if there is enough.
    """
    size = (-(-shape[0] // outputs), shape[1], outputs)
    panels = np.empty(size, dtype) if room is None else room.take(size)
    panels[-1] = 0
    return panels


class Room:
    """Memory for the matrices of all layers, in one piece.

    Subtle: for so much, NumPy asks for large pages; in small ones, a pass takes a twentieth longer.
    """

    def __init__(self, size: int, dtype: Any) -> None:
        free = np.empty(size + 64, dtype)
        self.free = free[-free.ctypes.data % 64 // free.itemsize:]  # whole lines of the cache

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """The next part, or new memory if too little is left."""
        size = math.prod(shape)
        if size > len(self.free):
            return np.empty(shape, self.free.dtype)
        taken = self.free[:size]
        self.free = self.free[size:]
        return taken.reshape(shape)


def put(panels: np.ndarray, first: int, rows: np.ndarray) -> None:
    """Put rows of a weight, from row `first` on, into its panels."""
    outputs = panels.shape[2]
    if len(panels) == 1:  # four times as fast
        panels[0, :, first:first + len(rows)] = rows.T
        return
    places = np.arange(first, first + len(rows))
    panels[places // outputs, :, places % outputs] = rows


def in_panels(weight: np.ndarray) -> np.ndarray:
    """A weight (out, in) in panels (panels, in, outputs)."""
    panels = no_panels(weight.shape, weight.dtype)
    put(panels, 0, weight)
    return panels


# Packed weights. Before OpenBLAS multiplies, it copies both matrices into panels that its kernel
# reads in order; for a few tokens this copy costs as much as the product. NumPy's OpenBLAS exports
# the kernel itself, so here the weights are packed only once: 8 tokens then cost two thirds of
# `x @ W`. Supported is the AVX2 kernel of OpenBLAS 0.3, if its product equals NumPy's.


@cache
def kernel() -> SimpleNamespace | None:
    """The AVX2 kernel of NumPy's OpenBLAS, tested before use; None if there is none.

    `multiply` adds the product of panels to a matrix, `pack` makes panels.
    """
    with suppress(AttributeError, OSError):
        # the symbols of this library include those of its BLAS
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)
        if not _ask(library, "config").startswith("OpenBLAS 0.3."):
            return None
        name = {"Haswell": "HASWELL", "Zen": "ZEN"}.get(_ask(library, "corename"))
        found = SimpleNamespace(multiply=getattr(library, f"sgemm_kernel_{name}"),
                                pack=getattr(library, f"sgemm_oncopy_{name}"))
        # subtle: OpenBLAS's BLASLONG is as wide as a pointer, even on Windows, unlike C's long
        size = ctypes.c_ssize_t
        pointer = ctypes.c_void_p
        found.multiply.argtypes = [
            size, size, size, ctypes.c_float, pointer, pointer, pointer, size]
        found.pack.argtypes = [size, size, pointer, size, pointer]
        if _is_right(found):
            return found
    return None


def _ask(library: ctypes.CDLL, what: str) -> str:
    """What OpenBLAS reports about itself; the names of its functions differ between builds."""
    for begin in ("scipy_", ""):
        for end in ("64_", ""):
            function = getattr(library, f"{begin}openblas_get_{what}{end}", None)
            if function:
                function.restype = ctypes.c_char_p
                return function().decode()
    return ""


def _is_right(run: SimpleNamespace) -> bool:
    """Does a kernel give NumPy's product of small whole numbers, which both compute exactly?"""
    weight = np.arange(24 * 20, dtype=np.float32).reshape(24, 20) % 17
    tokens = np.arange(16 * 20, dtype=np.float32).reshape(16, 20) % 13
    one = packed_product(tokens[:1], in_panels(weight), run)
    several = packed_product(tokens, in_panels(weight), run)
    right = tokens @ weight.T
    return np.array_equal(one, right[:1]) and np.array_equal(several, right)


def packed_product(x: np.ndarray, panels: np.ndarray,
                   run: SimpleNamespace | None = None) -> np.ndarray:
    """x W^T for tokens x (m, in) and the panels of W, both float32: (m, 8 · panels).

    The kernel reads all weights once for each `GROUP` of tokens. With more tokens it gets the
    weights in parts that stay in the processor's cache: all groups use a part before the next.
    """
    run = run or kernel()
    tokens = len(x)
    if tokens > 1:  # a single token stays alone: padded to four it would cost a tenth more
        x = padded(x, TOKENS)
    x = np.ascontiguousarray(x, np.float32)  # subtle: C reads raw float32 rows
    rows, inputs = x.shape
    outputs = OUTPUTS * len(panels)
    x_packed = np.empty(x.size, np.float32)
    y = np.zeros((rows, outputs), np.float32)
    x_at = _address(x_packed)
    weights_at = _address(panels)
    y_at = _address(y)
    run.pack(inputs, rows, _address(x), inputs, x_at)

    size = OUTPUTS * inputs * 4  # bytes of a panel
    step = len(panels) if rows <= GROUP else max(1, CACHED // size)
    for first in range(0, len(panels), step):
        count = OUTPUTS * min(step, len(panels) - first)
        # in BLAS's column-major order: y^T (outputs, tokens) += W (outputs, in) · x^T (in, tokens)
        run.multiply(count, rows, inputs, 1.0, weights_at + first * size, x_at,
                     y_at + first * OUTPUTS * 4, outputs)
    return y[:tokens]


def _address(array: np.ndarray) -> int:
    """The address of a writable array; much cheaper than `array.ctypes.data`, 100 times a pass."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


@cache
def choose_layout(shapes: tuple[tuple[int, int], ...], dtype: str = "float32",
                  large: bool = False) -> Layout:
    """The fastest layout for matrices with these shapes (in, out); measured once per process.

    It times passes over up to a million made-up weights, for about 30 ms. For a `large` model they
    are 16 million, in about 0.4 s: what holds for weights in the processor's cache does not hold
    for larger ones. Packed weights are timed if there is a `kernel`, otherwise blocks. A large
    model keeps its weights once: it has plain or packed ones.
    """
    packed = dtype == "float32" and kernel() is not None
    plain = Layout()
    other = Layout(packed=True) if packed else Layout(BLOCK)
    times = _times([plain, other], _sample(shapes, dtype, LARGE if large else SMALL))
    if large and packed:  # no plain weights next to packed ones, so no gemv over them
        times[other][:2] = [float("inf"), float("inf")]
    return decide(times)


def _sample(shapes: tuple[tuple[int, int], ...], dtype: str,
            count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Eight tokens (8, in) and up to `count` weights, flat, for each shape that finds room."""
    numbers = np.full(count, 0.01, dtype)
    found = []
    for inputs, outputs in shapes:
        most = len(numbers) // (inputs * BLOCK)
        blocks = min(-(-outputs // BLOCK), most)
        weights, numbers = np.split(numbers, [inputs * blocks * BLOCK])
        if blocks:
            found.append((np.full((8, inputs), 0.01, dtype), weights))
    return found


def _times(kinds: list[Layout], sample: list) -> dict[Layout, list[float]]:
    """The least seconds of each of the `PASSES`: other programs only slow a pass down."""
    least = {kind: [float("inf")] * len(PASSES) for kind in kinds}
    begin = time.perf_counter()
    for repeat in range(12):
        for kind in kinds:
            for i, (alone, tokens) in enumerate(PASSES):
                layout = replace(kind, alone=alone, multiple=2)
                least[kind][i] = min(least[kind][i], _seconds(layout, tokens, sample))
        if repeat >= 2 and time.perf_counter() - begin > 0.03:
            break
    return least


def _seconds(layout: Layout, tokens: int, sample: list) -> float:
    """Time one pass over a whole sample."""
    start = time.perf_counter()
    for x, weights in sample:
        inputs = x.shape[1]
        blocks = weights.reshape(-1, inputs, layout.block or len(weights) // inputs)
        panels = weights.reshape(-1, inputs, OUTPUTS) if layout.packed else None
        multiply(x[:tokens], blocks, layout, panels)
    return time.perf_counter() - start


def decide(times: Mapping[Layout, list[float]]) -> Layout:
    """The layout with the lowest total cost of passes of 1, 2, 4 and 8 tokens.

    `times` has for each kind of layout, plain matrices first, the cost of 1 and 2 tokens alone and
    of 1 (padded to two, unless packed), 2, 4 and 8 in one gemm. In the result no pass of 2 to 8
    tokens costs more than a longer one: it is padded instead.
    """
    costs = {}
    for kind, measured in times.items():
        layout, cost = _completed(kind, *measured)
        costs[layout] = cost * CLEARLY if kind.block else cost
    return min(costs, key=costs.get)


def _completed(kind: Layout, one: float, two: float, single: float,
               *gemm: float) -> tuple[Layout, float]:
    """A kind of layout with the best `alone` and `multiple`, and the total cost of its passes."""
    if kind.packed:  # a gemv needs a second copy of the weights
        one *= WORTH
        two *= WORTH
    further = two - one  # what each token after the first costs, alone
    multiple = _multiple(kind, gemm)
    alone = []
    together = []
    for tokens in range(1, 9):
        alone.append(one if tokens == 1 else two + (tokens - 2) * further)
        padded_to = tokens + -tokens % multiple
        together.append(float(np.interp(padded_to, (2, 4, 8), gemm)))
    if kind.packed or multiple == 2:
        together[0] = single
    most = next((m for m in range(6) if alone[m] > together[m]), 6)
    costs = alone[:most] + together[most:]
    return replace(kind, alone=most, multiple=multiple), costs[0] + costs[1] + costs[3] + costs[7]


def _multiple(kind: Layout, gemm: tuple[float, ...]) -> int:
    """How many tokens a gemm is padded to a multiple of, given the cost of 2, 4 and 8."""
    if kind.packed:
        return TOKENS
    two, four, eight = gemm
    if four > eight:
        return 8
    return 4 if two > four else 2
