# %% [markdown]
# # 7 · Learning from the target: hybrid distillation and the lifted loss
#
# Under a lossless rule a bad drafter makes decoding slow, but never wrong. So we may change it at any time, even during use.
# And it has a teacher: for each token of the text, a round computes the target's whole row p. This row says how probable the
# target found *every* token there; so far we used it for one comparison or draw, and threw it away. Training a small model to
# imitate the rows of a large one is called **distillation**. It is **on-policy** if the training texts are those that arise
# in use: the drafter then learns about the places where it has to draft. The target is never changed.
#
# ## The equations (dm, hybrid: arXiv 2507.02659, Eq. 3 and 4; lifted: this project's own; KL: Kullback, Leibler 1951)
#
# A **loss** is a number that training makes smaller. Here it is a sum of **divergences**; a divergence is 0 if two
# distributions are equal, and positive otherwise. The paper's losses are `dm` and `hybrid`; its lambda is 0.2.
#
#     KL(q || p)   =  sum_x q(x) · log(q(x) / p(x))
#     dm           =  sum of KL(q || p) at each directly mapped token of the text; both rows cut to the map, renormalised
#     hybrid       =  dm + lambda · sum of -log q(d) over the draft tokens d of the n-grams in the text
#     lifted       =  sum of D(P, Q) over the comparisons of lesson 5 along the text; D is KL(P || Q) ("forward"),
#                     KL(Q || P) ("reverse"), or their total variation 1 - sum_c min(P(c), Q(c)) ("tv")
#
# (A KL would be infinite where one side must be 0. So both leave out what no draft token can propose, such as the uncovered
# tokens, and at the root the atoms that begin no target token; P and Q are renormalised. Inside a node where no token ends,
# P(stop) = 0 is raised to 1e-12. tv keeps them all.)
#
# A model computes **logits** z, and q = **softmax**(z): q(x) = exp(z_x) / sum_y exp(z_y). The derivatives of a loss with
# respect to all z_x are its **gradient**; a small step against it makes the loss smaller. The gradient of KL(p || q) is q -
# p.

# %%
from helpers import bar, bars, check, distribution_of, examples, show

import numpy as np
from omnidraft import Learner, Options, Uniforms, learn, load, losses, metrics, pair, speculative
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength
from omnidraft.verification import rejection_sampling

# %% [markdown]
# ## By hand: one gradient
#
# Let p = (3/4, 1/4) and z = (0, 0), so q = (1/2, 1/2). The gradient q - p is (-1/4, 1/4), so a step against it raises the
# first logit.
#
# Several draft tokens can stand for the same thing: "ba" begins with the atom b, as b does. So each draft token belongs to a
# category c, and Q(c) is the sum of q over this category. The derivative of KL(P || Q) by z_x is q(x) · (1 - P(c) / Q(c)):
# all tokens of a category share its blame, each in proportion to its q. (If each token is its own category, this is q - p
# again.)

# %%
def forward_kl(z, categories, P):
    """KL(P || Q) for logits z (V,), and its gradient (V,); P (C,): the target; categories (V,): of each draft token."""
    q = process(z)  # softmax: (V,)
    Q = np.bincount(categories, q)  # (C,)
    return P @ np.log(P / Q), q * (1 - P / Q)[categories]


# %% [markdown]
# In lesson 6 the drafter had the tokens a, b and ba. Let P = (a 0.75, b 0.25). Here are four steps of size 1, with the
# probability that lesson 1's rule accepts a draft: one minus the total variation of P and Q.

# %%
P, categories = np.array([0.75, 0.25]), np.array([0, 1, 1])  # of a; of b and ba
z = np.zeros(3)
for step in range(5):
    loss, gradient = forward_kl(z, categories, P)
    Q = np.bincount(categories, process(z))
    print(f"after {step} steps  loss {loss:.3f}  Q(a) = {Q[0]:.3f}  accepted {bar(np.minimum(P, Q).sum(), 30, '.3f')}")
    z -= gradient
kept = distribution_of(lambda draws: rejection_sampling([draws.choose(Q)], [Q], np.array([P, P]), draws).accepted)
assert np.isclose(kept[1], np.minimum(P, Q).sum())
show(losses._divergence)  # all three divergences in the package, each with its derivative by Q

# %% [markdown]
# The terms of `hybrid` along a text: at each target token t, whose spelling starts at the draft token `start`, either the draft
# token is t's direct partner (a term of Eq. 3, KL over the mapped tokens), or the draft tokens from there are t's cached n-gram
# (a term of Eq. 4 for each of them). `dm` is the same with weight 0.

# %%
show(losses.hybrid_terms)

