# %% [markdown]
# # 7 · Learning from the target: hybrid distillation and the lifted loss
#
# Under a lossless rule a bad drafter makes decoding slow, but never wrong. So we may change it at any time, even during use.
# And it has a teacher: for each token of the text, a round computes the target's whole row p. This row says how probable the
# target found *every* token there; so far we threw it away. Training a small model to imitate the rows of a large one is called
# **distillation**. It is **on-policy** if the training texts are those that arise in use: the drafter then learns about the
# places where it has to draft. The target is never changed.
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
# A model computes **logits** z, and q = **softmax**(z): q(x) = exp(z_x) / sum_y exp(z_y). The derivatives of a loss with
# respect to all z_x are its **gradient**; a small step against it makes the loss smaller. The gradient of KL(p || q) is q - p.

# %%
from helpers import bar, check, curve, distribution_of, examples, figure, paint, show

import numpy as np
from omnidraft import Learner, Options, Uniforms, learn, load, metrics, pair, speculative
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import LOSSES
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength
from omnidraft.verification import rejection_sampling

# %% [markdown]
# ## By hand
#
# Let p = (3/4, 1/4) and z = (0, 0), so q = (1/2, 1/2). The gradient q - p is (-1/4, 1/4), so a step against it raises the
# first logit. Here are four steps of size 1. The total variation of p and q is exactly the probability that the rule of
# lesson 1 rejects.

# %%
p = np.array([0.75, 0.25])
z = np.zeros(2)
for step in range(5):
    q = process(z)  # softmax
    kept = distribution_of(lambda draws, q=q: rejection_sampling([draws.choose(q)], [q], np.array([p, p]), draws).accepted)
    assert np.isclose(kept.get(0, 0), 0.5 * np.abs(p - q).sum())
    print(f"after {step} steps  q(a) = {q[0]:.3f}  accepted {bar(kept[1], 30, '.3f')}")
    z -= q - p

# %% [markdown]
# What do `dm` and `hybrid` not see? In the world of lesson 4, p = (a 0.4, b 0.2, ab 0.4). For the best acceptance the
# drafter should draw a with P(a) = p(a) + p(ab) = 0.8. But `dm` compares only a and b, and wants q = (2/3, 1/3). The n-gram
# term sees that ab was written, but not how often it should be: it wants q(a) as large as possible. Where their sum is smallest
# depends on lambda. `lifted` compares q with P itself. Here we compute each loss for all q(a). Where is it smallest?

# %%
def kl(x, y):
    """KL of (x, 1 - x) and (y, 1 - y)."""
    return x * np.log(x / y) + (1 - x) * np.log((1 - x) / (1 - y))


q_a = np.arange(1, 1000) / 1000
dm = 0.6 * kl(q_a, 2 / 3)  # a or b is written with 0.6
surprise = 0.4 * -np.log(q_a)  # ab with 0.4
for name, loss in {"dm": dm, "hybrid, lambda 0.2": dm + 0.2 * surprise, "hybrid, lambda 2": dm + 2 * surprise,
                   "lifted": kl(0.8, q_a)}.items():
    best = q_a[loss.argmin()]
    accepted = min(0.8, best) + min(0.2, 1 - best)
    print(f"{name:18}  least at q(a) = {best:.2f}, then accepted {bar(accepted, 30, '.3f')}")

# %% [markdown]
# ## The real thing
#
# A `Learner` keeps each text that the pair writes, with the target's rows. Of twelve texts, four are **held out**: they are not
# trained on, but measure what was learned (`held_out=0`, as a `Learner` would hold out texts of its own). On the other eight we
# train a drafter with each loss, always from the same start, for six steps. Its weights W stay unchanged. Instead we train
# **LoRA adapters** (arXiv 2106.09685), two thin matrices A and B for each W: the drafter computes with W + B · A. A has only
# 32 rows; this number is its **rank**. The bars show the expected acceptance on the held-out texts, the mean of 1 - tv. Six
# steps say little about which loss is best; docs/results.md compares them after two thousand texts. Here is one step in the
# package (omnidraft/learning/backward.py computes the gradients of the weights):

# %%
show(Trainer.step)
base, target = load("draft-general"), load("qwen-like")
prompts = [example["prompt"] for example in examples("math", 16)]
options = Options(temperature=1, max_new_tokens=32)
models = pair(base, target)
rng = np.random.default_rng(0)
keeper = Learner(models, Trainer(base, Recipe(), rng), rng, Schedule(every=99, guard=0, held_out=0))  # no update
list(learn(keeper, prompts[:12], options, Uniforms(rng)))
held_out, texts = keeper.batch[:4], keeper.batch[4:]
assert len(texts) == 8
print("before ", bar(keeper.trainer.expected_acceptance(models, held_out), 60, ".3f"))
for name in LOSSES:
    trainer = Trainer(base, Recipe(name, rank=32), np.random.default_rng(0))
    for _ in range(6):
        trainer.step(models, texts)
    print(f"{name:7}", bar(trainer.expected_acceptance(models, held_out), 60, ".3f"))

# %% [markdown]
# Now we learn online (arXiv 2507.02659, Algorithm 2): serve a prompt, keep the text, and after every second prompt take two
# steps on the new texts and four earlier ones (**replay**). The curve shows the expected acceptance on the held-out texts,
# before learning and after each update. Then a held-out prompt is served at temperature 0, with the drafter before and after.

# %%
trainer = Trainer(base, Recipe("lifted", rank=32), np.random.default_rng(0))
rng = np.random.default_rng(0)
learner = Learner(models, trainer, rng, Schedule(every=2, steps=2, replay=4, guard=0, held_out=0))
accepted = [trainer.expected_acceptance(models, held_out)]
for learned in learn(learner, prompts[4:], options, Uniforms(rng)):
    if learned.updated:
        accepted.append(trainer.expected_acceptance(models, held_out))
print("accepted on average", curve(accepted), "\n")
figure("acceptance to be expected after each update", {"held-out texts": accepted})
for name, drafter in (("before", base), ("after", models.draft)):
    models.draft = drafter
    rounds = list(speculative(models, prompts[0], Options(stop=FixedLength(4), max_new_tokens=40), Uniforms([])))
    print(f"{name}: {metrics.summarize(rounds).block_efficiency:.2f} tokens per target pass on a held-out prompt")
    paint(target.tokenizer, rounds, legend=name == "before")

# %% [markdown]
# Twelve texts are few. Lesson 9 shows the effect of thousands of texts.
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
