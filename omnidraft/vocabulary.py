"""Which tokens of two vocabularies are the same (arXiv 2507.02659, section 3.1 and Table 8).

Two tokens are the same if they stand for the same *bytes* (this project's own). The paper compares
*strings* after turning a leading "▁" into "Ġ". This misses tokens that are written differently (a
newline, a run of spaces, "中") and pairs some that differ ("é" is a letter in one vocabulary and
stands for byte 0xE9 in the other). Special tokens are paired by role (`special_tokens`).
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
    ours = _spellings(draft, strings)[:sizes[0]]
    theirs = _spellings(target, strings)[:sizes[1]]
    draft_ids = canonical_ids(draft, ours)
    target_ids = canonical_ids(target, theirs)
    draft_to_target = np.array([target_ids.get(key, -1) for key in ours], np.int32)  # (V_q,)
    target_to_draft = np.array([draft_ids.get(key, -1) for key in theirs], np.int32)  # (V_p,)
    shared_draft = int((draft_to_target >= 0).sum())
    shared_target = int((target_to_draft >= 0).sum())

    # Special tokens stand for no text: they are paired by role.
    for token, partner in partners(draft.special, target.special).items():
        if token < len(ours) and partner < len(theirs):
            draft_to_target[token] = partner
    for token, partner in partners(target.special, draft.special).items():
        if token < len(theirs) and partner < len(ours):
            target_to_draft[token] = partner
    return Alignment(draft_to_target, target_to_draft, shared_draft, shared_target)


def _spellings(side: Tokenizer, strings: bool) -> Sequence[Hashable]:
    """The bytes of each token; or its string, with a leading "▁" turned into "Ġ"."""
    if not strings:
        return side.token_bytes
    if side.byte_level:
        return side.strings
    return [re.sub("^▁", "Ġ", string or "") for string in side.strings]


class Direct:
    """The direct map (V_q,) from draft to target tokens (-1: not mapped), and its n pairs of ids.

    >>> Direct(np.array([1, -1, 0, 1])).targets.tolist()  # sorted by target id
    [0, 1, 1]
    """

    def __init__(self, draft_to_target: np.ndarray) -> None:
        self.draft_to_target = draft_to_target
        mapped = np.flatnonzero(draft_to_target >= 0)
        self.drafts = mapped[np.argsort(draft_to_target[mapped], kind="stable")]  # (n,)
        self.targets = draft_to_target[self.drafts].astype(np.int64)  # (n,)

    def prob(self, q: Any, token: int) -> Any:
        """The sum of q (V_q,) over the draft tokens that map directly to this target token."""
        first, last = self.targets.searchsorted((token, token + 1))
        return sum(q[draft_token] for draft_token in self.drafts[first:last].tolist())

    def spread(self, row: np.ndarray, size: int) -> np.ndarray:
        """A drafter's row (V_q,) over the target's tokens (V_p = size,), without what is unmapped.

        >>> Direct(np.array([1, -1, 0, 1])).spread(np.array([0.1, 0.2, 0.3, 0.4]), 3).tolist()
        [0.3, 0.5, 0.0]
        """
        made = np.zeros(size, row.dtype)
        np.add.at(made, self.targets, row[self.drafts])
        return made


def canonical_ids(tokenizer: Tokenizer, keys: Sequence[Hashable]) -> dict[Hashable, int]:
    """Spelling -> the one id that represents it; `keys` holds the spelling of each id, or None.

    Of several ids: the one that the tokenizer itself produces, else the lowest; byte fallback last.
    """
    ids = {}
    twins = {}
    for i, key in enumerate(keys):
        if key and ids.setdefault(key, i) != i:
            twins.setdefault(key, [ids[key]]).append(i)
    for key, same in twins.items():
        plain = [i for i in same if i not in tokenizer.fallback] or same
        produced = tokenizer.split(tokenizer.token_bytes[same[0]] or b"") or ()
        ids[key] = plain[0]
        if len(produced) == 1 and produced[0] in plain:
            ids[key] = produced[0]
    return ids


def aligned_spans(draft: Sequence[bytes], target: Sequence[bytes]) -> Iterator[tuple[Span, Span]]:
    """Align two tokenizations of one text, given as the bytes of each token, in smallest spans.

    Yields ((draft_start, draft_end), (target_start, target_end)), ends excluded, up to the last
    common boundary. A token without bytes (special or empty) at a boundary forms its own span.

    >>> list(aligned_spans([b"Snow", b"f", b"la", b"ke"], [b"Snow", b"flake"]))
    [((0, 1), (0, 1)), ((1, 4), (1, 2))]
    """
    i = j = 0  # tokens read on each side
    start_i = start_j = 0  # where the span begins
    ahead = 0  # bytes read on the draft side minus the target's
    while True:
        # The side that is behind reads on; neither: the drafter, unless only the target's is empty.
        only_theirs_is_empty = j < len(target) and not target[j] and i < len(draft) and draft[i]
        if i < len(draft) and (ahead < 0 or ahead == 0 and not only_theirs_is_empty):
            ahead += len(draft[i])
            i += 1
        elif j < len(target) and ahead >= 0:
            ahead -= len(target[j])
            j += 1
        else:
            return
        if ahead == 0:
            if b"".join(draft[start_i:i]) != b"".join(target[start_j:j]):
                return
            yield (start_i, i), (start_j, j)
            start_i = i
            start_j = j
