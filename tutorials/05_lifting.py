# %% [markdown]
# # 5 · Lifting: exact verification for any two tokenizers
#
# Lesson 4 needed the probability of a whole *proposal*, which is too costly to compute. Smaller steps are cheap. A target
# token has a split (lesson 3): the draft token with the same bytes, or an n-gram; else it is **uncovered**. The draft
# tokens in splits are called **atoms**. To write "ab" is to write the atom a, then the atom b: both models can be seen as
# writing atoms, and the distribution of the *next atom* is known exactly on both sides.
#
# The splits form a **trie**: a tree in which each step down is one atom. A **node** stands for the beginning of a split,
# the **root** for the empty beginning. The **mass** of a node is the total p of the target tokens whose split begins so.
# Here is the trie of lesson 4's world, where the target has the tokens a, b and ab with p = (0.4, 0.2, 0.4):
#
#     root ─┬─ a  0.8 ─┬─ stop  0.4     the token a
#           │          └─ b     0.4     the token ab
#           └─ b  0.2                   the token b
#
# At node a the target has two ways to continue. It may write b, which completes the token ab. Or it may **stop**: the token
# a ends here. No atom says "stop". It shows in what comes next: an atom that is no child of the node means that the token
# ended before it. Such an atom proposes *stop*; once that is accepted, the same atom begins the next token.
#
# ## By hand
# The drafter draws a from (a 0.6, b 0.4), then a again from (a 0.3, b 0.7). Three comparisons follow:
# 1. At the root the first a proposes the child a. P = p(a) + p(ab) = 0.8 and Q = 0.6: kept.
# 2. At node a the second a is no child, so it proposes *stop*. P = 0.4 / 0.8 = 0.5. Every atom except b means stop, so Q =
#    1 - 0.7 = 0.3: kept. The target token a is written.
# 3. At the root again (the target's next row is p, too) it proposes the child a. P = 0.8. This atom is no b, so Q = 0.3 /
#    0.3 = 1: kept with 0.8. If it is, the next token is drawn from p among those whose split begins with a.

# %%
from functools import partial
from itertools import product

import numpy as np
from helpers import bar, check, distribution_of, draw_trie, examples, show, total_variation

from omnidraft import Options, Uniforms, metrics, pair, plain, speculative
from omnidraft.lifting import ROOT, Lifting, build_lifting
from omnidraft.stopping import FixedLength
from omnidraft.verification import choices, lifted

a, b, ab = 0, 1, 2
p, splits = np.array([0.4, 0.2, 0.4]), {a: (0,), b: (1,), ab: (0, 1)}
lifting = build_lifting(splits, {}, draft_size=2)
draw_trie("the trie, with masses", lifting, p, tokens=["a", "b", "ab"], atoms="ab")
rows = [np.array([0.6, 0.4]), np.array([0.3, 0.7])]
whole = np.zeros(2)
for drafted in product((a, b), repeat=2):
    one_by_one = 1.0
    for c in choices(*lifting.reveal(drafted, rows), lifting, [p, p, p]):
        one_by_one *= min(1, c.target_prob / c.draft_prob)
        place, proposed = "root" if c.node == ROOT else "node a", "stop" if c.stop else "ab"[drafted[c.place]]
        print(*("ab"[d] for d in drafted), f" {place:6}  {proposed:4}  P = {c.target_prob:.1f}  Q = {c.draft_prob:.1f}  kept:",
              f"one by one {one_by_one:.1f}, as a block {c.after:.1f}")
    whole += rows[0][drafted[0]] * rows[1][drafted[1]] * np.array([one_by_one, c.after])
print("\nall of a draft is kept\none by one", bar(whole[0], 40, ".2f"), "\nas a block", bar(whole[1], 40, ".2f"))
assert whole[1] > whole[0]

# %% [markdown]
# ## The equation (this project's own)
#     at the root        P(c) = mass(c)              Q(c) = q(c)                   for each child c
#                        P(uncovered) = the rest     Q(uncovered) = 0              uncovered tokens: no split
#     inside node n      P(c) = mass(c) / mass(n)    Q(c) = q(c)                   for each child c
#                        P(stop) = p(t) / mass(n)    Q(stop) = 1 - sum_c Q(c)      t is the token of node n
#
# Lesson 1 would accept with min(1, P / Q), one by one. For the draft b, a that is 0.5, then 1: half of the time both are thrown
# away, although the target writes them with 0.2 · 0.8, more than the 0.4 · 0.3 of the drafter. **Block verification** (arXiv
# 2403.10444) begins with r = 1, and each comparison makes r' = min(1, r P / Q) of it. All is kept with the last r: for b, a
# that is 0.5, then 1, so always. Else a part is kept; max(0, r P - Q) draws what follows it, then p a token within that.
# Seeing both distributions over atoms is called **lifting**; the rule is named `lifted`, and it is the package's default.

