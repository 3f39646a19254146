# %% [markdown]
# # 6 · Learning from the target: hybrid distillation and the lifted loss
#
# Under a lossless rule a bad drafter makes the text slow, never wrong. So it may change at any time, even in use. And a
# teacher is at hand: for each token written a round computes the target's whole row p, then throws it away. Kept, the rows
# tell for free how probable the target found *every* token there. Training a small model to have the rows of a large one
# is called **distillation**. It is **on-policy** if the texts are those that arise in use: the drafter then learns about
# the places where it is asked. The target is never changed.
#
# ## The equations (dm, hybrid: arXiv 2507.02659, Eq. 3 and 4; lifted: this project's own; KL: Kullback, Leibler 1951)
#
# A **loss** is a number that training makes smaller, often a **divergence**, which is 0 if two laws are equal and else more
# than 0. The paper's losses are `dm` and `hybrid`; its lambda is 0.2.
#
#     KL(q || p)   =  sum_x q(x) · log(q(x) / p(x))
#     dm           =  sum of KL(q || p), cut down to the direct map and normalised, wherever the text has a token of it
#     hybrid       =  dm + lambda · sum of -log q(d) over the draft tokens d of the n-grams in the text
#     lifted       =  sum of D(P, Q) over the choices of lesson 5 along the text; D is KL(P || Q) ("forward"),
#                     KL(Q || P) ("reverse"), or their total variation 1 - sum_c min(P(c), Q(c)) ("tv")
#
# A model computes **logits** z, and q = **softmax**(z): q(x) = exp(z_x) / sum_y exp(z_y). The derivatives of a loss L along
# all z_x are its **gradient**; a small step against it lowers L. With the slopes s_x = dL / dq(x), the chain rule gives
#
#     dL / dz_x    =  q(x) · (s_x - sum_y q(y) · s_y)

# %%
import numpy as np
from exercises import check, distribution_of, examples, paint, show

from omnidraft import Options, Pair, Uniforms, losses, speculative
from omnidraft.cli.render import sparkline
from omnidraft.engine import backward
from omnidraft.engine import loading as models
from omnidraft.learning import online
from omnidraft.learning.training import Recipe, Trainer, tensors_of
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength
from omnidraft.verification import rejection_sampling


def divergence(kind, p, z):
    """D of p and q = softmax(z), and its gradient along z."""
    q = process(z)  # softmax
    if kind == "tv":
        value, slope = 1 - np.minimum(p, q).sum(), -(q < p).astype(float)
    elif kind == "reverse":
        value, slope = q @ np.log(q / p), np.log(q / p) + 1
    else:
        value, slope = p @ np.log(p / q), -p / q
    return value, q * (slope - q @ slope)


# %% [markdown]
# ## By hand
#
# p = (3/4, 1/4) and z = (0, 0), so q = (1/2, 1/2), and the total variation is 1/4. Its slopes s are (-1, 0), its gradient
# 1/2 · (-1 + 1/2, 0 + 1/2) = (-1/4, 1/4): the first logit should rise. KL(q || p) is 1/2 log(2/3) + 1/2 log 2, that is
# 1/2 log(4/3). The **central difference** checks any gradient: move z a little to and fro along some way; what does L do?

# %%
rng, p, z = np.random.default_rng(0), np.array([0.75, 0.25]), np.zeros(2)
assert np.allclose(divergence("tv", p, z)[1], [-0.25, 0.25]) and np.isclose(divergence("reverse", p, z)[0], np.log(4 / 3) / 2)
for p, z, way in zip(rng.dirichlet(np.ones(5), 20), rng.normal(size=(20, 5)), rng.normal(size=(20, 5)), strict=True):
    for kind in ("forward", "reverse", "tv"):
        ahead, behind = divergence(kind, p, z + 1e-6 * way)[0], divergence(kind, p, z - 1e-6 * way)[0]
        assert np.isclose(divergence(kind, p, z)[1] @ way, (ahead - behind) / 2e-6, atol=1e-6)
    q = process(z)  # "tv" is exactly the probability that the rule of lesson 1 rejects
    law = distribution_of(lambda draws, p=p, q=q: rejection_sampling([draws.choose(q)], [q], np.array([p, p]), draws).accepted)
    assert np.isclose(law[0], divergence("tv", p, z)[0], rtol=0, atol=1e-14)

# %% [markdown]
# What do `dm` and `hybrid` not see? In the world of lesson 4, p = (a 0.4, b 0.2, ab 0.4), the drafter should draw a with
# P(a) = 0.8. But `dm` compares a and b alone, and wants q = (2/3, 1/3). The n-gram term sees that ab was written, not
# how often it should be; it wants more a without end. Lambda decides where their sum comes to rest. `lifted` knows P.

