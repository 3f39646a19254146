"""Translation between the two vocabularies, in both directions (arXiv 2507.02659, section 3.1).

Draft to target, before verification: what the drafter drew becomes proposals. There are two ways.
`merge` goes token by token and says how probable each proposal is, for rules that compare
probabilities. `respelled` lets the target's tokenizer cut the drafted text, for rules that compare
with what the target itself writes. The paper's figure, where the target has flake as one token:

    draft tokens  snow, f, la, ke   ->   proposals  snow, flake     q'(flake) = q(f) q(la) q(ke)

Target to draft, after verification: `retokenize`. What the target wrote is text for the drafter,
whose tokenizer cuts it again, but only from the last safe place:

    ids of "The snow", bytes "flake"   ->   the ids of "The" stay, then those of " snowflake"
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import getitem
from typing import Any

from .pairing import Pairing
from .sampling import Rows
from .text.errors import OmnidraftError
from .text.tokenizer import Tokenizer
from .vocabulary import Direct

WINDOW = 64  # `retokenize` looks back at most this many tokens
Part = tuple[Any, dict[int, Any]]  # of a row q': the drafter's row q, and where q' differs


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


# ---- draft to target, token by token -------------------------------------------------------------
def merge(draft_tokens: Sequence[int], draft_probs: Sequence[Any], direct: Direct,
          longest_match: Callable[[Sequence[int], int], tuple[int, int] | None],
          spellings: dict[int, Sequence[int]],
          spread: Callable[[Any], Any] | None = None) -> Proposals:
    """Proposals for the drafted tokens d_1..d_k (Eq. 1), with the rows q' of the residuals (Eq. 2).

    q' is q spread over the direct map, except for what is said here. At each place take the first:
    1. The longest cached n-gram: prod_j q(d_j) is added to q' of its target token, and subtracted
       from q' of d_1's direct token. Not in the paper: if that target token has a direct draft
       token too, both ways of proposing it count.
    2. The direct token.
    3. The target tokens that spell d (not in the paper): q(d) is added to q' of the first, and the
       others have q' = 1, as they follow for certain.
    Without any of them the proposals end.

    draft_probs: k rows (V_q,); longest_match(tokens, start): (target token, length) or None;
    spread: maps a row (V_q,) to a row over the target's tokens (V_p,); None at temperature 0.

    >>> import numpy as np
    >>> rows, direct = [np.array([0.5, 0.5])] * 2, Direct(np.array([0, -1]))
    >>> made = merge([0, 1], rows, direct, lambda d, i: (1, 2) if i == 0 else None, {},
    ...              lambda q: np.array([q[0], 0.0]))
    >>> made.tokens, made.rows[0].tolist()
    ([1], [0.25, 0.25])
    """
    parts = []
    made = Proposals(rows=Rows(parts, partial(_row, spread)))
    place = 0
    while place < len(draft_tokens):
        spelling, length = _proposed_at(draft_tokens, place, direct, longest_match, spellings)
        if not spelling:
            break
        if spread:
            rows = draft_probs[place:place + length]  # (length, V_q)
            changed = _changed(draft_tokens[place:], rows, direct, spelling[0])
            parts.append((rows[0], changed))
            # the others follow for certain
            parts += [(rows[0] * 0, {token: 1.0}) for token in spelling[1:]]
        made.tokens += spelling
        made.spans += [length] + [0] * (len(spelling) - 1)
        place += length
    if spread:
        for token, (q, changed) in zip(made.tokens, parts, strict=True):
            made.probs.append(changed.get(token, direct.prob(q, token)))
    return made


def _proposed_at(draft_tokens: Sequence[int], place: int, direct: Direct, longest_match: Any,
                 spellings: dict[int, Sequence[int]]) -> tuple[Sequence[int], int]:
    """The target tokens at `place`, and how many draft tokens they stand for."""
    found = longest_match(draft_tokens, place)
    if found is not None:
        token, length = found
        return (token,), length
    d = draft_tokens[place]
    direct_token = int(direct.draft_to_target[d])
    if direct_token >= 0:
        return (direct_token,), 1
    return spellings.get(d, ()), 1


def _changed(drafted: Sequence[int], rows: Sequence[Any], direct: Direct,
             token: int) -> dict[int, Any]:
    """Where q' differs (Eq. 2): the product goes from d_1's direct token, if any, to `token`.

    Example: q(f) = 0.8 and product 0.34 give {f: 0.46, flake: 0.34}.
    """
    q = rows[0]
    direct_token = int(direct.draft_to_target[drafted[0]])
    if len(rows) == 1 and direct_token >= 0:
        return {}
    product = prod(map(getitem, rows, drafted))  # q(d_1) · q(d_2) · ...
    changed = {}
    if direct_token >= 0:
        left = direct.prob(q, direct_token) - product
        changed[direct_token] = left * (left > 0)  # at least 0, without waiting for a GPU
    changed[token] = changed.get(token, direct.prob(q, token)) + product
    return changed


def _row(spread: Any, part: Part) -> Any:
    """A row q' (V_p,): q spread over the direct map, except where it differs."""
    q, changed = part
    q_prime = spread(q)
    for token, prob in changed.items():
        q_prime[token] = prob
    return q_prime


