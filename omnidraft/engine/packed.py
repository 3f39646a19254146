"""Matrix products over weights that were packed once.

Before OpenBLAS multiplies, it copies both matrices into panels that its kernel reads in order; for
a few tokens this copy costs as much as the product. NumPy's OpenBLAS exports the kernel itself, so
here the weights are packed only once: 8 tokens then cost two thirds of `x @ W`. Supported is the
AVX2 kernel of OpenBLAS 0.3; without it, or if its product differs from NumPy's, `kernel` is None.

The kernel reads all weights once for each group of 12 tokens. With more tokens it gets the weights
in blocks that stay in the processor's cache, so that all groups use a block before the next.
"""

import ctypes
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import numpy as np

OUTPUTS, TOKENS = 8, 4  # per panel of weights, per panel of tokens
GROUP = 12  # tokens for which the kernel reads the weights once
BLOCK = 2**18  # bytes of weights in a block: half of a usual second-level cache


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
        size, pointer = ctypes.c_ssize_t, ctypes.c_void_p
        found.multiply.argtypes = [size] * 3 + [ctypes.c_float] + [pointer] * 3 + [size]
        found.pack.argtypes = [size, size, pointer, size, pointer]
        weight = np.arange(24 * 20, dtype=np.float32).reshape(24, 20) % 17
        tokens = np.arange(16 * 20, dtype=np.float32).reshape(16, 20) % 13
        # small whole numbers, so that the products are exact
        if all(np.array_equal(product(tokens[:m], panels(weight), found), tokens[:m] @ weight.T)
               for m in (1, len(tokens))):
            return found
    return None


def _ask(library: ctypes.CDLL, what: str) -> str:
    """What OpenBLAS reports about itself; the names of its functions differ between builds."""
    for name in (f"{at}openblas_get_{what}{end}" for at in ("scipy_", "") for end in ("64_", "")):
        if function := getattr(library, name, None):
            function.restype = ctypes.c_char_p
            return function().decode()
    return ""


def padded(rows: np.ndarray, multiple: int) -> np.ndarray:
    """Rows (m, n), padded with rows of zeros up to a multiple of `multiple` rows."""
    if not (missing := -len(rows) % multiple):
        return rows
    made = np.zeros((len(rows) + missing, rows.shape[1]), rows.dtype)
    made[:len(rows)] = rows
    return made


def panels(weight: np.ndarray, outputs: int = OUTPUTS) -> np.ndarray:
    """A weight (out, in) in panels of 8 outputs, the last padded with zeros: (panels, in, 8)."""
    rows = padded(weight, outputs).reshape(-1, outputs, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2))


def product(x: np.ndarray, packed: np.ndarray, run: SimpleNamespace | None = None) -> np.ndarray:
    """x W^T for tokens x (m, in) and the panels of W, both float32: (m, 8 · panels)."""
    run = run or kernel()
    tokens, outputs = len(x), OUTPUTS * len(packed)
    # a single token stays alone: padded to four it would cost a tenth more
    x = x if tokens == 1 else padded(x, TOKENS)
    x = np.ascontiguousarray(x, np.float32)  # subtle: C reads raw float32 rows
    rows, inputs = x.shape
    tokens_packed = np.empty(x.size, np.float32)
    y = np.zeros((rows, outputs), np.float32)
    run.pack(inputs, rows, _address(x), inputs, _address(tokens_packed))

    panel = OUTPUTS * inputs * 4  # bytes of a panel of weights
    step = len(packed) if rows <= GROUP else max(1, BLOCK // panel)  # panels in a block
    weights, made = _address(packed), _address(y)
    for first in range(0, len(packed), step):
        count = OUTPUTS * min(step, len(packed) - first)
        places = weights + first * panel, _address(tokens_packed), made + first * OUTPUTS * 4
        # in BLAS's column-major order: y^T (outputs, tokens) += W (outputs, in) · x^T (in, tokens)
        run.multiply(count, rows, inputs, 1.0, *places, outputs)
    return y[:tokens]


def _address(array: np.ndarray) -> int:
    """The address of a writable array; much cheaper than `array.ctypes.data`, 100 times a pass."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))
