# %% [markdown]
# # 8 · Knowing when to stop
#
# The k-th draft token counts only if all before it were accepted (lesson 1), but it always costs a step of the drafter and
# a place in the target's pass. In an easy stretch of text a dozen are accepted in a row; before a name or a number, none. A
# fixed k is too short for the first and too long for the second. So *predict*, while drafting, the probability P_i that draft
# token i is accepted if all before it are. Stop when the product of the P_i falls below a **threshold**. A cheap prediction
# is the drafter's **confidence**. At temperature 0 the drafter takes its likeliest token for certain, so q is 1 and says
# nothing. There the confidence is the probability that its softmax gave this token, as if at temperature 1. (Above
# temperature 0 it is another number: see below.) Can a learned prediction do better?
#
# ## The equations (arXiv 2211.17192, Eq. 1, for any P_i; arXiv 2507.02659, section 3.3; the last after Charnov 1976)
#
#     tokens of a round, on average   1 + P_1 + P_1 · P_2 + P_1 · P_2 · P_3 + ...
#     stop after token i once         P_1 · ... · P_i < threshold                 (the paper writes 1 - gamma for it)
#     P is learned from labels        y = min(1, p(d_i) / q(d_i))                 the probability that d_i is accepted
#     by minimising                   -(y · log P + w · (1 - y) · log(1 - P))     (arXiv 2405.19715, section 3)
#     token i pays as long as         P_1 · ... · P_i > R · C      R tokens per second overall, C seconds per draft token
#
# The value that P should have is its **label**; the loss is called **weighted cross-entropy**. That paper takes w = 6, which
# makes P too small, so that drafting stops early. We take w = 1: then P is the probability itself, on average.

# %%
from functools import partial

from helpers import bar, bars, check, distribution_of, examples, figure, show

import numpy as np
from omnidraft import Learner, Options, Uniforms, learn, metrics, pair, speculative
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import AdamW, Recipe, Trainer
from omnidraft.lifting import Lifting
from omnidraft.stopping import AcceptanceHead, Confidence, FixedLength
from omnidraft.verification import acceptances, rejection_sampling

show(Confidence.__call__)  # the second equation in the package

# %% [markdown]
# ## By hand
# Let half of all rounds be easy (every P_i = 0.9) and half hard (every P_i = 0.3). A pass of the target takes time 1, a draft
# step 0.1. Which lengths are best? An animal should leave a bush once it finds fewer berries per minute there than on its
# whole trip (**marginal value theorem**: Charnov 1976). So draft token i if and only if P_1 · ... · P_i > R · C. C is 0.1 here
# (on a real machine it also counts one more place in the target's pass). R is the rate of the best lengths themselves, so the
# code tries all lengths up to 30, and then compares. The package's rule looks only after token i is drawn. With R · C as its
# threshold it drafts one token more (unless already the first confidence is below it: then none). A higher threshold makes up
# for that.

# %%
def tokens(P, k):
    return 1 + np.cumprod([P] * k).sum()


def rate(easy, hard):  # tokens per unit of time, over one round of each kind
    return (tokens(0.9, easy) + tokens(0.3, hard)) / (2 + 0.1 * (easy + hard))


best = max(((easy, hard) for easy in range(31) for hard in range(31)), key=lambda lengths: rate(*lengths))
lengths = [(k, k) for k in (0, 1, 2, 4, 8, 16)] + [best]
bars({f"easy {easy:2}, hard {hard:2}": rate(easy, hard) for easy, hard in lengths}, 12, ".2f", "tokens per unit of time")
worth = rate(*best) * 0.1  # R · C
easy = best[0]
print(f"R · C = {worth:.2f}: easy token {easy} pays ({0.9 ** easy:.2f}), one more does not ({0.9 ** (easy + 1):.2f})")
assert best == tuple(sum(P ** i > worth for i in range(1, 31)) for P in (0.9, 0.3))

# %% [markdown]
# ## The token that triggers the stop
# Why propose a token that we do not believe in? Let p = (a 0.5, b 0.5) and q = (a 0.8, b 0.2). Suppose we drop b whenever it
# is drawn, and let the target write alone. Then a is drawn and kept with 0.8 · (0.5 / 0.8), or b is drawn and the target
# writes a with 0.2 · 0.5. The sum is 0.6 instead of 0.5: the text is biased. Whether the drafter continues *after* a token
# may depend on that token. But whether the token itself is proposed may depend only on what was known before the draw. So
# `Confidence` looks at the first row, and drafts nothing in this round if its confidence there (at T = 0: in the likeliest
# token) is below the threshold.
#
# Above temperature 0 the probability of the drawn token says little: a target with the same row keeps whatever is drawn.
# There the confidence is a rule of thumb, the row's L2 norm, the root of sum_x q(x)^2: near 1 for a row that is sure of one
# token, on which the two models agree more often. (Its square is the probability that two draws from the row agree.)

