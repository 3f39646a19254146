# %% [markdown]
# # 1 · Speculative decoding from scratch
#
# A large language model writes one **token** (a word or a piece of one) per **pass** (one run of the model), and every pass
# reads all of its weights. A pass over several tokens reads them only once, so it costs less than several passes over one
# token each. How much less? Let us measure it on this machine, with one of the small models in the package.

# %%
from timeit import repeat

from helpers import bar, check, distribution_of, figure, paint, show
from llama_plain import forward

import numpy as np
from omnidraft import Options, Uniforms, load, metrics, pair, plain, speculative
from omnidraft.engine.weights import load_tensors
from omnidraft.stopping import FixedLength
from omnidraft.verification import rejection_sampling, residual


def step(n):  # a pass over n tokens after the prompt; then the cache forgets them again
    model.forward(ids[:n], cache, rows=n)
    cache.rewind(len(ids))


prompt = "Question: Anna has 4 boxes with 3 pens each. How many pens does she have?\nAnswer:"
model = load("qwen-like")
ids = model.tokenizer.encode(prompt)
cache = model.new_cache()
after = model.forward(ids, cache)
passes = {n: min(repeat(lambda n=n: step(n), number=1, repeat=15)) for n in (1, 2, 4, 8, 16)}  # the fastest of 15
for n, time in passes.items():
    print(f"{n:2} tokens  {bar(time / passes[1], 8)} {1000 * time:.1f} ms, {time / passes[1]:.1f} times a pass over one")
figure("a pass over n tokens, in ms", {"measured": [1000 * time for time in passes.values()]}, [*passes])

# %% [markdown]
# What happens in a pass? Each token becomes a list of numbers. Every layer updates these lists, each with the help of those
# before it. At the end, every possible next token gets a number: the higher, the likelier. A textbook version, which is slower:

# %%
show(forward)
weights = {name: tensor.astype(np.float32) for name, tensor in load_tensors(model.folder).items()}
assert np.allclose(forward(model.config, weights, ids)[-1], after[0], rtol=0, atol=1e-2)

# %% [markdown]
# So let a small, fast model guess the next few tokens, and let the large model check all of them in one pass.
#
# - The **target** is the large model, whose text we want. The **drafter** is the small one.
# - In each **round** the drafter draws k **draft tokens**, one after another. One pass of the target then computes, for each
#   of these k places and for the place after them, its probabilities of all tokens: a **row**. The draft tokens are judged
#   from left to right: each is either **accepted**, or rejected and replaced by a **recovered** token, which ends the
#   round. If all k are accepted, the target's last row gives one more token for free, the **bonus**.
#
# So a round costs one target pass and writes 1 to k + 1 tokens. The rule that judges must preserve the **distribution** of the
# text: each text must be exactly as probable as if the target had written it alone. Such a rule is called **lossless**.
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
# residual is (0.3, 0, 0.1) / 0.4 = (0.75, 0, 0.25). Token a is written with probability 0.2 + 0.4 · 0.75 = 0.5, which is p(a).

# %%
p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
for x, common in enumerate(np.minimum(p, q)):
    print(f"{'abc'[x]}  target  {bar(common)}{'▒' * round(40 * (p[x] - common))}")
    print(f"   drafter {bar(common)}{'░' * round(40 * (q[x] - common))}")
figure("by hand", {"target p": p, "drafter q": q, "in common": np.minimum(p, q)}, [*"abc"])
print("\n█ accepted   ░ drafted too often: rejected   ▒ drafted too rarely: recovered\n")
show(rejection_sampling)  # the rule for a whole round in the package
show(residual)

# %% [markdown]
# (`proposals` are the draft tokens, `emitted` the written ones. All randomness comes from `uniforms`: `accept(probability)`
# returns yes or no, `choose(weights)` an index.) Does this code really write tokens with probability p? We need not run it
# a million times. `distribution_of` runs a function once for *every possible outcome* of its random decisions and adds up
# the probabilities, so its answer is exact. For example, toss two coins, one of which shows heads with probability 0.25:

