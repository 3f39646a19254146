# %% [markdown]
# # 8 · Knowing when to stop: the acceptance head
#
# In an easy stretch of text a dozen draft tokens are accepted in a row; before a name or a number, none. A fixed k is too
# short for the first and too long for the second. So *predict*, while drafting, the probability P_i that draft token i is
# accepted if all before it are, and stop when the product of the P_i falls below a **threshold**. The paper learns the
# prediction: the **acceptance head** is a small network on top of the drafter. Here it is one linear layer: it weighs
# numbers x that describe the draft token, and the sigmoid s(z) = 1 / (1 + e^-z) turns their sum into a probability.
#
# ## The equation (arXiv 2211.17192, Eq. 1, for any P_i; arXiv 2507.02659, section 3.3; the loss: arXiv 2405.19715, section 3)
#
#     tokens of a round, on average   1 + P_1 + P_1 · P_2 + P_1 · P_2 · P_3 + ...
#     stop after token i once         P_1 · ... · P_i < threshold                 (the paper writes 1 - gamma for it)
#     the head                        P = s(u · x)
#     is learned from labels          y = min(1, p(d_i) / q(d_i))                 the probability that d_i is accepted
#     by minimising                   -(y · log P + w · (1 - y) · log(1 - P))
#     whose gradient in u is          ((y + w · (1 - y)) · P - y) · x
#
# The value that P should have is its **label**; this loss is called weighted cross-entropy. With w = 6, as in arXiv
# 2405.19715, P becomes too small, so that drafting stops early. With w = 1 it is the probability itself, on average.
#
# ## By hand: one step of its training
#
# Let x be one number, log(q / (1 - q)), where q is the drafter's probability of its token, and a constant 1. As s(log(q /
# (1 - q))) = q, the head with u = (1, 0) predicts q itself: a good start. Tokens drafted with q = 0.9 are kept with
# probability 0.75, those with q = 0.5 with 0.2. The first step moves u by -rate times the mean of (0.9 - 0.75) · (2.2, 1)
# and (0.5 - 0.2) · (0, 1), which is (0.165, 0.225).

# %%
from helpers import bar, bars, check, distribution_of, examples

import numpy as np
from omnidraft import Learner, Options, Uniforms, learn, metrics, pair, speculative
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import AdamW, Recipe, Trainer
from omnidraft.lifting import Lifting
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.verification import acceptances, rejection_sampling


def head_step(u, x, y, rate, w=1):
    """One step against the gradient: u (F,) after learning from n tokens, x (n, F), and their labels y (n,)."""
    P = 1 / (1 + np.exp(-x @ u))  # (n,)
    slope = (y + w * (1 - y)) * P - y  # (n,)
    return u - rate * slope @ x / len(y)


q, y = np.array([0.9, 0.5]), np.array([0.75, 0.2])
x = np.stack([np.log(q / (1 - q)), np.ones(2)], axis=1)  # (2, 2)
u = np.array([1.0, 0.0])
assert np.allclose(u - head_step(u, x, y, rate=1), [0.165, 0.225], atol=0.001)  # as by hand
for step in range(401):
    if step in (0, 1, 20, 400):
        print(f"after {step:3} steps  P =", *(bar(P, 20, ".2f") for P in 1 / (1 + np.exp(-x @ u))))
    u = head_step(u, x, y, rate=0.5)
assert np.allclose(1 / (1 + np.exp(-x @ u)), y, atol=0.02)

# %% [markdown]
# The head of the package is `AcceptanceHead`. Besides log(q / (1 - q)) its x has what the drafter has computed anyway: its
# **hidden state** (the list of numbers from which it computes its row) and its **embedding** of the token (the list with
# which this token enters the first layer). A new head gives weight 1 to log(q / (1 - q)), and 0 to all others.
#
# The stop rule is `Confidence`. A number that stands for P_i is called a **confidence**. Without a head it is q of the
# drafted token at temperature 0. (Above temperature 0 the drafted token says little: a target with the same row keeps
# whatever is drawn. There it is the root of sum_x q(x)^2, which is near 1 for a row that is sure of one token.)

# %% [markdown]
# ## The token that triggers the stop
#
# Why propose a token that we do not believe in? Let p = (a 0.5, b 0.5) and q = (a 0.8, b 0.2), and drop b whenever it is
# drawn, so that the target writes alone. Then a is drawn and kept with 0.8 · (0.5 / 0.8), or b is drawn and the target
# writes a with 0.2 · 0.5. The sum is 0.6 instead of 0.5: the text is biased. Whether the drafter continues *after* a token
# may depend on that token. Whether the token itself is proposed may depend only on what was known before the draw.

# %%
def first_token(draws, dropped):
    d = draws.choose(q)
    draft = [] if d == dropped else [d]  # an empty draft: the target draws from p
    return rejection_sampling(draft, [q] * len(draft), np.array([p, p]), draws).emitted[0]


p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
bars({name: distribution_of(lambda draws, dropped=dropped: first_token(draws, dropped))[0]
      for name, dropped in {"a, if b is dropped": 1, "a, if b is proposed": None}.items()})

