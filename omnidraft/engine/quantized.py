"""Quantized weights of a GGUF file, back to float32 by the package gguf, which knows every format."""

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from ..text.errors import OmnidraftError

CHUNK = 2**18  # weights at a time: what is in between stays in the processor's cache


class Quantized:
    """A tensor in a file, as rows of bytes, a block each; it becomes numbers when it is asked for."""

    def __init__(self, blocks: np.ndarray, kind: int, shape: tuple[int, ...]) -> None:
        self.blocks, self.kind, self.shape = blocks, kind, shape

    def astype(self, dtype: Any) -> np.ndarray:
        """All numbers in a new array of this dtype, with the tensor's shape."""
        weights, _ = block_of(self.kind)
        made = np.empty((len(self.blocks), weights), dtype)
        for start in range(0, len(made), CHUNK // weights):
            some = slice(start, start + CHUNK // weights)
            numbers = dequantize(self.blocks[some].reshape(-1), GGMLQuantizationType(self.kind))
            made[some] = numbers.reshape(-1, weights)
        return made.reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.astype(dtype or np.float32)


def block_of(kind: int) -> tuple[int, int]:
    """How many weights a block of this format has, and how many bytes; OmnidraftError if unknown."""
    try:
        return GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except ValueError:
        raise OmnidraftError(f"its weights have the format {kind}, which the package gguf does not "
                             "know: pip install --upgrade gguf") from None