# %%
gradients, P = {"dm": lambda z: 0.6 * divergence("reverse", np.array([2, 1]) / 3, z)[1]}, np.array([0.8, 0.2])
for weight in (0.2, 2):  # q - (1, 0) is the gradient of -log q(a); a or b is written with 0.6, ab with 0.4
    gradients[f"hybrid {weight}"] = lambda z, weight=weight: gradients["dm"](z) + weight * 0.4 * (process(z) - [1, 0])
gradients["lifted"] = lambda z: divergence("forward", P, z)[1]
for name, gradient in gradients.items():
    z = np.zeros(2)
    for _ in range(500):
        z -= gradient(z)
    accepted = np.minimum(P, process(z)).sum()
    print(f"{name:10} learns q(a) = {process(z)[0]:.2f}, accepted {'█' * round(30 * accepted):30} {accepted:.3f}")
    assert np.isclose(accepted, 1) if name == "lifted" else accepted < 0.98
show(losses._divergence)  # the equation in the package: the values, and the slopes s

# %% [markdown]
# ## The real thing
#
# A `Learner` keeps what the pair writes, with the target's rows. Four texts are **held out**: nothing is learned from them.
# On one of them the gradients, from the logits back to the drafter's weights (omnidraft/engine/backward.py), are compared
# with central differences. (`hybrid-kl` is the paper's variant with a divergence for each n-gram, too.)

# %%
pair, rng = Pair(models.load("draft-general"), models.load("qwen-like")), np.random.default_rng(0)
prompts = [example["prompt"] for example in examples("math", 14)]
trainer, options = Trainer(pair.draft, Recipe("lifted", rank=32), rng), Options(temperature=1, max_new_tokens=32)
keeper = online.Learner(pair, trainer, rng, online.Schedule(every=99, guard=0))  # no update before 99 texts
list(online.learn(keeper, prompts[:4], options, Uniforms(rng)))
held_out, moved = keeper.batch, "model.layers.0.mlp.up_proj.weight"
tensors = {name: tensor.astype(float) for name, tensor in tensors_of(pair.draft).items()}
way = rng.normal(size=tensors[moved].shape)
forth, here, back = (backward.run(pair.draft.config, tensors | {moved: tensors[moved] + step * way}, held_out[0].draft_ids)
                     for step in (1e-6, 0, -1e-6))
for kind, loss in losses.LOSSES.items():
    (value, slope, count), ahead, behind = (loss(trace.logits, held_out[0], pair) for trace in (here, forth, back))
    gradient, difference = backward.gradients(here, slope)[moved], (ahead[0] - behind[0]) / 2e-6
    print(f"{kind:9} {value / count:5.2f} at each of {count} places; gradient {(gradient * way).sum():8.3f}, {difference:8.3f}")
    assert np.isclose((gradient * way).sum(), difference, rtol=1e-3, atol=1e-3)

# %% [markdown]
# Now online (arXiv 2507.02659, Algorithm 2): serve a prompt, keep the text, and after every second prompt take two steps on
# the new texts and four earlier ones (**replay**). Not the weights W change but **LoRA adapters** A, B (arXiv 2106.09685): the
# drafter computes with W + B · A, and A has only 32 rows, its **rank**. The curve is 1 - tv, averaged over the held-out texts.

# %%
learner = online.Learner(pair, trainer, rng, online.Schedule(every=2, steps=2, replay=4, guard=0))
curve, greedy = [trainer.expected_acceptance(pair, held_out)], Options(stop=FixedLength(4), max_new_tokens=40)
before = list(speculative(pair, prompts[0], greedy, Uniforms([])))
curve += [trainer.expected_acceptance(pair, held_out) for learned in online.learn(learner, prompts[4:], options, Uniforms(rng))
          if learned.updated]
for rounds in (before, list(speculative(pair, prompts[0], greedy, Uniforms([])))):
    paint(pair.target.tokenizer, rounds, legend=rounds is before)
    print(f"{len(rounds)} target passes\n")
print("accepted on average", sparkline(curve))
assert curve[-1] > curve[0] + 0.02

# %% [markdown]
# ## Exercises
#
# 1. p = (0.5, 0.25, 0.25), q = (0.2, 0.2, 0.6); the direct map holds the first two tokens only. What is KL(q || p) in `dm`?
# 2. Inside a node P = (child c 0.4, stop 0.6), and the draft row is (a 0.2, b 0.3, c 0.5). What is D(P, Q) of "tv"?
# 3. Write a function for the gradient of -log q(d) along the logits z, given as a list. Mind z = [1000, 0].

# %%
check("6.1", ...)
check("6.2", ...)


def gradient_of_surprise(z, d):
    return ...


check("6.3", gradient_of_surprise)
