# %% [markdown]
# # 6 · Blocks: the default rule, expansions and healing
#
# So far tokens or atoms are judged one by one, and after a rejection all that follows is lost. But what one token has too
# much, the next may make up for. **Block verification** judges a draft as a whole: it is exact as well, and keeps more.
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
# Look at the 8 drafts that begin with b; 4 are wanted. One by one, each b is kept with 1/2, whatever follows it. But of ba
# there are too few! As a block, both ba are kept, and one bb. Now b is in the text 3 times, and what is missing is one ba.
# It is made from a bb: of the 5 that were not kept, *one* loses only its second b, and gets an a in its place. The other 4
# are surplus b's. They lose both, and an a is written.
#
# ## The equation (arXiv 2403.10444, with one vocabulary: P is p, and Q is q)
#
#     r'  =  min(1, r · P / Q)        after each token; r is 1 at first. The whole draft is kept with the last r
#     Z   =  sum max(0, r · P - Q)    over all tokens at a place, with the r before it
#     h   =  Z / (Z + 1 - r)          else go back from the last place, and stop at each with h; at the first one h = 1
#
# Where we stop, all before it is kept, and the residual max(0, r · P - Q) draws the next token.
#
# Why is this right? Let a draft begin in some way with probability D, and suppose that keeping it with probability r gives
# the right amount so far. (At the start D = r = 1.) The next token of the draft is x with Q(x). The next one of the text
# should be x with P(x).
#
# - *Wanted* with an x after it: D · r · P(x).
# - *Kept* with the x that was drafted: D · Q(x) · r' = D · min(Q(x), r · P(x)). Over all x this is D · (r - Z).
# - *Missing*, the difference: D · max(0, r · P(x) - Q(x)), which is the residual. Over all x this is D · Z.
# - *Coming back* to this place, as no x was kept: D minus D · (r - Z).
#
# Of the D · (1 - r + Z) that come back, D · Z are missing here. The quotient is h! The rest is too many, and goes further
# back. And a beginning with x added has D · Q(x), and is rightly kept with r': the same argument again, one token later.

# %%
from functools import partial

from helpers import bar, bars, check, distribution_of, examples, total_variation

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
whole = {"one by one": 0.0, "as a block": 0.0}  # the probability that a whole draft is kept
for (x, y), name in names.items():
    drafted = q[0, x] * q[1, y]
    kept = distribution_of(lambda draws, draft=(x, y): len(block(draft, q, [p] * 3, draws)) - 1)
    print(f"of {16 * drafted:.0f} {name}:", *(f" {16 * drafted * kept[n]:.0f} keep {n}" for n in sorted(kept)))
    whole["as a block"] += drafted * kept[2]
    whole["one by one"] += drafted * min(1, p[x] / q[0, x]) * min(1, p[y] / q[1, y])
assert np.allclose([16 * drafted * kept[n] for n in range(3)], [4, 1, 1])  # bb as by hand
bars(whole, title="a whole draft is kept")


def two_tokens(draws):  # of the text
    written = block([draws.choose(row) for row in q], q, [p] * 3, draws)
    return tuple([*written, draws.choose(p)][:2])


found = distribution_of(two_tokens)
print("the text:", *(f" {name} {16 * found[text]:.0f}" for text, name in names.items()))
assert total_variation(found, {(x, y): p[x] * p[y] for x, y in names}) < 1e-12

# %% [markdown]
# Follow bb: r is 1, then 1/2, then 1/2 · (1/4) / (3/4) = 1/6, which keeps 1 of the 6. At the second place the residual is
# max(0, 1/2 · 3/4 - 1/4) = 1/8 for a, and 0 for b. So Z = 1/8 and h = (1/8) / (1/8 + 1/2) = 1/5: 1 of 5.
#
# For two tokenizers, `lifted`, the default rule (omnidraft/verification.py), does this with the comparisons of lesson 5: a
# place is a comparison, P and Q are distributions over its categories. It also handles two cases that we have not met.
#
# ## Expansions
#
# The reverse of a merge is an **expansion**: a draft token that the target writes with several. Let the drafter have a
# third token, "ba". Its **path** is the atoms b, a. `reveal` gives each atom with the row it was drawn from, and with the
# earlier atoms of the same token. So Q(b) counts both b and ba; and if the b did not end a token, it was that of "ba",
# whose a is certain. Is this exact?

