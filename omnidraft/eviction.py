"""What to forget first: the order of use behind the LRU and LFU policies (arXiv 2507.02659, Table 14).

Entries are numbered slots. Each rank has a queue of its slots, least recently used first; the slot to evict is the
head of the lowest rank's queue. With one rank for all this is LRU, with the hit count as rank it is LFU (ties go to the
least recently used). Two flat arrays hold all queues as linked lists, 8 bytes per entry.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator


class EvictionOrder:
    """Doubly linked queues of slots by rank: `add`, `remove` O(1); `first` O(number of ranks).

    >>> order = EvictionOrder()
    >>> for slot, rank in ((0, 5), (1, 2), (2, 2)):
    ...     order.add(slot, rank)
    >>> order.first(), list(order)
    (1, [1, 2, 0])
    """

    def __init__(self) -> None:
        self._older = array("i")  # per slot: its neighbours in its queue, -1 at the ends
        self._newer = array("i")
        self._ends: dict[int, list[int]] = {}  # rank -> [oldest, newest]

    def add(self, slot: int, rank: int) -> None:
        """Put a slot at the most recently used end of its rank."""
        while len(self._older) <= slot:
            self._older.append(-1)
            self._newer.append(-1)
        ends = self._ends.setdefault(rank, [slot, -1])
        newest = ends[1]
        self._older[slot], self._newer[slot] = newest, -1
        if newest >= 0:
            self._newer[newest] = slot
        ends[1] = slot

    def remove(self, slot: int, rank: int) -> None:
        """Take a slot out of the queue of its rank."""
        older, newer = self._older[slot], self._newer[slot]
        ends = self._ends[rank]
        if older >= 0:
            self._newer[older] = newer
        else:
            ends[0] = newer
        if newer >= 0:
            self._older[newer] = older
        else:
            ends[1] = older
        if ends[0] < 0:
            del self._ends[rank]

    def first(self) -> int:
        """The slot to evict: the least recently used one of the lowest rank."""
        return self._ends[min(self._ends)][0]

    def __iter__(self) -> Iterator[int]:
        for rank in sorted(self._ends):
            slot = self._ends[rank][0]
            while slot >= 0:
                yield slot
                slot = self._newer[slot]

    @property
    def size_bytes(self) -> int:
        """Memory of the links and the queues' ends."""
        ends = sum(map(sys.getsizeof, self._ends.values()))
        return sys.getsizeof(self._older) + sys.getsizeof(self._newer) + sys.getsizeof(self._ends) + ends