# ---- draft to target, by the text ----------------------------------------------------------------
def respelled(pair: Pairing, draft: Any, ids: Sequence[int], keep: bool = False) -> Proposals:
    """The text of a `drafting.Draft` in the target's own tokens, as they would continue `ids`.

    keep: propose the draft tokens as they are, and do not re-tokenise a word that the draft cut
    off; only with one vocabulary.
    """
    target = pair.target
    ends = pair.draft.eos_ids
    data = draft.data(pair.draft.tokenizer)
    tokens = []
    if keep:
        tokens = [token for token in draft.tokens if token not in ends]
    elif data:
        try:
            tokens = continuation(target.tokenizer, ids, data)
        except OmnidraftError:  # a draft that cannot be spelled is not proposed
            return Proposals()
    spans = [pair.span(token) for token in tokens]
    if draft.tokens and draft.tokens[-1] in ends and target.eos_ids:
        end = int(pair.alignment.draft_to_target[draft.tokens[-1]])
        if end < 0:
            end = target.eos_ids[0]
        tokens.append(end)
        spans.append(1)
    return Proposals(tokens, spans)


def continuation(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """Ids that spell `data` after `ids`, which stay unchanged; tokenised in context if possible."""
    start, made = retokenize(tokenizer, ids, data)
    old = len(ids) - start
    if made[:old] == list(ids[start:]):
        return made[old:]
    return extend(tokenizer, (), data)  # out of context


# ---- target to draft -----------------------------------------------------------------------------
def retokenize(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> tuple[int, list[int]]:
    """Append the bytes `data` to `ids`: how many of `ids` stay, and the new ids after those.

    Only the end is tokenised again: the tokens before a space stay, whatever follows it.
    """
    start = _restart(tokenizer, ids)
    data = tokenizer.decode_bytes(ids[start:]) + data
    return start, tokenizer.encode_continuation(data.decode("utf-8", "surrogateescape"))


def _restart(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Where re-tokenising may begin: at the last token with a single leading space (no tokenizer
    joins this space to what precedes it), or after the last special token."""
    first = max(0, len(ids) - WINDOW)
    for place in range(len(ids) - 1, first - 1, -1):
        spelled = None  # a special token, or padding
        if ids[place] < tokenizer.size:
            spelled = tokenizer.token_bytes[ids[place]]
        if spelled is None:
            return place + 1
        if len(spelled) > 1 and spelled[:1] == b" " and not spelled[1:2].isspace():
            return place
    return first


def extend(tokenizer: Tokenizer, ids: Sequence[int], data: bytes) -> list[int]:
    """`retokenize` as one list: the ids of the text of `ids` followed by the bytes `data`."""
    start, made = retokenize(tokenizer, ids, data)
    return list(ids[:start]) + made


# ---- in either direction -------------------------------------------------------------------------
def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    length = min(len(a), len(b))
    for i in range(length):
        if a[i] != b[i]:
            return i
    return length


def until_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """Tokens up to and including the first end token, which ends the text even in mid-block."""
    for i, token in enumerate(tokens):
        if token in ends:
            return tokens[:i + 1]
    return tokens