# %%
coins = distribution_of(lambda draws: draws.accept(0.25) + draws.accept(0.5))  # how many heads
print("heads of two coins:  ", coins)
written = distribution_of(lambda draws: rejection_sampling([draws.choose(q)], [q], np.array([p, p]), draws).emitted[0])
print("first token written: ", {"abc"[x]: round(written[x], 12) for x in range(3)})
assert np.allclose([written[x] for x in range(3)], p, rtol=0, atol=1e-12)

# %% [markdown]
# What holds for one token holds for the text: a later draft token is judged only if all before it were accepted, and then p
# and q are the two models' rows for exactly that text.
#
# ## The real thing
#
# The two models have different vocabularies (lists of tokens), which is what the other lessons are about. Here the drafter
# may draw only tokens that both have, so the rule applies unchanged. (The package calls this `tli`, token-level
# intersection, arXiv 2502.05202.) We begin at *temperature 0*, where a model always takes its likeliest token: a draft token
# is accepted if the target takes it too. Then comes *temperature 1*, where tokens are drawn from the models' own p and q,
# with a more open-ended prompt.

# %%
def decode(models, k, temperature, text=prompt):
    options = Options(verify="tli", stop=FixedLength(k), temperature=temperature, max_new_tokens=40)
    return list(speculative(models, text, options, Uniforms(np.random.default_rng(1))))


exact = pair("draft-tasks", "qwen-like", dtype="float64")  # in 64 bits: no ties by rounding
alone = list(plain(exact.target, prompt, Options(max_new_tokens=40), Uniforms([])))  # temperature 0 needs no draws
greedy = decode(exact, 4, temperature=0)
paint(exact.target.tokenizer, greedy, legend=True)
assert [token for r in greedy for token in r.emitted] == [token for r in alone for token in r.emitted]
print(f"the same text as the target's own, in {len(greedy)} passes instead of {len(alone)}\n")
paint(exact.target.tokenizer, decode(exact, 4, temperature=1, text="Write a story about a trip to the cave."))
show(speculative)  # the decoding loop itself, with everything that later lessons add to it; its steps are numbered

# %% [markdown]
# **Block efficiency** is the mean number of tokens written per target pass. The k-th draft token counts only if the k - 1
# before it were accepted, so each further token adds less, and drafting takes time too. So we measure the speed as well:

# %%
fast = pair("draft-tasks", "qwen-like")  # in 32 bits
runs = {}
for k in (0, 1, 2, 4, 8):  # with k = 0 the target writes alone; we keep the fastest of five runs
    runs[k] = max((metrics.summarize(decode(fast, k, temperature=0)) for _ in range(5)), key=lambda run: run.tokens_per_second)
    gain = metrics.speedup(runs[k], runs[0])
    print(f"k = {k}  block efficiency {runs[k].block_efficiency:.2f}  speed {bar(gain, 15)} {gain:.2f}")
figure("draft length k", {"block efficiency": [run.block_efficiency for run in runs.values()],
                          "speed": [metrics.speedup(run, runs[0]) for run in runs.values()]}, [*runs])

# %% [markdown]
# ## Exercises: answer at the prompt of `omnidraft tutorial 1`, or in place of the `...` (numbers to three decimals)
#
# 1. What is beta for p = (0.1, 0.6, 0.3) and q = (0.4, 0.4, 0.2)?
# 2. A tempting mistake: after a rejection, draw from p itself. How probable is token a then, in the example by hand?
# 3. Build it: write the rule for a whole round in tutorials/exercises/step1_verify.py. `omnidraft tutorial 1 --check` runs
#    it for every outcome, as above, and shows a case in which it fails. (Explained solutions are in exercises/solutions.)

# %%
check("1.1", ...)
check("1.2", ...)
