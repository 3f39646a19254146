"""Step 7, solved.

A comparison is kept with probability r after it, whatever comes later: so nothing is lost by judging the whole draft first,
and a likely end makes up for an unlikely beginning.
"""

import numpy as np


def keep(comparisons, drafted, draws):
    before, r = [], 1.0
    for (P, Q), x in zip(comparisons, drafted, strict=True):
        before.append(r)
        r = min(1, r * P[x] / Q[x])
    if draws.accept(r):
        return len(drafted), None

    for n in reversed(range(len(drafted))):
        P, Q = comparisons[n]
        residual = np.maximum(0, before[n] * P - Q)
        Z = residual.sum()
        if before[n] == 1 or draws.accept(Z / (Z + 1 - before[n])):
            return n, draws.choose(residual)