# %%
def first_token(draws, dropped):
    d = draws.choose(q)
    draft = [] if d == dropped else [d]  # an empty draft: the target draws from p
    return rejection_sampling(draft, [q] * len(draft), np.array([p, p]), draws).emitted[0]


p, q = np.array([0.5, 0.5]), np.array([0.8, 0.2])
bars({name: distribution_of(partial(first_token, dropped=dropped))[0]
      for name, dropped in {"a, if b is dropped": 1, "a, if b is proposed": None}.items()})

# %% [markdown]
# ## Labels for any two tokenizers (this project's own)
# Without common tokens, p(d) / q(d) is meaningless. But lesson 6 has a number r after each comparison: a draft that ends there
# is kept with probability r. (An atom that first proposes *stop* has two comparisons; r after the second counts.) So a label
# says how far a token lowers r. As r can rise again, and a label is at most 1, we take m, the smallest r so far (1 at first):
# the label of a token is m after its last atom, divided by m before its first one. Then the product of the labels up to a
# token is m. For a first token of one atom the label is min(1, P / Q), and its mean over the draws is sum_c min(P(c), Q(c)),
# the beta of lesson 1. For example, take p of lesson 4 and the draft row (a 0.6, b 0.4), so P = (a 0.8, b 0.2). The labels
# are 1 and 0.2 / 0.4, and beta is 0.6 + 0.2:

# %%
lifting = Lifting({0: (0,), 1: (1,), 2: (0, 1)}, {}, draft_size=2)
row = np.array([0.6, 0.4])
target_rows = np.array([[0.4, 0.2, 0.4]] * 2)  # (2, V_p): for the first token, and for the one after it
labels = []
for d in (0, 1):
    atoms, origins = lifting.reveal([d], [row])
    labels += acceptances(atoms, origins, lifting, target_rows)
print("labels of a and b:", labels, " mean:", round(row @ labels, 12))
assert np.allclose(labels, [1, 0.2 / 0.4]) and np.isclose(row @ labels, np.minimum([0.8, 0.2], row).sum())

# %% [markdown]
# ## The real thing
# What counts is the time per token, here compared with no draft: fixed lengths and the confidence rule, for two drafters of
# the same target, on a story at temperature 0. `draft-tasks` has learned the target's task; `draft-general` can only guess.
# The threshold 0.4 is the package's default. For draft-tasks, and for draft-general once it has learned, R · C is about 0.35
# to 0.6 (docs/results.md, "Adaptive drafting", the brackets of "head, expected value"). The best single threshold there is
# higher, as expected: 0.65. But it gains only 1.5 % over 0.4 at temperature 0, and 5 % at temperature 1.

# %%
prompts = [example["prompt"] for example in examples("text", 13)]
drafters = {name: pair(name, "qwen-like") for name in ("draft-tasks", "draft-general")}


def cost(models, stop):
    """Seconds per token, the least of three runs; draft tokens that were kept, and all of them."""
    options = Options(stop=stop, max_new_tokens=40)
    runs = [metrics.summarize(speculative(models, prompts[0], options, Uniforms([]))) for _ in range(3)]
    s = min(runs, key=lambda run: run.seconds)
    return s.seconds / s.tokens, s.draft_kept, s.drafted


def compare(rules, models, title):
    """The time per token under each rule; without a draft it is 1."""
    found = {name: cost(models, stop) for name, stop in rules.items()}
    one = found["no draft"][0]
    print(title)
    bars({f"{name:10} {kept:3} of {drafted:4} kept": time / one for name, (time, kept, drafted) in found.items()}, 20)
    figure(f"{title}: time per token", {"time": [time / one for time, _, _ in found.values()]}, [*found])


rules = {"no draft": FixedLength(0), "always 4": FixedLength(4), "always 12": FixedLength(12),
         "confidence": Confidence(12, threshold=0.4)}
for name, models in drafters.items():
    compare(rules, models, name)

