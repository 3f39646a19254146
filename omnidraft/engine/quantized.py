"""Quantized weights of a GGUF file become float32 by the package gguf, which knows every format."""

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from ..text.errors import OmnidraftError

CHUNK = 2**18  # weights at a time: what is in between stays in the processor's cache


@dataclass(frozen=True)
class Quantized:
    """A tensor that stays in its file, in blocks of bytes; it becomes numbers when asked for.

    `tensor[4:8].astype(np.float32)` reads four rows.
    """

    path: Path
    start: int  # its first byte in the file
    kind: int  # the number of its format
    shape: tuple[int, ...]
    paired: int = 0  # in each so many rows, 0, 2, 4, ... are to come first, then 1, 3, 5, ...
    offset: float = 0  # added to each number

    def __getitem__(self, rows: slice) -> "Quantized":
        """Some rows; if they are `paired`, whole groups."""
        first, last, _ = rows.indices(self.shape[0])
        weights, size = block_of(self.kind)
        skipped = first * self._row // weights * size
        return replace(self, start=self.start + skipped, shape=(last - first, *self.shape[1:]))

    @property
    def blocks(self) -> np.ndarray:
        """Its bytes (blocks, bytes of a block)."""
        weights, size = block_of(self.kind)
        count = self.shape[0] * self._row // weights * size
        found = np.fromfile(self.path, np.uint8, count, offset=self.start)
        if len(found) < count:
            raise OmnidraftError(f"{self.path} has become shorter: download it again")
        if self.paired:
            pairs = found.reshape(-1, self.paired // 2, 2, self._row // weights * size)
            found = pairs.swapaxes(1, 2)
        return found.reshape(-1, size)

    @property
    def _row(self) -> int:
        """The weights of a row."""
        return math.prod(self.shape[1:])

    def astype(self, dtype: Any) -> np.ndarray:
        """All numbers in a new array of this dtype, with the tensor's shape."""
        group = self.paired or 1
        step = group * max(1, CHUNK // (group * self._row))
        if self.shape[0] <= step:
            made = decoded(self.blocks, self.kind).reshape(self.shape)
            made = made.astype(dtype, copy=not made.flags.writeable)
            if self.offset:
                made += self.offset
            return made
        made = np.empty(self.shape, dtype)
        for first in range(0, len(made), step):
            made[first:first + step] = self[first:first + step].astype(dtype)
        return made


def decoded(blocks: np.ndarray, kind: int) -> np.ndarray:
    """The numbers, in float32, of blocks (n, bytes)."""
    form = GGMLQuantizationType(kind)
    if form == GGMLQuantizationType.Q5_0:  # the package takes four times as long
        return _q5_0(blocks)
    # subtle: as one row, as the package decodes row by row
    return dequantize(blocks.reshape(-1), form)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    """Of 32 weights: a scale (float16), their fifth bits, their four lower bits (16 bytes)."""
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)  # (n, 1)
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")  # (n, 32)
    fifth <<= 4
    four = blocks[:, 6:]
    q = np.empty((len(blocks), 32), np.uint8)
    np.bitwise_and(four, 15, out=q[:, :16])
    np.right_shift(four, 4, out=q[:, 16:])
    q |= fifth
    q -= 16
    return q.view(np.int8) * scales


@cache
def block_of(kind: int) -> tuple[int, int]:
    """How many weights a block of this format has, and how many bytes; ValueError if unknown."""
    try:
        form = GGMLQuantizationType(kind)
        weights, size = GGML_QUANT_SIZES[form]
        dequantize(np.zeros(size, np.uint8), form)
    except (ValueError, KeyError, NotImplementedError):
        raise ValueError(f"weights in the format {kind}, which the package gguf does not decode, "
                         "or not in this release") from None
    return weights, size
