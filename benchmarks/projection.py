"""A rival of the losses: the drafter's whole distribution, projected onto target tokens by a fixed rule.

The idea is that of X-Token (arXiv 2605.21699), with the simplest rule by bytes: the target token t belongs to the
draft token that its spelling in the drafter's vocabulary begins with, f(t). A draft token's probability is shared equally by
the n(d) target tokens that belong to it. At each place where tokens of both texts begin,

    KL(p || W q) = sum_t p(t) log(p(t) n(f(t)) / q(f(t))),

whose gradient is that of the forward KL between sum_{t: f(t) = d} p(t) and q(d). What follows a first draft token inside a
target token is not learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from omnidraft import losses
from omnidraft.pairing import Pairing
from omnidraft.text.tokenizer import Tokenizer


@lru_cache(4)
def first_tokens(draft: Tokenizer, target: Tokenizer) -> np.ndarray:
    """(V_p,) the draft token that the spelling of each target token begins with, or -1."""
    first = np.full(target.size, -1)
    texts = {}
    for token, piece in enumerate(target.token_bytes):
        with suppress(UnicodeDecodeError):  # a part of a character has no spelling by itself
            if piece:
                texts[token] = piece.decode()
    for token, (ids, _) in zip(texts, draft.encode_continuations(list(texts.values())), strict=True):
        first[token] = ids[0]
    return first


def projection(draft_logits: np.ndarray, example: losses.Example, pair: Pairing) -> losses.Result:
    """The summed loss, its gradient (N, V_q), and the number of places, as the losses of `omnidraft.losses`."""
    return losses._total(draft_logits, terms(draft_logits.shape, example, pair))


def terms(shape: Sequence[int], example: losses.Example, pair: Pairing) -> Iterator[losses.Term]:
    """One comparison for each place where a target token and a draft token begin."""
    first = first_tokens(pair.draft.tokenizer, pair.target.tokenizer)
    shared = pair.alignment.target_to_draft[:len(first)]
    first = np.where(first < 0, shared, first)  # the end token, by its role
    width = min(shape[1], pair.draft.tokenizer.size)
    each = np.arange(width)
    for start, p in zip(example.starts, example.target_probs, strict=True):
        if 0 < start <= shape[0]:
            size = min(len(first), len(p))
            masses = np.bincount(first[:size] + 1, p[:size], width + 1)[1:width + 1]  # (W,)
            yield losses.Term(start - 1, each, masses, "forward")
