# %% [markdown]
# # 1 · Speculative decoding from scratch
#
# A large language model writes one **token** (a word or a piece of one) per **pass** (one run of the model), and every pass
# reads all of its weights. A pass over several tokens costs little more than one over a single token, because the weights are
# read once either way. So let a small, fast model guess the next few tokens, and let the large one check them all in one pass.
#
# - The **target** is the large model, whose text we want. The **drafter** is the small one.
# - In each **round** the drafter draws k **draft tokens**, one after another. One pass of the target gives, for each of
#   these k places and for the one after them, its probabilities of all tokens: a **row**. Then the draft tokens are judged
#   from left to right: each is either **accepted**, or rejected and replaced by a **recovered** token, which ends the
#   round. If all k are accepted, the target's last row yields one more token for free, the **bonus**.
#
# So a round costs one target pass and writes between 1 and k + 1 tokens. The art lies in the judging: every text must be
# exactly as probable as if the target had written it alone. A rule with this property is called **lossless**.
#
# ## The equation (arXiv 2211.17192, section 2.3)
#
# At one place in the text, let p(x) be the target's probability that the next token is x, and q(x) the drafter's.
#
#     draw x from q, accept it with probability   min(1, p(x) / q(x));
#     if rejected, draw from the residual         r(x) = max(0, p(x) - q(x)) / sum_y max(0, p(y) - q(y)).
#
# Why is this exact? Let beta = sum_x min(p(x), q(x)). A token x is written in one of two ways:
#
#     accepted     q(x) · min(1, p(x) / q(x))  =  min(p(x), q(x))           (so beta is the probability of accepting)
#     recovered    (1 - beta) · r(x)           =  max(0, p(x) - q(x))       (the denominator of r is also 1 - beta)
#
# and min(p, q) + max(0, p - q) = p. Nothing was assumed about q: a bad drafter costs speed, never quality.

# %%
import numpy as np
from exercises import check, distribution_of, paint, show

from omnidraft import Options, Pair, Uniforms, plain, speculative, verification
from omnidraft.engine import loading as models
from omnidraft.stopping import FixedLength


def written(p, q):
    """The probability of each token after one draft token was judged: the two ways, added up."""
    accepted = np.minimum(p, q)
    beta = accepted.sum()
    residual = np.maximum(0, p - q) / np.maximum(0, p - q).sum()
    return accepted + (1 - beta) * residual


# %% [markdown]
# ## By hand
#
# Three tokens a, b, c; the drafter likes b too much. Accepted are 0.2 + 0.3 + 0.1, so beta = 0.6. The residual is
# (0.3, 0, 0.1) / 0.4 = (0.75, 0, 0.25). Token a is written with probability 0.2 + 0.4 · 0.75 = 0.5: what p asks for.

# %%
p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
assert np.isclose(np.minimum(p, q).sum(), 0.6) and np.allclose(written(p, q), p)
for other_p, other_q in np.random.default_rng(0).dirichlet(np.ones(50), size=(100, 2)):
    assert np.allclose(written(other_p, other_q), other_p)

# %% [markdown]
# The package has the same rule for a whole round: `proposals` are its draft tokens, `emitted` is what was written, and
# `uniforms` decides: `accept(probability)` is yes or no, `choose(weights)` an index.

# %%
show(verification.rejection_sampling)
show(verification.residual)

# %% [markdown]
# Does this very code write tokens with probability p? There is no need to run it a million times. `distribution_of` runs a
# function once for *every possible outcome* of its random decisions and adds up the probabilities, so its answer is
# exact. (A **law** is a probability distribution.) Two coins, for example, one of which shows heads with 0.25:

# %%
coins = distribution_of(lambda draws: draws.accept(0.25) + draws.accept(0.5))  # how many heads
assert coins == {0: 0.375, 1: 0.5, 2: 0.125}

law = distribution_of(lambda draws: verification.rejection_sampling([draws.choose(q)], [q], np.array([p, p]), draws).emitted[0])
print("law of the first token written:", {"abc"[x]: round(float(law[x]), 15) for x in sorted(law)})
assert np.allclose([law[x] for x in range(3)], p, rtol=0, atol=1e-15)

# %% [markdown]
# What holds for one token holds for the text: a later draft token is judged only if all before it were accepted, and
# then p and q are the two models' rows for exactly that text.
#
# ## The real thing
#
# Two small models come with the package. Their vocabularies (the lists of their tokens) differ, which is what the other
# lessons are about; here the drafter may only draw tokens that both have, and the rule above applies as it is. (The package
# calls this `tli`, token-level intersection, arXiv 2502.05202.) First at *temperature 0*, where a model always takes its
# likeliest token: a draft token is then accepted if it is the one that the target takes.

# %%
pair = Pair(models.load("draft-tasks", np.float64), models.load("qwen-like", np.float64))  # drafter, target
target, prompt = pair.target, "Question: Anna has 4 boxes with 3 pens each. How many pens does she have?\nAnswer:"


def decode(k, temperature):
    options = Options(verify="tli", stop=FixedLength(k), temperature=temperature, max_new_tokens=40)
    return list(speculative(pair, prompt, options, Uniforms(np.random.default_rng(1))))


alone = list(plain(target, target.tokenizer.encode(prompt), Options(max_new_tokens=40), Uniforms([])))  # no draws
greedy = decode(4, temperature=0)
paint(target.tokenizer, greedy, legend=True)
print(f"target passes: {len(alone)} alone, {len(greedy)} with the drafter\n")
assert [token for r in greedy for token in r.emitted] == [token for r in alone for token in r.emitted]  # the same text

# %% [markdown]
# Now at *temperature 1*: tokens are drawn from the models' own p and q.

# %%
sampled = decode(4, temperature=1)
paint(target.tokenizer, sampled)
# The accepted tokens, then a recovered one or a bonus; only the last round may be cut short, by the limit of 40 tokens.
assert all(len(r.emitted) == r.accepted + 1 <= 5 for r in sampled[:-1])

# %% [markdown]
# **Block efficiency** is the mean number of tokens written per target pass. Longer drafts raise it less and less: the
# k-th draft token counts only if the k - 1 before it were accepted. And drafting takes time, too.

# %%
print("\nblock efficiency at temperature 0")
for k in (1, 2, 4, 8):
    rounds = decode(k, temperature=0)
    efficiency = sum(len(r.emitted) for r in rounds) / len(rounds)
    print(f"k = {k}  {'█' * round(10 * efficiency)} {efficiency:.2f}")
    reached = [sum(r.accepted >= i for r in rounds) for i in range(k + 1)]  # rounds that accepted i or more
    assert 1 <= efficiency <= k + 1 and reached == sorted(reached, reverse=True)

# %% [markdown]
# ## Exercises: put your answers in place of the `...` (numbers count to three decimals)
#
# 1. What is beta for p = (0.1, 0.6, 0.3) and q = (0.4, 0.4, 0.2)?
# 2. A tempting mistake: a rejection draws from p itself, not from the residual. How probable is token a by hand then?
# 3. Suppose that each draft token is accepted with the same probability alpha, whatever came before. Write a function
#    for the mean number of tokens per round (arXiv 2211.17192, Eq. 1). Mind alpha = 1.

# %%
check("1.1", ...)
check("1.2", ...)


def tokens_per_round(alpha, k):
    return ...


check("1.3", tokens_per_round)
