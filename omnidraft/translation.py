"""Translation between the two vocabularies, in both directions (arXiv 2507.02659, section 3.1).

Draft to target, before verification: `merge` turns draft tokens into proposals with the translated
probability q' (Eq. 1) and the rows that the residual needs (Eq. 2); `continuation` re-tokenises the
drafted text instead. Target to draft, after verification: `extend` re-tokenises what the target
wrote, near its end only, so that a round's cost does not grow with the text. The target's own
tokens are never re-tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from .sampling import Rows
from .tokenizer import Tokenizer

WINDOW = 64  # tokens that `extend` goes back at most to find a place where re-tokenising can begin


class Direct:
    """The direct map (V_q,) from draft to target tokens, -1 where there is none, and its n pairs.

    >>> Direct(np.array([1, -1, 0, 1])).targets.tolist()  # in the target's order
    [0, 1, 1]
    """

    def __init__(self, draft_to_target: np.ndarray) -> None:
        self.draft_to_target = draft_to_target
        mapped = np.flatnonzero(draft_to_target >= 0)
        self.drafts = mapped[np.argsort(draft_to_target[mapped], kind="stable")]  # (n,)
        self.targets = draft_to_target[self.drafts].astype(np.int64)  # (n,)

    def prob(self, q: Any, token: int) -> Any:
        """q (V_q,) of the draft tokens whose direct token is this one."""
        first, last = self.targets.searchsorted((token, token + 1))
        return sum(q[draft_token] for draft_token in self.drafts[first:last].tolist())


@dataclass
class Proposals:
    """Proposed target tokens: `tokens` (m,) and `spans` (m,), the draft tokens that each is for.

    A span of 2 or more is a merge by the n-gram cache; of the target tokens that one draft token
    expands to, the first has span 1 and the others 0. `probs` (m,) and `rows`, the rows (V_p,) of
    q': what `rejection_sampling` compares; `atoms`, `drawn` and `lifting`: what `lifted` compares.
    """

    tokens: list[int] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    probs: list[Any] = field(default_factory=list)
    rows: Sequence[Any] = ()
    atoms: list[int | None] = field(default_factory=list)
    drawn: list[Any] = field(default_factory=list)
    lifting: Any = None

    def add(self, token: int, span: int) -> None:
        """Append one proposal."""
        self.tokens.append(token)
        self.spans.append(span)

    def cut(self, room: int) -> None:
        """Drop what there is no room for: one draft token may spell several target tokens."""
        del self.tokens[room:], self.spans[room:], self.probs[room:]


def merge(draft_tokens: Sequence[int], draft_probs: Sequence[Any], direct: Direct,
          longest_match: Callable[[Sequence[int], int], tuple[int, int] | None],
          spellings: dict[int, Sequence[int]],
          spread: Callable[[Any], Any] | None = None) -> Proposals:
    """Proposals of the drafted tokens d_1..d_k (Eq. 1), and the rows q' of their residuals (Eq. 2).

    At each place: the longest cached n-gram, else the direct token, else the target tokens that
    spell the draft token (an expansion), else the proposals end.

    draft_probs: k rows (V_q,); longest_match(tokens, start) gives (target token, length) or None;
    spellings: draft token -> several target tokens; spread: a row (V_q,) -> the same row on the
    target's tokens (V_p,) by the direct map, None where no rows are needed (temperature 0). A
    merged token has q'(t) = prod_j q(d_j), which is taken off the direct token of d_1. An
    expansion's first token carries q(d), the others are certain given the first.

    >>> rows, direct = [np.array([0.5, 0.5])] * 2, Direct(np.array([0, -1]))
    >>> made = merge([0, 1], rows, direct, lambda d, i: (1, 2) if i == 0 else None, {},
    ...              lambda q: np.array([q[0], 0.0]))
    >>> made.tokens, made.rows[0].tolist()
    ([1], [0.25, 0.25])
    """
    made, place = Proposals(), 0
    changes: list[tuple[Any, dict[int, Any]]] = []  # per proposal: q, and where q' differs from it

    def propose(token: int, span: int, q: Any, changed: dict[int, Any]) -> None:
        if spread:
            changes.append((q, changed))
            made.probs.append(changed[token] if token in changed else direct.prob(q, token))
        made.add(token, span)

    def row(change: tuple[Any, dict[int, Any]]) -> Any:
        made = spread(change[0])
        for token, prob in change[1].items():
            made[token] = prob
        return made

    made.rows = Rows(changes, row)
    while place < len(draft_tokens):
        d, q = draft_tokens[place], draft_probs[place] if spread else None
        same, found = int(direct.draft_to_target[d]), longest_match(draft_tokens, place)
        changed: dict[int, Any] = {}
        if found is not None:
            token, length = found
            if spread:
                product = prod(draft_probs[i][draft_tokens[i]]
                               for i in range(place, place + length))
                if same >= 0:
                    left = direct.prob(q, same) - product
                    changed[same] = left * (left > 0)
                changed[token] = changed.get(token, direct.prob(q, token)) + product
            propose(token, length, q, changed)
            place += length
            continue
        spelling = (same,) if same >= 0 else spellings.get(d, ())
        if not spelling:
            break
        if same < 0 and spread:
            changed[spelling[0]] = direct.prob(q, spelling[0]) + q[d]
        propose(spelling[0], 1, q, changed)
        for token in spelling[1:]:
            propose(token, 0, q * 0 if spread else None, {token: 1.0})
        place += 1
    return made


def extend(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """Ids of the text of `ids` followed by the bytes `data`: only the end is tokenised again.

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
    """Ids that continue `ids`, which stay as they are, and spell `data`; in context if possible."""
    start, made = retokenize(tokenizer, ids, data)
    old = len(ids) - start
    return made[old:] if made[:old] == list(ids[start:]) else extend(tokenizer, (), data)


