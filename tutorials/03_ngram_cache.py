# %% [markdown]
# # 3 · The n-gram cache
#
# The drafter writes " window" as two tokens, " w" and "indow"; for the target it is one token. The direct map of lesson 2
# translates " w" alone. The target wants " window", so it gives " w" almost no probability and rejects it. The draft was
# right, yet it is thrown away. This is a **false rejection**.
#
# The remedy: remember that the **n-gram** (" w", "indow"), n consecutive draft tokens, is one target token, and **merge**
# it before asking. What the target is asked about is called a **proposal**; the memory is the **n-gram cache**.
#
# ## The equation (arXiv 2507.02659, section 3.1)
#
#     an entry:        (d_1, ..., d_n) <-> t,    n >= 2,    bytes(d_1) + ... + bytes(d_n) = bytes(t)
#     translation:     at each place of the draft, merge the longest n-gram that the cache knows;
#                      else take the direct token; if there is none either, the proposals end.

# %%
from helpers import bars, check, examples, paint, show

import numpy as np
from omnidraft import Options, Pair, Uniforms, load, speculative
from omnidraft.ngram_cache import NGramCache
from omnidraft.stopping import FixedLength
from omnidraft.translation import Direct, merge

show(NGramCache.longest_match)  # the target token and n of the longest n-gram at a place; `touch` counts a use

# %% [markdown]
# ## By hand
#
# The drafter has the tokens f, la, ke, s; the target has f, la, s, fla and flake. The longest n-gram wins. A lone "ke" has
# no direct token, so the proposals end there. `merge` is the package's translation.

# %%
drafts, targets = ["f", "la", "ke", "s"], ["f", "la", "s", "fla", "flake"]
direct = Direct(np.array([targets.index(name) if name in targets else -1 for name in drafts]))
cache = NGramCache()
cache.insert([drafts.index("f"), drafts.index("la")], targets.index("fla"))
cache.insert([drafts.index("f"), drafts.index("la"), drafts.index("ke")], targets.index("flake"))


def translate(*draft):
    ids = [drafts.index(name) for name in draft]
    made = merge(ids, [None] * len(ids), direct, cache.longest_match, {})  # no rows: they are for lesson 4
    print(f"{' '.join(draft):10} is proposed as  {' '.join(targets[token] for token in made.tokens)}")
    return [targets[token] for token in made.tokens]


assert translate("f", "la", "ke", "s") == ["flake", "s"]
assert translate("f", "la", "s") == ["fla", "s"]
assert translate("s", "f", "ke", "s") == ["s", "f"]

# %% [markdown]
# A full cache takes no new entry ("none"), or first removes an old one (**eviction**): the least recently ("lru") or the
# least frequently used one ("lfu"). In a cache with room for two, A is used twice, then B once. When C comes, LRU removes
# A, whose last use is older; LFU removes B, which was used less often.

# %%
entries = {"A": (1, 2), "B": (3, 4), "C": (5, 6)}
for policy in ("none", "lru", "lfu"):
    cache = NGramCache(capacity=2, eviction=policy)
    cache.insert(entries["A"], 10)
    cache.insert(entries["B"], 20)
    for used in "AAB":
        cache.longest_match(entries[used], 0)
    cache.insert(entries["C"], 30)
    kept = {ngram for ngram, _, _ in cache.items()}
    print(f"{policy:4}  keeps", *(name for name, ngram in entries.items() if ngram in kept))
show(NGramCache.insert)  # entries are in the order of use or, for "lfu", of the number of uses: the first one goes

# %% [markdown]
# ## The real thing
#
# Where do entries come from? `prefill` asks the drafter's tokenizer how it would write each target token that has no direct
# token: this is the **split** of the token. Here is one prompt at temperature 0, first with an empty cache, then with a
# prefilled one. (`omnidraft` is the paper's rule, which lesson 4 examines; at temperature 0 it only asks whether the target
# would take this token.) The cache changes the speed, not the text.

# %%
drafter, target = load("draft-tasks", "float64"), load("qwen-like", "float64")
prompt = "Write a Python function named `dot` that returns the dot product of two lists."
options = Options(verify="omnidraft", stop=FixedLength(6), max_new_tokens=48)
texts = []
for cache in (NGramCache(), None):
    pair = Pair(drafter, target, cache)
    rounds = list(speculative(pair, prompt, options, Uniforms([])))  # no draws at temperature 0
    texts.append([token for r in rounds for token in r.emitted])
    paint(target.tokenizer, rounds, legend=cache is not None)
    print(f"{len(pair.cache)} entries: {len(rounds)} target passes for {len(texts[-1])} tokens\n")
