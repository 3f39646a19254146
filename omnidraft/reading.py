"""What a model has read of a text: the only place that knows which ids a KV cache holds."""

from collections.abc import Sequence
from typing import Any

from .translation import common_prefix


class Reader:
    """A model's side of one text: the text's `ids`, and a KV cache that has read part of them.

    The cache holds the first `held` ids of the text, then the ids in `ahead`, which are not in the
    text: a draft, or proposals. So they need not be fed again if they enter it. A change of the
    text compares only what it replaces, however long the text is. After an interrupted pass the
    next one reads everything again.

    >>> model = omnidraft.load("qwen-like")
    >>> reader = Reader(model, model.new_cache())
    >>> reader.begin([5, 6, 7], keep=1)     # feeds 5 and 6
    >>> reader.read([8, 9], rows=3).shape   # feeds 7, 8 and 9; the last two are only proposed
    (3, 4096)
    >>> reader.append([8, 3]); reader.held  # 8 is in the cache already
    4
    """

    def __init__(self, model: Any, cache: Any, ids: Sequence[int] = ()) -> None:
        """A reader whose cache holds `ids` already."""
        self.model = model
        self.cache = cache
        self.ids = list(ids)
        self.held = len(self.ids)
        self.ahead: list[int] = []

    def begin(self, ids: Sequence[int], keep: int) -> None:
        """Start another text: feed all its ids but the last `keep`, unless the cache has them."""
        self.replace(0, ids)
        end = len(self.ids) - keep
        if self.held < end:
            self.read(back=keep)

    def append(self, ids: Sequence[int]) -> None:
        """Add ids to the end of the text; nothing is fed."""
        self.replace(len(self.ids), ids)

    def replace(self, start: int, ids: Sequence[int]) -> None:
        """Write `ids` in place of the text from `start` on; nothing is fed."""
        place = min(start, self.held)
        cached = self.ids[place:self.held] + self.ahead
        self.ahead = []
        self.held = place
        self.ids[start:] = ids
        same = common_prefix(cached, self.ids[place:])
        self.held = place + same
        self.ahead = cached[same:]

    def read(self, more: Sequence[int] = (), rows: int = 1, back: int = 0) -> Any:
        """Feed what the cache lacks of the text, and `more`: logits (rows, V) after the last ids.

        `more` does not enter the text. It follows the text without its last `back` ids.
        """
        lacking = self.lacking(more, rows, back)
        logits = self.model.forward(lacking, self.cache, rows)
        self.held = len(self.ids) - back
        self.ahead = list(more)
        return logits

    def lacking(self, more: Sequence[int] = (), rows: int = 1, back: int = 0) -> list[int]:
        """The ids that such a pass feeds; the cache is cut back to what comes before them."""
        end = len(self.ids) - back
        start = min(self.held, end + len(more) - rows)
        self.ahead = []
        self.held = 0  # subtle: if the pass is interrupted, nothing that the cache holds counts
        self.cache.rewind(start)
        return self.ids[start:end] + list(more)
