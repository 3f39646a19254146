# %% [markdown]
# # 1 · Speculative decoding from scratch
#
# A large language model writes one **token** (a word or a piece of one) per **pass** (one run of the model), and every pass
# reads all the model's weights. A pass over several tokens reads the weights only once, so it costs less than several passes
# over one token each. How much less? Let us measure.

# %%
from time import perf_counter

from helpers import bar, bars, check, distribution_of, paint

import numpy as np
from omnidraft import Options, Uniforms, load, metrics, pair, plain, speculative
from omnidraft.stopping import FixedLength


def seconds(n):  # of a pass over n tokens after the prompt; rewind forgets them
    start = perf_counter()
    model.forward(ids[:n], cache, rows=n)
    cache.rewind(len(ids))
    return perf_counter() - start


prompt = "Write a story about a boy named Tom who finds a red boat at the lake."
model = load("qwen-like")
ids = model.tokenizer.encode(prompt)
cache = model.new_cache()
model.forward(ids, cache)
best = dict.fromkeys((1, 4, 8, 16), np.inf)
for _ in range(40):  # in turn; the fastest pass counts
    for n in best:
        best[n] = min(best[n], seconds(n))
costs = {f"n = {n}": time / best[1] for n, time in best.items()}
bars(costs, 8, ".1f", "the cost of a pass over n tokens (one token = 1)")
assert costs["n = 16"] < 16

# %% [markdown]
# So let a small, fast model guess the next few tokens, and let the large model check all of them in one pass.
#
# - The **target** is the large model, whose text we want. The **drafter** is the small one.
# - In each **round** the drafter draws k **draft tokens**, one after another. One pass of the target then gives a
#   **row** (the probability of every token) for each of these k places and for the place after them. The draft tokens are
#   judged from left to right: each is either **accepted**, or rejected and replaced by a **recovered** token, which ends
#   the round. If all k are accepted, the target's last row gives one more token for free, the **bonus**.
#
# So a round costs one target pass and writes 1 to k + 1 tokens. The acceptance rule must preserve the **distribution** of
# the text: each text must be exactly as probable as if the target had written it alone. Such a rule is called **lossless**.
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
#
# ## By hand
#
# There are three tokens a, b, c, and the drafter draws b too often. p and q overlap by 0.2 + 0.3 + 0.1, so beta = 0.6. The
# residual is (0.3, 0, 0.1) / 0.4 = (0.75, 0, 0.25). Token a is written with probability 0.2 + 0.4 · 0.75 = 0.5 = p(a).

# %%
p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
common = np.minimum(p, q)
for x, name in enumerate("abc"):
    print(f"{name}  target  {bar(common[x])}{'▒' * round(40 * (p[x] - common[x]))}")
    print(f"   drafter {bar(common[x])}{'░' * round(40 * (q[x] - common[x]))}")
print("\n█ accepted   ░ drafted too often: rejected   ▒ drafted too rarely: recovered")
assert np.allclose(common + (1 - common.sum()) * np.array([0.75, 0, 0.25]), p)

# %% [markdown]
# ## The whole method
#
# This is speculative decoding for two models that share their tokens, which are numbers here. A model is a function from a
# list of tokens to one row per token: the probabilities of the token that follows it. All randomness comes from `draws`:
# `choose(weights)` draws an index in proportion to its weight, `accept(probability)` is True with that probability.

# %%
def speculate(target, drafter, text, k, size, draws):
    """Write `size` tokens after a text: the drafter proposes k tokens a round, the target judges them."""
    written = [*text]
    while len(written) < len(text) + size:
        # 1. The drafter draws k tokens, one after another.
        draft, q_rows = [], []
        for _ in range(k):
            q_rows.append(drafter(written + draft)[-1])  # (V,): V tokens in the vocabulary
            draft.append(draws.choose(q_rows[-1]))

        # 2. One pass of the target gives its rows at these k places, and at the place after them.
        p_rows = target(written + draft)[-k - 1:]  # (k + 1, V)

        # 3. Keep draft tokens up to the first that is rejected. Another token takes its place, and ends the round.
        for x, q_row, p_row in zip(draft, q_rows, p_rows[:k], strict=True):
            if not draws.accept(min(1, p_row[x] / q_row[x])):
                written.append(draws.choose(np.maximum(0, p_row - q_row)))  # recovered
                break
            written.append(x)  # accepted
        else:  # no break: all are accepted
            written.append(draws.choose(p_rows[k]))  # the bonus
    return written[:len(text) + size]