# %%
a, b, ab = 0, 1, 2
lifting = Lifting({a: (a,), b: (b,), ab: (a, b)}, {2: (b, a)}, draft_size=3)  # the drafter's 2 is ba: its target tokens b, a
print("atoms of the draft ba:", lifting.reveal([2], ["row"]))


def two_lifted(p, q, draws):  # p[t] and q[d]: the rows after t and d; p[-1] and q[-1]: the first ones
    first = draws.choose(q[-1])
    atoms, origins = lifting.reveal([first, draws.choose(q[first])], q[[-1, first]])
    tokens, _ = lifting.walk(atoms)  # the target's tokens, each followed by a row
    written = lifted(atoms, origins, lifting, p[[-1, *tokens]], draws).emitted
    return tuple([*written, draws.choose(p[written[0]])][:2])


gaps = []
for p_rows, q_rows in np.random.default_rng(0).dirichlet(np.ones(3), size=(20, 2, 4)):
    wanted = {(s, t): p_rows[-1][s] * p_rows[s][t] for s in range(3) for t in range(3)}
    gaps.append(total_variation(distribution_of(partial(two_lifted, p_rows, q_rows)), wanted))
print(f"{len(gaps)} random worlds: a total variation of at most {max(gaps):.0e}")
assert max(gaps) < 1e-12

# %% [markdown]
# ## Healing
#
# The target has just written the token b. The drafter would have written "ba" as one token, so in training it hardly ever
# saw an a after a lone b: now it guesses badly. **Healing** takes the b back, and the drafter draws again from its row
# before b, but only among tokens whose path begins with b. If that is b, it goes on as usual. If it is ba, the draft is the
# atom a, as its b is in the text already. The target's next token still has the distribution p:

# %%
def after_b(draws):
    before, after = np.array([0, 0.4, 0.6]), np.array([0.1, 0.7, 0.2])  # over a, b, ba; `before` is cut to b and ba
    if draws.choose(before) == 2:
        healed = lifting.reveal([2], [before], in_text=(b,))
    else:
        healed = lifting.reveal([draws.choose(after)], [after])
    return lifted(*healed, lifting, np.array([[0.4, 0.2, 0.4]] * 3), draws).emitted[0]


healed = distribution_of(after_b)
print("a, b, ab after healing:", *(f"{healed[token]:.2f}" for token in (a, b, ab)))
assert total_variation(healed, {a: 0.4, b: 0.2, ab: 0.4}) < 1e-12

# %% [markdown]
# ## The real thing
#
# llama3-like writes 24 as one token, qwen-like as two (lesson 2). Now it drafts for qwen-like: the block efficiency on five
# word problems, ± its standard error, with `tli` (lesson 1), `omnidraft` (lesson 4, biased), and `lifted`, also without
# expansions, which are this project's own: the package lets `omnidraft` use them too, and then it is close. (This drafter
# is nearly as large as its target: only what is kept counts here, not the time.)

# %%
models, without = pair("llama3-like", "qwen-like"), pair("llama3-like", "qwen-like")
without.spellings = {}  # before its lifting is built from them
for rule, chosen in ("tli", models), ("omnidraft", models), ("lifted", models), ("lifted", without):
    options = Options(verify=rule, stop=FixedLength(6), temperature=1, max_new_tokens=32)
    draws = Uniforms(np.random.default_rng(0))
    rounds = [r for example in examples("math", 5) for r in speculative(chosen, example["prompt"], options, draws)]
    lengths = [len(r.emitted) for r in rounds]
    error = np.std(lengths) / len(lengths) ** 0.5
    used = 0 if rule == "tli" else len(chosen.spellings)
    print(f"{rule:9} {used:5} expansions {bar(np.mean(lengths), 6, '.2f')} ± {error:.2f}")

# %% [markdown]
# ## Exercises
#
# 1. The target's tokens have the splits a, ab, abc with p 0.1, 0.3, 0.2. At node ab r = 0.4; c is drawn from (a 0.2, b 0.6, c
#    0.2). What is r afterwards, and what would 0.4 become one by one? Answer with a list of two numbers.
# 2. A comparison has P = (0.5, 0.5), Q = (0.1, 0.9) and r = 0.6 before it. What is h?
# 3. Build it: tutorials/exercises/step7_keep.py; `omnidraft tutorial 6 --check` tests it.

# %%
check("6.1", ...)
check("6.2", ...)
