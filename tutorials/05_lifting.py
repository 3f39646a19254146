# %% [markdown]
# # 5 · Lifting: exact verification for any two tokenizers
#
# Lesson 4 asked how probable a *proposal* was, and that is too costly to know. So let us ask for less at a time. A target
# token has a split into draft tokens (lesson 3): the one with the same bytes, else an n-gram. Draft tokens that occur in
# splits are called **atoms**. To write "ab" is to write the atom a, then the atom b. For the *next atom* both models have
# exact numbers: the drafter drew it from a known row, and the target writes a token that begins with a with probability
# p(a) + p(ab). Both distributions are **lifted** onto atoms, and lesson 1 judges one atom after another.
#
# ## The equation (this project's own)
#
# The splits form a **trie**: a tree in which each step down from the **root** is one atom, so that a **node** stands for a
# beginning. Its **mass** is the total p of the target tokens whose split begins so; a token t may also end there.
#
#     at the root        P(c) = mass(c)              Q(c) = q(c)                   for each child c
#                        P(uncovered) = the rest     Q(uncovered) = 0              target tokens without a split
#     inside node n      P(c) = mass(c) / mass(n)    Q(c) = q(c)                   for each child c: the token goes on
#                        P(stop) = p(t) / mass(n)    Q(stop) = 1 - sum_c Q(c)      the token t of node n ends here
#
# A drawn atom that is a child of the node proposes this child; any other proposes *stop* (at the root it is rejected).
# Accept with min(1, P / Q). After a rejection draw from max(0, P - Q), then a token from p within that; the round ends.
# When *stop* is accepted, t is written, and the same atom begins the next token, its Q cut down to the non-children.
# When the atoms run out inside a node, a token is drawn from p among those whose split begins so.

# %%
import numpy as np
from exercises import check, law_of, paint, show, total_variation

from omnidraft import Options, Pair, Uniforms, plain, speculative
from omnidraft.engine import loading as models
from omnidraft.lifting import ROOT, Lifting, build_lifting
from omnidraft.stopping import FixedLength
from omnidraft.verification import lifted

show(Lifting.choice)  # the equation in the package: P and Q at a node, its last category being uncovered or stop


def choice(lifting, node, p, q):
    """P and Q at a node for the target's row p and the law q of the next atom."""
    return lifting.choice(node, p, q)[1:]


# %% [markdown]
# ## By hand
#
# The world of lesson 4: target tokens a, b, ab with p = (0.4, 0.2, 0.4); the draft row for a, b is (0.8, 0.2), and
# (0.5, 0.5) after an a. At the root P(a) = p(a) + p(ab) = 0.8 = Q(a), P(b) = 0.2 = Q(b). Inside node a, P(b) = 0.4 / 0.8
# = 0.5 = Q(b), and P(stop) = 0.5 = Q(stop). All ratios are 1: the perfect drafter is never rejected, as it should be.

# %%
a, b, ab = 0, 1, 2
splits = {a: (0,), b: (1,), ab: (0, 1)}
lifting = build_lifting(splits, {}, draft_size=2)
p, q_first, q_second = np.array([0.4, 0.2, 0.4]), np.array([0.8, 0.2]), np.array([0.5, 0.5])
for P, Q in (choice(lifting, ROOT, p, q_first), choice(lifting, lifting.children[ROOT][0], p, q_second)):
    assert np.allclose(P, Q)

# %% [markdown]
# ## Any two tokenizers
#
# Now the reverse as well: the drafter gets a third token, "ba", which the target must write with two tokens. That is an
# **expansion**; the **path** of "ba" is the two atoms b, a. Q(b) then counts b and ba together, and the second atom
# has a distribution of its own, given that the path continues after b. `reveal` gives each drawn atom, and what its Q
# follows from: the row that its token was drawn from, and the atoms of that token before it.

# %%
show(Lifting.reveal)
both = build_lifting(splits, {2: (b, a)}, draft_size=3)
(first, second), drawn = both.reveal([2], [np.array([0.5, 0.2, 0.3])])  # "ba" was drawn
q_b, q_a = (both.distribution(*one) for one in drawn)
assert (first, second) == (b, a) and np.allclose([q_b, q_a], [[0.5, 0.2 + 0.3, 0], [1, 0, 0]])

