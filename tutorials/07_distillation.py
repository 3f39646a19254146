# %% [markdown]
# # 7 · Learning from the target: the hybrid loss, and the lifted loss
#
# Under a lossless rule a bad drafter makes decoding slow, but never wrong. So we may change it at any time, even while it
# is used. And it has a teacher: for each token of the text a round computes the target's whole row p. Training a small
# model to imitate the rows of a large one is called **distillation**.
#
# A **loss** is a number that training makes smaller. Its **gradient** is the list of its derivatives: a small step against
# it makes the loss smaller. We take the derivatives with respect to z, the numbers that the drafter computes for its tokens
# (lesson 1; they are also called *logits*). `process` turns them into its row q, by q(x) = exp(z_x) / sum_y exp(z_y)
# (*softmax*).
#
# ## By hand: one gradient
#
# The *Kullback-Leibler divergence* KL(p || q) = sum_x p(x) · log(p(x) / q(x)) is 0 if the two rows are equal, else
# positive. Its gradient is simply q - p. Let z = (0, 0), so q = (1/2, 1/2), and p = (3/4, 1/4): then it is (-1/4, 1/4), and
# a step against it raises the first number. Here are four steps.

# %%
from functools import partial

from helpers import bar, bars, check, examples

import numpy as np
from omnidraft import Learner, Options, Uniforms, learn, load, losses, pair
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.sampling import process


def forward_kl(z, p):
    """KL(p || q) and its gradient (V,) in z (V,)."""
    q = process(z)
    some = p > 0
    return p[some] @ np.log(p[some] / q[some]), q - p


def reverse_kl(z, p):
    """KL(q || p) and its gradient (V,) in z (V,)."""
    q = process(z)
    log_ratio = np.log(q / p)
    return q @ log_ratio, q * (log_ratio - q @ log_ratio)


p = np.array([3 / 4, 1 / 4])
z = np.zeros(2)
for step in range(5):
    loss, gradient = forward_kl(z, p)
    accepted = np.minimum(p, process(z)).sum()  # lesson 1's beta
    print(f"after {step} steps  loss {loss:.3f}, gradient {gradient.round(3)}, accepted {bar(accepted, 30, '.3f')}")
    z -= gradient

# %% [markdown]
# ## The equation (arXiv 2507.02659, Eq. 3 and 4; its lambda is 0.2)
#
# A text consists of target tokens t. Each has its row p, and its split (lesson 3): a direct token, or an n-gram.
#
#     Eq. 3   t has a direct token:     KL(q || p), where both rows are cut down to the direct map and normalised again
#     Eq. 4   t is an n-gram d_1..d_n:  lambda · (-log q_1(d_1) - ... - log q_n(d_n))
#
# The `hybrid` loss is the sum of these terms; with lambda = 0 it is called `dm`. Why two kinds? For an n-gram the drafter
# has n rows, and the target only one: there is nothing to compare. So the paper just makes the n draft tokens more
# probable. (-log q(d) is KL(p || q) for the p that gives d probability 1.)

# %%
def hybrid(z, text, splits, direct, weight=0.2):
    """The terms of a text, [(t, p), ...]: (j, loss, gradient in z[j]), where z[j] (V_q,) is for draft token j."""
    mapped = np.flatnonzero(direct >= 0)  # direct (V_q,): the target token of each draft token, or -1
    j = 0
    for t, p in text:
        if len(splits[t]) == 1:  # Eq. 3
            cut = p[direct[mapped]]
            gradient = np.zeros_like(z[j])
            loss, gradient[mapped] = reverse_kl(z[j, mapped], cut / cut.sum())
            yield j, loss, gradient
        else:  # Eq. 4
            for n, d in enumerate(splits[t]):
                loss, gradient = forward_kl(z[j + n], np.eye(len(direct))[d])
                yield j + n, weight * loss, weight * gradient
        j += len(splits[t])


# %% [markdown]
# Here are the terms in the world of lesson 4, where the target wants p = (a 0.4, b 0.2, ab 0.4), and the drafter has the
# tokens a and b. It writes the text "b, ab" as b, a, b:

# %%
p, direct = np.array([0.4, 0.2, 0.4]), np.array([0, 1])
splits = {0: (0,), 1: (1,), 2: (0, 1)}
for j, loss, gradient in hybrid(np.zeros((3, 2)), [(1, p), (2, p)], splits, direct):
    print(f"draft token {'bab'[j]}: loss {loss:.3f}, gradient {gradient.round(3)}")

