"""Torch twin of `translation.merge`: the rows of q' (arXiv 2507.02659, Eq. 1 and 2) stay on the device, nothing is copied.

What is left of `translation.py` deals with ids and bytes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from . import translation
from .lifting_torch import upload
from .translation import Proposals


def merge(draft_tokens: Sequence[int], draft_probs: Sequence[Tensor] | Tensor, draft_to_target: np.ndarray,
          target_size: int, longest_match: Callable[[Sequence[int], int], tuple[int, int] | None],
          spellings: dict[int, Sequence[int]], laws: bool = True) -> Proposals:
    """Proposals of the drafted tokens d_1..d_k: the longest cached n-gram at each place, else the direct token, else none.

    draft_probs: k rows (V_q,) on any device; draft_to_target: (V_q,) on the host; `rows` of the result: m tensors (V_p,), or
    None without `laws`.

    >>> made = merge([0, 1], torch.full((2, 2), 0.5), np.array([0, -1]), 2, lambda d, i: (1, 2) if i == 0 else None, {})
    >>> made.tokens, made.rows[0].tolist()
    ([1], [0.25, 0.25])
    """
    made, place = Proposals(), 0
    if not draft_tokens:
        return made
    if not laws:  # then nothing is on a device
        return translation.merge(draft_tokens, draft_probs, draft_to_target, target_size, longest_match, spellings, laws)
    q = draft_probs if isinstance(draft_probs, Tensor) else torch.stack(list(draft_probs))  # (k, V_q)
    direct_tokens = upload(np.where(draft_to_target >= 0, draft_to_target, target_size), q.device)  # (V_q,) none: one past
    rows = q.new_zeros(len(q), target_size + 1).scatter_add_(1, direct_tokens.expand(len(q), -1), q)[:, :-1]  # (k, V_p)
    drawn = q.gather(1, upload(draft_tokens, q.device)[:, None])[:, 0]  # (k,) q(d_1)..q(d_k)
    while place < len(draft_tokens):
        draft_token, row = draft_tokens[place], rows[place]
        direct, found = int(draft_to_target[draft_token]), longest_match(draft_tokens, place)
        if found is not None:
            token, length = found
            product = drawn[place:place + length].prod()
            if direct >= 0:
                row[direct] = (row[direct] - product).clamp(min=0)
            row[token] += product
            made.add(token, row, length)
            place += length
            continue
        spelling = (direct,) if direct >= 0 else spellings.get(draft_token, ())
        if not spelling:
            break
        if direct < 0:
            row[spelling[0]] += drawn[place]
        made.add(spelling[0], row, 1)
        for token in spelling[1:]:
            certain = torch.zeros_like(row)
            certain[token] = 1.0
            made.add(token, certain, 0)
        place += 1
    return made
