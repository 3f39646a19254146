"""Step 10, solved.

The loop is left only after the token was added, so whether d_i is proposed never depends on what d_i is. The label is a
probability, not whether the token was accepted this time: the mean is the same, without the noise of the draw.
"""

import numpy as np


def probability(f, x, d):
    return 1 / (1 + np.exp(-f[x, d]))


def head_round(f, q, p, before, k, gamma, rate, draws):
    draft, x, all_accepted = [], before, 1.0
    while len(draft) < k and not 1 - all_accepted > gamma:
        d = draws.choose(q[x])
        all_accepted *= probability(f, x, d)
        draft.append(d)
        x = d

    f, x = f.copy(), before
    for d in draft:
        y = min(1, p[x, d] / q[x, d])
        f[x, d] -= rate * (probability(f, x, d) - y)
        x = d
    return draft, f