# %% [markdown]
# A good drafter should write far ahead; a bad one had better be silent. The same confidence rule does both: with draft-tasks
# it is about as fast as the better fixed length, and with draft-general it drafts far less than either of them. But less is
# not nothing: with draft-general even this rule is slower than no draft at all (docs/results.md, "Speed": 0.70 to 0.86 times
# the speed on stories). Therefore `generate` watches the clock as well, and then writes without drafts ("Drafting only where
# it pays"). (Small differences are clock noise. The counts are exact.)
#
# Can it be better? How far can the confidence of `draft-general` be trusted, for this target? The **acceptance head** is one
# linear layer with a sigmoid, s(x) = 1 / (1 + e^-x), which turns any number into a probability. Per draft token it reads
# what the drafter has computed anyway: its **hidden state** before the token (the list of numbers that its last layer leaves
# there, from which it computes the logits), its **embedding** of the token (the list with which this token enters the first
# layer), and the number log(q / (1 - q)), where q is the token's probability. Now s(log(q / (1 - q))) = q. So a new head,
# which weighs this number with 1 and all others with 0, predicts q itself; training improves on that. A `Learner` (lesson 7)
# collects the labels from 10 texts: seven to train the head, three to test it.

# %%
models = drafters["draft-general"]
head = AcceptanceHead(models.draft.config.width)
rng = np.random.default_rng(0)
learner = Learner(models, Trainer(models.draft, Recipe(), rng), rng, Schedule(every=99, guard=0), head)
six = Options(temperature=1, max_new_tokens=32, stop=Confidence(6, threshold=0, head=head))  # always six draft tokens
sizes = [len(learner.labelled) for _ in learn(learner, prompts[3:], six, Uniforms(rng))]  # after each text
cut = sizes[6]  # after the seventh
features, y = map(np.array, zip(*learner.labelled, strict=True))
print(f"{cut} drafted tokens to learn from, {len(y) - cut} to test with; {features.shape[1]} numbers describe each")

# %% [markdown]
# Training steps against the gradient of the loss above, on 128 tokens at a time, with **AdamW**, a common way to do so.

# %%
optimizer = AdamW(head.parameters, rate=1e-3, decay=0)
for some in rng.integers(cut, size=(150, 128)):
    value, gradients = head.loss(features[some], y[some], rejected_weight=1)
    optimizer.step(gradients)

# %% [markdown]
# On the other three texts: how often does an accepted token (y > 1/2) rank above a rejected one? Chance gives 0.5. The labels
# are from temperature 1: there a draft holds unlikely tokens too, so there is more to learn. We compare with q(d), which the
# head starts from. (The rule's own confidence there is the L2 norm.) Then the head drafts at temperature 0, as above.

# %%
q_drawn = 1 / (1 + np.exp(-features[cut:, -1]))  # the last feature is log(q / (1 - q)): back to q
predictions = {"q(d)": q_drawn, "head": head(features[cut:])}
for name, P in predictions.items():
    ordered = (P[y[cut:] > 0.5][:, None] > P[y[cut:] <= 0.5]).mean()
    print(f"{name:10}  {bar(ordered, 30, '.2f')} in the right order; mean P {P.mean():.2f}, mean label {y[cut:].mean():.2f}")
compare({"no draft": FixedLength(0), "confidence": rules["confidence"], "head": Confidence(12, threshold=0.4, head=head)},
        models, "draft-general with its head")

# %% [markdown]
# At temperature 1, q(d) is higher than the label on average (mean P and mean label above), and the head has learned by how
# much. At temperature 0, for which it was not trained, it drafts fewer tokens than the confidence. Does that pay? Over 12
# combinations of two models and a task (docs/results.md, "Adaptive drafting"; passes and draft tokens are counted, each at
# its measured cost, so this is not clock noise), the speed relative to the confidence rule with threshold 0.4 is
#
#     temperature                                     0       1
#     confidence, threshold tuned                     1.02    1.05
#     head, threshold tuned                           0.99    1.05
#     the same, if predictions took no time           1.01    1.07
#     a rule that knows what will be kept             1.22    (not measured)
#
# So a head is *not* faster than a tuned threshold. It ranks tokens a little better (0.948 against 0.938 of the pairs are in the
# right order at temperature 0, 0.908 against 0.892 at 1; same section), but seems to learn mostly how far the confidence can
# be trusted, and a threshold can express that too; and each prediction takes time. The last line shows how much room is left,
# at temperature 0. With a published model and mixed requests the head gains nothing either (lesson 10).
#
# ## Exercises
#
# 1. P = 0.9, 0.8, 0.7, 0.6, ... and the threshold is 0.6. How many tokens are drafted?
# 2. Of some kind of token, 3 in 4 are accepted, and the head cannot tell which. Which P minimises the loss if w = 6?
# 3. Write a function for the length (0 to len(P)) with the most tokens per time: `P` has all P_i, a draft step takes `step`,
#    a pass 1.

# %%
check("8.1", ...)
check("8.2", ...)


def best_length(P, step):
    return ...


check("8.3", best_length)
