# %% [markdown]
# # 3 · The n-gram cache
#
# The drafter writes " window" as two tokens, " w" and "indow"; for the target it is one token. The direct map of lesson 2
# translates " w" alone. The target wants " window", so it gives " w" almost no probability and rejects it. The draft was
# right, yet it is thrown away. This is a **false rejection**.
#
# The remedy: remember that the **n-gram** (" w", "indow"), n consecutive draft tokens, is one target token, and translate
# it as a whole. The memory is the **n-gram cache**.
#
# ## The equation (arXiv 2507.02659, section 3.1)
#
#     an entry:        (d_1, ..., d_n) <-> t,    n >= 2,    bytes(d_1) + ... + bytes(d_n) = bytes(t)
#     translation:     at each place of the draft, take the longest n-gram that the cache knows;
#                      else the direct token; if there is none either, the translation ends.

# %%
from helpers import bars, check, examples, paint

from omnidraft import Options, Pair, Uniforms, load, speculative
from omnidraft.ngram_cache import NGramCache
from omnidraft.stopping import FixedLength
from omnidraft.vocabulary import aligned_spans


def translate(draft, direct, cache):
    """The target tokens for a tuple of draft tokens; `direct` and `cache` are dicts to target tokens."""
    tokens = []
    while draft:
        n = max((n for n in range(2, len(draft) + 1) if draft[:n] in cache), default=1)
        token = cache[draft[:n]] if n > 1 else direct.get(draft[0])
        if token is None:
            break
        tokens.append(token)
        draft = draft[n:]
    return tokens


# %% [markdown]
# ## By hand
#
# The drafter has the tokens f, la, ke, s; the target has f, la, s, fla and flake. The longest n-gram wins, since the target
# prefers long tokens: f, la and ke **merge** into flake. A lone "ke" has no direct token, so the translation ends there.

# %%
direct = {"f": "f", "la": "la", "s": "s"}
cache = {("f", "la"): "fla", ("f", "la", "ke"): "flake"}
for draft, wanted in {"f la ke s": "flake s", "f la s": "fla s", "s f ke s": "s f"}.items():
    made = " ".join(translate(tuple(draft.split()), direct, cache))
    print(f"{draft:10} is translated to  {made}")
    assert made == wanted

# %% [markdown]
# ## The real thing
#
# Where do entries come from? One way is to **prefill** the cache: ask the drafter's tokenizer how it would write each target
# token that has no direct token. This is the **split** of the token. Here is one prompt at temperature 0, first with an empty
# cache, then with a prefilled one. (`omnidraft` is the paper's rule, which lesson 4 examines; at temperature 0 it only asks
# whether the target would take this token.) The translated tokens, which the target judges, are called **proposals**;
# `translate` gives the same ones as the package. (After a round, the drafter's tokenizer cuts the new text into draft
# tokens.) Here the cache changes the speed, not the text.

# %%
drafter, target = load("draft-tasks"), load("qwen-like")
prompt = "Write a Python function named `dot` that returns the dot product of two lists."
options = Options(verify="omnidraft", stop=FixedLength(6), max_new_tokens=48)
texts = []
for cache in (NGramCache(), None):  # None: the default, prefilled
    pair = Pair(drafter, target, cache)
    rounds = list(speculative(pair, prompt, options, Uniforms([])))
    texts.append([token for r in rounds for token in r.emitted])
    print(f"{len(pair.cache)} entries: {len(rounds)} target passes for {len(texts[-1])} tokens, end of text included")
    paint(target.tokenizer, rounds, legend=cache is None)
    direct = {d: t for d, t in enumerate(pair.alignment.draft_to_target) if t >= 0}
    entries = {ngram: token for ngram, token, _ in pair.cache.items()}
    assert all(translate(tuple(r.draft_tokens), direct, entries) == r.proposals for r in rounds)
assert texts[0] == texts[1]

# %% [markdown]
# The paper's way is to learn from text: every n:1 span (lesson 2) of the text just written becomes an entry. We do it after
# each of eight stories.

# %%
def merges(text):
    """The n:1 spans of a text, as (n-gram, target token)."""
    ours, theirs = (side.tokenizer.encode_continuation(text) for side in (drafter, target))
    spans = aligned_spans(drafter.tokenizer.pieces(ours), target.tokenizer.pieces(theirs))
    for (first, last), (place, end) in spans:  # draft tokens and target tokens; the ends are excluded
        if last - first > 1 and end - place == 1:
            yield tuple(ours[first:last]), theirs[place]


def passes(pair, learning):  # for each story
    for example in examples("text", 8):
        rounds = list(speculative(pair, example["prompt"], options, Uniforms([])))
        if learning:
            for ngram, token in merges(target.tokenizer.decode([token for r in rounds for token in r.emitted])):
                pair.cache.insert(ngram, token)
        yield len(rounds)


found = {"always empty": [*passes(Pair(drafter, target, NGramCache()), learning=False)],
         "learning": [*passes(Pair(drafter, target, NGramCache()), learning=True)],
         "prefilled": [*passes(Pair(drafter, target), learning=False)]}
for name, counts in found.items():
    print(f"{name:12}", *(f"{count:3}" for count in counts))
bars({name: sum(counts) for name, counts in found.items()}, 0.4, "d", "target passes for eight stories")
assert sum(found["always empty"]) > sum(found["learning"]) > sum(found["prefilled"])

# %% [markdown]
# A full cache takes no new entry ("none"), or first removes an old one (**eviction**): the least recently used ("lru") or
# the least frequently used ("lfu").

# %%
class Cache(dict):
    """n-gram -> (target token, number of uses); the last used comes last."""

    def __init__(self, capacity, policy):
        self.capacity = capacity
        self.policy = policy

    def use(self, ngram):
        token, uses = self.pop(ngram)
        self[ngram] = (token, uses + 1)

    def insert(self, ngram, token):
        if ngram in self:
            return
        if len(self) == self.capacity:
            if self.policy == "none":
                return
            oldest = next(iter(self))
            rarest = min(self, key=lambda ngram: self[ngram][1])  # the oldest of the rarest
            del self[oldest if self.policy == "lru" else rarest]
        self[ngram] = (token, 1)


for policy, kept in {"none": "AB", "lru": "BC", "lfu": "AC"}.items():  # A, B, C are n-grams; there is room for two
    limited = Cache(2, policy)
    limited.insert("A", 10)
    limited.insert("B", 20)
    for ngram in "AAB":  # A is used most often, B last
        limited.use(ngram)
    limited.insert("C", 30)
    print(f"{policy:4}  keeps", *sorted(limited))
    assert sorted(limited) == [*kept]

# %% [markdown]
# When the topic changes, LFU clings to what was used often *before*, while LRU soon replaces everything. By default this
# package has no limit (omnidraft/ngram_cache.py).
#
# ## Exercises
#
# 1. Entries (1, 2) <-> 10, (1, 2, 3) <-> 11, (3, 4) <-> 12, direct token 4 -> 40. How is the draft 1, 2, 3, 4 translated?
# 2. A cache has room for two. Insert A, use A twice, insert B, use B once, insert C, insert D. Which two entries are left
#    with LRU, and which with LFU? Answer in alphabetical order, for example ("AB", "CD").
# 3. Build it: write the translation from memory in tutorials/exercises/step2_merge.py; `omnidraft tutorial 3 --check` tests
#    it.

# %%
check("3.1", ...)
check("3.2", ...)
