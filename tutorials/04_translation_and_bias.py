# %% [markdown]
# # 4 · Translation and the paper's rule, and where it is biased
#
# Lesson 3 turned draft tokens into proposals. To judge a proposal t as in lesson 1, we must compare p(t) with the
# probability that t is proposed. The drafter has no such number for a merged token, so the paper computes a **translated
# probability** q'(t) from the probabilities of the draft tokens. This lesson asks whether q' is right.
#
# ## The equation (arXiv 2507.02659, Eq. 1, Eq. 2 and Algorithm 1)
#
# Let q_j be the drafter's row from which d_j was drawn, j = 1, 2, ...
#
#     Eq. 1   t translates d_1 alone:           q'(t) = q_1(d_1)
#             t merges d_1 ... d_n:             q'(t) = q_1(d_1) · q_2(d_2) · ... · q_n(d_n)
#     Eq. 2   the other tokens, after a merge:  q'(direct token of d_1) = q_1(d_1) - q'(t)
#                                               q'(direct token of x) = q_1(x) for every other x
#
# Algorithm 1 is the rule of lesson 1 with q' in place of q: accept t with probability min(1, p(t) / q'(t)), else draw from
# max(0, p - q'), normalised. The package calls this rule `omnidraft`.

# %%
from functools import partial

from helpers import bars, check, distribution_of, paint, total_variation

import numpy as np
from omnidraft import Options, Uniforms, pair, plain, speculative
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength
from omnidraft.verification import rejection_sampling

# %% [markdown]
# ## By hand
#
# This is the smallest world with a merge. The drafter has two tokens, a and b; the target has a third one, ab. The drafter
# draws two tokens, and its rows are
#
#     first token:   a 0.8, b 0.2           second token, after an a:   a 0.5, b 0.5
#
# What does it propose first? It is ab if it draws a, then b: 0.8 · 0.5 = 0.4. It is a alone if it draws a, then a: 0.4. And
# b has 0.2. Suppose the target wants exactly this, p = (a 0.4, b 0.2, ab 0.4). The drafter is perfect: nothing should be
# rejected. But
#
#     a, b drawn (0.4):   proposal ab, q'(ab) = 0.4; accepted with 0.4 / 0.4 = 1
#     b drawn    (0.2):   proposal b,  q'(b)  = 0.2; accepted with 1
#     a, a drawn (0.4):   proposal a,  q'(a)  = 0.8 by Eq. 1; accepted with only 0.4 / 0.8 = 1/2,
#                         else redrawn from max(0, p - q') = (0, 0, 0.4), which always gives ab
#
# In the end a is written with probability 0.2 instead of 0.4, and ab with 0.6 instead of 0.4. The **total variation** of
# two distributions is half the sum of their absolute differences: the most by which they disagree about any event. Here it
# is 0.2. The code shows the same: first the proposals, then the distribution of the token that is written.

# %%
a, b, ab = 0, 1, 2
p = np.array([0.4, 0.2, 0.4])
q_first, q_second = np.array([0.8, 0.2]), np.array([0.5, 0.5])


def translate(draft, q_first, q_second):
    """The first proposal of a draft of two tokens, and its row q' over (a, b, ab)."""
    row = np.append(q_first, 0.0)
    if draft != (a, b):
        return draft[0], row
    product = q_first[a] * q_second[b]  # Eq. 1
    row[a] -= product  # Eq. 2
    row[ab] = product
    return ab, row


def first_token(p, q_first, q_second, draws):
    draft = draws.choose(q_first), draws.choose(q_second)
    proposal, row = translate(draft, q_first, q_second)
    return rejection_sampling([proposal], [row], np.array([p, p]), draws).emitted[0]


names = ("a", "b", "ab")
for draft in (a, b), (b, a), (a, a):
    proposal, row = translate(draft, q_first, q_second)
    print(f"draft {names[draft[0]]}, {names[draft[1]]} proposes {names[proposal]:2} with q' = {row[proposal]:.1f}")
written = distribution_of(lambda draws: first_token(p, q_first, q_second, draws))
bars({f"{name:2} wanted {p[t]:.1f}, written": written[t] for t, name in enumerate(names)}, form=".1f")
assert np.isclose(total_variation(written, dict(enumerate(p))), 0.2)

