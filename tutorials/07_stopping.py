# %% [markdown]
# # 7 · Knowing when to stop
#
# The k-th draft token counts only if all before it were accepted (lesson 1), but it always costs a step of the drafter and a
# place in the target's pass. In an easy stretch of text a dozen are accepted in a row; before a name or a number, none.
# A fixed k is too long for the one and too short for the other. So *predict*, while drafting, the probability P_i that
# draft token i is accepted if all before it are, and stop when it is no longer likely that all of them are. P is learned: what
# it should have been is a **label**; the loss below, a **weighted cross-entropy**, punishes too much hope more than too little.
#
# ## The equations (arXiv 2211.17192, Eq. 1, for any P_i; arXiv 2507.02659, section 3.3; the last is this project's own)
#
#     tokens of a round, on average   1 + P_1 + P_1 · P_2 + P_1 · P_2 · P_3 + ...
#     stop after token i once         1 - P_1 · ... · P_i > gamma                gamma is a number that somebody chose
#     P is learned from labels        y = min(1, p(d_i) / q(d_i))                the probability that d_i is accepted
#     by making smaller               -(y · log P + 6 · (1 - y) · log(1 - P))    (arXiv 2405.19715, section 3)
#     token i pays as long as         P_1 · ... · P_i > r · c      r tokens per second on the whole, c seconds per draft token

# %%
import numpy as np
from exercises import check, distribution_of, examples, paint, show

from omnidraft import Options, Pair, Uniforms, metrics, speculative
from omnidraft.engine import loading as models
from omnidraft.learning import online
from omnidraft.learning.optimizer import AdamW
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.lifting import build_lifting
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength, Throughput
from omnidraft.verification import acceptances, rejection_sampling


def expected_tokens(P):
    return 1 + np.cumprod(P).sum()


def weighted_loss(y, P, weight=6):
    """The loss, and its derivative along the logit z, P being 1 / (1 + exp(-z))."""
    return -(y * np.log(P) + weight * (1 - y) * np.log(1 - P)), (y + weight * (1 - y)) * P - y

show(Confidence.__call__)  # the second equation in the package; the threshold is 1 - gamma

# %% [markdown]
# ## By hand
#
# If every P_i is alpha, the sum is (1 - alpha^(k + 1)) / (1 - alpha). Let half of all rounds be easy, alpha = 0.9, the others
# hard, alpha = 0.3; a target's pass takes 1, a draft step 0.1. Which lengths are best? An animal should leave a bush once it
# finds fewer berries per minute there than on its whole trip (**marginal value theorem**: Charnov 1976), so alpha^i > r · c.

# %%
assert np.isclose(expected_tokens([0.8] * 3), (1 - 0.8 ** 4) / (1 - 0.8))
easy, hard = (np.array([expected_tokens([alpha] * k) for k in range(31)]) for alpha in (0.9, 0.3))  # by length
rates = (easy[:, None] + hard) / (2 + 0.1 * np.add.outer(range(31), range(31)))  # of two rounds, by length in each
best = np.unravel_index(rates.argmax(), rates.shape)
for e, h in (*((k, k) for k in (0, 1, 2, 4, 8, 16)), best):
    print(f"easy {e:2}, hard {h:2}  {'█' * round(12 * rates[e, h]):32} {rates[e, h]:.2f} tokens per unit of time")
assert rates.max() > 1.05 * rates.diagonal().max()
assert best == tuple(sum(alpha ** i > rates.max() * 0.1 for i in range(1, 31)) for alpha in (0.9, 0.3))

# %% [markdown]
# ## The token that triggers the stop
#
# Why propose a token that one does not believe in? Let p = (1/2, 1/2), q = (0.8, 0.2), and drop b whenever it is drawn; the
# target then writes alone. So a is written with 0.8 · 0.625 + 0.2 · 0.5 = 0.6 instead of 0.5: the text is biased. Whether
# drafting goes on *after* a token may depend on it. Whether the token is proposed may depend on its row, which is there before
# the draw, and on no more: where P of the likeliest first token is below 1 - gamma, `Confidence` drafts nothing.

# %%
def first(draws, dropped):
    draft = [d for d in [draws.choose(q)] if d != dropped]
    return rejection_sampling(draft, [q] * len(draft), np.array([p, p]), draws).emitted[0]


p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
assert np.allclose([distribution_of(lambda draws, d=dropped: first(draws, d))[0] for dropped in (1, None)], [0.6, 0.5])

# %% [markdown]
# ## Labels for any two tokenizers (this project's own)
#
# Without common tokens p(d) / q(d) means nothing, but P / Q of lesson 5 does, for every atom. The label's mean over the
# drafter's draws is sum_c min(P(c), Q(c)), beta of lesson 1. The world of lesson 4 with the draft row (a 0.6, b 0.4):

