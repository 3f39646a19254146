"""Which tokens of two vocabularies are the same (arXiv 2507.02659, section 3.1 and Table 8).

Two tokens are the same if they stand for the same *bytes* (this project's own). The paper compares
*strings* after turning a leading "▁" into "Ġ". This misses tokens that are written differently (a
newline, a run of spaces, "中") and pairs some that differ ("é" is a letter in one vocabulary and
stands for byte 0xE9 in the other). Special tokens are paired by role (`special_tokens`).
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .text.special_tokens import partners
from .text.tokenizer import Tokenizer

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Alignment:
    """The direct map between two vocabularies; -1: the other vocabulary has no such token."""

    draft_to_target: np.ndarray  # (V_q,) int32
    target_to_draft: np.ndarray  # (V_p,) int32
    shared_draft: int  # draft ids whose spelling the target has too; pairs by role not counted
    shared_target: int  # target ids whose spelling the drafter has too


def align(draft: Tokenizer, target: Tokenizer, strings: bool = False,
          sizes: tuple[int | None, int | None] = (None, None)) -> Alignment:
    """Pair the tokens of two vocabularies by their bytes, or by their `strings` as the paper does.

    Tokens with the same spelling all map to its canonical partner. `sizes`: the numbers of logits
    of the two models; ids beyond them are left out.
    """
    ours, theirs = draft.token_bytes, target.token_bytes
    if strings:  # with special tokens, a leading "▁" turned into "Ġ"
        ours, theirs = ([string if side.byte_level else re.sub("^▁", "Ġ", string or "")
                         for string in side.strings] for side in (draft, target))
    ours, theirs = ours[:sizes[0]], theirs[:sizes[1]]
    draft_ids, target_ids = canonical_ids(draft, ours), canonical_ids(target, theirs)
    draft_to_target = np.array([target_ids.get(key, -1) for key in ours], dtype=np.int32)
    target_to_draft = np.array([draft_ids.get(key, -1) for key in theirs], dtype=np.int32)
    shared = int((draft_to_target >= 0).sum()), int((target_to_draft >= 0).sum())

    for table, other, one, two in ((draft_to_target, target_to_draft, draft, target),
                                   (target_to_draft, draft_to_target, target, draft)):
        for token, partner in partners(one.special, two.special).items():
            if token < len(table) and partner < len(other):
                table[token] = partner
    return Alignment(draft_to_target, target_to_draft, *shared)


def canonical_ids(tokenizer: Tokenizer, keys: Sequence[Hashable]) -> dict[Hashable, int]:
    """Spelling -> the one id that represents it; `keys` holds the spelling of each id, or None.

    Of several ids: the one that the tokenizer itself produces, else the lowest; byte fallback last.
    """
    ids: dict[Hashable, int] = {}
    twins: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        if key and ids.setdefault(key, i) != i:
            twins.setdefault(key, [ids[key]]).append(i)
    for key, same in twins.items():
        plain = [i for i in same if i not in tokenizer.fallback] or same
        produced = tokenizer.split(tokenizer.token_bytes[same[0]] or b"") or ()
        ids[key] = produced[0] if len(produced) == 1 and produced[0] in plain else plain[0]
    return ids


def aligned_spans(draft: Sequence[bytes], target: Sequence[bytes]) -> Iterator[tuple[Span, Span]]:
    """Align two tokenizations of one text, given as the bytes of each token, in smallest blocks.

    Yields ((draft_start, draft_end), (target_start, target_end)), ends excluded, up to the last
    common boundary. A token without bytes (special or empty) at a boundary forms its own block.

    >>> list(aligned_spans([b"Snow", b"f", b"la", b"ke"], [b"Snow", b"flake"]))
    [((0, 1), (0, 1)), ((1, 4), (1, 2))]
    """
    i = j = start_i = start_j = ahead = 0  # ahead: bytes read on the draft side minus the target's
    while True:
        ours = len(draft[i]) if i < len(draft) else None
        theirs = len(target[j]) if j < len(target) else None
        # The side that is behind reads on; neither: the drafter, unless only the target's is empty.
        if ours is not None and (ahead < 0 or ahead == 0 and (ours == 0 or theirs != 0)):
            ahead, i = ahead + ours, i + 1
        elif theirs is not None and ahead >= 0:
            ahead, j = ahead - theirs, j + 1
        else:
            return
        if ahead == 0:
            if b"".join(draft[start_i:i]) != b"".join(target[start_j:j]):
                return
            yield (start_i, i), (start_j, j)
            start_i, start_j = i, j
