"""Translation between the two vocabularies, in both directions (arXiv 2507.02659, section 3.1).

Draft to target: `merge`, or `continuation`, which re-tokenises. Target to draft: `retokenize`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from .sampling import Rows
from .text.tokenizer import Tokenizer

WINDOW = 64  # `retokenize` looks back at most this many tokens


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


@dataclass
class Proposals:
    """Proposed target tokens, and what verification needs to judge them."""

    tokens: list[int] = field(default_factory=list)  # (m,)
    # Draft tokens that each one stands for: 2 or more if the n-gram cache merged them. If one draft
    # token expands to several target tokens, the first has 1 and the others 0.
    spans: list[int] = field(default_factory=list)
    probs: list[Any] = field(default_factory=list)  # for `rejection_sampling`: q' of each,
    rows: Sequence[Any] = ()  # and the rows (V_p,) of q'
    atoms: list[int | None] = field(default_factory=list)  # for `lifted`: the atoms of the draft,
    origins: list[Any] = field(default_factory=list)  # the origin of each (`Lifting.reveal`),
    lifting: Any = None  # and what revealed them


def merge(draft_tokens: Sequence[int], draft_probs: Sequence[Any], direct: Direct,
          longest_match: Callable[[Sequence[int], int], tuple[int, int] | None],
          spellings: dict[int, Sequence[int]],
          spread: Callable[[Any], Any] | None = None) -> Proposals:
    """Proposals for the drafted tokens d_1..d_k (Eq. 1), with the rows q' of the residuals (Eq. 2).

    At each place take the longest cached n-gram: prod_j q(d_j) is added to q' of its target token,
    and subtracted from q' of d_1's direct token. Else take the direct token; else the tokens that
    spell the draft token (q(d) is added to q' of the first, which the others follow for certain).
    Without any the proposals end. Where nothing is said, q' is q spread over the direct map.

    draft_probs: k rows (V_q,); longest_match(tokens, start): (target token, length) or None;
    spread: maps a row (V_q,) to a row over the target's tokens (V_p,); None at temperature 0.

    >>> rows, direct = [np.array([0.5, 0.5])] * 2, Direct(np.array([0, -1]))
    >>> made = merge([0, 1], rows, direct, lambda d, i: (1, 2) if i == 0 else None, {},
    ...              lambda q: np.array([q[0], 0.0]))
    >>> made.tokens, made.rows[0].tolist()
    ([1], [0.25, 0.25])
    """
    def row(part: tuple[Any, dict[int, Any]]) -> Any:
        q_prime = spread(part[0])
        for token, prob in part[1].items():
            q_prime[token] = prob
        return q_prime

    parts: list[tuple[Any, dict[int, Any]]] = []  # of each row q': q, and where q' differs
    made, place = Proposals(rows=Rows(parts, row)), 0
    while place < len(draft_tokens):
        d, q = draft_tokens[place], draft_probs[place] if spread else None
        direct_token, found = int(direct.draft_to_target[d]), longest_match(draft_tokens, place)
        (token, length), changed = found or (direct_token, 1), {}
        spelling = (token,) if token >= 0 else spellings.get(d, ())
        if not spelling:
            break
        if found and spread:
            product = prod(draft_probs[i][draft_tokens[i]] for i in range(place, place + length))
            if direct_token >= 0:
                left = direct.prob(q, direct_token) - product
                changed[direct_token] = left * (left > 0)  # at least 0, without waiting for a GPU
            changed[token] = changed.get(token, direct.prob(q, token)) + product
        elif direct_token < 0 and spread:
            changed[spelling[0]] = direct.prob(q, spelling[0]) + q[d]
        for i, token in enumerate(spelling):
            if spread:
                q, changed = (q * 0, {token: 1.0}) if i else (q, changed)
                parts.append((q, changed))
                made.probs.append(changed[token] if token in changed else direct.prob(q, token))
            made.tokens.append(token)
            made.spans.append(0 if i else length)
        place += length
    return made


def extend(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """Ids of the text of `ids` followed by the bytes `data`; only the end is tokenised again."""
    start, made = retokenize(tokenizer, ids, data)
    return [*ids[:start], *made]


def retokenize(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> tuple[int, list[int]]:
    """Append the bytes `data` to `ids`: how many of `ids` stay, and the new ids after those."""
    start = _restart(tokenizer, ids)
    data = tokenizer.decode_bytes(ids[start:]) + data
    return start, tokenizer.encode_continuation(data.decode("utf-8", "surrogateescape"))


def continuation(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """Ids that spell `data` after `ids`, which stay unchanged; tokenised in context if possible."""
    start, made = retokenize(tokenizer, ids, data)
    old = len(ids) - start
    return made[old:] if made[:old] == list(ids[start:]) else extend(tokenizer, (), data)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def until_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """Tokens up to and including the first end token, which ends the text even in mid-block."""
    first = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[:first + 1]


def _restart(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Where re-tokenising may begin: at the last token with a single leading space (no tokenizer
    joins this space to what precedes it), or after the last special token."""
    first = max(0, len(ids) - WINDOW)
    for place in range(len(ids) - 1, first - 1, -1):
        spelled = tokenizer.token_bytes[ids[place]] if ids[place] < tokenizer.size else None
        if spelled is None:
            return place + 1
        if len(spelled) > 1 and spelled[:1] == b" " and not spelled[1:2].isspace():
            return place
    return first