# %%
show(Lifting.choice)  # the equation: P and Q at a node
show(lifted)  # the rule; help(lifted) says why it is exact

# %% [markdown]
# The reverse: give the drafter a third token "ba", which the target writes with two tokens: an **expansion**. Its **path**
# is the atoms b, a. `reveal` gives each atom with the row that it came from and the atoms of its own token before it. So
# Q(b) counts b and ba, and after the b of "ba" the a is certain.
#
# Is `lifted` **lossless**? We enumerate the first *two* tokens that it writes (if it writes one, the second is drawn from
# p) in twenty random worlds of this kind, where p and q depend on the token before.

# %%
both = build_lifting(splits, {2: (b, a)}, draft_size=3)


def two_tokens(p, q, draws):  # p[t] and q[d]: the rows after t and d; p[-1] and q[-1]: the first ones
    first = draws.choose(q[-1])
    atoms, drawn = both.reveal([first, draws.choose(q[first])], q[[-1, first]])
    proposals, _ = both.walk(atoms)
    written = lifted(atoms, drawn, both, p[[-1, *proposals]], draws).emitted
    return tuple(written[:2]) if len(written) > 1 else (*written, draws.choose(p[written[0]]))


gaps = []
for p_rows, q_rows in np.random.default_rng(0).dirichlet(np.ones(3), size=(20, 2, 4)):
    wanted = {(s, t): p_rows[-1][s] * p_rows[s][t] for s in range(3) for t in range(3)}
    gaps.append(total_variation(distribution_of(partial(two_tokens, p_rows, q_rows)), wanted))
print(f"{len(gaps)} random worlds: a total variation of at most {max(gaps):.0e}")
assert max(gaps) < 1e-12  # rounding errors only

# %% [markdown]
# ## Healing
# Suppose the target wrote the b at the end of the text. The drafter would have written "ba" as one token, so it hardly ever
# saw an a after a lone b in training and guesses badly. **Healing** takes this b back: the drafter draws again, from its
# row before b, among b and the longer tokens that begin with it. Drawing b changes nothing. Drawing "ba" drafts the atom a
# (`in_text`: the text has this b already).

# %%
def after_b(draws):
    before, after = np.array([0, 0.4, 0.6]), np.array([0.1, 0.7, 0.2])  # before b: cut down to b and ba
    ba = draws.choose(before) == 2
    healed = both.reveal([2], [before], in_text=(b,)) if ba else both.reveal([draws.choose(after)], [after])
    return lifted(*healed, both, [p, p, p], draws).emitted[0]


assert both.longer(b) == [2] and total_variation(distribution_of(after_b), dict(enumerate(p))) < 1e-12

# %% [markdown]
# ## The real thing
# The embedded models at T = 1: the whole decoding loop is enumerated, with two tokens to choose from at each place. Then
# the block efficiency of four rules: `tli` (lesson 1), `slem` (arXiv 2502.05202: write the draft with the target's tokenizer,
# keep tokens while the target's own draws agree), `omnidraft` (lesson 4, the only biased one), `lifted`.

# %%
exact, prompt = pair("draft-tasks", "qwen-like", dtype="float64"), "The fox found a"
few = Options(stop=FixedLength(2), temperature=1, top_k=2, max_new_tokens=3)
wanted = distribution_of(lambda draws: next(plain(exact.target, prompt, few, draws)).emitted[0])
written = distribution_of(lambda draws: next(speculative(exact, prompt, few, draws)).emitted[0])
print(f"total variation of the first token: {total_variation(written, wanted):.0e}")
assert total_variation(written, wanted) < 1e-9

fast, draws = pair("draft-tasks", "qwen-like"), Uniforms(np.random.default_rng(0))
for rule in ("tli", "slem", "omnidraft", "lifted"):
    options = Options(verify=rule, stop=FixedLength(6), temperature=1, max_new_tokens=32)
    rounds = [one for example in examples("text", 8) for one in speculative(fast, example["prompt"], options, draws)]
    print(f"{rule:9} {bar(metrics.summarize(rounds).block_efficiency, 10, '.2f')}")

# %% [markdown]
# ## Exercises
# The target's tokens, with their splits and probabilities, are a (a) 0.1, ab (a, b) 0.3, abc (a, b, c) 0.2, and b (b) 0.4.
# 1. What is P(stop) inside node a?
# 2. Inside node ab, where r = 0.4, the draft row is (a 0.2, b 0.6, c 0.2) and c is drawn. What is r after it, and how much
#    would 0.4 become one by one? Answer with a list of two.
# 3. Build it: the trie in tutorials/exercises/step3_trie.py, then one choice in step4_choice.py, in the same folder;
#    `omnidraft tutorial 5 --check` tests both.

# %%
check("5.1", ...)
check("5.2", ...)
