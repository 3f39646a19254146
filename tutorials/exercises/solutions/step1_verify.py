"""Step 1, solved.

Token x is drafted and kept with probability q(x) · min(1, p(x) / q(x)) = min(p(x), q(x)). What is missing from p is the
residual, max(0, p(x) - q(x)), and the probability of a rejection is exactly its sum. Together, both ways write x with p(x).
"""

import numpy as np


def verify(draft, q, p, draws):
    written = []
    for i, x in enumerate(draft):
        if not draws.accept(min(1, p[i][x] / q[i][x])):  # x was drawn from q, so q[i][x] is not 0
            residual = np.maximum(0, p[i] - q[i])
            return [*written, draws.choose(residual)]  # ends the round: later rows belong to a different text
        written.append(x)
    return [*written, draws.choose(p[len(draft)])]
