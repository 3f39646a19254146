# %% [markdown]
# # 9 · All together: one drafter, two targets, learning online
#
# We now have all the parts: drafts in the drafter's own tokens (lessons 1 to 3), exact verification for any target (4 and 5),
# distillation (6), drafts of the right length (7). What remains is *when* the drafter learns, and *for whom*. Prompts
# arrive one after another, as a **stream**. One drafter serves many targets, and what is good for one may be bad for the
# next. So its weights W never change. Each target t has its own LoRA adapters A_t, B_t (lesson 7), its own n-gram cache and
# its own acceptance head.
#
# ## The equations (arXiv 2507.02659, Algorithm 2; the mean: Polyak and Juditsky 1992; guard and payoff: this project's own)
#
#     1  the drafter of target t     W + B_t · A_t, where theta_t = (A_t, B_t) is trained
#     2  each prompt for t           decode; put the text with its rows p into the buffer Q_t
#     3  each I-th prompt for t      a step of theta_t against the gradient of the loss on Q_t;  empty Q_t
#     4  after each step             mean_t <- mean_t + s · (theta_t - mean_t)
#     5  learning has paid off       after n tokens:  n · (1 / r_before - 1 / r_after) = seconds of learning
#
# Q_t is a **buffer**; in line 5, r is tokens per second. mean_t is a **running mean**. The drafter drafts with mean_t, because
# theta_t itself jumps about: each step sees only a few texts. What if new texts make it worse? The package has a **guard**: new
# weights draft only after they were better on texts new to them, by more than the error; worse weights are rolled back.
# This lesson leaves out the guard and the head. (A head is trained on the same texts as the drafter, **joint**, Algorithm 3, or
# between its updates, from a buffer that is kept, **interleaved**, Algorithm 4.) Here are lines 2 and 3 in the package:

# %%
import tempfile

from helpers import bar, check, curve, examples, figure, paint, show

import numpy as np
from omnidraft import Adapters, Learner, Options, Uniforms, learn, load, metrics, pair, speculative
from omnidraft.learning.adapters import SHIPPED
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength

show(learn)  # `learner.finish` puts the text into the buffer, and calls the next function at each I-th prompt:
show(Learner._steps)

# %% [markdown]
# ## By hand
#
# Target x writes a or b with (0.8, 0.2), target y with (0.1, 0.9). The drafter has logits z = (0, 0), so q = (1/2, 1/2), and
# x accepts beta = 0.5 + 0.2 of its drafts. The gradient of KL(p || q) is q - p = (-0.3, 0.3) (lesson 7). A step of size 1
# against it leads to z = (0.3, -0.3), q = (0.65, 0.35), beta = 0.85. Let the stream be x, then y, then x again: this is a
# **distribution shift**, twice. A shared z forgets x while it learns y. With one z per target nothing is forgotten: back at x,
# it continues where it stopped, and is even better than at its last measurement there.

# %%
def betas(place):  # along the stream; `place` says which z is used and learned for a target
    learned = {"x": np.zeros(2), "y": np.zeros(2)}
    found = []
    for target in "x" * 8 + "y" * 8 + "x" * 8:
        z = learned[place[target]]
        p = np.array({"x": [0.8, 0.2], "y": [0.1, 0.9]}[target])
        found.append(np.minimum(p, process(z)).sum())
        z -= process(z) - p
    return found


together, apart = betas({"x": "x", "y": "x"}), betas({"x": "x", "y": "y"})
print("              x       y       x")
print("one for both ", curve(together, 0, 1), "\none for each ", curve(apart, 0, 1))
figure("acceptance along the stream x, y, x", {"one for both": together, "one for each": apart})
print(f"back at x: {together[16]:.2f} together, {apart[16]:.2f} apart")
assert apart[16] > apart[7] > together[16]