# %% [markdown]
# ## Labels for any two tokenizers (this project's own)
#
# Without common tokens, p(d) / q(d) is meaningless. But lesson 6 has a number r after each comparison: a draft that ends
# there is kept with probability r. So the label of a token says how far it lowers the smallest r so far: if r goes 1, 0.5,
# 0.8, 0.4, the labels are 0.5, 1, 0.8. They multiply to the smallest r, and the first one is min(1, P / Q). In the world of
# lesson 5, where P = (a 0.8, b 0.2), with Q = (a 0.6, b 0.4):

# %%
lifting = Lifting({0: (0,), 1: (1,), 2: (0, 1)}, {}, draft_size=2)
row = np.array([0.6, 0.4])
target_rows = np.array([[0.4, 0.2, 0.4]] * 2)  # (2, V_p): for the first token, and for the one after it
labels = [acceptances(*lifting.reveal([d], [row]), lifting, target_rows)[0] for d in (0, 1)]
print("labels of a and b:", labels)
assert np.allclose(labels, [1, 0.2 / 0.4])

# %% [markdown]
# ## The real thing
#
# A drafter that has not learned the target's task writes stories, always six draft tokens a round. A `Learner` (lesson 7)
# collects x and y for each token: seven texts to train the head, three to test it. The steps are those of `head_step`,
# scaled for each weight separately by **AdamW**, a common way to do so.

# %%
prompts = [example["prompt"] for example in examples("text", 13)]
models = pair("draft-general", "qwen-like")
head = AcceptanceHead(models.draft.config.width)
rng = np.random.default_rng(0)
learner = Learner(models, Trainer(models.draft, Recipe(), rng), rng, Schedule(every=99, guard=0), head)
six = Options(temperature=1, max_new_tokens=32, stop=Confidence(6, threshold=0, head=head))
sizes = [len(learner.labelled) for _ in learn(learner, prompts[3:], six, Uniforms(rng))]  # after each text
cut = sizes[6]  # after the seventh
x, y = map(np.array, zip(*learner.labelled, strict=True))
optimizer = AdamW(head.parameters, rate=1e-3, decay=0)
for some in rng.integers(cut, size=(150, 128)):  # 150 steps, each on 128 tokens
    _, gradients = head.loss(x[some], y[some], rejected_weight=1)
    optimizer.step(gradients)
for name, P in {"q(d)": 1 / (1 + np.exp(-x[cut:, -1])), "head": head(x[cut:])}.items():  # the last x is log(q / (1 - q))
    ordered = (P[y[cut:] > 0.5][:, None] > P[y[cut:] <= 0.5]).mean()
    print(f"{name}  {bar(ordered, 30, '.2f')} in the right order; mean P {P.mean():.2f}, mean label {y[cut:].mean():.2f}")

# %% [markdown]
# "In the right order": how often an accepted token (y > 1/2) of the test texts ranks above a rejected one; by chance 0.5.
# The head has also learned by how much q is too high. What counts is the time per token, compared with no draft: here at
# temperature 0, first for this drafter, then for one that has learned the task, where a fixed length is too short or too
# long.

# %%
def cost(models, stop):
    """Seconds per token, the least of three runs; draft tokens that were kept, and all of them."""
    options = Options(stop=stop, max_new_tokens=40)
    runs = [metrics.summarize(speculative(models, prompts[0], options, Uniforms([]))) for _ in range(3)]
    best = min(runs, key=lambda run: run.seconds)
    return best.seconds / best.tokens, best.draft_kept, best.drafted


rules = {"no draft": FixedLength(0), "always 4": FixedLength(4), "always 12": FixedLength(12),
         "confidence": Confidence(12, threshold=0.4), "head": Confidence(12, threshold=0.4, head=head)}
for one in models, pair("draft-tasks", "qwen-like"):
    print(one.draft.name)
    found = {name: cost(one, stop) for name, stop in rules.items() if name != "head" or one is models}
    alone = found["no draft"][0]
    bars({f"{name:10} {kept:3} of {drafted:4} kept": time / alone for name, (time, kept, drafted) in found.items()}, 20)

# %% [markdown]
# A drafter that knows this little had better be silent: both rules draft far less than a fixed length, the head least. So
# is a head worth it? Over 12 combinations of two models and a task (docs/results.md, "Adaptive drafting") it is *not*
# faster than a tuned threshold. It ranks tokens a little better (0.948 against 0.938 of the pairs are in the right order at
# temperature 0, 0.908 against 0.892 at 1), but mostly learns how far q can be trusted, and a threshold can express that
# too.
#
# ## Exercises
#
# 1. P = 0.9, 0.8, 0.7, 0.6, ... and the threshold is 0.6. How many tokens are drafted?
# 2. Of some kind of token, 3 in 4 are accepted, and the head cannot tell which. Which P minimises the loss if w = 6?
# 3. Write a function for the length (0 to len(P)) with the most tokens per time: `P` has all P_i, a draft step takes `step`,
#    a pass 1.
# 4. Build it: tutorials/exercises/step10_head.py; `omnidraft tutorial 8 --check` tests it.

# %%
check("8.1", ...)
check("8.2", ...)


def best_length(P, step):
    return ...


check("8.3", best_length)
