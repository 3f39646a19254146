# %% [markdown]
# # 5 · Lifting: exact verification for any two tokenizers
#
# Can we make the rule exact? Lesson 4 compared whole *tokens*, and the probability that a token is proposed depends on rows
# that the drafter has not computed. So we compare smaller pieces. Most target tokens have a split (lesson 3): the draft
# token with the same bytes, or else an n-gram. The draft tokens in splits are called **atoms**. To write the token ab is to
# write the atom a, then the atom b. Seen this way, both models write one atom after another, and for both we know the
# probability of the next one. This is **lifting**.
#
# For the drafter this probability is just q. For the target we need a **trie**: a tree of all splits, in which each step
# down is one atom. Here is the world of lesson 4, where the target has the tokens a, b and ab. The number at each place is
# the total p of the tokens whose splits begin with the atoms that lead there.

# %%
from functools import partial

from helpers import check, distribution_of, draw_trie, total_variation

import numpy as np
from omnidraft import Uniforms, pair

a, b, ab = 0, 1, 2
p = np.array([0.4, 0.2, 0.4])
splits = {a: (a,), b: (b,), ab: (a, b)}
draw_trie("the trie", splits, p, tokens=["a", "b", "ab"], atoms="ab")

# %% [markdown]
# Each place in the trie is a **node**, and the number at it is called its **mass**. The topmost node is the **root**. A node
# one step below another is its **child**.
#
# The target starts at the root and goes down. At node a, of mass 0.8, it may go on to b (0.4), or it may **stop**: the token
# a ends here (0.4). At node ab there is no choice, as it has no children: the token ends.
#
# The drafter never says "stop", but its next atom does. If the node has no child for this atom, the token must have ended
# before it: the atom proposes *stop*. If that is accepted, the same atom begins the next token.
#
# ## By hand
#
# Take the perfect drafter of lesson 4. It draws a from (a 0.8, b 0.2), then another a from (a 0.5, b 0.5). Let P be the
# probability with which the target does what is proposed, and Q the probability that the drafter proposes it. The proposal
# is accepted with probability min(1, P / Q).
#
# 1. At the root, the first a proposes the child a: P = 0.8 and Q = 0.8.
# 2. At node a, the second a finds no child, so it proposes *stop*: P = 0.4 / 0.8 = 0.5. Every atom except b would propose
#    *stop*, so Q = 1 - 0.5 = 0.5. The target token a is written.
#
# Now P = Q, so nothing is rejected! But the drafter is perfect only for this first token:
#
# 3. At the root again, the same a proposes the child a: P = 0.8 (let the target's next row be p too). But Q is no longer
#    0.5: the stop has told us that this atom is not b. So we remove b from the row and normalise: (0.5, 0) / 0.5 = (1, 0).
#    Now Q = 1, and a is accepted with probability 0.8.
#
# If it is, the draft ends inside a token, at node a. Then the target draws one of the tokens there, a or ab.
#
# ## The equation (this project's own)
#
# Each option at a node is a **category**: each child c, and *stop*, or at the root the *rest*: the target tokens without a
# split (**uncovered**). P and Q are the probabilities of the categories, and q is the row from which the atom was drawn.
#
#     at the root     P(c) = mass(c)              Q(c) = q(c)
#                     P(rest) = 1 - sum_c P(c)    Q(rest) = 0
#     at a node n     P(c) = mass(c) / mass(n)    Q(c) = q(c)
#                     P(stop) = 1 - sum_c P(c)    Q(stop) = 1 - sum_c Q(c)
#     after a stop    q(x) becomes q(x) / Q(stop) for the atoms x that are not children of n, and 0 for the children
#
# (What has P = 0 is always rejected: *stop* at a node where no token ends, and at the root a draft token that begins no
# split.)
#
# Why is this exact? At each node it is lesson 1 again, with categories in place of tokens: each comes out with probability P.
# And on the way down to a token, the P multiply to its p: for ab, mass(a) · mass(ab) / mass(a) = p(ab). After an accepted
# stop the next atom is drawn from the normalised row, so this holds again.

# %%
ROOT = ()  # a node is the tuple of atoms that lead to it


def inside(node):
    """The target tokens whose splits begin with these atoms."""
    return [token for token, split in splits.items() if split[:len(node)] == node]


def categories(node):
    """The target tokens in each category of a node: {the child's atom, or "stop", or "rest": tokens}."""
    found = {}
    for token in inside(node):
        below = splits[token][len(node):]
        if below:
            name = below[0]
        else:
            name = "stop" if node else "rest"  # an uncovered token has the split ()
        found.setdefault(name, []).append(token)
    return found


def choice(node, p, q):
    """P and Q of each category."""
    groups = categories(node)
    P = {name: p[tokens].sum() / p[inside(node)].sum() for name, tokens in groups.items()}
    Q = {name: q[name] for name in groups if name not in ("stop", "rest")}
    return P, Q | {"stop": 1 - sum(Q.values()), "rest": 0}  # names that P lacks are ignored


def after_stop(node, q):
    """The drafter's row for an atom that is known not to be a child of the node."""
    left = q.copy()
    left[[atom for atom in categories(node) if atom != "stop"]] = 0
    return left / left.sum()


