"""Step 4, solved.

Both distributions are now over the same categories, so the rule of step 1 applies unchanged. "rest" is never proposed. It is
written only after a rejection, and the residual gives it exactly its P, since its Q is 0.
(mini.py and the package judge all comparisons of a draft together, which is just as exact and keeps more: see `verify` there.)
"""


def choose(P, q, atom, draws):
    Q = {category: q.get(category, 0.0) for category in P}
    if "stop" in P:
        Q["stop"] = 1 - sum(Q[child] for child in P if child != "stop")  # any atom that is not a child proposes it
    proposal = atom if atom in P else "stop"
    if Q.get(proposal, 0.0) > 0 and draws.accept(min(1, P[proposal] / Q[proposal])):
        return proposal, True
    categories = list(P)
    return categories[draws.choose([max(0, P[c] - Q[c]) for c in categories])], False
