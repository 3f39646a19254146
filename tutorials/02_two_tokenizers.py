# %% [markdown]
# # 2 · Two tokenizers, one text
#
# Lesson 1 compared p(x) with q(x), so both models need the same token x. A **vocabulary** is the list of all tokens that a
# model reads and writes; a token's **id** is its place in this list. Model families have different vocabularies, and id 300
# in one has nothing to do with id 300 in another. What they share is the text: each ordinary token stands for some
# bytes. This lesson finds the tokens that mean the same in both vocabularies.
#
# ## The equation (this project's own)
#
#     draft token d = target token t    if and only if    bytes(d) = bytes(t)
#
# The table d -> t of all such pairs is the **direct map**; t is the **direct token** of d, and d that of t. The paper
# (arXiv 2507.02659, section 3.1 and Table 8) compares *strings* instead, as they are written in the files of the two
# **tokenizers** (programs that cut text into tokens). But there are two ways to write bytes in these files:
#
# - *SentencePiece*: plain text in which "▁" is a space. Bytes that no token spells are written one by one, as tokens named
#   `<0x00>` to `<0xFF>` (**byte fallback**).
# - *Byte-level*: each of the 256 bytes has a stand-in character. A printable byte stands for itself, so the byte 0xE9 is
#   "é"; the others borrow a letter: space is "Ġ", newline is "Ċ".

# %%
from collections import Counter

from helpers import bar, check, draw_spans, escape, examples, show

import numpy as np
from omnidraft import load
from omnidraft.text.tokenizer import CHARACTER_TO_BYTE
from omnidraft.vocabulary import align, aligned_spans, canonical_ids
from rich.console import Console
from rich.text import Text

# %% [markdown]
# ## By hand
#
# The letter é is two bytes in UTF-8, C3 A9. The byte-level vocabulary writes them as "Ã©"; its own token "é" is the single
# byte E9, which is not a letter at all. Comparing strings, even with "▁" turned into "Ġ", gets one pair right and one wrong,
# and misses the newline. Comparing bytes finds all three.

# %%
def sentence_piece_bytes(string):
    return bytes.fromhex(string[3:5]) if string.startswith("<0x") else string.replace("▁", " ").encode()


def byte_level_bytes(string):
    return bytes([CHARACTER_TO_BYTE[character] for character in string])


target_strings = ["Ġthe", "é", "Ċ", "Ã©"]
of_bytes = {byte_level_bytes(string): string for string in target_strings}
found = []
for string in ("▁the", "é", "<0x0A>"):
    spelled = string.replace("▁", "Ġ")
    data = sentence_piece_bytes(string)
    found.append((spelled if spelled in target_strings else None, of_bytes.get(data)))
    print(f"{string:6}  {str(data):11}  by strings {found[-1][0]!s:4}  by bytes {found[-1][1]}")
assert found == [("Ġthe", "Ġthe"), ("é", "Ã©"), (None, "Ċ")]

# %% [markdown]
# ## The real thing
#
# The embedded drafter has a SentencePiece-like tokenizer, the target a byte-level one. In the package, `token_bytes` holds
# the bytes of each token, and `align` builds the direct map in both directions. If one vocabulary has the same bytes
# twice, such as "A" and `<0x41>`, `canonical_ids` takes the token that the tokenizer itself produces.

# %%
show(canonical_ids)
show(align)  # the pairs of equal bytes, then those of equal roles (below)
drafter, target = load("draft-tasks").tokenizer, load("qwen-like").tokenizer
by_bytes, by_strings = align(drafter, target), align(drafter, target, strings=True)
print("how much of each vocabulary the other one has")
for name, count, size in (("drafter's, by strings", by_strings.shared_draft, drafter.size),
                          ("drafter's, by bytes", by_bytes.shared_draft, drafter.size),
                          ("target's, by bytes", by_bytes.shared_target, target.size)):
    print(f"{name:22} {bar(count / size)} {count} of {size}")
for d in np.flatnonzero(by_bytes.draft_to_target >= 0):
    if drafter.token_bytes[d]:
        assert drafter.token_bytes[d] == target.token_bytes[by_bytes.draft_to_target[d]]

# %% [markdown]
# **Special tokens** (begin of text, end of text) have no bytes. They are paired by **role**: by what they do. Text that
# merely looks like a special token stays text: what a model wrote never becomes an end token when it is read again.

# %%
draft_end = drafter.roles["eos"][0]  # "eos" is end of sequence; a model may have several such tokens
target_end = by_bytes.draft_to_target[draft_end]
print(f"the drafter's {drafter.strings[draft_end]} is the target's {target.strings[target_end]}")
assert target_end in target.roles["eos"]
assert draft_end not in drafter.encode(drafter.strings[draft_end])

# %% [markdown]
# Now we look at one text in both tokenizations. `aligned_spans` cuts it wherever both have a token boundary, into **spans**:
# mostly one token on each side (1:1), otherwise several draft tokens for one target token (n:1), the reverse (1:n), or
# several for several (n:n). SentencePiece puts a "dummy space" before a text; `encode_continuation` leaves it out, so that
# both sides spell the same bytes. Each span is in brackets below; `*` marks n:1, `!` 1:n, and `-` n:n. Then we count the
# spans in 90 texts.

# %%
SIGNS = {"1:1": ("", ""), "n:1": ("*", "cyan underline"), "1:n": ("!", "bold yellow"), "n:n": ("-", "red")}


def spans(text):
    """The smallest spans of a text: (kind, draft tokens, target tokens), each token as its bytes."""
    sides = [[tokenizer.token_bytes[i] for i in tokenizer.encode_continuation(text)] for tokenizer in (drafter, target)]
    for (a, b), (c, d) in aligned_spans(*sides):
        yield f"{'n' if b - a > 1 else 1}:{'n' if d - c > 1 else 1}", sides[0][a:b], sides[1][c:d]


sentence = "The windows of the shop were broken, so Sarah wrote a letter."
draw_spans("one text, two tokenizations", spans(sentence))
lines = Text("drafter "), Text("target  ")
for kind, *sides in spans(sentence):
    for line, side in zip(lines, sides, strict=True):
        shown = "|".join(escape(token.decode(errors="replace")) for token in side)
        line.append(f"[{SIGNS[kind][0]}{shown}]", SIGNS[kind][1])
Console(highlight=False).print(*lines, sep="\n", soft_wrap=True)

counts = Counter()
for task in ("math", "code", "text"):
    for example in examples(task, 30):
        counts.update(kind for kind, *_ in spans(example["response"]))
print("\nspans in 90 texts")
for kind in SIGNS:
    print(f"{kind}  {bar(counts[kind] / counts.total(), 40, '.1%')}")

# %% [markdown]
# The direct map can draft only the 1:1 spans. Lesson 3 adds n:1, lesson 6 adds 1:n.
#
# ## Exercises
#
# 1. Which bytes does the SentencePiece token "▁né" stand for? Answer with a bytes literal, such as `b"\xff"`.
# 2. How does a byte-level vocabulary write the token for the two bytes space and newline? Answer with a string.
# 3. Write a function that takes the token lengths (in bytes) of two tokenizations of the same text, and returns a sorted
#    list of the places (counted in bytes, without the start) where both have a boundary.

# %%
check("2.1", ...)
check("2.2", ...)


def shared_boundaries(draft_lengths, target_lengths):
    return ...


check("2.3", shared_boundaries)
