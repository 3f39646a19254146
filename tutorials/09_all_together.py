# %% [markdown]
# # 9 · All together: one drafter, two targets, learning online
#
# We now have all the parts: drafts in the drafter's own tokens (lessons 1 to 3), exact verification for any target (5 and 6),
# distillation (7), drafts of the right length (8). What remains is *when* the drafter learns, and *for whom*. Prompts
# arrive one after another, as a **stream**. One drafter serves many targets, and what is good for one may be bad for the
# next. So its weights W never change. Each target t has its own LoRA adapters A_t, B_t (lesson 7), its own n-gram cache and
# its own acceptance head.
#
# ## The equations (arXiv 2507.02659, Algorithm 2; the mean: Polyak and Juditsky 1992; guard and payoff: this project's own)
#
#     1  the drafter of target t     W + B_t · A_t, where theta_t = (A_t, B_t) is trained
#     2  each prompt for t           decode; put the text with its rows p into the buffer Q_t
#     3  each I-th prompt for t      steps of theta_t against the gradient of the loss on Q_t;  empty Q_t
#     4  after each step             mean_t <- mean_t + s · (theta_t - mean_t)
#     5  learning has paid off       after n tokens:  n · (1 / r_before - 1 / r_after) = seconds of learning
#
# Q_t is a **buffer**; in line 5, r is tokens per second. mean_t is a **running mean**. The drafter drafts with mean_t,
# because theta_t itself jumps about: each step sees only a few texts. Lines 2 and 3 in code (line 4 is in `trainer.step`):

# %%
from helpers import bars, check, curve, examples, figure, paint

import numpy as np
from omnidraft import Adapters, Options, Uniforms, load, metrics, pair, speculative
from omnidraft.learning.adapters import SHIPPED
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.losses import make_example
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength


class Logits(list):
    """The target's logits for each written token; `speculative` calls `observe` after each round."""

    def observe(self, draft, proposals, logits, emitted, kept, done):
        self.append(logits[:len(emitted)].copy())  # (tokens of this round, V_p)


def decode(models, trainer, prompt, options, draws):
    """A text by the pair, and the same with the target's rows, to learn from."""
    rows = Logits()
    rounds = list(speculative(models, prompt, options, draws, rows))  # each of them also fills `rows`
    text = [token for r in rounds for token in r.emitted]
    return text, make_example(models, prompt, text, trainer.rows(rows, models.target.tokenizer.size))


def serve(models, trainer, prompts, options, draws, every=2, steps=2):
    """Decode the prompts one after another, learn after every `every`-th, and yield each text."""
    Q = []
    for n, prompt in enumerate(prompts, 1):
        text, example = decode(models, trainer, prompt, options, draws)
        Q.append(example)
        if n % every == 0:
            for _ in range(steps):
                trainer.step(models, Q)
            models.draft = trainer.model()  # from the next prompt on
            Q.clear()
        yield text


# %% [markdown]
# The package's `learn` does the same, and cares for what can go wrong in long use. Each update also takes some earlier texts
# (**replay**). A **guard** lets new weights draft only after they were better on texts new to them, by more than the error;
# worse weights are rolled back. Adapters are saved on disk under the names of drafter and target. And an acceptance head can
# be trained on the same texts as the drafter (**joint**, Algorithm 3), or between its updates, from a buffer that is kept
# (**interleaved**, Algorithm 4).
#
# ## By hand
#
# Target x writes a or b with (0.8, 0.2), target y with (0.1, 0.9). The drafter has logits z = (0, 0), so q = (1/2, 1/2), and
# x accepts beta = 0.5 + 0.2 of its drafts. The gradient of KL(p || q) is q - p = (-0.3, 0.3) (lesson 7). A step of size 1
# against it leads to z = (0.3, -0.3), q = (0.65, 0.35), beta = 0.85. Let the stream be x, then y, then x again: this is a
# **distribution shift**, twice. A shared z forgets x while it learns y. With one z per target nothing is forgotten.

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
print("one for both ", curve(together, 0, 1))
print("one for each ", curve(apart, 0, 1))
figure("acceptance along the stream x, y, x", {"one for both": together, "one for each": apart})
bars({"back at x, one for both": together[16], "back at x, one for each": apart[16]})

# %% [markdown]
# What does this cost? Memory: an adapter of rank r for W with m rows and n columns has r · (m + n) numbers. Time: if 20 s of
# learning raise the speed from 100 to 150 tokens per second, they have paid off when n · (1/100 - 1/150) = 20, so after n =
# 6000 tokens.
#
# ## The real thing
#
# We take one drafter that knows only general text, and two targets with other tokenizers. Each prompt of the stream goes to
# both, in turn. The curves show the expected acceptance on two held-out texts of each target.

# %%
base = load("draft-general")
names = ("qwen-like", "llama3-like")
prompts = [example["prompt"] for example in examples("math", 8)]
options = Options(temperature=1, max_new_tokens=32)


def start(name):  # the pair, what is trained, the draws
    rng = np.random.default_rng(0)
    return pair(base, name), Trainer(base, Recipe(), rng), Uniforms(rng)


held_out, parts, streams = {}, {}, {}
for name in names:
    models, trainer, draws = start(name)
    held_out[name] = [decode(models, trainer, prompt, options, draws)[1] for prompt in prompts[:2]]
    parts[name] = start(name)
    models, trainer, draws = parts[name]
    streams[name] = serve(models, trainer, prompts[2:], options, draws)
curves = {name: [] for name in names}
written = {name: [] for name in names}
for _ in prompts[2:]:
    for name in names:  # in turn
        models, trainer, _ = parts[name]
        written[name].append(next(streams[name]))
        curves[name].append(trainer.expected_acceptance(models, held_out[name]))
for name in names:
    print(f"{name:12} {curve(curves[name], 0, 1)}")
size = sum(array.size for array in trainer.parameters.values())
print(f"{size:,} numbers in each adapter, {base.parameters:,} in the drafter that they share")

# %% [markdown]
# Does what is learned for one target leak into another? If not, a target writes *exactly* the same alone.

# %%
models, trainer, draws = start("qwen-like")
assert list(serve(models, trainer, prompts[2:], options, draws)) == written["qwen-like"]

# %% [markdown]
# Six prompts are only a beginning. For each of the two targets, the package has an adapter that was trained in the same way,
# on thousands of texts of its target. Here is the block efficiency of the general drafter on three prompts at temperature 0,
# without and with this adapter:

# %%
efficiency = {}
for name, (models, _, _) in parts.items():
    for label, drafter in {"without": base, "with adapter": Adapters(SHIPPED).load(models).drafter(base)}.items():
        models.draft = drafter
        texts = [list(speculative(models, prompt, Options(stop=FixedLength(4), max_new_tokens=32), Uniforms([])))
                 for prompt in prompts[:3]]
        efficiency[f"{name}, {label}"] = metrics.summarize(sum(texts, [])).block_efficiency
bars(efficiency, 12, title="tokens per target pass")
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
