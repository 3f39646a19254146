# %% [markdown]
# # 2 · Two tokenizers, one text
#
# Lesson 1 compared p(x) with q(x), so both models need the same token x. A **vocabulary** is the list of all tokens that a
# model reads and writes; a token's **id** is its place in this list. Each family of models has its own vocabulary, and id
# 300 in one has nothing to do with id 300 in another. What they share is the text: each ordinary token stands for some
# bytes.
#
# ## The equation (this project's own)
#
#     draft token d = target token t    if and only if    bytes(d) = bytes(t)
#
# The table d -> t of all such pairs is the **direct map**. It takes two lines: a dictionary of one side, in which we look up
# the tokens of the other.

# %%
from collections import Counter

from helpers import bars, check, examples, paint_spans

import numpy as np
from omnidraft import load
from omnidraft.text.tokenizer import CHARACTER_TO_BYTE
from omnidraft.vocabulary import align


def direct_map(draft_tokens, target_tokens):
    """For each draft token the id of the equal target token, or -1; tokens are given as bytes or as strings."""
    ids = {token: t for t, token in enumerate(target_tokens)}
    return [ids.get(token, -1) for token in draft_tokens]


# %% [markdown]
# ## By hand
#
# If t has the same bytes as d, it is called the **direct token** of d, and d that of t. The paper (arXiv 2507.02659, section
# 3.1 and Table 8) compares *strings* instead, as they are written in the files of the two **tokenizers** (programs that cut
# text into tokens). But these files come in two styles:
#
# - *SentencePiece*: plain text, in which "▁" is a space. A character without a token of its own is written byte by byte, with
#   tokens named `<0x00>` to `<0xFF>` (**byte fallback**).
# - *Byte-level*: each of the 256 bytes is written as one character. A printable byte stands for itself, as in Latin-1, so the
#   byte 0xE9 is "é"; each of the others has a stand-in: space is "Ġ", newline is "Ċ".
#
# The letter é is two bytes in UTF-8, C3 A9. A byte-level vocabulary writes them as "Ã©"; its token written "é" is the single
# byte E9, which is not a letter at all. Comparing strings, even with "▁" turned into "Ġ", gets one pair right and one
# wrong, and misses the newline. Comparing bytes finds all three.

# %%
def sentence_piece_bytes(string):
    return bytes.fromhex(string[3:5]) if string.startswith("<0x") else string.replace("▁", " ").encode()


def byte_level_bytes(string):
    return bytes([CHARACTER_TO_BYTE[character] for character in string])


drafts, targets = ["▁the", "é", "<0x0A>"], ["Ġthe", "é", "Ċ", "Ã©"]
by_strings = direct_map([string.replace("▁", "Ġ") for string in drafts], targets)
by_bytes = direct_map(map(sentence_piece_bytes, drafts), map(byte_level_bytes, targets))
names = [*targets, "none"]  # id -1, not found, is the last
for string, one, other in zip(drafts, by_strings, by_bytes, strict=True):
    print(f"{string:6}  by strings {names[one]:4}  by bytes {names[other]}")
assert (by_strings, by_bytes) == ([0, 1, -1], [0, 3, 2])

# %% [markdown]
# ## The real thing
#
# Our drafter's tokenizer is in the style of SentencePiece, the target's is byte-level. `token_bytes` are the bytes of each
# token; `align` is the package's direct map. Strings miss 15 % of the drafter's tokens (most of them `<0x..>`), bytes 2 %.
# More than half of the target's have none: it has twice as many tokens. (Two draft tokens may have the same bytes,
# such as A and `<0x41>`.)

# %%
drafter, target = load("draft-tasks").tokenizer, load("qwen-like").tokenizer
alignment = align(drafter, target)
bars({"drafter's tokens, by strings": align(drafter, target, strings=True).shared_draft / drafter.size,
      "drafter's tokens, by bytes": alignment.shared_draft / drafter.size,
      "target's tokens, by bytes": alignment.shared_target / target.size}, 40, ".1%", "found in the other vocabulary")
