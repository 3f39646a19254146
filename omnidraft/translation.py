"""Translation between the two vocabularies, in both directions (arXiv 2507.02659, section 3.1).

Draft to target, before verification: `merge` turns draft tokens into proposals with the translated probability q'
(Eq. 1) and the rows that the residual needs (Eq. 2); `continuation` re-tokenises the drafted text instead.
Target to draft, after verification: `extend` re-tokenises what the target wrote, near its end only, so that a round's
cost does not grow with the text. The target's own tokens are never re-tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .tokenizer import Tokenizer

WINDOW = 64  # tokens that `extend` goes back at most to find a place where re-tokenising can begin


@dataclass
class Proposals:
    """Proposed target tokens: `tokens` (m,), `rows` m rows (V_p,) of q' (or None), `spans` (m,) draft tokens that each is for.

    A span of 2 or more is a merge by the n-gram cache; of the target tokens that one draft token expands to, the first
    has span 1 and the others 0.
    """

    tokens: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    atoms: list[int | None] = field(default_factory=list)  # `lossless` at temperature > 0: what `Lifting.reveal` gave
    laws: list[np.ndarray] = field(default_factory=list)

    def add(self, token: int, row: np.ndarray | None, span: int) -> None:
        """Append one proposal."""
        self.tokens.append(token)
        self.rows.append(row)
        self.spans.append(span)


def merge(draft_tokens: Sequence[int], draft_probs: Sequence[np.ndarray], draft_to_target: np.ndarray,
          target_size: int, longest_match: Callable[[Sequence[int], int], tuple[int, int] | None],
          spellings: dict[int, Sequence[int]], laws: bool = True) -> Proposals:
    """Proposals of the drafted tokens d_1..d_k: the longest cached n-gram at each place, else the direct token, else none.

    draft_probs: k rows (V_q,); draft_to_target: (V_q,) ids or -1; longest_match(tokens, start) gives (target token,
    length) or None; spellings: draft token -> several target tokens (an expansion). A direct token has q'(t) = q(d), a
    merged one q'(t) = prod_j q(d_j) (Eq. 1), taken off the direct token of d_1 (Eq. 2, clamped at 0). An expansion's
    first token carries q(d) (what other draft tokens would add to it is left out), its others are certain given the
    first. The first token that cannot be translated ends the proposals. Without `laws` the rows are None: a greedy round
    needs none.

    >>> rows = [np.array([0.5, 0.5])] * 2
    >>> made = merge([0, 1], rows, np.array([0, -1]), 2, lambda d, i: (1, 2) if i == 0 else None, {})
    >>> made.tokens, made.rows[0].tolist()
    ([1], [0.25, 0.25])
    """
    made, place = Proposals(), 0
    mapped = np.flatnonzero(draft_to_target >= 0) if laws else ()
    while place < len(draft_tokens):
        draft_token, q = draft_tokens[place], draft_probs[place]
        direct = int(draft_to_target[draft_token])
        row = np.bincount(draft_to_target[mapped], weights=q[mapped], minlength=target_size) if laws else None  # (V_p,)
        found = longest_match(draft_tokens, place)
        if found is not None:
            token, length = found
            if laws:
                product = float(np.prod([draft_probs[place + j][draft_tokens[place + j]] for j in range(length)]))
                if direct >= 0:
                    row[direct] = max(0.0, row[direct] - product)
                row[token] += product
            made.add(token, row, length)
            place += length
            continue
        spelling = (direct,) if direct >= 0 else spellings.get(draft_token, ())
        if not spelling:
            break
        if direct < 0 and laws:
            row[spelling[0]] += q[draft_token]
        made.add(spelling[0], row, 1)
        for token in spelling[1:]:
            certain = np.zeros(target_size) if laws else None
            if laws:
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
