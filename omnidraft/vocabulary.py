"""Which tokens of two vocabularies are the same (arXiv 2507.02659, section 3.1 and Table 8).

Two tokens are the same when they stand for the same *bytes* (the default, this project's own): "▁the" of SentencePiece
and "Ġthe" of a byte-level vocabulary, "<0x0A>" and "Ċ". The paper compares *strings* after turning a leading "▁" into
"Ġ"; that misses what is spelled differently (a newline, a run of spaces, "中") and pairs some tokens falsely ("é" is a
letter in one vocabulary and the stand-in for byte 0xE9 in the other). Special tokens are paired by role (`roles.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .errors import OmnidraftError
from .files import make_folder_of, write_text
from .special_tokens import pair_roles
from .tokenizer import Tokenizer

DEFINITIONS = ("bytes", "strings")
Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Alignment:
    """The direct map between two vocabularies; -1 means that the other side has no such token."""

    draft_to_target: np.ndarray  # (V_q,) int32
    target_to_draft: np.ndarray  # (V_p,) int32
    by: str  # "bytes" or "strings"
    shared_draft: int  # draft ids whose spelling the target has; pairs by role not counted
    shared_target: int  # target ids whose spelling the drafter has
    role_pairs: int  # draft special tokens paired by role

    def fitted(self, draft_width: int, target_width: int) -> Alignment:
        """The same map for logits of these widths, the tokenizers' sizes cut or padded with -1.

        A model may have more logits than its tokenizer has tokens (Qwen2: 152,064 against 151,646), or fewer: such ids are
        never proposed.
        """
        return replace(self, draft_to_target=_fit(self.draft_to_target, draft_width, target_width),
                       target_to_draft=_fit(self.target_to_draft, target_width, draft_width))


def align(draft: Tokenizer, target: Tokenizer, by: str = "bytes") -> Alignment:
    """Pair the tokens of two vocabularies by their bytes, or by the paper's string definition (`by="strings"`).

    Where several tokens have the same spelling the pair goes to the canonical one: the token that its own tokenizer
    produces, else the lowest id. Byte-fallback and padded ids are never chosen over a plain token.
    Raises OmnidraftError for another `by`.

    >>> align(llama2, llama3).shared_draft, align(llama2, llama3, by="strings").shared_draft  # doctest: +SKIP
    (26695, 22416)
    """
    if by not in DEFINITIONS:
        raise OmnidraftError(f"unknown definition {by!r}: align by 'bytes' or by 'strings'")
    draft_keys, target_keys = (side.token_bytes if by == "bytes" else _strings(side) for side in (draft, target))
    draft_ids, target_ids = canonical_ids(draft, draft_keys), canonical_ids(target, target_keys)
    draft_to_target = np.array([target_ids.get(key, -1) for key in draft_keys], dtype=np.int32)
    target_to_draft = np.array([draft_ids.get(key, -1) for key in target_keys], dtype=np.int32)
    shared = int((draft_to_target >= 0).sum()), int((target_to_draft >= 0).sum())

    to_target, to_draft = pair_roles(draft, target)
    for pairs, table in ((to_target, draft_to_target), (to_draft, target_to_draft)):
        for ours, theirs in pairs.items():
            table[ours] = theirs
    return Alignment(draft_to_target, target_to_draft, by, *shared, role_pairs=len(to_target))


def canonical_ids(tokenizer: Tokenizer, keys: Sequence[Hashable]) -> dict[Hashable, int]:
    """Spelling -> the one id that stands for it, `keys` being the spelling of each id; None and empty are left out.

    Of several ids with one spelling: the one that the tokenizer itself produces, else the lowest; a byte-fallback id
    only if there is no other.

    >>> canonical_ids(llama2, llama2.token_bytes)[b"A"]  # 29909 is "A", 68 is "<0x41>"  # doctest: +SKIP
    29909
    """
    ids: dict[Hashable, int] = {}
    twins: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        if key and ids.setdefault(key, i) != i:
            twins.setdefault(key, [ids[key]]).append(i)
    for key, same in twins.items():
        plain = [i for i in same if not tokenizer.is_fallback(i)] or same
        produced = tokenizer.split(tokenizer.token_bytes[same[0]] or b"") or ()
        ids[key] = produced[0] if len(produced) == 1 and produced[0] in plain else plain[0]
    return ids


def aligned_spans(draft_lengths: Sequence[int], target_lengths: Sequence[int]) -> Iterator[tuple[Span, Span]]:
    """Cut two tokenizations of one text, given as byte lengths, at every boundary they share.

    Yields the minimal blocks ((draft_start, draft_end), (target_start, target_end)), token positions, end excluded.
    A token without bytes (special or empty) at a boundary is a block of its own, opposite an empty span. Where one
    text is longer, what follows the last common boundary is left out.

    >>> list(aligned_spans([4, 1, 2, 2], [4, 5]))  # "Snow f la ke" against "Snow flake"
    [((0, 1), (0, 1)), ((1, 4), (1, 2))]
    """
    i = j = start_i = start_j = ahead = 0  # ahead: bytes that the draft side has read more than the target side
    while True:
        ours = draft_lengths[i] if i < len(draft_lengths) else None
        theirs = target_lengths[j] if j < len(target_lengths) else None
        if ours is not None and (ahead < 0 or ahead == 0 and (ours == 0 or theirs != 0)):
            ahead, i = ahead + ours, i + 1
        elif theirs is not None and ahead >= 0:
            ahead, j = ahead - theirs, j + 1
        else:
            return
        if ahead == 0:
            yield (start_i, i), (start_j, j)
            start_i, start_j = i, j


def default_folder() -> Path:
    """Where alignments are kept: $OMNIDRAFT_CACHE, else ~/.cache/omnidraft."""
    return Path(os.environ.get("OMNIDRAFT_CACHE") or Path.home() / ".cache" / "omnidraft")


def load_or_build(draft: Tokenizer, target: Tokenizer, by: str = "bytes", folder: str | Path | None = None) -> Alignment:
    """`align`, remembered on disk in `folder` (`default_folder()` if None) under both fingerprints and `by`.

    A file that is missing, damaged or made by another version is built anew; a folder that cannot be written costs
    nothing but the time to align again.
    """
    key = json.dumps([2, by, draft.fingerprint, target.fingerprint, draft.roles, target.roles])  # 2: file version
    path = Path(folder or default_folder()) / f"alignment-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        tables = [np.array(table, dtype=np.int32) for table in saved["tables"]]
        if saved["key"] == key and [table.shape for table in tables] == [(draft.size,), (target.size,)]:
            return Alignment(*tables, by, *map(int, saved["counts"]))
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        pass
    made = align(draft, target, by)
    with suppress(OmnidraftError):
        make_folder_of(path)
        write_text(path, json.dumps({
            "key": key, "counts": [made.shared_draft, made.shared_target, made.role_pairs],
            "tables": [made.draft_to_target.tolist(), made.target_to_draft.tolist()]}))
    return made


def _strings(tokenizer: Tokenizer) -> Sequence[str | None]:
    """The vocabulary's spellings, special tokens included as in the paper's count, a leading "▁" turned into "Ġ"."""
    if tokenizer.byte_level:
        return tokenizer.strings
    return ["Ġ" + string[1:] if string and string[0] == "▁" else string for string in tokenizer.strings]


def _fit(table: np.ndarray, width: int, other_width: int) -> np.ndarray:
    fitted = np.full(width, -1, dtype=np.int32)
    fitted[: len(table)] = table[:width]
    fitted[fitted >= other_width] = -1
    return fitted
