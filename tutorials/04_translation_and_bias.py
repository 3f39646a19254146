# %% [markdown]
# # 4 · Translation and the paper's rule, and where it is biased
#
# Lesson 3 turned draft tokens into proposals. To judge a proposal t as in lesson 1, p(t) must be compared with the
# probability that t is proposed. The drafter has no such number for a merged token, so the paper computes a
# **translated probability** q'(t) from the probabilities of the draft tokens. This lesson asks whether q' is right.
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
# Algorithm 1 is the rule of lesson 1 with q' in place of q: accept t with min(1, p(t) / q'(t)), else draw from
# max(0, p - q'), normalised. The package calls it `omnidraft`.

# %%
import numpy as np
from exercises import check, distribution_of, paint, show, total_variation

from omnidraft import Options, Pair, Uniforms, plain, speculative
from omnidraft.engine import loading as models
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength
from omnidraft.translation import Direct, merge
from omnidraft.verification import rejection_sampling

show(merge)

# %% [markdown]
# (`direct` is the map of lesson 2; `spellings` is for draft tokens that the target writes with several tokens: lesson 5.)
#
# ## By hand
#
# The smallest world with a merge. The drafter has two tokens, a and b; the target has a third one, ab. The drafter
# draws two tokens, and its rows are
#
#     first token:   a 0.8, b 0.2           second token, after an a:   a 0.5, b 0.5
#
# What does it propose first? "ab" if it draws a, then b: 0.8 · 0.5 = 0.4. A lone a if it draws a, then a: 0.4. And b: 0.2.
# Let the target want exactly this, p = (a 0.4, b 0.2, ab 0.4). A perfect drafter: nothing should ever be rejected. But
#
#     a, b drawn (0.4):   proposal ab, q'(ab) = 0.4; accepted with 0.4 / 0.4 = 1
#     b drawn    (0.2):   proposal b,  q'(b)  = 0.2; accepted with 1
#     a, a drawn (0.4):   proposal a,  q'(a)  = 0.8 by Eq. 1; accepted with 0.4 / 0.8 = 1/2 only,
#                         else redrawn from max(0, p - q') = (0, 0, 0.4), so always as ab
#
# In the end a is written with 0.2 instead of 0.4, and ab with 0.6 instead of 0.4. The **total variation** of two laws is
# half the sum of their absolute differences: the most by which they disagree about any event. Here it is 0.2.

# %%
a, b, ab = 0, 1, 2
p, q_first, q_second = np.array([0.4, 0.2, 0.4]), np.array([0.8, 0.2]), np.array([0.5, 0.5])


def known(draft, place):
    return (ab, 2) if tuple(draft[place:place + 2]) == (a, b) else None


def first_token(p, q_first, q_second, draws):
    """One round of the package's own code: draw two tokens, translate, judge; the first token written."""
    draft = [draws.choose(q_first), draws.choose(q_second)]
    made = merge(draft, [q_first, q_second], Direct(np.array([a, b])), known, {}, lambda q: np.append(q, 0.0))
    return rejection_sampling(made.tokens, made.rows, np.array([p] * 3), draws).emitted[0]


law = distribution_of(lambda draws: first_token(p, q_first, q_second, draws))
print("wanted: ", dict(zip("a b ab".split(), p.tolist(), strict=True)))
print("written:", {"a b ab".split()[t]: round(float(law[t]), 6) for t in sorted(law)}, "\n")
assert np.allclose([law[a], law[b], law[ab]], [0.2, 0.2, 0.6])
assert np.isclose(total_variation(law, dict(enumerate(p))), 0.2)

