# %% [markdown]
# # 8 · Knowing when to stop: the acceptance head
#
# In an easy stretch of text a dozen draft tokens are accepted in a row; before a name or a number, none. No fixed k suits
# both. So *predict*, while drafting, the probability P_i that draft token i is accepted if all before it are, and stop when
# the product of the P_i falls below a **threshold**. The simplest prediction is q(d_i), the drafter's own probability of
# its token. The paper has a better one: the **acceptance head**, a small network on top of the drafter.
#
# To be honest: in the end the head is not faster than q(d_i) with a well-chosen threshold. It is here as a component of the
# paper, and because it learns how far q can be trusted.
#
# ## The equation (arXiv 2507.02659, section 3.3)
#
#     stop after token i once   P_1 · ... · P_i < threshold           (in the paper, 1 - gamma)
#     the head                  P = s(u · x)                          with s(z) = 1 / (1 + e^-z)
#     its label                 y = min(1, p(d_i) / q(d_i))           the probability that d_i is accepted
#     its loss                  -y · log P - (1 - y) · log(1 - P)
#     the gradient in u         (P - y) · x                           since s'(z) = s(z) · (1 - s(z))
#
# Our head is a single layer: u weighs the numbers x that describe a draft token, and the *sigmoid* s turns the sum into a
# probability. The **label** is what P should be. If the head cannot tell some tokens apart, their best P is the mean label.
#
# ## By hand
#
# Let x be the numbers log(q / (1 - q)) and 1, where q is the drafter's probability of its token. As s(log(q / (1 - q))) =
# q, the head with u = (1, 0) predicts q itself. Let tokens with q = 0.9 be accepted with probability 0.75, and those with q
# = 0.5 with 0.2. Then the gradient is the mean of (0.9 - 0.75) · (2.2, 1) and (0.5 - 0.2) · (0, 1), which is (0.165,
# 0.225).

# %%
from helpers import bar, bars, check, distribution_of, examples

import numpy as np
from omnidraft import Learner, Options, Uniforms, learn, metrics, pair, speculative
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.lifting import Lifting
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.verification import acceptances, rejection_sampling


def head_step(u, x, y, rate):
    """u (F,) after one step with n tokens, x (n, F), and their labels y (n,)."""
    P = 1 / (1 + np.exp(-x @ u))
    return u - rate * (P - y) @ x / len(y)


q, y = np.array([0.9, 0.5]), np.array([0.75, 0.2])
x = np.stack([np.log(q / (1 - q)), np.ones(2)], axis=1)  # (2, 2)
u = np.array([1.0, 0.0])
assert np.allclose(u - head_step(u, x, y, rate=1), [0.165, 0.225], atol=0.001)
for _ in range(400):
    u = head_step(u, x, y, rate=0.5)
P = 1 / (1 + np.exp(-x @ u))
print("P =", P.round(2))
assert np.allclose(P, y, atol=0.02)

# %% [markdown]
# ## The token that triggers the stop
#
# Why propose a token in which we do not believe? Let p = (a 0.5, b 0.5) and q = (a 0.8, b 0.2), and drop b when it is
# drawn, so that the target writes alone. Then a is drawn and accepted with 0.8 · (0.5 / 0.8), or b is drawn and the target
# writes a with 0.2 · 0.5. The sum is 0.6 instead of 0.5: the text is biased. Whether the drafter continues *after* a token
# may depend on that token; whether the token itself is proposed may not.

# %%
def first_token(draws, dropped):
    d = draws.choose(q)
    draft = [] if d == dropped else [d]  # an empty draft: the target draws from p
    return rejection_sampling(draft, [q] * len(draft), np.array([p, p]), draws).emitted[0]


p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
for name, dropped in ("proposed", None), ("dropped", 1):
    found = distribution_of(lambda draws, dropped=dropped: first_token(draws, dropped))
    print(f"b is {name:8}  a is written with {bar(found[0], form='.2f')}")
assert np.isclose(found[0], 0.6)

# %% [markdown]
# ## Labels for any two tokenizers (this project's own)
#
# With two vocabularies there is no p(d). But in lesson 6 a draft that ends after a comparison is kept with the r after it.
# So the label says how far a token lowers the smallest r so far. If r is 0.5 after the first token, then 0.8, then 0.4, the
# labels are 0.5, 1 and 0.8. In the world of lesson 5, P = (a 0.8, b 0.2); let Q = (a 0.6, b 0.4):

