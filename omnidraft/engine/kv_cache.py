"""The key-value cache: what attention remembers of the tokens read so far. It grows by passes and can be rewound.

Rewinding is only a shorter length: what lies behind it is never looked at and the next pass writes over it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import OmnidraftError
from .config import ModelConfig


class KVCache:
    """The keys and values of the tokens a model has read; `length` of them count, `rewind` forgets the last ones.

    >>> cache = model.new_cache(); _ = model.forward([1, 2, 3], cache); cache.rewind(1); cache.length
    1
    """

    def __init__(self, config: ModelConfig, dtype: Any):
        self.length, self.limit = 0, config.context_size
        self.keeps_hidden = True
        self.hidden: np.ndarray | None = None  # (rows, width) what the head read in the last pass: x / |x| per row
        size = min(256, self.limit)
        # laid out as attention's two products read them, so that neither copies
        self.keys = np.zeros((config.layers, config.kv_heads, config.head_dim, size), dtype)
        # each value is followed by a 1: the product that mixes the values also adds up the weights they are mixed with
        self.values = np.ones((config.layers, config.kv_heads, size, config.head_dim + 1), dtype)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens only; raises OmnidraftError where there are not as many."""
        if not 0 <= length <= self.length:
            raise OmnidraftError(f"cannot rewind a cache of {self.length} tokens to {length}")
        self.length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens; raises OmnidraftError where that is more than the model's context."""
        if length > self.limit:
            raise OmnidraftError(f"the text is {length} tokens long, but the model's context holds {self.limit} "
                                 "(shorten the prompt or generate fewer tokens)")
        size = self.values.shape[2]
        if length > size:
            more = (0, min(max(length, 2 * size), self.limit) - size)
            self.keys = np.pad(self.keys, ((0, 0), (0, 0), (0, 0), more))
            self.values = np.pad(self.values, ((0, 0), (0, 0), more, (0, 0)), constant_values=1)
