"""The flat storage under the translation cache: n-grams of draft tokens, one target token each, and the order of use.

An entry is a *slot*: its n-gram (packed into bytes, 4 per id), its target token, its hits. Slots whose n-grams begin
with the same two draft tokens form a chain, and so do the slots of one target token: the longest match is found by
walking a single chain, however long the n-grams are. This takes about 80 bytes an entry, where Python objects (arXiv
2507.02659, Table 2, pympler's deep size) take about 245.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence

from .errors import OmnidraftError
from .eviction import EvictionOrder

POLICIES = ("none", "lru", "lfu")
_WIDTH = array("i").itemsize  # bytes of one draft id in a packed n-gram
_PAIR = 2 * _WIDTH

NGram = tuple[int, ...]


class NGramStore:
    """Draft n-grams and the target tokens they spell, found by either side.

    `capacity` bounds the number of entries; when it is reached, eviction "lru" forgets the least recently used entry,
    "lfu" the least often used one (ties: least recently), and "none" takes no more. `version` grows with every change
    of what the store answers. Raises OmnidraftError for an unknown policy or a capacity that does not fit it.

    >>> store = NGramStore()
    >>> store.insert((11, 12, 13), 99)  # "f", "la", "ke" <-> "flake"
    True
    >>> store.longest_match([7, 11, 12, 13, 5], 1), store.split_of(99)
    ((99, 3), (11, 12, 13))
    """

    def __init__(self, capacity: int | None = None, eviction: str = "none") -> None:
        if eviction not in POLICIES:
            raise OmnidraftError(f"unknown eviction {eviction!r}: choose none, lru or lfu")
        if (capacity is None and eviction != "none") or (capacity is not None and capacity < 1):
            raise OmnidraftError(f"capacity is {capacity}: eviction {eviction!r} needs a maximum of 1 entry or more")
        self.capacity, self.eviction = capacity, eviction
        self.version = 0
        self.clear()

    def clear(self) -> None:
        """Forget every entry."""
        self._ngrams: list[bytes] = []  # per slot; b"" in a free slot
        self._tokens, self._hits = array("i"), array("I")  # per slot
        self._by_pair = _Chains(lambda slot: hash(self._ngrams[slot][:_PAIR]))
        self._by_token = _Chains(lambda slot: self._tokens[slot])
        self._free: list[int] = []
        self._lengths: dict[int, int] = {}  # bytes of a packed n-gram -> how many entries have them
        self._longest = 0  # ids in the longest n-gram stored
        self._order = EvictionOrder() if self.eviction != "none" else None
        self.version += 1

    def __len__(self) -> int:
        return len(self._ngrams) - len(self._free)

    def __contains__(self, ngram: Sequence[int]) -> bool:
        return self._find(_pack(ngram)) >= 0

    def items(self) -> Iterator[tuple[NGram, int, int]]:
        """(n-gram, target token, hits) of each entry; with a policy, the first to be evicted comes first."""
        for slot in range(len(self._ngrams)) if self._order is None else self._order:
            if self._ngrams[slot]:
                yield _unpack(self._ngrams[slot]), self._tokens[slot], self._hits[slot]

    def insert(self, ngram: Sequence[int], token: int, hits: int = 0) -> bool:
        """Add an entry, or give a known n-gram another token; False if nothing changed (known, or full and "none").

        Raises OmnidraftError if the n-gram has fewer than two tokens or an id is negative.
        """
        if len(ngram) < 2 or token < 0 or min(ngram) < 0:
            raise OmnidraftError(f"cannot cache {tuple(ngram)} <-> {token}: an entry is two or more draft ids and one "
                                 "target id, none negative")
        key = _pack(ngram)
        slot = self._find(key)
        if slot >= 0 and self._tokens[slot] == token:
            return False
        if slot >= 0:
            self._remove(slot)
        elif self.capacity is not None and len(self) >= self.capacity:
            if self._order is None:
                return False
            self._remove(self._order.first())
        self._add(key, token, hits)
        self.version += 1
        return True

    def longest_match(self, draft_tokens: Sequence[int], start: int) -> tuple[int, int] | None:
        """(target token, n) of the longest entry that spells draft_tokens[start:start + n], or None; counts a use.

        >>> store = NGramStore()
        >>> _ = store.insert((11, 12), 98), store.insert((11, 12, 13), 99)
        >>> store.longest_match([11, 12, 13, 14], 0), store.longest_match([11, 12, 14], 0)
        ((99, 3), (98, 2))
        """
        window = _pack(draft_tokens[start:start + self._longest])
        best, best_length = -1, 0
        for slot in self._by_pair.chain(hash(window[:_PAIR])):
            ngram = self._ngrams[slot]
            if len(ngram) > best_length and window.startswith(ngram):
                best, best_length = slot, len(ngram)
        if best < 0:
            return None
        self._touch(best)
        return self._tokens[best], best_length // _WIDTH

    def split_of(self, token: int) -> NGram | None:
        """The n-gram that spells a target token: the most used one (ties: the shortest, then the lowest), or None."""
        slot = self._split_slot(token)
        return None if slot < 0 else _unpack(self._ngrams[slot])

    def touch(self, ngram: Sequence[int]) -> bool:
        """Count a use of an entry; False if it is not there."""
        slot = self._find(_pack(ngram))
        if slot >= 0:
            self._touch(slot)
        return slot >= 0

    def hits(self, ngram: Sequence[int]) -> int:
        """How often an entry was used; 0 if it is not there."""
        slot = self._find(_pack(ngram))
        return self._hits[slot] if slot >= 0 else 0

    @property
    def size_bytes(self) -> int:
        """Memory that the entries take, all indexes and spare room included (nothing shared is left out)."""
        flat = (self._ngrams, self._tokens, self._hits, self._free, self._lengths)
        order = self._order.size_bytes if self._order is not None else 0
        return (sum(map(sys.getsizeof, flat)) + sum(map(sys.getsizeof, self._ngrams)) + order
                + self._by_pair.size_bytes + self._by_token.size_bytes)

    def _find(self, key: bytes) -> int:
        for slot in self._by_pair.chain(hash(key[:_PAIR])):
            if self._ngrams[slot] == key:
                return slot
        return -1

    def _split_slot(self, token: int) -> int:
        slots = [slot for slot in self._by_token.chain(token) if self._tokens[slot] == token]
        if len(slots) < 2:
            return slots[0] if slots else -1
        return min(slots, key=lambda s: (-self._hits[s], len(self._ngrams[s]), _unpack(self._ngrams[s])))

    def _rank(self, slot: int) -> int:
        return self._hits[slot] if self.eviction == "lfu" else 0

    def _touch(self, slot: int) -> None:
        split = self._split_slot(self._tokens[slot])
        if self._order is not None:
            self._order.remove(slot, self._rank(slot))
        self._hits[slot] += 1
        if self._order is not None:
            self._order.add(slot, self._rank(slot))
        if split != slot and self._split_slot(self._tokens[slot]) == slot:
            self.version += 1  # another split of this token has become the usual one

    def _add(self, key: bytes, token: int, hits: int) -> None:
        if self._free:
            slot = self._free.pop()
            self._ngrams[slot], self._tokens[slot], self._hits[slot] = key, token, hits
        else:
            slot = len(self._ngrams)
            self._ngrams.append(key)
            self._tokens.append(token)
            self._hits.append(hits)
        self._by_pair.add(slot)
        self._by_token.add(slot)
        self._lengths[len(key)] = self._lengths.get(len(key), 0) + 1
        self._longest = max(self._longest, len(key) // _WIDTH)
        if self._order is not None:
            self._order.add(slot, self._rank(slot))

    def _remove(self, slot: int) -> None:
        key = self._ngrams[slot]
        if self._order is not None:
            self._order.remove(slot, self._rank(slot))
        self._by_pair.remove(slot)
        self._by_token.remove(slot)
        self._ngrams[slot] = b""
        self._free.append(slot)
        self._lengths[len(key)] -= 1
        if not self._lengths[len(key)]:
            del self._lengths[len(key)]
            self._longest = max(self._lengths, default=0) // _WIDTH


class _Chains:
    """Slots by hash: `heads` has the first slot of each hash, `links` (per slot) the next one, -1 at the end."""

    def __init__(self, hash_of: Callable[[int], int]) -> None:
        self._hash_of = hash_of  # slot -> hash
        self._heads, self._links = array("i", [-1] * 8), array("i")

    def chain(self, value: int) -> Iterator[int]:
        return self._from(self._heads[value & (len(self._heads) - 1)])  # the number of heads is a power of two

    def add(self, slot: int) -> None:
        if slot == len(self._links):
            self._links.append(-1)
            if slot > len(self._heads):  # chains hold one slot on average at most
                slots = [s for head in self._heads for s in self._from(head)]
                self._heads = array("i", [-1]) * (2 * len(self._heads))
                for s in slots:
                    self._push(s)
        self._push(slot)

    def remove(self, slot: int) -> None:
        head = self._hash_of(slot) & (len(self._heads) - 1)
        if self._heads[head] == slot:
            self._heads[head] = self._links[slot]
        else:
            before = next(s for s in self._from(self._heads[head]) if self._links[s] == slot)
            self._links[before] = self._links[slot]

    def _from(self, slot: int) -> Iterator[int]:
        while slot >= 0:
            yield slot
            slot = self._links[slot]

    def _push(self, slot: int) -> None:
        head = self._hash_of(slot) & (len(self._heads) - 1)
        self._links[slot], self._heads[head] = self._heads[head], slot

    @property
    def size_bytes(self) -> int:
        return sys.getsizeof(self._heads) + sys.getsizeof(self._links)


def _pack(ngram: Sequence[int]) -> bytes:
    return array("i", ngram).tobytes()


def _unpack(key: bytes) -> NGram:
    return tuple(array("i", key))