# %% [markdown]
# Where is the mistake? The token a is proposed alone only if the draft does not go on to a merge. So its probability is
# q(a) minus that of *every* draft that merges it, and Eq. 1 does not subtract these. In this world we could subtract 0.8 ·
# 0.5. With an entry (a, b, c), however, we would need the row after "ab", which the drafter has not computed unless it drew
# ab. Lesson 5 finds another way.
#
# How much does it matter? Here are forty random worlds of this kind, at several temperatures T (`process` turns random
# numbers into a row at temperature T, as it does with the output of a model). At T = 0 everything is certain, and the rule
# is exact. Its mean bias grows with T. (The paper calls the rule approximate, and measures mostly at T = 0.01.)

# %%
rng = np.random.default_rng(0)
mean_gaps = {}
worlds = [(rng.normal(size=3), rng.normal(size=2), rng.normal(size=2)) for _ in range(40)]
for T in (0, 0.01, 0.1, 0.5, 1, 2):
    gaps = []
    for world in worlds:
        rows = [process(logits, temperature=T) for logits in world]
        written = distribution_of(partial(first_token, *rows))
        gaps.append(total_variation(written, dict(enumerate(rows[0]))))
    mean_gaps[f"T = {T}"] = np.mean(gaps)
bars(mean_gaps, 160, ".3f", "mean total variation of the paper's rule")
assert mean_gaps["T = 0"] == 0 and [*mean_gaps.values()] == sorted(mean_gaps.values())

# %% [markdown]
# ## The real thing
#
# First, a text at T = 1. A token with which some n-gram begins may have too large a q' when it is proposed alone.

# %%
models = pair("draft-tasks", "qwen-like", dtype="float64")
prompt = "Question: Anna has 4 boxes with 3 pens each. How many pens does she have?\nAnswer:"
options = Options(verify="omnidraft", stop=FixedLength(6), temperature=1, max_new_tokens=48)
rounds = list(speculative(models, prompt, options, Uniforms(np.random.default_rng(0))))
paint(models.target.tokenizer, rounds, legend=True)
beginnings = {ngram[0] for ngram, _, _ in models.cache.items()}
proposals = [(t, span) for r in rounds for t, span in zip(r.proposals, r.spans, strict=True)]  # span: number of draft tokens
affected = sum(span == 1 and models.alignment.target_to_draft[t] in beginnings for t, span in proposals)
print(f"{affected} of {len(proposals)} proposals are single tokens with which an n-gram begins\n")

# %% [markdown]
# Now the exact bias: we compute the distribution of the first token that a round writes, after two prompts that leave room
# for choice. The whole decoding loop is enumerated; both models choose only among their three likeliest tokens, so the bias
# is that of these short rows.

# %%
for prompt in ("Once upon a time there was a little", "The fox found a"):
    gaps = {}
    for T in (0, 1):
        few = Options(verify="omnidraft", stop=FixedLength(2), temperature=T, top_k=3, max_new_tokens=3)
        wanted = distribution_of(lambda draws, p=prompt, o=few: next(plain(models.target, p, o, draws)).emitted[0])
        written = distribution_of(lambda draws, p=prompt, o=few: next(speculative(models, p, o, draws)).emitted[0])
        gaps[f"T = {T}"] = total_variation(written, wanted)
    print(f"after {prompt!r}")
    bars(gaps, 100, ".4f")
    assert gaps["T = 0"] == 0

# %% [markdown]
# ## Exercises
#
# 1. q_1 = (a 0.6, b 0.4); after an a, q_2 = (a 0.5, b 0.5). The draft is a, b. What is the row q' of (a, b, ab) by Eq. 1
#    and 2? Answer with a list.
# 2. In that world let p = (a 0.3, b 0.4, ab 0.3). What is the total variation between p and what the paper's rule writes?
# 3. Build it (best after lesson 5): how probable is each first proposal really? With these numbers in place of q' the rule is
#    exact. Write it in tutorials/exercises/step5_repair.py; `omnidraft tutorial 4 --check` tests it.

# %%
check("4.1", ...)
check("4.2", ...)
