"""The texts that a learner keeps for replay, with the target's rows in half precision."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..losses import Example

# subtle: the first two bits of a float32 from 0 to 1 are always 0, and the last 14 are rounded off.
# What is left, 7 bits of exponent and 9 of fraction, holds a probability to 0.1 %, however small.
# (float16 reaches only down to 6e-5: in a vocabulary of 150,000 entries most are smaller.)
DROPPED = np.uint32(14)


class Memory:
    """The latest texts: at most `texts`, and one or as many as fit into `size` bytes.

    It returns Examples whose rows are float32 arrays again. `to_numpy` makes arrays of rows that
    are tensors. With 150,000 entries a text of 96 tokens takes 29 MB.
    """

    def __init__(self, texts: int, size: int, to_numpy: Callable[[Any], np.ndarray]) -> None:
        self.size, self._to_numpy = size, to_numpy
        self._texts: deque[Example] = deque(maxlen=texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, place: int) -> Example:
        text = self._texts[place]
        bits = text.target_probs.astype(np.uint32) << DROPPED
        return replace(text, target_probs=bits.view(np.float32))

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take."""
        return sum(text.target_probs.nbytes for text in self._texts)

    def add(self, text: Example) -> None:
        """Keep this text too, and forget the oldest that no longer fit."""
        rows = np.ascontiguousarray(self._to_numpy(text.target_probs), np.float32)
        bits = rows.view(np.uint32) + np.uint32(1 << 13) >> DROPPED  # rounded to the nearest
        self._texts.append(replace(text, target_probs=bits.astype(np.uint16)))
        while self.nbytes > self.size and len(self._texts) > 1:
            self._texts.popleft()
