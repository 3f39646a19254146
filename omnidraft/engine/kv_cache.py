"""The key-value cache: what attention remembers about the tokens read so far.

Rewinding only shortens the length: what lies beyond is never read, and the next pass overwrites it.
"""

from typing import Any

import numpy as np

from .config import ModelConfig, check_rewind


class KVCache:
    """Keys and values of the `length` tokens that a model has read; `rewind` drops the last ones.

    >>> cache = model.new_cache(); model.forward([1, 2, 3], cache).shape; cache.rewind(1)
    (1, 4096)
    """

    def __init__(self, config: ModelConfig, dtype: Any):
        self.length, self.limit = 0, config.context_size
        self.hidden: np.ndarray | None = None  # (rows, width) the head's last input: x / |x|
        # Both are stored in the order in which attention's products read them, without copies. A 1
        # follows each value, so the product that mixes the values also sums up their weights.
        heads, size = (config.layers, config.kv_heads), min(256, self.limit)
        self.keys = np.zeros((*heads, config.head_dim, size), dtype)
        self.values = np.ones((*heads, size, config.head_dim + 1), dtype)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError if there are fewer."""
        check_rewind(self.length, length)
        self.length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, at most as many as the model's context."""
        if length > (size := self.values.shape[2]):
            more, none = (0, min(max(length, 2 * size), self.limit) - size), (0, 0)
            self.keys = np.pad(self.keys, (none, none, none, more))
            self.values = np.pad(self.values, (none, none, more, none), constant_values=1)
