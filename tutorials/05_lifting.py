# %% [markdown]
# # 5 · Lifting: exact verification for any two tokenizers
#
# Now make it exact. Lesson 4 needed the probability that a whole *token* is proposed, which is too costly to compute.
# Smaller steps are cheap. Most target tokens have a split (lesson 3): the draft token with the same bytes, or else an
# n-gram. The draft tokens in splits are called **atoms**. To write ab is to write the atom a, then the atom b. So we can
# view both models as writing one atom after another, and for both the probability of the *next atom* is known.
#
# For the target we need a **trie**: a tree of all splits, in which each step down is one atom. A place in it is a beginning
# of splits. Its **mass** is the total p of the target tokens whose splits begin so. Here is the world of lesson 4: the
# target has the tokens a, b and ab, with p = (0.4, 0.2, 0.4).

# %%
from collections import Counter
from functools import partial

from helpers import bar, check, distribution_of, draw_trie, total_variation

import numpy as np
from omnidraft import pair
from omnidraft.lifting import ROOT, Lifting
from omnidraft.verification import comparisons, p_and_q

a, b, ab = 0, 1, 2
p = np.array([0.4, 0.2, 0.4])
splits = {a: (a,), b: (b,), ab: (a, b)}


def masses(splits, p):
    """The trie: each beginning of splits, with its mass."""
    found = Counter()
    for token, split in splits.items():
        for length in range(len(split) + 1):
            found[split[:length]] += p[token]
    return found


for beginning, mass in sorted(masses(splits, p).items()):
    print(f"{'   ' * len(beginning)}{'ab'[beginning[-1]] if beginning else 'root'} {mass:.1f}")
lifting = Lifting(splits, {}, draft_size=2)  # the package's trie; {}: see lesson 6
draw_trie("the trie, with masses", lifting, p, tokens=["a", "b", "ab"], atoms="ab")

# %% [markdown]
# Each place is called a **node**; the topmost, the empty beginning, is the **root**. The target moves down from the root.
# At node a, of mass 0.8, it may go on to b, which completes the token ab (0.4). Or it may **stop**: the token a ends here
# (0.4).
#
# The drafter never says "stop". Its next atom does: if no step of the node leads down with this atom, the token must have
# ended before it. Such an atom proposes *stop*. If that is accepted, the same atom begins the next token. (At node b
# nothing is compared: b has no children, so the token ends there at once.)
#
# ## By hand
#
# The drafter draws a from (a 0.6, b 0.4), then a again from (a 0.3, b 0.7). P and Q are the target's and the drafter's
# probability of what is proposed. Each **comparison** of the two is judged like a token of lesson 1:
# 1. At the root, the first a proposes to go down to a. P = 0.8 and Q = 0.6: always kept.
# 2. At node a, the second a does not fit, so it proposes *stop*. P = 0.4 / 0.8 = 0.5. Every atom except b means stop, so Q =
#    1 - 0.7 = 0.3: always kept. The target token a is written.
# 3. At the root again (let the target's next row be p too) the same a proposes to go down to a. P = 0.8. That the token
#    stopped has told us that this atom is not b. Given that, it is a for certain, Q = 1: kept with probability 0.8. Then
#    the draft ends inside a token, and p draws one that begins with a.
#
# ## The equation (this project's own)
#
#     at the root     P(c) = mass(c)              Q(c) = q(c)                for each child c: one step further down
#                     P(rest) = 1 - sum_c P(c)    Q(rest) = 0                the target tokens without a split
#     at a node n     P(c) = mass(c) / mass(n)    Q(c) = q(c)                for each child c
#                     P(stop) = 1 - sum_c P(c)    Q(stop) = 1 - sum_c Q(c)   the token that ends at n
#
# Here q is the drafter's distribution of this atom, given what is known about it. Target tokens without a split are called
# **uncovered**; an atom that begins no split is rejected (its Q is in no category).

# %%
def choice(node, splits, p, q):
    """P and Q at a node: of each child, then of the rest (at the root) or of *stop*."""
    mass = masses(splits, p)
    children = [longer for longer in sorted(mass) if longer and longer[:-1] == node]
    P = [mass[child] / (mass[node] if node else 1) for child in children]
    Q = [q[child[-1]] for child in children]
    P.append(1 - sum(P))
    Q.append(1 - sum(Q) if node else 0)
    return np.array(P), np.array(Q)


rows = [np.array([0.6, 0.4]), np.array([0.3, 0.7])]
for node, q in zip([ROOT, (a,)], rows, strict=True):
    P, Q = choice(node, splits, p, q)
    print("node a" if node else "root  ", " P =", P.round(2), " Q =", Q.round(2))
    assert np.allclose((P, Q), lifting.choice(node, p, q))  # the package's