# %% [markdown]
# What does this cost? Memory: an adapter of rank r for W with m rows and n columns has r · (m + n) numbers. Time: if 20 s of
# learning raise the speed from 100 to 150 tokens per second, they have paid off when n · (1/100 - 1/150) = 20, so after n =
# 6000 tokens.
#
# ## The real thing
#
# We take one drafter that knows only general text, and two targets with other tokenizers. Each prompt of the stream goes to
# both, in turn. The curves show the expected acceptance on two held-out texts of each target. The adapters are then saved
# to disk under the names of drafter and target, as files in the PEFT format.

# %%
base = load("draft-general")
names = ("qwen-like", "llama3-like")
prompts = [example["prompt"] for example in examples("math", 8)]
options = Options(temperature=1, max_new_tokens=32)


def start(name, **schedule):  # a learner for one target, and its draws
    models = pair(base, name)
    rng = np.random.default_rng(0)
    return Learner(models, Trainer(base, Recipe(), rng), rng, Schedule(guard=0, held_out=0, **schedule)), Uniforms(rng)


def serve(learner, draws, texts):  # the tokens that were written
    return [token for learned in learn(learner, texts, options, draws) for r in learned.rounds for token in r.emitted]


held_out, serving = {}, {}
curves, written = ({name: [] for name in names} for _ in range(2))
for name in names:
    keeper, draws = start(name, every=99)  # no update: it only keeps the texts
    serve(keeper, draws, prompts[:2])
    held_out[name] = keeper.batch
    serving[name] = start(name, every=2, steps=2, replay=2)
for place, prompt in enumerate(prompts[2:]):
    for name, (learner, draws) in serving.items():  # in turn
        if place % 2 == 0:
            curves[name].append(learner.trainer.expected_acceptance(learner.pair, held_out[name]))
        written[name] += serve(learner, draws, [prompt])
with tempfile.TemporaryDirectory() as folder:
    for name, (learner, _) in serving.items():
        curves[name].append(learner.trainer.expected_acceptance(learner.pair, held_out[name]))
        Adapters(folder).keep(learner)
        size = sum(array.size for array in learner.trainer.parameters.values())
        print(f"{name:12} {curve(curves[name], 0, 1)}   {size:,} numbers in the adapter, {base.parameters:,} in the drafter")

# %% [markdown]
# Does what is learned for one target leak into another? If not, a target writes and learns *exactly* the same alone.

# %%
alone, draws = start("qwen-like", every=2, steps=2, replay=2)
assert serve(alone, draws, prompts[2:]) == written["qwen-like"]
assert all(np.array_equal(array, serving["qwen-like"][0].trainer.served[name]) for name, array in alone.trainer.served.items())

# %% [markdown]
# Six prompts are only a beginning. For each of the two targets, the package has an adapter that was trained in the same way, on
# thousands of texts of its target. Here is the block efficiency of the general drafter on three prompts at temperature 0,
# without and with this adapter:

# %%
for name in names:
    models = serving[name][0].pair
    models.draft = base
    for label, drafter in {"without": base, "with adapter": Adapters(SHIPPED).load(models).drafter(base)}.items():
        models.draft = drafter
        texts = [list(speculative(models, prompt, Options(stop=FixedLength(4), max_new_tokens=32), Uniforms([])))
                 for prompt in prompts[:3]]
        efficiency = metrics.summarize(sum(texts, [])).block_efficiency
        print(f"{name:12} {label:12} {bar(efficiency, 12, '.2f')} tokens per target pass")
paint(models.target.tokenizer, texts[0], legend=True)

# %% [markdown]
# ## Exercises
#
# 1. A weight has 300 rows and 100 columns. How many numbers does an adapter of rank 8 add for each target?
# 2. Learning took 12 s and raised the speed from 200 to 300 tokens per second. After how many tokens has it paid off?
# 3. Build it: the decoding loop, in tutorials/exercises/step6_loop.py; `omnidraft tutorial 9 --check` tests it. Everything it
#    needs is in tutorials/mini.py, the whole method in one file (which also has the loop: look there afterwards).

# %%
check("9.1", ...)
check("9.2", ...)