# %%
lifting = Lifting({0: (0,), 1: (1,), 2: (0, 1)}, {}, draft_size=2)
target_rows = np.array([[0.4, 0.2, 0.4]] * 2)  # (2, V_p)
labels = [acceptances(*lifting.reveal([d], [np.array([0.6, 0.4])]), lifting, target_rows)[0] for d in (0, 1)]
print(labels)
assert np.allclose(labels, [1, 0.2 / 0.4])

# %% [markdown]
# ## The real thing
#
# The package's head is `AcceptanceHead`. Its x also has the **hidden state** (the numbers from which the drafter computes
# its row) and the **embedding** of the token (those with which the token enters the first layer), at first with weight 0.
#
# A drafter that has not learned to write stories writes ten texts, with six draft tokens a round, and the package's
# `Learner` collects x and y. We train the head on 70% of these tokens, as above, and test it on the rest.

# %%
prompts = [example["prompt"] for example in examples("text", 13)]
models = pair("draft-general", "qwen-like")
head = AcceptanceHead(models.draft.config.width)
rng = np.random.default_rng(0)
# every=99: the drafter does not learn
learner = Learner(models, Trainer(models.draft, Recipe(), rng), rng, Schedule(every=99, guard=0), head)
six = Options(temperature=1, max_new_tokens=32, stop=Confidence(6, threshold=0, head=head))
list(learn(learner, prompts[3:], six, Uniforms(rng)))
x, y = map(np.array, zip(*learner.labelled, strict=True))
cut = len(y) * 7 // 10
means = {"label": y[cut:].mean(), "q(d)": head(x[cut:]).mean()}  # a new head predicts q(d)
u = np.append(head.parameters["out.weight"], 0)
x_1 = np.column_stack([x, np.ones(len(y))])
for _ in range(100):
    u = head_step(u, x_1[:cut], y[:cut], rate=0.03)
head.parameters["out.weight"][:] = u[:-1]
head.parameters["out.bias"][:] = u[-1]
means["head"] = head(x[cut:]).mean()
bars(means)
assert means["label"] < means["head"] < means["q(d)"]

# %% [markdown]
# So the head has learned by how much q is too high. What counts is speed, here at temperature 0: first for this drafter,
# then for one that has learned the task. (`Confidence` is the stop rule.)

# %%
def fastest(models, stop):
    options = Options(stop=stop, max_new_tokens=40)
    runs = [metrics.summarize(speculative(models, prompts[0], options, Uniforms([]))) for _ in range(3)]
    return max(runs, key=lambda run: run.tokens_per_second)


rules = {"no draft": FixedLength(0), "always 12": FixedLength(12),
         "q(d) < 0.4": Confidence(12, threshold=0.4), "q(d) < 0.8": Confidence(12, threshold=0.8),
         "head < 0.4": Confidence(12, threshold=0.4, head=head)}
for one in models, pair("draft-tasks", "qwen-like"):
    print(one.draft.name)
    runs = {name: fastest(one, stop) for name, stop in rules.items() if name[:4] != "head" or one is models}
    bars({f"{name:10} {run.draft_kept:3} of {run.drafted:4} kept": metrics.speedup(run, runs["no draft"])
          for name, run in runs.items()}, 15)
    assert runs["q(d) < 0.8"].drafted < runs["q(d) < 0.4"].drafted

# %% [markdown]
# A drafter that knows so little should rather be silent. With the same threshold the head drafts less, but a higher
# threshold for q(d) does that, too: over 12 combinations of two models and a task the head is not faster (docs/results.md,
# "Adaptive drafting").
#
# ## Exercises
#
# 1. P = 0.9, 0.8, 0.7, 0.6, ... and the threshold is 0.6. How many tokens are drafted?
# 2. arXiv 2405.19715 multiplies the second term of the loss by 6, so that drafting stops earlier. Of some tokens that the
#    head cannot tell apart, 3 in 4 are accepted. Which P has the smallest loss?
# 3. A draft of k tokens writes 1 + P_1 + P_1 · P_2 + ... + P_1 · ... · P_k on average, in the time 1 + k · step. Write a
#    function for the k with the most tokens per time, where the list `P` has all P_i.
# 4. Build it: tutorials/exercises/step10_head.py; `omnidraft tutorial 8 --check` tests it.

# %%
check("8.1", ...)
check("8.2", ...)


def best_length(P, step):
    return ...


check("8.3", best_length)
