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
# The table d -> t of all such pairs is the **direct map**; t is the **direct token** of d, and d is the direct token of t.
# The paper (arXiv 2507.02659, section 3.1 and Table 8) compares *strings* instead, as they are written in the files of the
# two **tokenizers** (programs that cut text into tokens). But there are two ways to write bytes in these files:
#
# - *SentencePiece*: plain text in which "▁" is a space. Bytes that no token spells are written one by one, as tokens named
#   `<0x00>` to `<0xFF>` (**byte fallback**).
# - *Byte-level*: each of the 256 bytes has a stand-in character. A printable byte stands for itself, so the byte 0xE9 is
#   "é"; the others borrow a letter: space is "Ġ", newline is "Ċ".

# %%
from collections import Counter

from helpers import bars, check, draw_spans, escape, examples

import numpy as np
from omnidraft import load
from omnidraft.text.tokenizer import CHARACTER_TO_BYTE
from omnidraft.vocabulary import align, aligned_spans
from rich.console import Console
from rich.text import Text

# %% [markdown]
# ## By hand
#
# The direct map takes two lines: a dictionary of one side, looked up for the other. What is looked up may be strings or
# bytes.

# %%
def direct_map(draft_tokens, target_tokens):
    """Per draft token the id of the equal target token, or -1; tokens are given as strings or as bytes."""
    ids = {token: t for t, token in enumerate(target_tokens)}
    return [ids.get(token, -1) for token in draft_tokens]


# %% [markdown]
# The letter é is two bytes in UTF-8, C3 A9. The byte-level vocabulary writes them as "Ã©"; its own token "é" is the single
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
for string, one, other in zip(drafts, by_strings, by_bytes, strict=True):
    print(f"{string:6}  by strings {[*targets, 'none'][one]:4}  by bytes {[*targets, 'none'][other]}")
assert (by_strings, by_bytes) == ([0, 1, -1], [0, 3, 2])

# %% [markdown]
# ## The real thing
#
# The embedded drafter has a SentencePiece-like tokenizer, the target a byte-level one. In the package, `token_bytes` holds
# the bytes of each token.

# %%
drafter, target = load("draft-tasks").tokenizer, load("qwen-like").tokenizer
alignment = align(drafter, target)  # the package's direct map
bars({"drafter's tokens, by strings": align(drafter, target, strings=True).shared_draft / drafter.size,
      "drafter's tokens, by bytes": alignment.shared_draft / drafter.size,
      "target's tokens, by bytes": alignment.shared_target / target.size}, 40, ".1%", "found in the other vocabulary")
two_lines = np.array(direct_map(drafter.token_bytes, target.token_bytes))
names = [*target.strings, "none"]
for d in np.flatnonzero(two_lines != alignment.draft_to_target):
    print(f"{drafter.strings[d]:6} by two lines {names[two_lines[d]]:11} right: {names[alignment.draft_to_target[d]]}")

# %% [markdown]
# So the two lines are nearly right. What is still missing?
#
# - **Special tokens** (begin of text, end of text) have no bytes: for the two lines, all of them are the same. They are paired
#   by **role** instead: according to what they do. (Text that merely looks like a special token stays text: what a model
#   wrote never becomes an end token when it is read again.)
# - A vocabulary may spell the same bytes twice, such as "A" and `<0x41>`. The dictionary keeps the last one. It should keep
#   the one that the tokenizer itself writes, because the model has seldom read the other.

# %%
def repaired(drafter, target):
    ids = {}
    for t, data in enumerate(target.token_bytes):
        if data and (data not in ids or target.split(data) == (t,)):  # `split`: how the tokenizer writes these bytes
            ids[data] = t
    mapped = np.array([ids.get(data, -1) for data in drafter.token_bytes])
    for role in ("bos", "eos"):  # begin and end of sequence; a model may have several such tokens, or none
        if drafter.roles[role] and target.roles[role]:
            mapped[list(drafter.roles[role])] = target.roles[role][0]
    return mapped


assert np.array_equal(repaired(drafter, target), alignment.draft_to_target)
print(f"all {drafter.size:,} tokens are mapped as by the package")

# %% [markdown]
# Now we look at one text in two tokenizations. `aligned_spans` cuts it wherever both have a token boundary, into **spans**:
# mostly one token on each side (1:1), otherwise several draft tokens for one target token (n:1), the reverse (1:n), or
# several for several (n:n). SentencePiece puts a "dummy space" before a text; `encode_continuation` leaves it out, so that
# both sides spell the same bytes. Each span is in brackets below; `*` marks n:1, `!` 1:n, and `-` n:n.
#
# We do it for two pairs. The first drafter has 2,048 tokens, fewer than the target's 4,096. The second, llama3-like, has
# 6,000, and many of them are longer than the target's: it writes 24 as one token, the target as two. Then we count the
# spans in 90 texts.

# %%
SIGNS = {"1:1": ("", ""), "n:1": ("*", "cyan underline"), "1:n": ("!", "bold yellow"), "n:n": ("-", "red")}


def spans(drafter, text):
    """The smallest spans of a text: (kind, draft tokens, target tokens), each token as its bytes."""
    ours, theirs = (side.pieces(side.encode_continuation(text)) for side in (drafter, target))
    for (a, b), (c, d) in aligned_spans(ours, theirs):
        left = "n" if b - a > 1 else "1"
        right = "n" if d - c > 1 else "1"
        yield f"{left}:{right}", ours[a:b], theirs[c:d]


sentence = "Question: Sarah has 24 boxes with 13 red pens each."
texts = [example["response"] for task in ("math", "code", "text") for example in examples(task, 30)]
for name in ("draft-tasks", "llama3-like"):
    drafter = load(name).tokenizer
    draw_spans(f"{name} (above) and qwen-like", spans(drafter, sentence))
    lines = Text(f"{name:12}"), Text("qwen-like   ")
    for kind, *sides in spans(drafter, sentence):
        for line, side in zip(lines, sides, strict=True):
            shown = "|".join(escape(token.decode(errors="replace")) for token in side)
            line.append(f"[{SIGNS[kind][0]}{shown}]", SIGNS[kind][1])
    Console(highlight=False).print(*lines, sep="\n", soft_wrap=True)
    counts = Counter(kind for text in texts for kind, *_ in spans(drafter, text))
    bars({kind: counts[kind] / counts.total() for kind in SIGNS}, 40, ".1%")

# %% [markdown]
# With the direct map alone, only 1:1 spans can be proposed. Lesson 3 adds n:1, lesson 6 adds 1:n.
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