two_lines = np.array(direct_map(drafter.token_bytes, target.token_bytes))
names = [*target.strings, "none"]
for d in np.flatnonzero(two_lines != alignment.draft_to_target):
    print(f"{drafter.strings[d]:6} by two lines {names[two_lines[d]]:11} right: {names[alignment.draft_to_target[d]]}")

# %% [markdown]
# So the two lines are wrong only for **special tokens**, such as the one that ends a text. They have no bytes, so the two
# lines give all of them one key. Instead, we pair them by **role**: what they are for.

# %%
def repaired(drafter, target):
    mapped = np.array(direct_map(drafter.token_bytes, target.token_bytes))
    special = [not data for data in drafter.token_bytes]
    mapped[special] = -1
    for role in ("bos", "eos"):  # begin and end of sequence
        if drafter.roles[role] and target.roles[role]:
            mapped[list(drafter.roles[role])] = target.roles[role][0]
    return mapped


assert np.array_equal(repaired(drafter, target), alignment.draft_to_target)  # as by the package

# %% [markdown]
# Now both tokenizers cut the same text into tokens. Wherever both have a boundary, one **span** ends and the next begins.
# Most spans have one token on each side (1:1); others have several draft tokens for one target token (n:1), the reverse
# (1:n), or several for several (n:n). To find a span, the side that is behind takes its next token, until both sides have
# the same bytes.

# %%
def spans(ours, theirs):
    """Cut two lists of tokens (bytes) that spell the same text into its spans: (kind, draft tokens, target tokens)."""
    ours, theirs = [*ours], [*theirs]
    left, right = [], []
    while ours or theirs:
        if len(b"".join(left)) <= len(b"".join(right)):
            left.append(ours.pop(0))
        else:
            right.append(theirs.pop(0))
        if b"".join(left) == b"".join(right):
            yield f"{'1' if len(left) == 1 else 'n'}:{'1' if len(right) == 1 else 'n'}", left, right
            left, right = [], []


found = [*spans([b"Snow", b"f", b"la", b"ke", b" me", b"lts"], [b"Snow", b"flake", b" melt", b"s"])]
print(*found, sep="\n")
assert [kind for kind, *_ in found] == ["1:1", "n:1", "n:n"]

# %% [markdown]
# Here are the spans of a sentence, in brackets, and how common each kind is in 90 texts, for two drafters. `>` marks n:1, `<`
# 1:n, and `#` n:n. Most spans are 1:1. Here the others are n:1 for a drafter with a smaller vocabulary than the target's, and
# 1:n for one with a larger: llama3-like writes 24 as one token, the target as two.

# %%
def both(drafter, text):
    ours, theirs = (side.pieces(side.encode_continuation(text)) for side in (drafter, target))  # the tokens, as bytes
    return spans(ours, theirs)


for name in ("draft-tasks", "llama3-like"):
    drafter = load(name).tokenizer
    paint_spans([name, "qwen-like"], both(drafter, "Question: Sarah has 24 boxes with 13 red pens each."))
    counts = Counter(kind for one in examples("math", 90) for kind, *_ in both(drafter, one["response"]))
    bars({kind: counts[kind] / counts.total() for kind in ("1:1", "n:1", "1:n", "n:n")}, 40, ".1%")

# %% [markdown]
# With the direct map alone, only 1:1 spans can be proposed correctly. Lesson 3 adds n:1, lesson 10 adds 1:n.
#
# ## Exercises
#
# 1. Which bytes does the SentencePiece token "▁né" stand for? Answer with a bytes literal, such as `b"\xff"`.
# 2. How does a byte-level vocabulary write the token for the two bytes space and newline? Answer with a string.
# 3. Write a function that takes the token lengths (in bytes) of two tokenizations of the same text, and returns a sorted
#    list of the places (counted in bytes, without the start) where both have a boundary.
# 4. Build it: tutorials/exercises/step8_direct.py; `omnidraft tutorial 2 --check` tests it.

# %%
check("2.1", ...)
check("2.2", ...)


def shared_boundaries(draft_lengths, target_lengths):
    return ...


check("2.3", shared_boundaries)