# %% [markdown]
# What do these losses miss? The first atom is always accepted if q(a) = P(a) = p(a) + p(ab) = 0.8 (lesson 5). But Eq. 3
# compares a and b alone: it wants 0.4 / 0.6. Eq. 4 sees that ab was written, not how often it should be: it wants q(a) = 1.
# Their sum ends somewhere between. This project's **lifted loss** compares q with P itself: it is the sum of KL(P || Q)
# over all comparisons of lesson 5 along the text. We train with each; a step uses the gradient averaged over what the
# target may write:

# %%
def lifted_loss(z, text):
    """The terms of the lifted loss, in this world only."""
    [(t, _)] = text
    yield 0, *forward_kl(z[0], np.array([0.8, 0.2]))  # at the root: down to a, or to b
    if t != 1:
        yield 1, *forward_kl(z[1], np.array([0.5, 0.5]))  # at node a: *stop*, or down to b


ways = {f"hybrid, lambda {weight}": partial(hybrid, splits=splits, direct=direct, weight=weight) for weight in (0, 0.2, 2)}
ends = {}
for name, loss in (ways | {"lifted": lifted_loss}).items():
    z = np.zeros((2, 2))
    for _ in range(100):
        whole = np.zeros((2, 2))
        for t in (0, 1, 2):
            for j, _, gradient in loss(z, [(t, p)]):
                whole[j] += p[t] * gradient
        z -= whole
    q = process(z[0])
    ends[f"{name}: q(a) = {q[0]:.2f}"] = np.minimum([0.8, 0.2], q).sum()
bars(ends, 30, ".3f", "the first atom is accepted")
assert max(ends, key=ends.get) == "lifted: q(a) = 0.80"

# %% [markdown]
# ## The real thing
#
# Of ten texts that the pair writes, four are **held out**: they are not trained on, but measure what was learned. On the
# other six we take five steps with each loss. The drafter's weights W stay as they are. Instead we train **LoRA adapters**
# (arXiv
# 2106.09685), two thin matrices for each W: the drafter computes with W + B · A, where A has only 32 rows (its **rank**). The
# bars show the expected acceptance on the held-out texts, the mean of sum min(P, Q) over all comparisons.

# %%
base = load("draft-general")
models = pair(base, "qwen-like")


def written(task):
    """Ten texts by the pair. (A Learner trains after `every` texts; here it only keeps them.)"""
    rng = np.random.default_rng(0)
    keeper = Learner(models, Trainer(base, Recipe(), rng), rng, Schedule(every=99, guard=0, held_out=0))
    prompts = [example["prompt"] for example in examples(task, 10)]
    list(learn(keeper, prompts, Options(temperature=1, max_new_tokens=32), Uniforms(rng)))
    return keeper.batch


def trained(loss, texts, steps=5):
    trainer = Trainer(base, Recipe(loss, rank=32), np.random.default_rng(0))
    for _ in range(steps):
        trainer.step(models, texts)
    return trainer


for task in ("math", "code"):
    texts = written(task)
    lengths = [len(models.lifting.splits.get(t, ())) for text in texts for t in text.target_ids]
    print(f"{task}, where {np.mean(np.array(lengths) > 1):.0%} of the tokens are n-grams")
    found = {"before": trained("dm", texts[4:], 0)} | {name: trained(name, texts[4:]) for name in losses.LOSSES}
    bars({name: trainer.expected_acceptance(models, texts[:4]) for name, trainer in found.items()}, 60, ".3f", task)

# %% [markdown]
# In word problems n-grams are rare, and all three learn much the same. In programs they are common: there `dm` learns only
# from the other tokens; `hybrid` also learns to write n-grams out, and `lifted` learns how often, too.
#
# ## Exercises
#
# 1. p = (0.5, 0.25, 0.25), q = (0.2, 0.2, 0.6); the direct map holds the first two tokens only. What is KL(q || p) in Eq. 3?
# 2. The lifted loss may also sum 1 - sum_c min(P(c), Q(c)) ("tv"). At a node P = (child c 0.4, stop 0.6), and the draft row is
#    (a 0.2, b 0.3, c 0.5). What is it there?
# 3. Write a function for the gradient of -log q(d) in z, given as a list. Beware of z = [1000, 0].
# 4. Build it: tutorials/exercises/step9_hybrid.py; `omnidraft tutorial 7 --check` tests it.

# %%
check("7.1", ...)
check("7.2", ...)


def gradient_of_surprise(z, d):
    return ...


check("7.3", gradient_of_surprise)