def common_tail(draft: Tokenizer, draft_ids: Sequence[int], target: Tokenizer,
                target_ids: Sequence[int], longest: int) -> tuple[list[int], list[int]]:
    """The ends of two tokenizations of one text, from a byte boundary they share: at most `longest`
    target ids.

    >>> common_tail(llama2, [.., 29888, 433, 446], llama3, [.., 1017, 732], 2)  # doctest: +SKIP
    ([29888, 433, 446], [1017, 732])
    """
    def lengths(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
        """Bytes from each id to the end, the last id first."""
        sizes = [len(tokenizer.decode_bytes([i])) for i in reversed(ids)]
        return np.cumsum(sizes, dtype=int).tolist()

    ours = lengths(target, target_ids[-longest:])
    theirs = lengths(draft, draft_ids[-8 * longest:])
    for size in sorted({*ours} & {*theirs}, reverse=True):
        draft_end = draft_ids[len(draft_ids) - 1 - theirs.index(size):]
        target_end = target_ids[len(target_ids) - 1 - ours.index(size):]
        if draft.decode_bytes(draft_end) == target.decode_bytes(target_end):
            return draft_end, target_end
    return [], []


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences share from their beginning.

    >>> common_prefix([1, 2, 3], [1, 2, 4])
    2
    """
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def _restart(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Where re-tokenising may begin: the last word that begins with one space, a special token's
    end, or the start.

    No tokenizer joins a word's leading space to what comes before it, so the ids before such a word
    stand.
    """
    for place in range(len(ids) - 1, max(-1, len(ids) - 1 - WINDOW), -1):
        spelled = tokenizer.token_bytes[ids[place]] if ids[place] < tokenizer.size else None
        if spelled is None:
            return place + 1
        if len(spelled) > 1 and spelled[:1] == b" " and not spelled[1:2].isspace():
            return place
    return max(0, len(ids) - WINDOW)
