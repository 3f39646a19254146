"""The texts that a learner keeps for replay, with the target's rows in half precision."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..losses import Example

# subtle: float16 holds a probability times 2^15 with 11 bits from 1 down to 2e-9; unscaled only
# down to 6e-5, and in a vocabulary of 150,000 entries most are smaller.
SCALE = np.float32(2 ** 15)


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
        return replace(text, target_probs=text.target_probs / SCALE)

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take."""
        return sum(text.target_probs.nbytes for text in self._texts)

    def add(self, text: Example) -> None:
        """Keep this text too, and forget the oldest that no longer fit."""
        rows = self._to_numpy(text.target_probs) * SCALE
        self._texts.append(replace(text, target_probs=rows.astype(np.float16)))
        while self.nbytes > self.size and len(self._texts) > 1:
            self._texts.popleft()
