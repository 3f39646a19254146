"""Lesson 7, step 9: the paper's hybrid loss and its gradient.

The lesson is "Learning from the target", in tutorials/07_distillation.py.

The target has written some tokens, and the drafter spells the same text in its own. `text` has a pair (p, ids) for each target
token: p (V_p,) is the target's row there, and ids are the draft tokens that spell the token. z (N, V_q) are the drafter's
logits: row 0 for the first of all these draft tokens, row 1 for the second, and so on. q is the softmax of such a row.

    one draft token      Eq. 3: KL(q || p) = sum of q · log(q / p), both cut to the direct map and divided by their sums there.
                         `direct` (V_q,) has the target token that equals each draft token, or -1;
    several, an n-gram   Eq. 4: lam times the sum of -log q(d) over its draft tokens d, each with its own row.

Example: q = (1/2, 1/4, 1/4) and (1/4, 1/4, 1/2), the n-gram (0, 1) and lam = 0.2 give the loss 0.2 · (log 2 + log 4).

The derivative of KL(q || p) by the logit of a token of the direct map is q · (log(q / p) - KL), with q and p after the cut, and
0 for the others; that of -log q(d) is q - 1 for d and q for the others. (Lesson 7's question 3 asks for this one.)
"""

import numpy as np  # noqa: F401 (you may need it)


def hybrid(z, text, direct, lam):
    """(loss, gradient): the sum over the text, and its derivatives by z, (N, V_q)."""
    raise NotImplementedError("hint: a gradient of zeros, a loop over the text, and a number that counts the rows of z used")
