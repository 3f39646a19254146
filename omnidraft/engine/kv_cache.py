"""The key-value cache: what attention remembers of the tokens read so far.

Rewinding is only a shorter length: what follows it is never read, and the next pass overwrites it.
"""

from typing import Any

import numpy as np

from ..errors import OmnidraftError
from .config import ModelConfig


class KVCache:
    """The keys and values of the `length` tokens a model has read; `rewind` forgets the last ones.

    >>> cache = model.new_cache(); model.forward([1, 2, 3], cache).shape; cache.rewind(1)
    (1, 4096)
    """

    def __init__(self, config: ModelConfig, dtype: Any):
        self.length, self.limit = 0, config.context_size
        self.keeps_hidden = True
        self.hidden: np.ndarray | None = None  # (rows, width) what the head read last: x / |x|
        # Both lie as attention's two products read them, so that neither copies. Each value is
        # followed by a 1: the product that mixes the values also adds up their weights.
        heads, size = (config.layers, config.kv_heads), min(256, self.limit)
        self.keys = np.zeros((*heads, config.head_dim, size), dtype)
        self.values = np.ones((*heads, size, config.head_dim + 1), dtype)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError where there are not as many."""
        if not 0 <= length <= self.length:
            raise OmnidraftError(f"cannot rewind a cache of {self.length} tokens to {length}")
        self.length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, at most the model's context."""
        size = self.values.shape[2]
        if length > size:
            more = (0, min(max(length, 2 * size), self.limit) - size)
            none = (0, 0)
            self.keys = np.pad(self.keys, (none, none, none, more))
            self.values = np.pad(self.values, (none, none, more, none), constant_values=1)