# %% [markdown]
# All comparisons of all four drafts, with the package: `reveal` gives the atoms of a draft, and the row that each is drawn
# from (its *origin*; more in lesson 6). `comparisons` goes down the trie with them. Each step knows the `place` of its atom
# in the draft, the `node`, whether the atom proposes *stop*, and P and Q of what it proposes.

# %%
for draft in (a, a), (a, b), (b, a), (b, b):
    atoms, origins = lifting.reveal(draft, rows)
    kept = 1.0
    for step in comparisons(atoms, origins, lifting, [p, p, p]):
        kept *= min(1, step.target_prob / step.draft_prob)
        proposed = "stop" if step.stop else "ab"[draft[step.place]]
        print(*("ab"[d] for d in draft), f"  {'node a' if step.node else 'root':6}  {proposed:4}  P = {step.target_prob:.1f}  "
              f"Q = {step.draft_prob:.1f}  kept up to here:", bar(kept, 20, ".2f"))

# %% [markdown]
# ## One by one
#
# At each node P and Q are two distributions over the same few cases: the children, and the rest or *stop*. Each case is a
# **category**. So lesson 1 applies: accept with min(1, P / Q); else draw a category from max(0, P - Q), then one of the
# tokens in it from p, which ends the round. This is the whole rule, with the package's trie (mini.py builds it in plain
# Python):

# %%
def one_of(tokens, row, draws):
    """A token drawn from the target's row, given that it is one of these."""
    return int(tokens[draws.choose(row[tokens])])


def one_by_one(draft, rows, p_after, draws):
    """The tokens that a round writes; p_after(tokens): the target's row after them."""
    atoms, origins = lifting.reveal(draft, rows)
    tokens, _ = lifting.walk(atoms)  # the target tokens that the draft spells
    p_rows = [p_after(tokens[:i]) for i in range(len(tokens) + 1)]
    written = []
    node = ROOT
    for step in comparisons(atoms, origins, lifting, p_rows):
        p_row = p_rows[len(written)]
        if not draws.accept(min(1, step.target_prob / step.draft_prob)):
            P, Q = p_and_q(step, origins, lifting, p_rows)  # as in `choice`
            category = draws.choose(np.maximum(0, P - Q))
            members = lifting.members(step.node, category, len(p_row))  # the tokens in this category
            return [*written, one_of(members, p_row, draws)]
        if step.ends >= 0:  # a token is complete
            written.append(step.ends)
        node = step.next_node
    if node != ROOT:  # the draft ends inside a token: p draws one that begins so
        written.append(one_of(lifting.below(node), p_rows[len(written)], draws))
        if written[-1] != lifting.token.get(node):
            return written  # for this longer token the target has computed no row
    return [*written, draws.choose(p_rows[len(written)])]  # the bonus


# %% [markdown]
# Is it lossless? We enumerate the first *two* tokens that it writes (if it writes one, the second is drawn from p) in
# twenty random worlds, where p and q depend on the previous token.

# %%
def two_tokens(p, q, draws):  # p[t] and q[d]: the rows after t and d; p[-1] and q[-1]: the first ones
    first = draws.choose(q[-1])
    draft = [first, draws.choose(q[first])]
    written = one_by_one(draft, q[[-1, first]], lambda tokens: p[tokens[-1] if tokens else -1], draws)
    if len(written) == 1:
        written.append(draws.choose(p[written[0]]))
    return tuple(written[:2])


gaps = []
rng = np.random.default_rng(0)
for _ in range(20):
    p_rows, q_rows = rng.dirichlet(np.ones(3), 4), rng.dirichlet(np.ones(2), 4)
    wanted = {(s, t): p_rows[-1][s] * p_rows[s][t] for s in range(3) for t in range(3)}
    gaps.append(total_variation(distribution_of(partial(two_tokens, p_rows, q_rows)), wanted))
print(f"{len(gaps)} random worlds: a total variation of at most {max(gaps):.0e}")
assert max(gaps) < 1e-12  # lossless, up to rounding errors

# %% [markdown]
# ## The real thing
#
# How many of the target's tokens does the trie of two embedded models cover?

# %%
models = pair("draft-tasks", "qwen-like")
real = models.lifting
print(f"{len(real.token):,} of {models.target.tokenizer.size:,} target tokens have a split, "
      f"{sum(len(split) > 1 for split in real.token):,} of these an n-gram")

# %% [markdown]
# ## Exercises
#
# The target's tokens, with splits and probabilities, are a (a) 0.1, ab (a, b) 0.3, abc (a, b, c) 0.2, and b (b) 0.4.
# 1. What is P(stop) inside node a?
# 2. Inside node a, the draft row is (a 0.3, b 0.5, c 0.2) and c is drawn. With which probability is it kept, one by one?
# 3. Build it: tutorials/exercises/step3_trie.py, then step4_choice.py; `omnidraft tutorial 5 --check` tests both.

# %%
check("5.1", ...)
check("5.2", ...)
