"""Quantized weights: the block formats of GGUF files, back to float32.

Weights are rounded in blocks of 32 or 256 neighbours that share a scale, x = d q, or a scale and a
minimum, x = d q + m. A block is a small record, so a tensor is an array of records. The K formats
divide a block of 256 into 8 or 16 parts, whose scales are themselves rounded to 6 or 8 bits.
Formats: https://github.com/ggml-org/ggml (ggml-common.h)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

BYTES, HALF = np.uint8, "<f2"
CHUNK = 2**18  # weights at a time: what is in between stays in the processor's cache


def _record(*parts: tuple) -> np.dtype:
    return np.dtype([*parts])


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Bytes (..., n) as (..., 2, n): the low four bits of each, then the high four bits."""
    return np.stack([packed & 15, packed >> 4], axis=-2)


def _bits(packed: np.ndarray) -> np.ndarray:
    """Bytes (blocks, n) as their bits (blocks, 8 n), the lowest of each byte first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _q8_0(block: np.ndarray) -> np.ndarray:
    return block["q"] * block["d"].astype(np.float32)[:, None]


def _q4_0(block: np.ndarray) -> np.ndarray:
    q = _nibbles(block["q"]).reshape(-1, 32).view(np.int8) - 8
    return q * block["d"].astype(np.float32)[:, None]


def _q4_1(block: np.ndarray) -> np.ndarray:
    q = _nibbles(block["q"]).reshape(-1, 32)
    d, m = (block[name].astype(np.float32)[:, None] for name in ("d", "m"))
    return q * d + m


def _five_bits(block: np.ndarray) -> np.ndarray:
    """The numbers of Q5_0 and Q5_1: four bits each, and their fifth bits in `high`."""
    return _nibbles(block["q"]).reshape(-1, 32) | _bits(block["high"]) << 4


def _q5_0(block: np.ndarray) -> np.ndarray:
    q = _five_bits(block).view(np.int8) - 16
    return q * block["d"].astype(np.float32)[:, None]


def _q5_1(block: np.ndarray) -> np.ndarray:
    d, m = (block[name].astype(np.float32)[:, None] for name in ("d", "m"))
    return _five_bits(block) * d + m


def _scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 6-bit scales and minimums (blocks, 8) of Q4_K and Q5_K, from 12 bytes.

    The first four have a byte each, whose two free bits are the upper bits of the last four.
    """
    first, second, rest = packed.reshape(-1, 3, 4).swapaxes(0, 1)
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    return scales, minimums


def _parts(block: np.ndarray, q: np.ndarray) -> np.ndarray:
    """x = d · scale · q - m · minimum for q (blocks, 8, 32), the numbers of Q4_K or Q5_K."""
    scales, minimums = _scales(block["scales"])
    d, m = (block[name].astype(np.float32)[:, None] for name in ("d", "m"))
    return q * (d * scales)[..., None] - (m * minimums)[..., None]


def _q4_k(block: np.ndarray) -> np.ndarray:
    return _parts(block, _nibbles(block["q"].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(block: np.ndarray) -> np.ndarray:
    q = _nibbles(block["q"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = _bits(block["high"]).reshape(-1, 32, 8).swapaxes(1, 2)  # bit i of each byte: part i
    return _parts(block, q | high << 4)


def _q6_k(block: np.ndarray) -> np.ndarray:
    low = _nibbles(block["q"].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    high = block["high"].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], BYTES)[:, None] & 3
    q = (low | high.reshape(-1, 8, 32) << 4).view(np.int8) - 32
    scales = block["scales"] * block["d"].astype(np.float32)[:, None]
    return q.reshape(-1, 16, 16) * scales[..., None]


@dataclass(frozen=True)
class Format:
    """How `weights` of a tensor are stored together: their record, and the way back to numbers."""

    name: str
    weights: int
    record: np.dtype
    numbers: Callable[[np.ndarray], np.ndarray]


def _plain(name: str, kind: str) -> Format:
    return Format(name, 1, np.dtype(kind), lambda array: array)


_D, _M, _Q16 = ("d", HALF), ("m", HALF), ("q", BYTES, 16)
_SCALES, _Q128 = ("scales", BYTES, 12), ("q", BYTES, 128)
FORMATS = {  # by number in the file
    0: _plain("F32", "<f4"),
    1: _plain("F16", HALF),
    2: Format("Q4_0", 32, _record(_D, _Q16), _q4_0),
    3: Format("Q4_1", 32, _record(_D, _M, _Q16), _q4_1),
    6: Format("Q5_0", 32, _record(_D, ("high", BYTES, 4), _Q16), _q5_0),
    7: Format("Q5_1", 32, _record(_D, _M, ("high", BYTES, 4), _Q16), _q5_1),
    8: Format("Q8_0", 32, _record(_D, ("q", np.int8, 32)), _q8_0),
    12: Format("Q4_K", 256, _record(_D, _M, _SCALES, _Q128), _q4_k),
    13: Format("Q5_K", 256, _record(_D, _M, _SCALES, ("high", BYTES, 32), _Q128), _q5_k),
    14: Format("Q6_K", 256, _record(_Q128, ("high", BYTES, 64), ("scales", np.int8, 16), _D),
               _q6_k),
    30: Format("BF16", 1, np.dtype("<u2"),
               lambda upper: (upper.astype(np.uint32) << 16).view(np.float32)),
}


class Quantized:
    """A tensor in a file, as an array of records; it becomes numbers when it is asked for.

    >>> Quantized(np.array([(0.5, range(32))], FORMATS[8].record), FORMATS[8], (4, 8)).shape
    (4, 8)
    """

    def __init__(self, records: np.ndarray, kind: Format, shape: tuple[int, ...]) -> None:
        self.records, self.kind, self.shape = records, kind, shape

    def astype(self, dtype: Any) -> np.ndarray:
        """All numbers in a new array of this dtype, with the tensor's shape."""
        made = np.empty((len(self.records), self.kind.weights), dtype)
        step = CHUNK // self.kind.weights
        for start in range(0, len(made), step):
            numbers = self.kind.numbers(self.records[start:start + step])
            made[start:start + step] = numbers.reshape(-1, self.kind.weights)
        return made.reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.astype(dtype or np.float32)
