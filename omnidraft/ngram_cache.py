"""This cache *translates* (elsewhere "n-gram cache" means a drafter): n-gram of draft tokens <-> one target token.

An entry (d_1..d_n <-> t), n >= 2, says that the drafter spells with n tokens what the target spells with one: their
bytes are equal (arXiv 2507.02659, section 3.1). Single tokens belong to the direct map of `vocabulary.py`.
Entries come from `observe` (both tokenizations of a text that was just written) and from `prefill` (the tokenizers
alone). A cache belongs to one pair of tokenizers; it survives a change of target within one family, never across.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .errors import OmnidraftError
from .files import make_folder_of, write_text
from .tokenizer import Tokenizer
from .vocabulary import Alignment, aligned_spans, canonical_ids

NGram = tuple[int, ...]
_FORMAT = "omnidraft n-gram cache 2"
_ID = array("i").itemsize  # bytes of one draft id in a packed n-gram


class NGramCache:
    """Draft n-grams and the target tokens they spell, found by either side; kept in memory, saved on demand.

    `capacity` bounds the number of entries; when it is reached, eviction "lru" forgets the least recently used entry, "lfu" the
    least often used one (found by looking at all; ties: least recently; arXiv 2507.02659, Table 14), and "none" takes no more.
    `version` grows with every change of what the cache answers. The pair of tokenizers is fixed by the constructor, by `load`
    or by the first `prefill` or `observe`. Raises OmnidraftError for settings that do not fit together.

    >>> cache = NGramCache(capacity=4096, eviction="lfu")
    >>> cache.insert((11, 12), 98), cache.insert((11, 12, 13), 99)  # "f", "la", "ke" <-> "flake"
    (True, True)
    >>> cache.longest_match([7, 11, 12, 13, 5], 1), cache.longest_match([11, 12, 14], 0), cache.split_of(99)
    ((99, 3), (98, 2), (11, 12, 13))
    """

    def __init__(self, capacity: int | None = None, eviction: str = "none", draft_fingerprint: str = "",
                 target_fingerprint: str = "") -> None:
        if eviction not in ("none", "lru", "lfu"):
            raise OmnidraftError(f"unknown eviction {eviction!r}: choose none, lru or lfu")
        if (capacity is None and eviction != "none") or (capacity is not None and capacity < 1):
            raise OmnidraftError(f"capacity is {capacity}: eviction {eviction!r} needs a maximum of 1 entry or more")
        self.capacity, self.eviction = capacity, eviction
        self.draft_fingerprint, self.target_fingerprint = draft_fingerprint, target_fingerprint
        self.tokens_seen = self.version = 0
        self.clear()

    def clear(self) -> None:
        """Forget every entry."""
        # N-grams are packed into bytes: 45 bytes for three ids, where a tuple and its ints take 148.
        self._tokens: dict[bytes, int] = {}  # n-gram -> target token; with eviction, the last used one is last
        self._hits: dict[bytes, int] = {}  # n-gram -> how often it was used
        self._splits: dict[int, bytes | list[bytes]] = {}  # target token -> its n-gram, or a list if it has several
        self._lengths: list[int] = []  # of the packed n-grams inserted so far, longest first
        self.version += 1

    def __len__(self) -> int:
        return len(self._hits)

    def __contains__(self, ngram: Sequence[int]) -> bool:
        return _pack(ngram) in self._hits

    def items(self) -> Iterator[tuple[NGram, int, int]]:
        """(n-gram, target token, hits) of each entry; the first to be evicted comes first."""
        for key in sorted(self._tokens, key=self._rank):
            yield _unpack(key), self._tokens[key], self._hits[key]

    def insert(self, ngram: Sequence[int], token: int, hits: int = 0) -> bool:
        """Add an entry, or give a known n-gram another token; False if nothing changed (known, or full and "none").

        Raises OmnidraftError if the n-gram has fewer than two tokens or an id is negative.
        """
        if len(ngram) < 2 or min(token, hits, *ngram) < 0:
            raise OmnidraftError(f"cannot cache {tuple(ngram)} <-> {token}: an entry is two or more draft ids and one "
                                 "target id, none negative")
        key, token = _pack(ngram), int(token)
        full = key not in self._tokens and len(self) == self.capacity
        if self._tokens.get(key) == token or full and self.eviction == "none":
            return False
        if full:
            self._remove(next(iter(self._tokens)) if self.eviction == "lru" else min(self._tokens, key=self._rank))
        elif key in self._tokens:
            self._remove(key)
        self._tokens[key], self._hits[key] = token, hits
        others = self._splits_of(token)
        self._splits[token] = [*others, key] if others else key
        if len(key) not in self._lengths:
            self._lengths = sorted([*self._lengths, len(key)], reverse=True)
        self.version += 1
        return True

    def longest_match(self, draft_tokens: Sequence[int], start: int) -> tuple[int, int] | None:
        """(target token, n) of the longest entry that spells draft_tokens[start:start + n], or None; counts a use."""
        window = _pack(draft_tokens[start:start + max(self._lengths, default=0) // _ID])
        for length in self._lengths:
            if length <= len(window) and window[:length] in self._hits:
                return self._use(window[:length]), length // _ID
        return None

    def split_of(self, token: int) -> NGram | None:
        """The n-gram that spells a target token: the most used one (ties: the shortest, then the lowest), or None."""
        splits = self._splits.get(token)
        if isinstance(splits, list):
            return min(map(_unpack, splits), key=lambda ngram: (-self.hits(ngram), len(ngram), ngram))
        return splits and _unpack(splits)

    def touch(self, ngram: Sequence[int]) -> bool:
        """Count a use of an entry; False if it is not there."""
        key = _pack(ngram)
        return key in self._hits and self._use(key) >= 0

    def hits(self, ngram: Sequence[int]) -> int:
        """How often an entry was used; 0 if it is not there."""
        return self._hits.get(_pack(ngram), 0)

    @property
    def growth_rate(self) -> float:
        """Entries per observed target token (0 before any)."""
        return len(self) / self.tokens_seen if self.tokens_seen else 0.0

    @property
    def size_bytes(self) -> int:
        """Memory that the entries take: the dicts with their spare room, and each object in them once.

        About 180 to 250 bytes an entry, as the paper's 245 (arXiv 2507.02659, Table 2); a full cache that forgets and
        learns takes up to 420, since Python's dicts grow before they reuse the room of what was removed.
        """
        held, inner = {}, [self._tokens, self._hits, self._splits, self._lengths]
        while inner:
            part = inner.pop()
            held[id(part)] = part
            inner += [*part, *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else ()
        return sum(map(sys.getsizeof, held.values()))

    def prefill(self, draft_tokenizer: Tokenizer, target_tokenizer: Tokenizer, alignment: Alignment) -> int:
        """Insert the drafter's split of every target token that has no direct partner; how many entries were new.

        Kept are splits that are complete (the same bytes, whole UTF-8 characters) and stable (the merges alone and the
        whole tokenizer agree). Ids go from low to high, that is from frequent to rare merges, until `capacity`.
        """
        self._bind(draft_tokenizer.fingerprint, target_tokenizer.fingerprint)
        before, draft_width = len(self), len(alignment.draft_to_target)
        canonical = canonical_ids(target_tokenizer, target_tokenizer.token_bytes)
        for token in np.flatnonzero(alignment.target_to_draft[:target_tokenizer.size] < 0).tolist():
            data = target_tokenizer.token_bytes[token]
            if not data or canonical[data] != token:
                continue
            if len(self) == self.capacity:
                break
            split = draft_tokenizer.split(data) or ()
            text = data.decode(errors="replace")  # a part of a character becomes another text, with another split
            if len(split) > 1 and max(split) < draft_width and draft_tokenizer.encode_continuation(text) == list(split):
                self.insert(split, token)
        return len(self) - before

    def observe(self, draft_ids: Sequence[int], target_ids: Sequence[int], draft_tokenizer: Tokenizer,
                target_tokenizer: Tokenizer, fresh: int | None = None) -> int:
        """Learn from two tokenizations of one text (arXiv 2507.02659, section 3.1); how many n-grams were new.

        Every minimal block of two or more draft tokens opposite one target token is inserted, or counted if known.
        A dummy space before one of the texts is disregarded, and so is what one text has after the other's end.
        `tokens_seen` grows by the target ids, or by `fresh` where some of them were observed before.
        Raises OmnidraftError if neither text begins with the other.

        >>> cache.observe(draft.encode("Snowflake"), target.encode("Snowflake"), draft, target)  # doctest: +SKIP
        1
        """
        self._bind(draft_tokenizer.fingerprint, target_tokenizer.fingerprint)
        ours, theirs = ([tokenizer.decode_bytes([i]) for i in ids]
                        for tokenizer, ids in ((draft_tokenizer, draft_ids), (target_tokenizer, target_ids)))
        for one, other in ((ours, theirs), (without_dummy(ours), theirs), (ours, without_dummy(theirs))):
            text, twin = b"".join(one), b"".join(other)
            if text.startswith(twin) or twin.startswith(text):
                break
        else:
            raise OmnidraftError("draft and target ids spell different texts: observe needs two tokenizations of the same text")
        new = 0
        for (start, end), (place, target_end) in aligned_spans([*map(len, one)], [*map(len, other)]):
            block, ngram = ours[start:end], draft_ids[start:end]
            # Blocks with a dummy space spell different bytes; a token without bytes is no part of a spelling.
            if end - start > 1 and target_end - place == 1 and all(block) and b"".join(block) == theirs[place]:
                new += not self.touch(ngram) and self.insert(ngram, target_ids[place], hits=1)
        self.tokens_seen += len(target_ids) if fresh is None else fresh
        return new

    def save(self, path: str | Path) -> None:
        """Write all entries to a JSON file, in one step; raises OmnidraftError if it cannot be written."""
        make_folder_of(Path(path))
        write_text(Path(path), json.dumps({
            "format": _FORMAT, "draft": self.draft_fingerprint, "target": self.target_fingerprint,
            "capacity": self.capacity, "eviction": self.eviction, "tokens_seen": self.tokens_seen,
            "entries": list(self.items())}))  # [draft ids, target id, hits], the first to be evicted first

    @classmethod
    def load(cls, path: str | Path, draft_fingerprint: str, target_fingerprint: str) -> NGramCache:
        """Read a saved cache; its order of use and its counts come back too.

        Raises OmnidraftError if the file is missing or damaged, or belongs to another pair of tokenizers.
        """
        if not Path(path).is_file():
            raise OmnidraftError(f"no cache file {path}: observe or prefill, then save one")
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            if saved["format"] != _FORMAT:
                raise ValueError
            cache = cls(saved["capacity"], saved["eviction"], saved["draft"], saved["target"])
            cache.tokens_seen = int(saved["tokens_seen"])
            for ngram, token, hits in saved["entries"]:
                cache.insert(ngram, token, hits)
        except (OSError, KeyError, TypeError, ValueError, OverflowError):  # OmnidraftError is a ValueError
            raise OmnidraftError(f"{path} is no readable n-gram cache (damaged or another format): "
                                 "delete it and it will be learnt again") from None
        cache._bind(draft_fingerprint, target_fingerprint)
        return cache

    def _bind(self, *pair: str) -> None:
        """Take the fingerprints of a pair of tokenizers; raises OmnidraftError if the cache has others."""
        if not self.draft_fingerprint and not self.target_fingerprint:
            self.draft_fingerprint, self.target_fingerprint = pair
        own = self.draft_fingerprint, self.target_fingerprint
        for side, ours, given in zip(("draft", "target"), own, pair, strict=True):
            if ours != given:
                raise OmnidraftError(f"this n-gram cache was made for another {side} tokenizer ({ours[:8]}, not "
                                     f"{given[:8]}): use one cache for each pair")

    def _use(self, key: bytes) -> int:
        """Count a use of an entry and, where the order of use matters, put it last; its target token."""
        token = self._tokens[key]
        before = self.split_of(token)
        self._hits[key] += 1
        if self.eviction != "none":
            self._tokens[key] = self._tokens.pop(key)
        self.version += self.split_of(token) != before  # another split of this token has become the usual one
        return token

    def _remove(self, key: bytes) -> None:
        token = self._tokens.pop(key)
        del self._hits[key]
        self._splits[token] = [split for split in self._splits_of(token) if split != key]
        if not self._splits[token]:
            del self._splits[token]

    def _rank(self, key: bytes) -> int:
        return self._hits[key] if self.eviction == "lfu" else 0

    def _splits_of(self, token: int) -> list[bytes]:
        splits = self._splits.get(token, [])
        return splits if isinstance(splits, list) else [splits]


def _pack(ngram: Sequence[int]) -> bytes:
    return array("i", ngram).tobytes()


def _unpack(key: bytes) -> NGram:
    return tuple(array("i", key))


def without_dummy(spelled: list[bytes]) -> list[bytes]:
    """The same tokens, one space at the start of the text taken off."""
    first = next((place for place, data in enumerate(spelled) if data), 0)
    return [data.removeprefix(b" ") if place == first else data for place, data in enumerate(spelled)]