# %% [markdown]
# Are its texts exactly as probable as the target's own? `distribution_of` runs a function once for every way in which its
# draws can fall, and adds up the probabilities of the ways that give the same result. We let `speculate` write two tokens
# after an a, with models that look only at the last token: row a of `p_after` is the target's row after an a.

# %%
p_after = np.array([p, [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]])
q_after = np.array([q, [0.3, 0.3, 0.4], [0.8, 0.1, 0.1]])


def target(tokens):  # the rows after each token of a list
    return p_after[tokens]


def drafter(tokens):
    return q_after[tokens]


written = distribution_of(lambda draws: tuple(speculate(target, drafter, [0], k=2, size=2, draws=draws)))
for x, y in np.ndindex(3, 3):
    wanted = p_after[0, x] * p_after[x, y]
    print(f"{'abc'[x]}{'abc'[y]} wanted {wanted:.2f}, written {bar(written[0, x, y], 100, '.2f')}")
    assert np.isclose(written[0, x, y], wanted)

# %% [markdown]
# The proof above is for one place. It holds at every place: a later draft token is judged only if all before it were
# accepted, and then p and q are the rows for exactly that text.
#
# ## The real thing
#
# The two models below have different vocabularies (lists of tokens), the subject of the other lessons. Here the drafter
# may draw only tokens that both have, so the rule applies unchanged. (This is `tli`, arXiv 2502.05202.) At *temperature 0*
# a model always takes its likeliest token, so a draft token is accepted if the target takes it too. At *temperature 1*
# tokens are drawn from p and q themselves.

# %%
models = pair("draft-tasks", "qwen-like")


def decode(k, temperature):  # the loop above, with caches
    options = Options(verify="tli", stop=FixedLength(k), temperature=temperature, max_new_tokens=40)
    return list(speculative(models, prompt, options, Uniforms(np.random.default_rng(1))))


alone = list(plain(models.target, prompt, Options(max_new_tokens=40), Uniforms([])))  # temperature 0 needs no draws
rounds = decode(4, 0)
assert [token for r in rounds for token in r.emitted] == [token for r in alone for token in r.emitted]
print(f"at temperature 0 the target's own text, in {len(rounds)} passes instead of {len(alone)}; at temperature 1:")
paint(models.target.tokenizer, decode(4, 1), legend=True)

# %% [markdown]
# **Block efficiency** is the mean number of tokens written per target pass. The k-th draft token counts only if the k - 1
# before it were accepted, so on average each further token adds less. But each takes time: the best speed needs a moderate k.

# %%
tries = {k: [] for k in (0, 2, 4, 8, 16)}  # with k = 0 the target writes alone
for _ in range(3):
    for k in tries:
        tries[k].append(metrics.summarize(decode(k, 0)))
runs = {k: max(three, key=lambda run: run.tokens_per_second) for k, three in tries.items()}  # the fastest of three
print("tokens per target pass")
bars({f"k = {k}": run.block_efficiency for k, run in runs.items()}, 5, ".2f", "block efficiency")
print("speed, relative to the target alone")
bars({f"k = {k}": metrics.speedup(run, runs[0]) for k, run in runs.items()}, 15, ".2f", "speed")

# %% [markdown]
# ## Exercises: answer at the prompt of `omnidraft tutorial 1`, or in place of the `...` (numbers to three decimals)
#
# 1. What is beta for p = (0.1, 0.6, 0.3) and q = (0.4, 0.4, 0.2)?
# 2. A tempting mistake: after a rejection, draw from p itself. How probable is token a then, in the example by hand?
# 3. Build it: write the rule for a whole round in tutorials/exercises/step1_verify.py. `omnidraft tutorial 1 --check` runs
#    it for every outcome, as above.

# %%
check("1.1", ...)
check("1.2", ...)
