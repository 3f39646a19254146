"""The n-gram cache: several draft tokens and the one target token that they spell.

An entry (d_1..d_n <-> t), n >= 2, says that the drafter writes with n tokens what the target
writes with one: their bytes are equal (arXiv 2507.02659, section 3.1). Entries come from `observe`
(two tokenizations of a text that was just written) and from `prefill` (the tokenizers alone).
Elsewhere "n-gram cache" means a drafter; this one translates, for one pair of tokenizers.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from operator import index
from pathlib import Path

import numpy as np

from .errors import OmnidraftError
from .files import make_folder_of, read_json, write_text
from .tokenizer import Tokenizer
from .vocabulary import Alignment, aligned_spans, canonical_ids

NGram = tuple[int, ...]
_FORMAT = "omnidraft n-gram cache 2"


class NGramCache:
    """Draft n-grams and the target tokens that they spell, found by either side.

    A cache full at `capacity` entries forgets the least recently used one with eviction "lru", the
    least often used one with "lfu" (arXiv 2507.02659, Table 14), and takes no more with "none".
    `version` grows with every change of what it answers. OmnidraftError for unfit settings.

    >>> cache = NGramCache(capacity=4096, eviction="lfu")
    >>> cache.insert((11, 12), 98), cache.insert((11, 12, 13), 99)  # "f", "la", "ke" <-> "flake"
    (True, True)
    >>> cache.longest_match([7, 11, 12, 13, 5], 1), cache.split_of(99)
    ((99, 3), (11, 12, 13))
    """

    def __init__(self, capacity: int | None = None, eviction: str = "none",
                 draft_fingerprint: str = "", target_fingerprint: str = "") -> None:
        if eviction not in ("none", "lru", "lfu"):
            raise OmnidraftError(f"unknown eviction {eviction!r}: choose none, lru or lfu")
        if eviction != "none" if capacity is None else capacity < 1:
            raise OmnidraftError(f"capacity is {capacity}: eviction {eviction!r} needs 1 or more")
        self.capacity, self.eviction = capacity, eviction
        self.draft_fingerprint, self.target_fingerprint = draft_fingerprint, target_fingerprint
        self.tokens_seen = self.version = 0
        self.clear()

    def clear(self) -> None:
        """Forget every entry."""
        # n-gram -> (target token, how often it was used); with eviction the last used comes last
        self._entries: dict[NGram, tuple[int, int]] = {}
        self._splits: dict[int, tuple[NGram, ...]] = {}  # target token -> n-grams, the usual first
        self._lengths: list[int] = []  # of the n-grams inserted so far, longest first
        self.version += 1

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ngram: Sequence[int]) -> bool:
        return tuple(ngram) in self._entries

    def items(self) -> Iterator[tuple[NGram, int, int]]:
        """(n-gram, target token, hits) of each entry; the first to be evicted comes first."""
        ngrams = sorted(self._entries, key=self.hits) if self.eviction == "lfu" else self._entries
        return ((ngram, *self._entries[ngram]) for ngram in ngrams)

    def insert(self, ngram: Sequence[int], token: int, hits: int = 0) -> bool:
        """Add an entry, or give a known n-gram another token; False if nothing changed.

        Raises OmnidraftError for fewer than two draft ids, or ids that are not in 0..2**31 - 1.
        """
        ngram, token = tuple(map(index, ngram)), index(token)
        if len(ngram) < 2 or min(*ngram, token, hits) < 0 or max(*ngram, token) >= 2**31:
            raise OmnidraftError(f"cannot cache {ngram} <-> {token}: an entry is two or more draft "
                                 "ids and one target id, each from 0 to 2**31 - 1")
        known = self._entries.get(ngram, (None, 0))[0]
        full = known is None and len(self) == self.capacity
        if known == token or full and self.eviction == "none":
            return False
        if known is not None:
            self._remove(ngram)
        elif full:
            self._remove(next(self.items())[0])
        self._entries[ngram] = token, hits
        self._splits[token] = self._usual_first((*self._splits.get(token, ()), ngram))
        self._lengths = sorted({*self._lengths, len(ngram)}, reverse=True)
        self.version += 1
        return True

    def longest_match(self, draft_tokens: Sequence[int], start: int) -> tuple[int, int] | None:
        """(target token, n) of the longest entry that begins at `start`, or None; counts a use."""
        window = tuple(draft_tokens[start:start + max(self._lengths, default=0)])
        for length in self._lengths:
            if length <= len(window) and window[:length] in self._entries:
                return self._use(window[:length]), length
        return None

    def split_of(self, token: int) -> NGram | None:
        """The n-gram that spells a target token: the most used (then shortest, lowest), or None."""
        return self._splits.get(token, (None,))[0]

    def touch(self, ngram: Sequence[int]) -> bool:
        """Count a use of an entry; False if it is not there."""
        ngram = tuple(map(index, ngram))
        return ngram in self._entries and self._use(ngram) >= 0

    def hits(self, ngram: Sequence[int]) -> int:
        """How often an entry was used; 0 if it is not there."""
        return self._entries.get(tuple(ngram), (0, 0))[1]

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, each object once: about 350 bytes an entry, the paper has 245."""
        held, waiting = {}, [self._entries, self._splits, self._lengths]
        while waiting:
            part = waiting.pop()
            held[id(part)] = part
            waiting += gc.get_referents(part)
        return sum(map(sys.getsizeof, held.values()))

    def prefill(self, draft_tokenizer: Tokenizer, target_tokenizer: Tokenizer,
                alignment: Alignment) -> int:
        """Insert the drafter's split of each target token without a direct token; how many.

        A split must be complete (the same bytes, whole UTF-8 characters) and stable (the merges
        alone and the whole tokenizer agree). Low ids, which are frequent merges, come first.
        """
        self._bind(draft_tokenizer.fingerprint, target_tokenizer.fingerprint)
        before, draft_width = len(self), len(alignment.draft_to_target)
        canonical = canonical_ids(target_tokenizer, target_tokenizer.token_bytes)
        alone = alignment.target_to_draft[:target_tokenizer.size] < 0
        for token in np.flatnonzero(alone).tolist():
            data = target_tokenizer.token_bytes[token]
            if len(self) == self.capacity:
                break
            if data and canonical[data] == token:
                text = data.decode(errors="replace")  # subtle: a cut character changes the text
                split = list(draft_tokenizer.split(data) or ())
                stable = len(split) > 1 and draft_tokenizer.encode_continuation(text) == split
                if stable and max(split) < draft_width:
                    self.insert(split, token)
        return len(self) - before

    def observe(self, draft_ids: Sequence[int], target_ids: Sequence[int],
                draft_tokenizer: Tokenizer, target_tokenizer: Tokenizer,
                fresh: int | None = None) -> int:
        """Learn from two tokenizations of a text (arXiv 2507.02659, section 3.1); how much was new.

        Every smallest block of two or more draft tokens opposite one target token is inserted, or
        counted if known. `tokens_seen` grows by the target ids, or by `fresh` if some were seen
        before. Raises OmnidraftError if neither text begins with the other.
        """
        self._bind(draft_tokenizer.fingerprint, target_tokenizer.fingerprint)
        for dummy, other_dummy in ((0, 0), (0, 1), (1, 0)):  # a space that one side adds: id -1
            ngrams, tokens = [-1] * dummy + [*draft_ids], [-1] * other_dummy + [*target_ids]
            ours = [b" "] * dummy + [draft_tokenizer.decode_bytes([i]) for i in draft_ids]
            theirs = [b" "] * other_dummy + [target_tokenizer.decode_bytes([i]) for i in target_ids]
            text, other = b"".join(ours), b"".join(theirs)
            if text.startswith(other) or other.startswith(text):
                break
        else:
            raise OmnidraftError("draft and target ids spell different texts: observe needs "
                                 "two tokenizations of one text")
        new = 0
        for (start, end), (place, target_end) in aligned_spans(ours, theirs):
            ngram = ngrams[start:end]
            # subtle: a token without bytes is no part of a spelling, nor is the added space
            if len(ngram) > 1 and target_end - place == 1 and all(ours[start:end]) \
                    and ngram[0] >= 0:
                new += not self.touch(ngram) and self.insert(ngram, tokens[place], hits=1)
        self.tokens_seen += len(target_ids) if fresh is None else fresh
        return new

    def save(self, path: str | Path) -> None:
        """Write all entries to a JSON file; raises OmnidraftError if it cannot be written."""
        make_folder_of(Path(path))
        write_text(Path(path), json.dumps({
            "format": _FORMAT, "draft": self.draft_fingerprint, "target": self.target_fingerprint,
            "capacity": self.capacity, "eviction": self.eviction, "tokens_seen": self.tokens_seen,
            "entries": list(self.items())}))  # [draft ids, target id, hits], first evicted first

    @classmethod
    def load(cls, path: str | Path, draft_fingerprint: str, target_fingerprint: str) -> NGramCache:
        """Read a saved cache; OmnidraftError if it is missing, damaged or of another pair."""
        if not Path(path).exists():
            raise OmnidraftError(f"no cache file {path}: observe or prefill, then save one")
        try:
            saved = read_json(Path(path))
            entries, capacity = saved["entries"], saved["capacity"]
            cache = cls(capacity, saved["eviction"], str(saved["draft"]), str(saved["target"]))
            if saved["format"] != _FORMAT or len(entries) > (capacity or len(entries)):
                raise ValueError
            cache.tokens_seen = int(saved["tokens_seen"])
            for ngram, token, hits in entries:
                cache.insert(ngram, token, index(hits))
        except (KeyError, TypeError, ValueError, OverflowError):  # OmnidraftError is a ValueError
            raise OmnidraftError(f"{path} is no readable n-gram cache (damaged or another format): "
                                 "delete it and it will be learned again") from None
        cache._bind(draft_fingerprint, target_fingerprint)
        return cache

    def _bind(self, draft: str, target: str) -> None:
        """Take a pair's fingerprints; raises OmnidraftError if the cache has others."""
        if not self.draft_fingerprint and not self.target_fingerprint:
            self.draft_fingerprint, self.target_fingerprint = draft, target
        if self.draft_fingerprint != draft or self.target_fingerprint != target:
            side = "draft" if self.draft_fingerprint != draft else "target"
            raise OmnidraftError(f"this n-gram cache was made for another {side} tokenizer: "
                                 "use one cache for each pair")

    def _use(self, ngram: NGram) -> int:
        """Count a use of an entry and, where the order of use matters, put it last; its token."""
        token, hits = self._entries[ngram]
        if self.eviction != "none":
            del self._entries[ngram]
        self._entries[ngram] = token, hits + 1
        usual = self._splits[token][0]
        self._splits[token] = self._usual_first(self._splits[token])
        self.version += self._splits[token][0] != usual
        return token

    def _remove(self, ngram: NGram) -> None:
        token, _ = self._entries.pop(ngram)
        self._splits[token] = tuple(split for split in self._splits[token] if split != ngram)
        if not self._splits[token]:
            del self._splits[token]

    def _usual_first(self, splits: tuple[NGram, ...]) -> tuple[NGram, ...]:
        return tuple(sorted(splits, key=lambda split: (-self.hits(split), len(split), split)))

