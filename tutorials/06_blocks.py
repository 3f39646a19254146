# %% [markdown]
# # 6 · Blocks: the default rule, and expansions
#
# So far tokens or atoms are judged one by one, and after a rejection all that follows is lost. But if the drafter writes one
# token too often, it may write the next one too rarely. **Block verification** judges a draft as a whole: it is exact as
# well, and keeps more.
#
# ## By hand
#
# We begin with one vocabulary, the tokens a and b. At each place the target wants p = (a 3/4, b 1/4). The drafter draws its
# first token from q = (a 1/2, b 1/2), the second from q = (a 1/4, b 3/4). In sixteenths:
#
#     text        aa      ab      ba      bb
#     wanted      9       3       3       1
#     drafted     2       6       2       6
#
# Look at the 8 drafts that begin with b; only 4 are wanted. One by one, each first b is kept with 1/2, whatever follows it.
# But of ba there are too few! As a block, both ba are kept, and one bb. Then one ba is still missing. It is made from a bb:
# of the 5 that were not kept, *one* loses only its second b, and gets an a in its place. The other 4 lose both tokens, and an
# a is written; p draws what follows it, 3 times a and once b. And 4 ab become aa: 2 + 3 + 4 = 9.
#
# ## The equation (arXiv 2403.10444, with one vocabulary: P is p, and Q is q)
#
#     r'  =  min(1, r · P / Q)        after each token; r is 1 at first
#     Z   =  sum max(0, r · P - Q)    over all tokens at a place, with the r before it
#     h   =  Z / (Z + 1 - r)          at a place, with the same r
#
# The whole draft is kept with probability r, the last one. Otherwise walk back from its last place, and stop at each place
# with probability h. (Where r = 1, h is 1, so the walk always ends.) What stands before that place is kept, and the next
# token is drawn from the residual max(0, r · P - Q).
#
# Why is this right? Suppose that a draft begins in some way with probability D, and that the text should contain D · r of
# this beginning. (The empty one has D = r = 1.) The draft continues with x with probability Q(x), the text should do so
# with P(x). So the text needs D · r · P(x) of this beginning followed by x.
#
# - *Kept* with the x that was drafted: D · Q(x) · r' = D · min(Q(x), r · P(x)). The sum over x is D · (r - Z), because
#   min(Q, r · P) = r · P - max(0, r · P - Q).
# - *Missing*, the difference: D · max(0, r · P(x) - Q(x)), which is the residual. The sum over x is D · Z.
# - *Coming back* to this place, because nothing was kept from x on: D - D · (r - Z) = D · (Z + 1 - r).
#
# Of these that come back, D · Z are needed here, so each stops here with probability h = Z / (Z + 1 - r). The others are
# too many, and go back one place further. And the beginning with x added has D · Q(x) and is to be kept with r': the same
# argument holds again, one token later.

# %%
from functools import partial

from helpers import bar, check, distribution_of, examples, total_variation

import numpy as np
from omnidraft import Options, Uniforms, pair, speculative
from omnidraft.lifting import Lifting
from omnidraft.stopping import FixedLength
from omnidraft.verification import lifted


def block(draft, q_rows, p_rows, draws):
    """The tokens that a round writes; the target has one row more than the drafter."""
    r = [1.0]
    for x, q_row, p_row in zip(draft, q_rows, p_rows[:-1], strict=True):
        r.append(min(1, r[-1] * p_row[x] / q_row[x]))
    if draws.accept(r[-1]):
        return [*draft, draws.choose(p_rows[-1])]  # the bonus
    for n in reversed(range(len(draft))):
        left = np.maximum(0, r[n] * p_rows[n] - q_rows[n])
        Z = left.sum()
        if r[n] == 1 or draws.accept(Z / (Z + 1 - r[n])):
            return [*draft[:n], draws.choose(left)]


p, q = np.array([3 / 4, 1 / 4]), np.array([[1 / 2, 1 / 2], [1 / 4, 3 / 4]])
names = {(x, y): "ab"[x] + "ab"[y] for x in (0, 1) for y in (0, 1)}
for (x, y), name in names.items():
    drafted = q[0, x] * q[1, y]
    kept = distribution_of(lambda draws, draft=(x, y): len(block(draft, q, [p] * 3, draws)) - 1)
    print(f"of {16 * drafted:.0f} {name}:", *(f" {16 * drafted * kept[n]:.0f} keep {n}" for n in sorted(kept)))
assert np.allclose([16 * drafted * kept[n] for n in range(3)], [4, 1, 1])  # bb as by hand
assert np.isclose(np.minimum(p, q).sum(axis=1).prod(), 6 / 16)  # one by one


def two_tokens(draws):  # of the text
    written = block([draws.choose(row) for row in q], q, [p] * 3, draws)
    return tuple([*written, draws.choose(p)][:2])


found = distribution_of(two_tokens)
print("the text:", *(f" {name} {16 * found[text]:.0f}" for text, name in names.items()))
assert total_variation(found, {(x, y): p[x] * p[y] for x, y in names}) < 1e-12