assert texts[0] == texts[1]
for ngram, token, _ in pair.cache.items():  # every entry satisfies the equation
    assert drafter.tokenizer.decode_bytes(ngram) == target.tokenizer.token_bytes[token]

# %% [markdown]
# The other way is to learn from text, as the paper does: every n:1 span of lesson 2 becomes an entry. This is how a text is
# cut into spans: whichever side is behind takes its next token, until both have the same bytes.

# %%
def spans(draft, target):
    """The smallest spans of a text: (draft tokens, target tokens), each token as its bytes."""
    draft, target = [*draft], [*target]
    ours, theirs = [], []
    while draft or target:
        if len(b"".join(ours)) <= len(b"".join(theirs)):
            ours.append(draft.pop(0))
        else:
            theirs.append(target.pop(0))
        if b"".join(ours) == b"".join(theirs):
            yield ours, theirs
            ours, theirs = [], []


print(*spans([b"Snow", b"f", b"la", b"ke"], [b"Snow", b"flake"]))

# %% [markdown]
# Now the cache learns from 60 stories, then from 60 programs, one after another. How many of the n-grams in a
# text does it know before it reads this text? (`observe` is the package's form: spans by ids, and then `insert`.)

# %%
sides = drafter.tokenizer, target.tokenizer
stream = []  # per text: the ids of both sides, and the n-grams that translating it needs, as bytes
for example in examples("text", 60) + examples("code", 60):
    ids = [side.encode_continuation(example["response"]) for side in sides]
    pieces = [side.pieces(part) for side, part in zip(sides, ids, strict=True)]
    needed = [tuple(ours) for ours, theirs in spans(*pieces) if len(ours) > 1 and len(theirs) == 1]
    stream.append((*ids, needed))


def learn(capacity=None, policy="none"):
    """Observe the stream; per text the number of entries, and which of its n-grams were known before."""
    cache = NGramCache(capacity, policy)
    sizes, known = [], []
    for draft_ids, target_ids, needed in stream:
        entries = {tuple(sides[0].pieces(ngram)) for ngram, _, _ in cache.items()}
        known.append([ngram in entries for ngram in needed])
        cache.observe(draft_ids, target_ids, *sides)
        sizes.append(len(cache))
    return sizes, known


sizes, known = learn()
print("entries after n texts")
bars({n: sizes[n - 1] for n in (15, 30, 60, 75, 90, 120)}, 0.15, "d")
assert sizes[59] - sizes[29] < sizes[29] and sizes[119] - sizes[89] < sizes[89] - sizes[59]  # it grows ever more slowly

# %% [markdown]
# On each topic the cache grows ever more slowly, and the second topic needs n-grams of its own. What if there is room for
# only a quarter of them? Here is the share known in the last 30 texts of each topic:

# %%
room = sizes[-1] // 4
shares = {"no limit": known} | {f"quarter, {policy}": learn(room, policy)[1] for policy in ("none", "lru", "lfu")}
for topic, last in (("stories", slice(30, 60)), ("then programs", slice(90, 120))):
    print(topic)
    bars({name: np.mean(np.concatenate(known[last])) for name, known in shares.items()}, 40, ".0%", topic)

# %% [markdown]
# Here, as long as the topic stays the same, it matters little which entry is evicted, though all of them lose a lot. After
# the change, a cache that takes nothing new is useless; LFU clings to what was used often *before*; LRU soon replaces
# everything. (The paper measures on one topic, code: LFU with a quarter of the room is nearly as good as no limit, and LRU
# is close to it; Table 14.) By default this package has no limit and evicts nothing.

# %% [markdown]
# ## Exercises
#
# 1. Entries (1, 2) <-> 10, (1, 2, 3) <-> 11, (3, 4) <-> 12, direct token 4 -> 40. What does the draft 1, 2, 3, 4 propose?
# 2. A cache has room for two. Insert A, use A twice, insert B, use B once, insert C, insert D. Which two entries are left
#    with LRU, and which with LFU? Answer in alphabetical order, for example ("AB", "CD").
# 3. Build it: write the translation of a draft in tutorials/exercises/step2_merge.py; `omnidraft tutorial 3 --check` tests it.

# %%
check("3.1", ...)
check("3.2", ...)
