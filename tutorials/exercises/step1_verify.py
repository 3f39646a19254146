"""Lesson 1, step 1: judge a draft.

The lesson is "Speculative decoding from scratch", in tutorials/01_speculative_decoding.py.

Tokens are numbers. The drafter drew draft[0] from its row q[0], then draft[1] from q[1], and so on. p[i] is the target's row
for the position of draft[i]. p has one more row, for the position after the draft. Go from left to right:

    keep draft[i] with probability min(1, p[i][x] / q[i][x]), where x = draft[i];
    else write a token drawn from max(0, p[i] - q[i]), which ends the round;
    if all are kept, write one more token, drawn from the last row of p.

`draws.accept(probability)` is True with that probability. `draws.choose(weights)` returns an index drawn in proportion to the
weights, which need not add up to 1. The rows are NumPy arrays.
"""

import numpy as np  # noqa: F401 (you may need it)


def verify(draft, q, p, draws):
    """The tokens that the round writes: a list of 1 to len(draft) + 1 numbers."""
    raise NotImplementedError("hint: a loop over the draft that can return early, then the last row")
