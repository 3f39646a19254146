"""The n-gram cache: it maps several draft tokens to the one target token that they spell.

It holds ids, never rows, so it needs no Torch twin.
In an entry (d_1..d_n <-> t), n >= 2, both sides have equal bytes (arXiv 2507.02659, section 3.1).
Other n-gram caches propose drafts; this one only translates, between two given tokenizers.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import index
from struct import pack

import numpy as np

from .text.errors import OmnidraftError, expect_number
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
        if capacity is not None or eviction != "none":
            expect_number("capacity", capacity, "from 1", 1)
        self.capacity = capacity
        self.eviction = eviction
        self.version = 0
        self.pair = ""
        # n-gram -> (target token, number of uses); with eviction, the last used comes last
        self._entries: dict[NGram, tuple[int, int]] = {}
        self._splits: dict[int, tuple[NGram, ...]] = {}  # target token -> its n-grams
        self._lengths: list[int] = []  # of all n-grams ever inserted, longest first

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterator[tuple[NGram, int, int]]:
        """(n-gram, target token, hits) of each entry; the next to be evicted comes first."""
        ngrams: Iterable[NGram] = self._entries
        if self.eviction == "lfu":
            ngrams = sorted(ngrams, key=self.hits)
        for ngram in ngrams:
            token, hits = self._entries[ngram]
            yield ngram, token, hits

    def insert(self, ngram: Sequence[int], token: int, hits: int = 0) -> bool:
        """Add an entry, or change the token of a known n-gram; False if nothing changed."""
        try:
            ngram = tuple(map(index, ngram))
            token = index(token)
            ids = ngram + (token, hits)
        except TypeError:
            ids = ()
        if len(ids) < 4 or min(ids) < 0 or max(ids) >= 2**31:
            raise OmnidraftError(f"cannot cache {ngram!r} <-> {token!r}: an entry is two or more "
                                 "draft ids and one target id, each from 0 to 2**31 - 1")
        if ngram in self._entries:
            if self._entries[ngram][0] == token:
                return False
            self._remove(ngram)
        elif len(self) == self.capacity:
            if self.eviction == "none":
                return False
            coldest, _, _ = next(self.items())
            self._remove(coldest)
        self.add({ngram: (token, hits)})
        return True

    def _remove(self, ngram: NGram) -> None:
        token, _ = self._entries.pop(ngram)
        self._splits[token] = tuple(split for split in self._splits[token] if split != ngram)

    def add(self, entries: dict[NGram, tuple[int, int]]) -> None:
        """Add entries, n-gram -> (target token, hits), that are not in the cache yet."""
        self._entries |= entries
        for ngram, (token, _) in entries.items():
            self._splits[token] = self._splits.get(token, ()) + (ngram,)
        lengths = set(self._lengths) | set(map(len, entries))
        self._lengths = sorted(lengths, reverse=True)
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
        return {token: found[0] if len(found) == 1 else self.split_of(token)  # nearly always one
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
        self._entries[ngram] = (token, hits + 1)
        self.version += self.split_of(token) != usual  # another n-gram is the most used now
        return True

    def hits(self, ngram: Sequence[int]) -> int:
        """How often an entry was used; 0 if there is no such entry."""
        return self._entries.get(tuple(ngram), (0, 0))[1]

    def prefill(self, draft: Tokenizer, target: Tokenizer, alignment: Alignment) -> int:
        """Insert the drafter's split of each target token without a direct token; returns how many.

        Only splits that the tokenizer makes in any context; if full, those of the lowest ids.
        """
        self.bind(draft, target)
        canonical = canonical_ids(target, target.token_bytes)
        tokens = [token for token in np.flatnonzero(alignment.target_to_draft < 0).tolist()
                  if canonical.get(target.token_bytes[token]) == token]
        # subtle: half a character becomes U+FFFD, so that its two spellings below differ
        texts = [target.token_bytes[token].decode(errors="replace") for token in tokens]
        found = draft.encode_continuations(texts)
        new = {}
        for token, (ids, in_one_piece) in zip(tokens, found, strict=True):
            if len(self) + len(new) == self.capacity:
                break
            split = tuple(ids)
            data = target.token_bytes[token]
            if len(split) < 2 or max(split) >= len(alignment.draft_to_target):
                continue
            if in_one_piece:
                stable = b"".join([draft.token_bytes[i] or b"" for i in split]) == data
            else:
                stable = draft.split(data) == split
            if stable and split not in self._entries:
                new[split] = (token, 0)
        # In this order a trie is built faster. Big-endian bytes are in the order of the ids.
        order = sorted(new, key=lambda split: pack(f">{len(split)}I", *split))
        self.add({split: new[split] for split in order})
        return len(new)

    def observe(self, draft_ids: Sequence[int], target_ids: Sequence[int], draft: Tokenizer,
                target: Tokenizer) -> int:
        """Learn from two tokenizations of one text (section 3.1); returns how many entries are new.

        An entry is a smallest aligned span of two or more draft tokens and one target token. The
        alignment runs from the end of the text: at the start one side may have added a space.
        """
        self.bind(draft, target)
        # From the end: both lists, and the bytes of each token, are reversed.
        ours = [data[::-1] for data in reversed(draft.pieces(draft_ids))]
        theirs = [data[::-1] for data in reversed(target.pieces(target_ids))]
        size = len(draft_ids)
        new = 0
        for (first, last), (place, end) in reversed(list(aligned_spans(ours, theirs))):
            if last - first < 2 or end - place != 1:
                continue
            if not all(ours[first:last]):
                continue  # subtle: a token without bytes is not part of a spelling
            ngram = draft_ids[size - last:size - first]
            if not self.touch(ngram):
                new += self.insert(ngram, target_ids[-end], hits=1)
        return new

    def bind(self, draft: Tokenizer, target: Tokenizer) -> None:
        """Tie the cache to this pair; raises OmnidraftError if it belongs to another pair."""
        pair = f"{draft.key} {target.key}"
        if self.pair not in ("", pair):
            raise OmnidraftError("this n-gram cache was made for another pair of tokenizers: "
                                 "use one cache for each pair")
        self.pair = pair
