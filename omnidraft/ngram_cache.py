"""This cache *translates* (elsewhere "n-gram cache" means a drafter): n-gram of draft tokens <-> one target token.

An entry (d_1..d_n <-> t), n >= 2, says that the drafter spells with n tokens what the target spells with one: their
bytes are equal (arXiv 2507.02659, section 3.1). Single tokens belong to the direct map of `vocabulary.py`.
Entries come from `observe` (both tokenizations of a text that was just written) and from `prefill` (the tokenizers
alone). A cache belongs to one pair of tokenizers; it survives a change of target within one family, never across.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from .errors import OmnidraftError
from .ngram_store import NGram, NGramStore
from .tokenizer import Tokenizer
from .vocabulary import Alignment, aligned_spans, canonical_ids, write_tables

__all__ = ["NGram", "NGramCache"]
_FORMAT = "omnidraft n-gram cache 1"


class NGramCache(NGramStore):
    """An `NGramStore` that fills itself from two tokenizers and from text, and that lives on disk.

    The pair of tokenizers is fixed by the constructor, by `load` or by the first `prefill` or `observe`.

    >>> cache = NGramCache(capacity=4096, eviction="lfu")
    >>> cache.prefill(draft, target, align(draft, target))  # doctest: +SKIP
    1804
    """

    def __init__(self, capacity: int | None = None, eviction: str = "none", draft_fingerprint: str = "",
                 target_fingerprint: str = "") -> None:
        super().__init__(capacity, eviction)
        self.draft_fingerprint, self.target_fingerprint = draft_fingerprint, target_fingerprint
        self.tokens_seen = 0

    @property
    def growth_rate(self) -> float:
        """Entries per observed target token (0 before any)."""
        return len(self) / self.tokens_seen if self.tokens_seen else 0.0

    def prefill(self, draft_tokenizer: Tokenizer, target_tokenizer: Tokenizer, alignment: Alignment) -> int:
        """Insert the drafter's split of every target token that has no direct partner; how many entries were new.

        Kept are splits that are complete (the same bytes, whole UTF-8 characters) and stable (the merges alone and the
        whole tokenizer agree). Ids go from low to high, that is from frequent to rare merges, until `capacity`.
        """
        self._bind(draft_tokenizer, target_tokenizer)
        before, draft_width = len(self), len(alignment.draft_to_target)
        canonical = canonical_ids(target_tokenizer, target_tokenizer.token_bytes)
        for token, data in enumerate(target_tokenizer.token_bytes[:len(alignment.target_to_draft)]):
            if self.capacity is not None and len(self) >= self.capacity:
                break
            if not data or canonical[data] != token or alignment.target_to_draft[token] >= 0:
                continue
            try:
                text = data.decode()
            except UnicodeDecodeError:  # a part of a character: its split depends on the rest
                continue
            split = draft_tokenizer.split(data) or ()
            if (len(split) > 1 and max(split) < draft_width
                    and draft_tokenizer.encode_continuation(text) == list(split)):
                self.insert(split, token)
        return len(self) - before

    def observe(self, draft_ids: Sequence[int], target_ids: Sequence[int], draft_tokenizer: Tokenizer,
                target_tokenizer: Tokenizer) -> int:
        """Learn from two tokenizations of one text (arXiv 2507.02659, section 3.1); how many n-grams were new.

        Every minimal block of two or more draft tokens opposite one target token is inserted, or counted if known.
        A dummy space before one of the texts is disregarded, and so is what one text has after the other's end.
        Raises OmnidraftError if neither text begins with the other.

        >>> cache.observe(draft.encode("Snowflake"), target.encode("Snowflake"), draft, target)  # doctest: +SKIP
        1
        """
        self._bind(draft_tokenizer, target_tokenizer)
        ours, theirs = _spell(draft_tokenizer, draft_ids), _spell(target_tokenizer, target_ids)
        draft_lengths, target_lengths = [len(data) for data in ours], [len(data) for data in theirs]
        one, other = b"".join(ours), b"".join(theirs)
        if not _agree(one, other):
            if draft_tokenizer.prefix_space and one[:1] == b" " and _agree(one[1:], other):
                lengths = draft_lengths
            elif target_tokenizer.prefix_space and other[:1] == b" " and _agree(one, other[1:]):
                lengths = target_lengths
            else:
                raise OmnidraftError("draft and target ids spell different texts: observe needs two tokenizations of "
                                     "the same text")
            lengths[next(place for place, length in enumerate(lengths) if length)] -= 1
        new = 0
        for (start, end), (place, target_end) in aligned_spans(draft_lengths, target_lengths):
            block = ours[start:end]
            # Blocks with a dummy space spell different bytes; a token without bytes is no part of a spelling.
            if end - start > 1 and target_end - place == 1 and all(block) and b"".join(block) == theirs[place]:
                ngram = tuple(map(int, draft_ids[start:end]))
                if not self.touch(ngram):
                    new += self.insert(ngram, int(target_ids[place]), hits=1)
        self.tokens_seen += len(target_ids)
        return new

    def save(self, path: str | Path) -> None:
        """Write all entries to a safetensors file, in one step (a reader sees the old file or the new one).

        Raises OmnidraftError if the file cannot be written.
        """
        entries = list(self.items())
        tables = {"tokens": np.array([token for _, token, _ in entries], np.int32),  # (E,), first to be evicted first
                  "hits": np.array([hits for _, _, hits in entries], np.int64),  # (E,)
                  "lengths": np.array([len(ngram) for ngram, _, _ in entries], np.int32),  # (E,)
                  "ngrams": np.array([i for ngram, _, _ in entries for i in ngram], np.int32)}  # (sum of lengths,)
        note = {"format": _FORMAT, "draft": self.draft_fingerprint, "target": self.target_fingerprint,
                "settings": json.dumps([self.capacity, self.eviction, self.tokens_seen])}
        try:
            write_tables(Path(path), tables, note)
        except (OSError, SafetensorError) as error:
            raise OmnidraftError(f"cannot write the cache {path} ({error}): choose another file or folder") from None

    @classmethod
    def load(cls, path: str | Path, draft_fingerprint: str, target_fingerprint: str) -> NGramCache:
        """Read a saved cache; its order of use and its counts come back too.

        Raises OmnidraftError if the file is missing or damaged, or belongs to another pair of tokenizers.
        """
        if not Path(path).is_file():
            raise OmnidraftError(f"no cache file {path}: observe or prefill, then save one")
        damaged = OmnidraftError(f"{path} is no readable n-gram cache (damaged or another format): "
                                 "delete it and it will be learnt again")
        try:
            with safe_open(path, "np") as file:
                note = file.metadata() or {}
                tables = [file.get_tensor(name) for name in ("tokens", "hits", "lengths", "ngrams")]
            tokens, hits, lengths, ngrams = (table.tolist() for table in tables)
            if note["format"] != _FORMAT or sum(lengths) != len(ngrams):
                raise damaged
            pair = note["draft"], note["target"]
            capacity, eviction, tokens_seen = json.loads(note["settings"])
            cache = cls(capacity, eviction, *pair)
            cache.tokens_seen = int(tokens_seen)
            for token, count, length, end in zip(tokens, hits, lengths, accumulate(lengths), strict=True):
                cache.insert(ngrams[end - length:end], token, count)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):  # OmnidraftError is a ValueError
            raise damaged from None
        for side, stored, given in zip(("draft", "target"), pair, (draft_fingerprint, target_fingerprint), strict=True):
            if stored != given:
                raise OmnidraftError(f"the cache {path} was made for another {side} tokenizer ({stored[:8]}, not "
                                     f"{given[:8]}): use the pair it was made for, or start a new cache")
        return cache

    def _bind(self, draft_tokenizer: Tokenizer, target_tokenizer: Tokenizer) -> None:
        pair = draft_tokenizer.fingerprint, target_tokenizer.fingerprint
        if not self.draft_fingerprint and not self.target_fingerprint:
            self.draft_fingerprint, self.target_fingerprint = pair
        if pair != (self.draft_fingerprint, self.target_fingerprint):
            raise OmnidraftError(f"this cache belongs to another pair of tokenizers than {draft_tokenizer.name!r} -> "
                                 f"{target_tokenizer.name!r}: use one cache for each pair")


def _spell(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    return [tokenizer.token_bytes[i] or b"" if i < tokenizer.size else b"" for i in ids]


def _agree(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)