# %% [markdown]
# What do `dm` and `hybrid` not see? In the world of lesson 4, p = (a 0.4, b 0.2, ab 0.4). For the best acceptance the drafter
# should draw a with P(a) = p(a) + p(ab) = 0.8. But `dm` compares only a and b, and wants q = (2/3, 1/3). The n-gram term sees
# that ab was written, but not how often it should be: it wants q(a) as large as possible. Where their sum is smallest depends
# on lambda. `lifted` compares q with P itself (at the first atom; what follows does not depend on q(a)). For all q(a) we
# compute each loss: where is it smallest, and how probable is it that its first token is accepted there?

# %%
def kl(x, y):
    """KL of (x, 1 - x) and (y, 1 - y)."""
    return x * np.log(x / y) + (1 - x) * np.log((1 - x) / (1 - y))


q_a = np.arange(1, 1000) / 1000
dm = 0.6 * kl(q_a, 2 / 3)  # a or b is written with 0.6
surprise = 0.4 * -np.log(q_a)  # ab with 0.4; -log q(b), after the a, does not depend on q(a)
curves = {"dm": dm, "hybrid, lambda 0.2": dm + 0.2 * surprise, "hybrid, lambda 2": dm + 2 * surprise, "lifted": kl(0.8, q_a)}
least = {name: q_a[loss.argmin()] for name, loss in curves.items()}
bars({f"{name}: q(a) = {best:.2f}": min(0.8, best) + min(0.2, 1 - best) for name, best in least.items()}, 30, ".3f")

# %% [markdown]
# ## The real thing
#
# A `Learner` keeps each text that the pair writes, with the target's rows. Of ten texts, four are **held out**: they are not
# trained on, but measure what was learned. On the other six we train a drafter with each loss, always from the same start,
# for five steps. Its weights W stay unchanged. Instead we train **LoRA adapters** (arXiv 2106.09685), two thin matrices A and
# B for each W: the drafter computes with W + B · A. A has only 32 rows; this number is its **rank**. The bars show the
# expected acceptance on the held-out texts, the mean of 1 - tv over all comparisons, for word problems and for programs.

# %%
base = load("draft-general")
models = pair(base, "qwen-like")
options = Options(temperature=1, max_new_tokens=32)


def written(task):
    """Ten texts by the pair, with the target's rows. (A Learner trains after `every` texts: here it only keeps them.)"""
    rng = np.random.default_rng(0)
    keeper = Learner(models, Trainer(base, Recipe(), rng), rng, Schedule(every=99, guard=0, held_out=0))
    list(learn(keeper, [example["prompt"] for example in examples(task, 10)], options, Uniforms(rng)))
    return keeper.batch


def trained(loss, texts, steps=5):
    trainer = Trainer(base, Recipe(loss, rank=32), np.random.default_rng(0))
    for _ in range(steps):
        trainer.step(models, texts)  # one step of AdamW, to make the mean loss on these texts smaller
    return trainer


for task in ("math", "code"):
    texts = written(task)
    found = {"before": trained("dm", texts[4:], 0)} | {name: trained(name, texts[4:]) for name in losses.LOSSES}
    print(task)
    bars({name: trainer.expected_acceptance(models, texts[:4]) for name, trainer in found.items()}, 60, ".3f", task)

# %% [markdown]
# On word problems all three do the same here. 93 of 100 spans there are 1:1 (counted as in lesson 2), so n-grams, which only
# `hybrid` and `lifted` learn, are rare, and five steps on six texts teach little more than the common words and the form of
# an answer. On programs more than every fifth span is n:1. There `dm` learns nothing about the n-grams, `hybrid` learns to
# write them out, and `lifted` also learns how often they are wanted. (After two thousand texts `lifted` is ahead on word
# problems too, clearly so at low temperature: docs/results.md.) Here is the prompt of a held-out program at temperature 0,
# with each of these drafters:

# %%
prompt = examples("code", 1)[0]["prompt"]
for name, trainer in found.items():
    models.draft = trainer.model()
    rounds = list(speculative(models, prompt, Options(stop=FixedLength(4), max_new_tokens=40), Uniforms([])))
    print(f"{name:7} {metrics.summarize(rounds).block_efficiency:.2f} tokens per target pass")

# %% [markdown]
# Ten texts are few. Lesson 9 learns from prompts as they come, and shows the effect of thousands of texts.
#
# ## Exercises
#
# 1. p = (0.5, 0.25, 0.25), q = (0.2, 0.2, 0.6); the direct map holds the first two tokens only. What is KL(q || p) in `dm`?
# 2. Inside a node P = (child c 0.4, stop 0.6), and the draft row is (a 0.2, b 0.3, c 0.5). What is D(P, Q) for "tv"?
# 3. Write a function for the gradient of -log q(d) with respect to the logits z, given as a list. Beware of z = [1000, 0].

# %%
check("7.1", ...)
check("7.2", ...)


def gradient_of_surprise(z, d):
    return ...


check("7.3", gradient_of_surprise)
