"""The n-gram cache: it maps several draft tokens to the one target token that they spell.

In an entry (d_1..d_n <-> t), n >= 2, both sides have equal bytes (arXiv 2507.02659, section 3.1).
Other n-gram caches propose drafts; this one only translates, between two given tokenizers.
"""

from collections.abc import Iterator, Sequence
from operator import index

import numpy as np

from .text.errors import OmnidraftError
from .text.tokenizer import Tokenizer
from .vocabulary import Alignment, aligned_spans, canonical_ids

NGram = tuple[int, ...]


class NGramCache:
    """Draft n-grams and the target tokens that they spell; either side finds the other.

    When it holds `capacity` entries it takes no more (eviction "none"), or evicts the least
    recently ("lru") or least frequently ("lfu") used one (Table 14). An entry takes about 350 bytes
    (paper: 245). `version` grows when its answers change; `pair` names its tokenizers (`bind`).

    >>> cache = NGramCache(capacity=4096, eviction="lfu")
    >>> cache.insert((11, 12), 98), cache.insert((11, 12, 13), 99)  # "f", "la", "ke" <-> "flake"
    (True, True)
    >>> cache.longest_match([7, 11, 12, 13, 5], 1), cache.split_of(99)
    ((99, 3), (11, 12, 13))
    """

    def __init__(self, capacity: int | None = None, eviction: str = "none") -> None:
        if eviction not in ("none", "lru", "lfu"):
            raise OmnidraftError(f"unknown eviction {eviction!r}: choose none, lru or lfu")
        if eviction != "none" if capacity is None else capacity < 1:
            raise OmnidraftError(f"capacity is {capacity}: eviction {eviction!r} needs 1 or more")
        self.capacity, self.eviction = capacity, eviction
        self.version, self.pair = 0, ""
        # n-gram -> (target token, number of uses); with eviction, the last used comes last
        self._entries: dict[NGram, tuple[int, int]] = {}
        self._splits: dict[int, tuple[NGram, ...]] = {}  # target token -> its n-grams
        self._lengths: list[int] = []  # of all n-grams ever inserted, longest first

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[NGram, int, int]]:
        """(n-gram, target token, hits) of each entry; the next to be evicted comes first."""
        ngrams = sorted(self._entries, key=self.hits) if self.eviction == "lfu" else self._entries
        return ((ngram, *self._entries[ngram]) for ngram in ngrams)

    def insert(self, ngram: Sequence[int], token: int, hits: int = 0) -> bool:
        """Add an entry, or change the token of a known n-gram; False if nothing changed."""
        ngram, token = tuple(map(index, ngram)), index(token)
        if len(ngram) < 2 or min(*ngram, token, hits) < 0 or max(*ngram, token) >= 2**31:
            raise OmnidraftError(f"cannot cache {ngram} <-> {token}: an entry is two or more draft "
                                 "ids and one target id, each from 0 to 2**31 - 1")
        known = self._entries.get(ngram, (None, 0))[0]
        full = known is None and len(self) == self.capacity
        if known == token or full and self.eviction == "none":
            return False
        if full or known is not None:
            gone = next(self.items())[0] if full else ngram
            old, _ = self._entries.pop(gone)
            self._splits[old] = tuple(split for split in self._splits[old] if split != gone)
        self.add({ngram: (token, hits)})
        return True

    def add(self, entries: dict[NGram, tuple[int, int]]) -> None:
        """Add entries, n-gram -> (target token, hits), that are not in the cache yet."""
        self._entries |= entries
        for ngram, (token, _) in entries.items():
            found = self._splits.get(token)
            self._splits[token] = (*found, ngram) if found else (ngram,)
        self._lengths = sorted({*self._lengths, *map(len, entries)}, reverse=True)
        self.version += 1

    def longest_match(self, draft_tokens: Sequence[int], start: int) -> tuple[int, int] | None:
        """(target token, n) of the longest entry that begins at `start`, or None; counts a use."""
        for length in self._lengths:
            ngram = tuple(draft_tokens[start:start + length])  # may be shorter at the draft's end
            if self.touch(ngram):
                return self._entries[ngram][0], len(ngram)
        return None

    def split_of(self, token: int) -> NGram | None:
        """The n-gram of a target token: the most used (then shortest, then lowest) one, or None."""
        return min(self._splits.get(token, ()), default=None,
                   key=lambda ngram: (-self.hits(ngram), len(ngram), ngram))

    def splits(self) -> dict[int, NGram]:
        """Each target token that has n-grams -> its `split_of`."""
        return {token: found[0] if len(found) == 1 else self.split_of(token)
                for token, found in self._splits.items() if found}

    def touch(self, ngram: Sequence[int]) -> bool:
        """Count one use of an entry; False if there is no such entry."""
        ngram = tuple(map(index, ngram))
        if ngram not in self._entries:
            return False
        token, hits = self._entries[ngram]
        usual = self.split_of(token)
        if self.eviction != "none":  # move it to the end: entries are in order of use
            del self._entries[ngram]
        self._entries[ngram] = token, hits + 1
        self.version += self.split_of(token) != usual
        return True

    def hits(self, ngram: Sequence[int]) -> int:
        """How often an entry was used; 0 if there is no such entry."""
        return self._entries.get(tuple(ngram), (0, 0))[1]

    def prefill(self, draft: Tokenizer, target: Tokenizer, alignment: Alignment) -> int:
        """Insert the drafter's split of each target token without a direct token; returns how many.

        Splits must not depend on the pre-tokenizer, hence on context. If full: the lowest ids.
        """
        self.bind(draft, target)
        new, canonical = {}, canonical_ids(target, target.token_bytes)
        for token in np.flatnonzero(alignment.target_to_draft < 0).tolist():
            if len(self) + len(new) == self.capacity:
                break
            data = target.token_bytes[token]
            split = (draft.split(data) or ()) if data and canonical[data] == token else ()
            if len(split) > 1 and max(split) < len(alignment.draft_to_target):
                text = data.decode(errors="replace")  # subtle: half a character becomes U+FFFD
                if split not in self._entries and draft.encode_continuation(text) == [*split]:
                    new[split] = token, 0
        self.add(dict(sorted(new.items())))  # in this order a trie is built faster
        return len(new)

    def observe(self, draft_ids: Sequence[int], target_ids: Sequence[int], draft: Tokenizer,
                target: Tokenizer) -> int:
        """Learn from two tokenizations of one text (section 3.1); returns how many entries are new.

        An entry is a smallest aligned block of two or more draft tokens and one target token. The
        alignment runs from the end of the text: at the start one side may have added a space.
        """
        self.bind(draft, target)
        ours = [data[::-1] for data in reversed(draft.pieces(draft_ids))]
        theirs = [data[::-1] for data in reversed(target.pieces(target_ids))]
        new, size = 0, len(draft_ids)
        for (first, last), (place, end) in reversed([*aligned_spans(ours, theirs)]):  # from the end
            # subtle: a token without bytes is not part of a spelling
            if last - first > 1 and end - place == 1 and all(ours[first:last]):
                ngram, token = draft_ids[size - last:size - first], target_ids[-end]
                new += not self.touch(ngram) and self.insert(ngram, token, hits=1)
        return new

    def bind(self, draft: Tokenizer, target: Tokenizer) -> None:
        """Tie the cache to this pair; raises OmnidraftError if it belongs to another pair."""
        pair = f"{draft.key} {target.key}"
        if self.pair not in ("", pair):
            raise OmnidraftError("this n-gram cache was made for another pair of tokenizers: "
                                 "use one cache for each pair")
        self.pair = pair