# %% [markdown]
# Where is the mistake? A lone a is proposed with probability q(a) minus that of *every* draft in which a merge swallows
# it; Eq. 1 does not subtract. In this world we could subtract 0.8 · 0.5. With an entry (a, b, c), however, one needs
# the row after "ab", which the drafter has not computed unless it drew ab. Lesson 5 takes another road.
#
# How much does it matter? Forty random worlds of this kind, at several temperatures T (`process` makes random numbers into
# a row at temperature T, as it does with what a model computes). At T = 0 everything is certain, and the rule is exact. Its
# mean bias grows with T. (The paper calls the rule approximate, and measures at T = 0.01.)

# %%
rng = np.random.default_rng(0)
worlds = [(rng.normal(size=3), rng.normal(size=2), rng.normal(size=2)) for _ in range(40)]
means = []
print("mean and largest total variation of the first token")
for T in (0, 0.01, 0.1, 0.5, 1, 2):
    gaps = []
    for world in worlds:
        rows = [process(logits, temperature=T) for logits in world]
        gaps.append(total_variation(distribution_of(lambda draws, rows=rows: first_token(*rows, draws)), dict(enumerate(rows[0]))))
    means.append(np.mean(gaps))
    print(f"T = {T:<4}  {'█' * round(160 * means[-1]):24} {means[-1]:.3f}  {max(gaps):.3f}")
assert means[0] == 0 and means == sorted(means) and means[-1] > 0.1

# %% [markdown]
# ## The real thing
#
# First how it looks at T = 1. A proposal that begins some n-gram but was not merged has a q' that is too large.

# %%
pair = Pair(models.load("draft-tasks", np.float64), models.load("qwen-like", np.float64))
target = pair.target
prompt = "Question: Anna has 4 boxes with 3 pens each. How many pens does she have?\nAnswer:"
options = Options(verify="omnidraft", stop=FixedLength(6), temperature=1, max_new_tokens=48)
rounds = list(speculative(pair, prompt, options, Uniforms(np.random.default_rng(0))))
paint(target.tokenizer, rounds, legend=True)
beginnings = {ngram[0] for ngram, _, _ in pair.cache.items()}
proposals = [(t, span) for r in rounds for t, span in zip(r.proposals, r.spans, strict=True)]  # span: draft tokens
affected = sum(span == 1 and pair.alignment.target_to_draft[t] in beginnings for t, span in proposals)
print(f"{affected} of {len(proposals)} proposals could have been swallowed by a merge\n")

# %% [markdown]
# Now exactly: the law of the first token that a round writes after two prompts that can go on in more than one way. The
# whole decoding loop is enumerated; to keep the outcomes few, both models choose among their three likeliest tokens only.

# %%
for prompt in ("Lost: our parrot has been missing since Friday", "It was last seen near the cafe in Sandford. The par"):
    for T in (0, 1):
        some = Options(verify="omnidraft", stop=FixedLength(2), temperature=T, top_k=3, max_new_tokens=3)
        ids = target.tokenizer.encode(prompt)
        wanted = distribution_of(lambda draws, o=some, ids=ids: next(plain(target, ids, o, draws)).emitted[0])
        law = distribution_of(lambda draws, o=some, text=prompt: next(speculative(pair, text, o, draws)).emitted[0])
        gap = total_variation(law, wanted)
        print(f"T = {T}  {'█' * round(100 * gap):24} {gap:.4f}  after {prompt[-20:]!r}")
        assert gap == 0 or T > 0

# %% [markdown]
# ## Exercises
#
# 1. q_1 = (a 0.6, b 0.4); after an a, q_2 = (a 0.5, b 0.5). The draft is a, b. What is the row q' of (a, b, ab)
#    by Eq. 1 and 2? Answer with a list.
# 2. In that world let p = (a 0.3, b 0.4, ab 0.3). What is the total variation of the paper's rule?
# 3. Write a function that returns the true probabilities [a, b, ab] of the first proposal, given q_first and
#    q_second (after an a) as lists for (a, b). With them in place of q', the rule is exact in this world.

# %%
check("4.1", ...)
check("4.2", ...)


def proposed(q_first, q_second):
    return ...


check("4.3", proposed)