# %% [markdown]
# Of 16 drafts 7 are kept whole; one by one, 6. Follow bb: r is 1, then 1/2, then 1/2 · (1/4) / (3/4) = 1/6, which keeps 1
# of the 6. At the second place the residual is max(0, 1/2 · 3/4 - 1/4) = 1/8 for a, and 0 for b. So Z = 1/8 and h = (1/8) /
# (1/8 + 1/2) = 1/5: 1 of 5.
#
# For two tokenizers, the default rule, `lifted` (omnidraft/verification.py), does the same with the comparisons of lesson 5.
# A place is a comparison, P and Q are those of its categories, and each comparison takes r to r'.
#
# ## Expansions
#
# An **expansion** is the reverse of a merge: one draft token that the target writes with several. Let the drafter have a
# third token, "ba"; its **path** is the atoms b, a. For the drafter to write "ba" is to write the atom b, then a. So, with
# the row (a 0.5, b 0.3, ba 0.2):
#
# 1. The first atom is b with probability Q(b) = q(b) + q(ba) = 0.3 + 0.2, and a with Q(a) = 0.5.
# 2. Before the next atom is judged, it is revealed whether the token ends here. If it does, it was b, and the next atom comes
#    from the drafter's next row. If not, it was "ba", and the next atom is a for certain: Q(a) = 1.
#
# The package's `reveal` lists the atoms of a draft, and for each the row from which its token was drawn, with the earlier
# atoms of this token. From these two, `distribution` gives Q.

# %%
a, b = 0, 1
ab = 2  # of the target
ba = 2  # of the drafter
lifting = Lifting({a: (a,), b: (b,), ab: (a, b)}, {ba: (b, a)}, draft_size=3)
atoms, origins = lifting.reveal([ba], [np.array([0.5, 0.3, 0.2])])
for atom, (row, earlier) in zip(atoms, origins, strict=True):
    print("ab"[atom], "is drawn from Q =", lifting.distribution(row, earlier))
assert np.allclose(lifting.distribution(row, ()), [0.5, 0.3 + 0.2, 0])
assert np.allclose(lifting.distribution(row, (b,)), [1, 0, 0])


def two_lifted(p, q, draws):  # p[t] and q[d]: the rows after t and d; p[-1] and q[-1]: the first ones
    first = draws.choose(q[-1])
    atoms, origins = lifting.reveal([first, draws.choose(q[first])], q[[-1, first]])
    tokens, _ = lifting.walk(atoms)  # the target's tokens that the atoms make
    written = lifted(atoms, origins, lifting, p[[-1, *tokens]], draws).emitted
    return tuple([*written, draws.choose(p[written[0]])][:2])


gaps = []
for p_rows, q_rows in np.random.default_rng(0).dirichlet(np.ones(3), size=(20, 2, 4)):
    wanted = {(s, t): p_rows[-1][s] * p_rows[s][t] for s in range(3) for t in range(3)}
    gaps.append(total_variation(distribution_of(partial(two_lifted, p_rows, q_rows)), wanted))
print(f"{len(gaps)} random worlds: a total variation of at most {max(gaps):.0e}")
assert max(gaps) < 1e-12

# %% [markdown]
# ## The real thing
#
# llama3-like writes 24 as one token, qwen-like as two (lesson 2). Here llama3-like drafts for qwen-like: the block efficiency
# on five word problems, ± its standard error, with `tli` (lesson 1), and with `lifted` without and with expansions, which
# are this project's own. (This drafter is nearly as large as its target: look at what is kept, not at the time.)

# %%
models, without = pair("llama3-like", "qwen-like"), pair("llama3-like", "qwen-like")
without.spellings = {}  # the target's spelling of draft tokens: its expansions
for rule, chosen in ("tli", without), ("lifted", without), ("lifted", models):
    options = Options(verify=rule, stop=FixedLength(6), temperature=1, max_new_tokens=32)
    draws = Uniforms(np.random.default_rng(0))
    rounds = [r for example in examples("math", 5) for r in speculative(chosen, example["prompt"], options, draws)]
    lengths = [len(r.emitted) for r in rounds]
    error = np.std(lengths) / len(lengths) ** 0.5
    print(f"{rule:6} {len(chosen.spellings):5} expansions {bar(np.mean(lengths), 6, '.2f')} ± {error:.2f}")

# %% [markdown]
# Here all of the gain is from the expansions: without them no draft goes past a number like 24, with any rule.
#
# ## Exercises
#
# 1. The target's tokens have the splits a, ab, abc with p 0.1, 0.3, 0.2. At node ab r = 0.4; c is drawn from (a 0.2, b 0.6, c
#    0.2). What is r', and what would r · min(1, P / Q) be (one by one)? Answer with a list of two numbers.
# 2. A comparison has P = (0.5, 0.5), Q = (0.1, 0.9) and r = 0.6 before it. What is h?
# 3. Build it: tutorials/exercises/step7_keep.py; `omnidraft tutorial 6 --check` tests it.

# %%
check("6.1", ...)
check("6.2", ...)
