"""Quantized weights of a GGUF file become float32 by the package gguf, which knows every format."""

from functools import cache
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

CHUNK = 2**16  # weights at a time: what is in between stays in the processor's cache


class Quantized:
    """A tensor in a file, in rows of bytes, a block each; it becomes numbers when asked for."""

    def __init__(self, blocks: np.ndarray, kind: int, shape: tuple[int, ...],
                 offset: float = 0) -> None:
        self.blocks = blocks  # (blocks, bytes of a block)
        self.kind = kind
        self.shape = shape
        self.offset = offset  # added to each number

    def astype(self, dtype: Any) -> np.ndarray:
        """All numbers in a new array of this dtype, with the tensor's shape."""
        weights, _ = block_of(self.kind)
        made = np.empty((len(self.blocks), weights), dtype)
        for start in range(0, len(made), CHUNK // weights):
            part = slice(start, start + CHUNK // weights)
            # subtle: as one row, as the package decodes row by row
            numbers = dequantize(self.blocks[part].reshape(-1), GGMLQuantizationType(self.kind))
            made[part] = numbers.reshape(-1, weights)
        made += self.offset
        return made.reshape(self.shape)

    def shifted(self, offset: float) -> "Quantized":
        """The same numbers plus `offset`."""
        return Quantized(self.blocks, self.kind, self.shape, offset)

    def halves_apart(self, heads: int) -> "Quantized":
        """The same rows, of which in each head 0, 2, 4, ... come first, then 1, 3, 5, ..."""
        pairs = self.blocks.reshape(heads, self.shape[0] // heads // 2, 2, -1)
        blocks = pairs.swapaxes(1, 2).reshape(self.blocks.shape)
        return Quantized(blocks, self.kind, self.shape)


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
