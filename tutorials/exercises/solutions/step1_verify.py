"""Step 1, solved.

Token x is kept with probability q(x) · min(1, p(x) / q(x)) = min(p(x), q(x)). What p(x) still lacks is max(0, p(x) - q(x));
this is the residual, and the probability of a rejection is exactly its sum. So both ways together write x with p(x).
"""

import numpy as np


def verify(draft, q, p, draws):
    written = []
    for i, x in enumerate(draft):
        if not draws.accept(min(1, p[i][x] / q[i][x])):  # x was drawn from q, so q[i][x] is not 0
            residual = np.maximum(0, p[i] - q[i])
            return [*written, draws.choose(residual)]  # this ends the round: later rows belong to another text
        written.append(x)
    return [*written, draws.choose(p[len(draft)])]
