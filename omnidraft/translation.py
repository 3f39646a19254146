"""Translation between the two vocabularies, in both directions (arXiv 2507.02659, section 3.1).

Draft to target, before verification: `merge` turns draft tokens into proposals with the translated probability q'
(Eq. 1) and the rows that the residual needs (Eq. 2); `continuation` re-tokenises the drafted text instead.
Target to draft, after verification: `extend` re-tokenises what the target wrote, near its end only, so that a round's
cost does not grow with the text. The target's own tokens are never re-tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from .tokenizer import Tokenizer

WINDOW = 64  # tokens that `extend` goes back at most to find a place where re-tokenising can begin


class Direct:
    """The direct map (V_q,) from draft to target tokens, -1 where there is none, and its n pairs in the target's order.

    >>> Direct(np.array([1, -1, 0, 1])).drafts_of(1)
    [0, 3]
    """

    def __init__(self, draft_to_target: np.ndarray) -> None:
        self.draft_to_target = draft_to_target
        mapped = np.flatnonzero(draft_to_target >= 0)
        self.drafts = mapped[np.argsort(draft_to_target[mapped], kind="stable")]  # (n,)
        self.targets = draft_to_target[self.drafts].astype(np.int64)  # (n,)

    def drafts_of(self, token: int) -> list[int]:
        """The draft tokens whose direct token is this one."""
        begin, end = self.targets.searchsorted((token, token + 1))
        return self.drafts[begin:end].tolist()


NO_PAIRS = Direct(np.empty(0, np.int64))


class Translated:
    """A row q' (V_p,): the drafter's row q (V_q,) on the target's tokens, and what a merge changes in it (Eq. 1 and 2).

    A proposal that is kept needs one entry of it, `row[token]`; one that is refused p - q' (V_p,), `p - row`.

    >>> row = Translated(np.array([0.5, 0.25, 0.25]), Direct(np.array([1, 1, -1])))
    >>> float(row[1]), (np.ones(3) - row).tolist()
    (0.75, [1.0, 0.25, 1.0])
    """

    __array_ufunc__ = None  # NumPy leaves `p - row` to the row

    def __init__(self, q: Any, direct: Direct) -> None:
        self.q, self.direct = q, direct
        self.changed: dict[int, Any] = {}

    def __getitem__(self, token: int) -> Any:
        if token not in self.changed:
            return sum([self.q[draft_token] for draft_token in self.direct.drafts_of(token)], 0.0)
        return self.changed[token]

    def __setitem__(self, token: int, probability: Any) -> None:
        self.changed[token] = probability

    def __rsub__(self, target_probs: np.ndarray) -> np.ndarray:
        left = target_probs - np.bincount(self.direct.targets, self.q[self.direct.drafts], len(target_probs))
        for token, probability in self.changed.items():
            left[token] = target_probs[token] - probability
        return left


@dataclass
class Proposals:
    """Proposed target tokens: `tokens` (m,), `rows` m rows (V_p,) of q' (or None), `spans` (m,) draft tokens that each is for.

    A span of 2 or more is a merge by the n-gram cache; of the target tokens that one draft token expands to, the first
    has span 1 and the others 0.
    """

    tokens: list[int] = field(default_factory=list)
    rows: list[Translated | None] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    atoms: list[int | None] = field(default_factory=list)  # `lossless` at temperature > 0: what `Lifting.reveal` gave
    laws: list[np.ndarray] = field(default_factory=list)

    def add(self, token: int, row: Translated | None, span: int) -> None:
        """Append one proposal."""
        self.tokens.append(token)
        self.rows.append(row)
        self.spans.append(span)


def merge(draft_tokens: Sequence[int], draft_probs: Sequence[np.ndarray], direct: Direct,
          longest_match: Callable[[Sequence[int], int], tuple[int, int] | None], spellings: dict[int, Sequence[int]],
          row_type: type[Translated] | None = Translated) -> Proposals:
    """Proposals of the drafted tokens d_1..d_k: the longest cached n-gram at each place, else the direct token, else none.

    draft_probs: k rows (V_q,); longest_match(tokens, start) gives (target token,
    length) or None; spellings: draft token -> several target tokens (an expansion). A direct token has q'(t) = q(d), a
    merged one q'(t) = prod_j q(d_j) (Eq. 1), taken off the direct token of d_1 (Eq. 2, clamped at 0). An expansion's
    first token carries q(d) (what other draft tokens would add to it is left out), its others are certain given the
    first. The first token that cannot be translated ends the proposals. row_type: the twin's for tensors, None for a greedy
    round, which needs no rows.

    >>> rows = [np.array([0.5, 0.5])] * 2
    >>> made = merge([0, 1], rows, Direct(np.array([0, -1])), lambda d, i: (1, 2) if i == 0 else None, {})
    >>> made.tokens, [float(made.rows[0][t]) for t in (0, 1)]
    ([1], [0.25, 0.25])
    """
    made, place = Proposals(), 0
    while place < len(draft_tokens):
        draft_token, q = draft_tokens[place], draft_probs[place]
        same, found = int(direct.draft_to_target[draft_token]), longest_match(draft_tokens, place)
        row = row_type(q, direct) if row_type else None
        if found is not None:
            token, length = found
            if row:
                product = prod(draft_probs[place + j][draft_tokens[place + j]] for j in range(length))
                if same >= 0:
                    left = row[same] - product
                    row[same] = left * (left > 0)  # no comparison that a device would be asked for
                row[token] += product
            made.add(token, row, length)
            place += length
            continue
        spelling = (same,) if same >= 0 else spellings.get(draft_token, ())
        if not spelling:
            break
        if same < 0 and row:
            row[spelling[0]] += q[draft_token]
        made.add(spelling[0], row, 1)
        for token in spelling[1:]:
            certain = row_type(q, NO_PAIRS) if row_type else None
            if certain:
                certain[token] = 1.0
            made.add(token, certain, 0)
        place += 1
    return made


def extend(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """Ids of the text of `ids` followed by the bytes `data`: the end is tokenised anew, what lies before is kept.

    Bytes that are no whole character become byte tokens where the vocabulary has them.

    >>> extend(llama2, [1, 16480], b"fl")  # " Snow" + "fl" -> " Snow", "fl"        # doctest: +SKIP
    [1, 16480, 1579]
    """
    start, made = retokenize(tokenizer, ids, data)
    return [*ids[:start], *made]


def retokenize(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> tuple[int, list[int]]:
    """What `extend` gives, without what stays: how many of `ids` do, and the new ids behind them.

    >>> retokenize(llama2, [1, 16480], b"fl")                                       # doctest: +SKIP
    (1, [16480, 1579])
    """
    start, made = _restart(tokenizer, ids), []
    data = tokenizer.decode_bytes(ids[start:]) + data
    while data:
        try:
            text, rest = data.decode("utf-8"), b""
        except UnicodeDecodeError as error:
            text, rest = data[:error.start].decode("utf-8"), data[error.start:]
        if text:
            made += tokenizer.encode_continuation(text)
        if rest and rest[0] in tokenizer.byte_fallback:
            made.append(tokenizer.byte_fallback[rest[0]])
        data = rest[1:]
    return start, made


def continuation(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """Ids that go on from `ids`, which stay as they are, and spell `data`: in context where that leaves `ids` alone."""
    start, made = retokenize(tokenizer, ids, data)
    old = len(ids) - start
    return made[old:] if made[:old] == list(ids[start:]) else extend(tokenizer, (), data)


def common_tail(draft: Tokenizer, draft_ids: Sequence[int], target: Tokenizer, target_ids: Sequence[int],
                longest: int) -> tuple[list[int], list[int]]:
    """The ends of two tokenizations of one text, from a byte boundary they share: at most `longest` target ids.

    >>> common_tail(llama2, [.., 29888, 433, 446], llama3, [.., 1017, 732], 2)  # "fl", "ake"      # doctest: +SKIP
    ([29888, 433, 446], [1017, 732])
    """
    def lengths(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
        """Bytes from each id to the end, the last id first."""
        return np.cumsum([len(tokenizer.decode_bytes([i])) for i in reversed(ids)], dtype=int).tolist()

    ours = lengths(target, target_ids[-longest:])
    theirs = lengths(draft, draft_ids[-8 * longest:])
    for size in sorted({*ours} & {*theirs}, reverse=True):
        ends = draft_ids[len(draft_ids) - 1 - theirs.index(size):], target_ids[len(target_ids) - 1 - ours.index(size):]
        if draft.decode_bytes(ends[0]) == target.decode_bytes(ends[1]):
            return ends
    return [], []


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences share from their beginning.

    >>> common_prefix([1, 2, 3], [1, 2, 4])
    2
    """
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def _restart(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Where re-tokenising may begin: the last word that begins with one space, a special token's end, or the start.

    No tokenizer joins a word's leading space to what comes before it, so the ids before such a word stand.
    """
    for place in range(len(ids) - 1, max(-1, len(ids) - 1 - WINDOW), -1):
        spelled = tokenizer.token_bytes[ids[place]] if ids[place] < tokenizer.size else None
        if spelled is None:
            return place + 1
        if len(spelled) > 1 and spelled[:1] == b" " and not spelled[1:2].isspace():
            return place
    return max(0, len(ids) - WINDOW)
