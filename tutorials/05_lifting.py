# %% [markdown]
# # 5 · Lifting: exact verification for any two tokenizers
#
# Lesson 4 needed the probability that a whole *token* is proposed, which is too costly to compute. Smaller steps are cheap. A
# target token has a split (lesson 3): the draft token with the same bytes, or an n-gram; else it is **uncovered**. The draft
# tokens in splits are called **atoms**. To write "ab" is to write the atom a, then the atom b. So we can view both models as
# writing one atom after another. This view is called **lifting**. For both, the probability of the *next atom* is known.
#
# The splits form a **trie**: a tree in which each step down is one atom. A **node** stands for a beginning (prefix) of
# splits, the **root** for the empty beginning. The **mass** of a node is the total p of the target tokens whose splits begin
# with it. Here is the trie of lesson 4's world, where the target has the tokens a, b and ab with p = (0.4, 0.2, 0.4):
#
#     root ─┬─ a  0.8 ─┬─ stop  0.4     the token a
#           │          └─ b     0.4     the token ab
#           └─ b  0.2                   the token b
#
# At node a the target may write b, which completes the token ab. Or it may **stop**: the token a ends here. No atom says
# "stop". The next atom shows it: if this atom is not a child of the node, the token must have ended before it. Such an atom
# proposes *stop*. If that is accepted, the same atom begins the next token.
#
# ## By hand
# The drafter draws a from (a 0.6, b 0.4), then a again from (a 0.3, b 0.7). Let P and Q be the target's and the drafter's
# probability of what is proposed. Three **comparisons** follow, each judged like a token of lesson 1:
# 1. At the root, the first a proposes the child a. P = p(a) + p(ab) = 0.8 and Q = 0.6: always kept.
# 2. At node a, the second a is not a child, so it proposes *stop*. P = 0.4 / 0.8 = 0.5. Every atom except b means stop, so Q =
#    1 - 0.7 = 0.3: always kept. The target token a is written.
# 3. At the root again (let the target's next row be p too) it proposes the child a. P = 0.8. We already know that it is not b,
#    so Q = 1: kept with probability 0.8. Then the draft ends inside a token, and p draws one whose split begins with a.
#
# ## The equation (this project's own)
#     at the root        P(c) = mass(c)              Q(c) = q(c)                   for each child c
#                        P(uncovered) = the rest     Q(uncovered) = 0              all uncovered tokens together
#     inside node n      P(c) = mass(c) / mass(n)    Q(c) = q(c)                   for each child c
#                        P(stop) = p(t) / mass(n)    Q(stop) = 1 - sum_c Q(c)      t is the token of node n
#
# (q is the drafter's distribution of this atom, given what is known about it.) At each node these are two distributions over
# the same few cases (each is a **category**), so the rule of lesson 1 is exact: accept with min(1, P / Q); else draw a
# category from max(0, P - Q), then one of the tokens in it from p, which ends the round. (At the root an atom that
# begins no split is rejected.)
#
# Here are the comparisons of all four drafts. `reveal` gives the atoms of a draft, and with each its origin: the row that its
# token was drawn from, and the token's earlier atoms (none here; lesson 6 has some). Each comparison knows the `place` of its
# atom, the `row` of the target, the `node`, whether the atom proposes *stop*, P and Q of what it proposes, the token that
# `ends` if that is accepted (or -1), and the `next_node`.

# %%
from functools import partial

from helpers import bar, check, distribution_of, draw_trie, show, total_variation

import numpy as np
from omnidraft import pair
from omnidraft.lifting import ROOT, Lifting
from omnidraft.verification import comparisons, p_and_q

a, b, ab = 0, 1, 2
p = np.array([0.4, 0.2, 0.4])
lifting = Lifting({a: (0,), b: (1,), ab: (0, 1)}, {}, draft_size=2)  # {}: no expansions (lesson 6)
draw_trie("the trie, with masses", lifting, p, tokens=["a", "b", "ab"], atoms="ab")
rows = [np.array([0.6, 0.4]), np.array([0.3, 0.7])]
for draft in (a, a), (a, b), (b, a), (b, b):
    atoms, origins = lifting.reveal(draft, rows)
    kept = 1.0
    for c in comparisons(atoms, origins, lifting, [p, p, p]):
        kept *= min(1, c.target_prob / c.draft_prob)
        place = "root" if c.node == ROOT else "node a"
        proposed = "stop" if c.stop else "ab"[draft[c.place]]
        print(*("ab"[d] for d in draft), f"  {place:6}  {proposed:4}  P = {c.target_prob:.1f}  Q = {c.draft_prob:.1f}  "
              f"kept up to here:", bar(kept, 20, ".2f"))