# %% [markdown]
# ## One by one
#
# Each judging of P against Q is a **comparison**. After a rejection a category is drawn from max(0, P - Q), then one of its
# tokens by p. The draft alone determines where the *proposed* tokens end. So all of them are known at once, and one pass
# gives the rows after them. If the draft ends at node a, the pass also holds the token a, as a guess: if the target draws it,
# there is a row for the bonus. If it draws ab, the round ends.

# %%
def one_of(tokens, p, draws):
    return tokens[draws.choose(p[tokens])]


def recovered(node, p, P, Q, draws):
    names = list(P)
    residual = [max(0, P[name] - Q[name]) for name in names]
    category = names[draws.choose(residual)]
    return one_of(categories(node)[category], p, draws)


def one_by_one(draft, q_rows, p_after, draws, say=lambda *_: None):
    """The tokens that a round writes; p_after(tokens) is the target's row after them."""
    written = []
    node = ROOT
    for atom, q in zip(draft, q_rows, strict=True):
        proposals = [atom]
        if node != ROOT and atom not in categories(node):
            proposals = ["stop", atom]  # first that the token ends, then the atom from the root
        for proposed in proposals:
            p = p_after(written)  # from the one pass
            P, Q = choice(node, p, q)
            say(node, proposed, P, Q)
            # not in P: P = 0
            if proposed not in P or not draws.accept(min(1, P[proposed] / Q[proposed])):
                return [*written, recovered(node, p, P, Q, draws)]
            if proposed == "stop":
                written += categories(node)["stop"]
                q = after_stop(node, q)
                node = ROOT
                continue
            node = (*node, atom)
            if categories(node).keys() == {"stop"}:  # it has no children, so the token ends
                written += inside(node)
                node = ROOT
    if node != ROOT:  # the draft ends inside a token: the target draws one that begins like this
        written.append(one_of(inside(node), p_after(written), draws))
        if splits[written[-1]] != node:
            return written  # a longer token was not in the pass: no row after it
    return [*written, one_of(inside(ROOT), p_after(written), draws)]  # the bonus


# %% [markdown]
# The round by hand:

# %%
steps = []


def say(node, proposed, P, Q):
    steps.append((P[proposed], Q[proposed]))
    name = "stop" if node else "a   "
    print("at node a  " if node else "at the root", name, "P = {:.1f}  Q = {:.1f}".format(*steps[-1]))


first, second = np.array([0.8, 0.2]), np.array([0.5, 0.5])
written = one_by_one([a, a], [first, second], lambda tokens: p, Uniforms(np.random.default_rng(0)), say)
print("written:", *[("a", "b", "ab")[token] for token in written])
assert np.allclose(steps, [(0.8, 0.8), (0.5, 0.5), (0.8, 1.0)])

# %% [markdown]
# Is it lossless? We give the drafter a third token, c, and the target two more: ac, and z without a split. Then we
# enumerate the first *two* tokens (if a round writes one, p draws the second) in ten random worlds, where p and q depend on
# the previous token.

# %%
c = 2  # an atom
splits |= {3: (a, c), 4: ()}  # ac and z


def two_tokens(p, q, draws):  # p[t] and q[d]: the rows after t and d; p[-1] and q[-1]: the first ones
    first = draws.choose(q[-1])
    draft = [first, draws.choose(q[first])]
    written = one_by_one(draft, q[[-1, first]], lambda tokens: p[tokens[-1] if tokens else -1], draws)
    if len(written) == 1:
        written.append(draws.choose(p[written[0]]))
    return tuple(written[:2])


gaps = []
rng = np.random.default_rng(0)
for _ in range(10):
    p_rows, q_rows = rng.dirichlet(np.ones(5), 6), rng.dirichlet(np.ones(3), 4)
    wanted = {(s, t): p_rows[-1][s] * p_rows[s][t] for s in range(5) for t in range(5)}
    gaps.append(total_variation(distribution_of(partial(two_tokens, p_rows, q_rows)), wanted))
print(f"{len(gaps)} random worlds: a total variation of at most {max(gaps):.0e}")
assert max(gaps) < 1e-12

# %% [markdown]
# ## The real thing
#
# The package's trie (omnidraft/lifting.py) of two of its models, and the tokens at its node " w":

# %%
models = pair("draft-tasks", "qwen-like")
lifting = models.lifting
words = models.target.tokenizer.token_bytes
print(f"{len(lifting.token):,} of {len(words):,} target tokens have a split")
node = (models.draft.tokenizer.token_bytes.index(b" w"),)
print(*(words[token].decode() for token in lifting.below(node)), sep=" |")

# %% [markdown]
# ## Exercises
#
# The target's tokens, with splits and probabilities, are a (a) 0.1, ab (a, b) 0.3, abc (a, b, c) 0.2, and b (b) 0.4.
# 1. What is P(stop) at node a?
# 2. At node a, the draft row is (a 0.3, b 0.5, c 0.2) and c is drawn. With what probability is its proposal accepted?
# 3. Build it: tutorials/exercises/step3_trie.py, then step4_choice.py; `omnidraft tutorial 5 --check` tests both.

# %%
check("5.1", ...)
check("5.2", ...)