# %%
show(acceptances)
lifting, row = build_lifting({0: (0,), 1: (1,), 2: (0, 1)}, {}, draft_size=2), np.array([0.6, 0.4])
labels = [acceptances([d], [(row, ())], lifting, np.array([[0.4, 0.2, 0.4]] * 2))[0] for d in (0, 1)]
assert np.allclose(labels, [1, 0.2 / 0.4]) and np.isclose(row @ labels, np.minimum([0.8, 0.2], row).sum())

# %% [markdown]
# ## The real thing
#
# The **acceptance head** is a small network (omnidraft/stopping.py). It reads what the drafter has computed anyway: its
# **hidden state** before the token, its **embedding** of the token (lists of numbers it works with), and log(q / (1 - q)). The
# `Learner` of lesson 6 collects labels from 20 texts; the head learns from 12 by **AdamW**, a usual way to step against a
# gradient. In the other eight, does it put accepted tokens (y > 1/2) above rejected ones? Chance is 0.5; q may do better yet.

# %%
pair, rng = Pair(models.load("draft-tasks"), models.load("qwen-like")), np.random.default_rng(0)
prompts, head = [example["prompt"] for example in examples("math", 24)], AcceptanceHead(pair.draft.config.width)
learner = online.Learner(pair, Trainer(pair.draft, Recipe(), rng), rng, online.Schedule(every=99, guard=0), head)
six = Options(temperature=1, max_new_tokens=32, stop=Confidence(6, threshold=0, head=head))  # always six draft tokens
sizes = [len(learner.labelled) for _ in online.learn(learner, prompts[4:], six, Uniforms(rng))]
features, y = map(np.array, zip(*learner.labelled, strict=True))
(value, slope), P = head.loss(features, y), np.array([head(x) for x in features])
assert np.allclose([value, *slope["out.bias"]], np.mean(weighted_loss(y, P), axis=1), rtol=1e-4)  # the equation
optimizer, cut = AdamW(head.parameters, rate=1e-3, decay=0), sizes[11]
for some in rng.integers(cut, size=(150, 128)):
    optimizer.step(head.loss(features[some], y[some])[1])
for name, scores in {"head": np.array([head(x) for x in features[cut:]]), "q alone": features[cut:, -1]}.items():
    ordered = (scores[y[cut:] > 0.5][:, None] > scores[y[cut:] <= 0.5]).mean()
    print(f"{name:10} {'█' * round(30 * ordered):30} {ordered:.2f} of all pairs are in the right order")
    assert ordered > 0.55

# %% [markdown]
# Now four rules at temperature 0. `Confidence` takes q for P if it is given no head; gamma is 0.6. `Throughput` stops where the
# next token would not pay; r, c and the share of tokens kept, for the P of a token not drawn yet, are measured on three other
# prompts first, and its gamma follows. The clock differs from run to run, so do its lengths; the text never does.

# %%
pair = Pair(models.load("draft-tasks", np.float64), models.load("qwen-like", np.float64))
runs, measured = {}, Throughput(12, head)
for text in prompts[1:4]:  # after nine rounds it has measured enough
    assert len(list(speculative(pair, text, Options(stop=measured, max_new_tokens=64), Uniforms([])))) >= 3
for name, stop in {"no draft": FixedLength(0), "always 12": FixedLength(12), "confidence": Confidence(12, 0.4),
                   "head": Confidence(12, 0.4, head), f"throughput {1 - measured.threshold:.2f}": measured}.items():
    runs[name] = list(speculative(pair, prompts[0], Options(stop=stop, max_new_tokens=64), Uniforms([])))
    s = metrics.summarize(runs[name])
    print(f"{name:15} {'█' * round(30 * s.acceptance_draft):30} {s.draft_kept:3} of {s.drafted:3} kept, {s.rounds} passes")
paint(pair.target.tokenizer, runs["head"], legend=True)
assert len({tuple(token for r in rounds for token in r.emitted) for rounds in runs.values()}) == 1

# %% [markdown]
# ## Exercises
#
# 1. P = 0.9, 0.8, 0.7, 0.6, ... and gamma = 0.4. How many tokens are drafted?
# 2. Of tokens of some kind 3 in 4 are accepted, and the head cannot tell them apart. Which P makes the loss least?
# 3. Write a function for the length (or 0) with most tokens per time: `P` has all P_i, a draft step takes `step`, a pass 1.

# %%
check("7.1", ...)
check("7.2", ...)


def best_length(P, step):
    return ...


check("7.3", best_length)
