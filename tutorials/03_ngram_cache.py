# %% [markdown]
# # 3 · The n-gram cache
#
# The drafter writes " window" as two tokens, " w" and "indow"; the target has it as one. The direct map of lesson 2
# translates " w" alone, so the target is asked: " w"? It wants " window", gives its token " w" almost no probability,
# and refuses. The draft was right, yet it is thrown away: a **false rejection**.
#
# The cure: remember that the **n-gram** (" w", "indow"), n consecutive draft tokens, is one target token, and **merge**
# it before asking. What the target is asked about is called a **proposal**; the memory is the **n-gram cache**.
# (Elsewhere that name means a drafter, which looks up what came next. This one only translates.)
#
# ## The equation (arXiv 2507.02659, section 3.1)
#
#     an entry:        (d_1, ..., d_n) <-> t,    n >= 2,    bytes(d_1) + ... + bytes(d_n) = bytes(t)
#     translating:     at each place of the draft, merge the longest n-gram that the cache knows;
#                      else take the direct token; where there is none either, the proposals end.

# %%
import numpy as np
from exercises import check, examples, paint, show

from omnidraft import Options, Pair, Uniforms, speculative
from omnidraft.engine import loading as models
from omnidraft.ngram_cache import NGramCache
from omnidraft.stopping import FixedLength
from omnidraft.vocabulary import aligned_spans


def translate(draft, ngrams, direct):
    """The proposals of a list of draft tokens; `ngrams` and `direct` give the target token of each n-gram and token."""
    proposals, place = [], 0
    while place < len(draft):
        longest = max((n for n in ngrams if tuple(draft[place:place + len(n)]) == n), key=len, default=())
        if longest:
            proposals.append(ngrams[longest])
            place += len(longest)
        elif draft[place] in direct:
            proposals.append(direct[draft[place]])
            place += 1
        else:
            break
    return proposals


# %% [markdown]
# ## By hand
#
# The target has "fla" and "flake", but not "ke". The longest n-gram wins; a lone "ke" ends the proposals.

# %%
ngrams, direct = {("f", "la"): "fla", ("f", "la", "ke"): "flake"}, {"f": "f", "la": "la", "s": "s"}
assert translate(["f", "la", "ke", "s"], ngrams, direct) == ["flake", "s"]
assert translate(["f", "la", "s"], ngrams, direct) == ["fla", "s"]
assert translate(["s", "f", "ke", "s"], ngrams, direct) == ["s", "f"]

# %% [markdown]
# In the package `longest_match` returns the target token and n, and counts a use. A full cache takes no new entry ("none") or
# forgets one first (**eviction**): the least recently ("lru") or the least frequently used one ("lfu"). With room for two, A
# used twice, then B once: when C comes, LRU forgets the older A, LFU the rarer B.

# %%
show(NGramCache.longest_match)
A, B, C = (1, 2), (3, 4), (5, 6)
for policy, kept in (("none", [A, B]), ("lru", [B, C]), ("lfu", [A, C])):
    cache = NGramCache(capacity=2, eviction=policy)
    assert cache.insert(A, 10) and cache.insert(B, 20)
    assert [cache.longest_match([*used, 7], 0) for used in (A, A, B)] == [(10, 2), (10, 2), (20, 2)]
    assert cache.insert(C, 30) == (policy != "none") and [ngram for ngram in (A, B, C) if ngram in cache] == kept

# %% [markdown]
# ## The real thing
#
# Where do entries come from? `prefill` asks the drafter's tokenizer how it would write each target token that has no
# direct token: the **split** of that token. `observe` learns from text, as the paper does: every n:1 block of lesson 2
# is an entry. Here is one prompt at temperature 0, first with an empty cache, then with a prefilled one. (`omnidraft` is
# the paper's rule, judged in lesson 4; at temperature 0 it asks only whether the target would take this token.)

# %%
drafter, target = models.load("draft-tasks", np.float64), models.load("qwen-like", np.float64)
prompt = "Write a short news item about a gardener who found a shell.\nNews:"
options, texts = Options(verify="omnidraft", stop=FixedLength(6), max_new_tokens=48), []
for prefill in (False, True):
    pair = Pair(drafter, target, prefill=prefill)
    rounds = list(speculative(pair, prompt, options, Uniforms([])))  # no draws at temperature 0
    texts.append([token for r in rounds for token in r.emitted])
    paint(target.tokenizer, rounds, legend=not prefill)
    print(f"{len(pair.cache)} entries: {len(rounds)} target passes for {len(texts[-1])} tokens\n")
    assert prefill or not any("merged" in r.kinds for r in rounds)
assert texts[0] == texts[1]  # the cache changes the speed, not the text
assert drafter.tokenizer.encode_continuation(" window") in pair.cache  # " w", "indow"
for ngram, token, _ in pair.cache.items():  # every entry fulfils the equation
    assert drafter.tokenizer.decode_bytes(ngram) == target.tokenizer.token_bytes[token]

# %% [markdown]
# Now the cache learns from 200 texts, one after another. New n-grams become rarer, so it grows ever more slowly. Then with
# room for a quarter of them only: how many of the n-grams in the last 100 texts are known when they come?

# %%
show(aligned_spans)  # lesson 2's blocks; `observe` takes the n:1 ones
sides, stream = (drafter.tokenizer, target.tokenizer), []  # per text: ids of both sides, the n-grams to be known
for example in examples("math", 200):
    ids = [side.encode_continuation(example["response"]) for side in sides]
    spelled = [[side.token_bytes[i] for i in part] for side, part in zip(sides, ids, strict=True)]
    stream.append((*ids, [ids[0][a:b] for (a, b), (c, d) in aligned_spans(*spelled) if b - a > 1 == d - c]))


def learn(capacity=None, policy="none"):
    """Observe the stream: entries after each text, share of the n-grams known beforehand (last 100 texts)."""
    cache, sizes, known = NGramCache(capacity, policy), [], []
    for draft_ids, target_ids, needed in stream:
        known.append([ngram in cache for ngram in needed])
        cache.observe(draft_ids, target_ids, *sides)
        sizes.append(len(cache))
    return sizes, np.mean(np.concatenate(known[-100:]))


sizes, share = learn()
for seen in (25, 50, 100, 200):
    print(f"{seen:3} texts {'█' * round(40 * sizes[seen - 1] / sizes[-1])} {sizes[seen - 1]} entries")
assert sizes[199] < 2 * sizes[99]
print(f"\nno limit     {'█' * round(40 * share)} {share:.0%} of the n-grams known")
for policy in ("none", "lru", "lfu"):
    small_sizes, small_share = learn(sizes[-1] // 4, policy)
    print(f"quarter {policy:4} {'█' * round(40 * small_share)} {small_share:.0%}")
    assert small_share <= share and small_sizes[-1] <= sizes[-1] // 4

# %% [markdown]
# ## Exercises
#
# 1. Entries (1, 2) <-> 10, (1, 2, 3) <-> 11, (3, 4) <-> 12, direct token 4 -> 40. Which proposals has the draft 1, 2, 3, 4?
# 2. Room for two. Insert A, use A twice, insert B, use B once, insert C, insert D. Which two entries are left with
#    LRU, and which with LFU? Answer in alphabetical order, for example ("AB", "CD").
# 3. Write a function that takes the tokens of both tokenizations of a text as lists of byte strings, and returns the set
#    of all entries (n-gram as a tuple, target token) that can be learnt from it.

# %%
check("3.1", ...)
check("3.2", ...)


def entries(draft_tokens, target_tokens):
    return ...


check("3.3", entries)