show(Lifting.choice)  # the equation: P and Q at a node; read self.index(f, x) as f(x)

# %% [markdown]
# ## One by one
# This is the whole rule. An atom that was accepted leads to a node, or ends a token. The first comparison that is not
# accepted ends the round with a token from its residual. If the atoms end inside a token, the target draws one that begins
# with them.

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
    for c in comparisons(atoms, origins, lifting, p_rows):
        if not draws.accept(min(1, c.target_prob / c.draft_prob)):
            P, Q = p_and_q(c, origins, lifting, p_rows)  # over all categories at the node
            category = draws.choose(np.maximum(0, P - Q))
            members = lifting.members(c.node, category, len(p_rows[0]))  # the tokens in this category
            return [*written, one_of(members, p_rows[c.row], draws)]
        if c.ends >= 0:  # a token is complete
            written.append(c.ends)
        node = c.next_node
    if node != ROOT:  # inside a token
        written.append(one_of(lifting.below(node), p_rows[len(written)], draws))
        if written[-1] != lifting.token.get(node):
            return written  # its row was not computed
    return [*written, draws.choose(p_rows[len(written)])]  # the bonus


# %% [markdown]
# Is it **lossless**? We enumerate the first *two* tokens that it writes (if it writes one, the second is drawn from p) in
# twenty random worlds, where p and q depend on the previous token.

# %%
def two_tokens(p, q, draws):  # p[t] and q[d]: the rows after t and d; p[-1] and q[-1]: the first ones
    first = draws.choose(q[-1])
    draft = [first, draws.choose(q[first])]
    written = one_by_one(draft, q[[-1, first]], lambda tokens: p[tokens[-1] if tokens else -1], draws)
    if len(written) == 1:
        written.append(draws.choose(p[written[0]]))
    return tuple(written[:2])


def own(rows):  # the target's own distribution of two tokens
    return {(s, t): rows[-1][s] * rows[s][t] for s in range(3) for t in range(3)}


gaps = []
rng = np.random.default_rng(0)
for _ in range(20):
    p_rows, q_rows = rng.dirichlet(np.ones(3), 4), rng.dirichlet(np.ones(2), 4)
    found = distribution_of(partial(two_tokens, p_rows, q_rows))
    gaps.append(total_variation(found, own(p_rows)))
print(f"{len(gaps)} random worlds: a total variation of at most {max(gaps):.0e}")
assert max(gaps) < 1e-12  # lossless, up to rounding errors

# %% [markdown]
# ## The real thing
# The same trie of two embedded models: how many of the target's tokens it covers, and a node with many children.

# %%
models = pair("draft-tasks", "qwen-like")
real = models.lifting
sizes = [len(real.children(split)) for split in real.token]
widest = [*real.token][int(np.argmax(sizes))]
print(f"{len(real.token):,} target tokens have a split; {sum(len(split) > 1 for split in real.token):,} of them are n-grams")
print(f"{sum(size > 0 for size in sizes):,} of their nodes have children, at most {max(sizes)}")
text = models.draft.tokenizer.decode_bytes
print(text(widest), "may go on with", [text([atom]) for atom in real.children(widest)][:8], "...")

# %% [markdown]
# ## Exercises
# The target's tokens, with splits and probabilities, are a (a) 0.1, ab (a, b) 0.3, abc (a, b, c) 0.2, and b (b) 0.4.
# 1. What is P(stop) inside node a?
# 2. Inside node a, the draft row is (a 0.3, b 0.5, c 0.2) and c is drawn. With which probability is it kept, one by one?
# 3. Build it: tutorials/exercises/step3_trie.py, then step4_choice.py; `omnidraft tutorial 5 --check` tests both.

# %%
check("5.1", ...)
check("5.2", ...)