# %% [markdown]
# The whole rule is `lifted` in omnidraft/verification.py. Is it exact? Its own code, enumerated in the world of lesson 4
# and in forty random worlds that have the expansion as well: the law of the first *two* tokens, where p and q depend
# on the token before. (If the round writes only one token, the second is drawn from p.)


# %%
def two_tokens(lifting, p, q, draws):
    """One round; p[t], q[d] are the rows after target token t and draft token d, p[-1] and q[-1] those at the start."""
    first = draws.choose(q[-1])
    atoms, drawn = lifting.reveal([first, draws.choose(q[first])], q[[-1, first]])
    walked, _ = lifting.walk(atoms)  # the target tokens that the atoms spell: the proposals of this round
    written = lifted(atoms, drawn, lifting, p[[-1, *walked]], draws).emitted
    return tuple(written[:2]) if len(written) > 1 else (written[0], draws.choose(p[written[0]]))


rng, gaps = np.random.default_rng(0), []
by_hand = lifting, np.tile(p, (4, 1)), np.array([q_second, q_second, q_first])
for world in [by_hand] + [(both, *rng.dirichlet(np.ones(3), size=(2, 4))) for _ in range(40)]:
    p = world[1]
    wanted = {(s, t): p[-1][s] * p[s][t] for s in range(3) for t in range(3)}
    gaps.append(total_variation(law_of(lambda draws, world=world: two_tokens(*world, draws)), wanted))
print(f"total variation: {gaps[0]:.1e} in the world of lesson 4, at most {max(gaps):.1e} in the others\n")
assert max(gaps) < 1e-14

# %% [markdown]
# ## The real thing
#
# The embedded models at T = 1, the whole loop enumerated after the prompts of lesson 4: only rounding errors are left.

# %%
pair = Pair(models.load("draft-tasks", np.float64), models.load("qwen-like", np.float64))
target, options = pair.target, Options(verify="lifted", stop=FixedLength(2), temperature=1, top_k=3, max_new_tokens=3)
for prompt in ("Lost: our parrot has been missing since Friday", "It was last seen near the cafe in Sandford. The par"):
    ids = target.tokenizer.encode(prompt)
    wanted = law_of(lambda draws, ids=ids: next(plain(target, ids, options, draws)).emitted[0])
    law = law_of(lambda draws, text=prompt: next(speculative(pair, text, options, draws)).emitted[0])
    print(f"total variation {total_variation(law, wanted):.1e} after {prompt[-20:]!r}")
    assert total_variation(law, wanted) < 1e-9

# %% [markdown]
# And how fast? Block efficiency at T = 1 beside `tli` (lesson 1), `omnidraft` (lesson 4) and `slem` (arXiv 2502.05202:
# write the draft with the target's tokenizer; keep tokens while the target's own draws agree). Only `omnidraft` is
# biased. On so little text the order of the four says nothing; `make bench` measures it.

# %%
pair = Pair(models.load("draft-tasks"), models.load("qwen-like"))  # in 32 bits, which is faster
prompt = "Question: Anna has {} boxes with 3 pens each. How many pens does she have?\nAnswer:"
for rule in ("tli", "slem", "omnidraft", "lifted"):
    options = Options(verify=rule, stop=FixedLength(6), temperature=1, max_new_tokens=32)
    runs = [list(speculative(pair, prompt.format(n), options, Uniforms(np.random.default_rng(n)))) for n in range(2, 10)]
    efficiency = sum(len(r.emitted) for run in runs for r in run) / sum(map(len, runs))
    print(f"{rule:9} {'█' * round(10 * efficiency):24} {efficiency:.2f}")
    assert efficiency >= 1  # every round writes a token
paint(target.tokenizer, runs[0], legend=True)

# %% [markdown]
# ## Exercises
#
# The target's tokens, with their splits and probabilities, are a (a) 0.1, ab (a, b) 0.3, abc (a, b, c) 0.2, and b (b) 0.4.
#
# 1. What is P(stop) inside node a?
# 2. Inside node ab the draft row is (a 0.2, b 0.3, c 0.5) and the atom drawn is c. With what probability is it accepted?
# 3. Write a function for the mass of a node: `p` and `splits` are dicts by target token, `prefix` is the node's atoms.

# %%
check("5.1", ...)
check("5.2", ...)


def mass(p, splits, prefix):
    return ...


check("5.3", mass)
