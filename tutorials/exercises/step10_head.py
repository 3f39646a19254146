"""Lesson 8, step 10: a round with the acceptance head.

The lesson is "Knowing when to stop", in tutorials/08_stopping.py.

Drafter and target share one vocabulary here and look only at the token before: `q[x]` and `p[x]` are their rows after token x.
The head is a table f: P = 1 / (1 + e^-f[x, d]) is how probable it finds that d is accepted after x.

    1. Draft: draw d_1 from q[before], d_2 from q[d_1], and so on. Stop after d_i if i = k, or if 1 - P_1 · ... · P_i > gamma.
       The token that stops the draft is in the draft all the same, since dropping it would bias the text.
    2. Learn from every token of the draft (for simplicity also after a rejection), one after another: with x the token before
       d, the label is y = min(1, p[x][d] / q[x][d]), and a step against the gradient of the cross-entropy makes f[x, d]
       smaller by rate · (P - y).

`draws.choose(weights)` returns an index drawn in proportion to the weights. q, p and f are NumPy arrays, (V, V).
"""

import numpy as np  # noqa: F401 (you may need it)


def head_round(f, q, p, before, k, gamma, rate, draws):
    """(draft, f): a list of 1 to k tokens, and the head after learning from them."""
    raise NotImplementedError("hint: a loop that draws, multiplies P into a product, and may leave; then a loop that learns")
