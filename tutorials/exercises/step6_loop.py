"""Lesson 8, step 6: the loop.

Write `speculate` of tutorials/mini.py without looking: its section 5 is what you replace, all else of it is yours to use.
`draft` and `target` are Models (`logits(ids, n)`, `write(ids, data)`, `bytes(ids)`, `ends`). The text so far is `own` in the
drafter's tokens and `ids` in the target's. Until `new` target tokens are written, or one that is in `target.ends`:

    1. draft up to k tokens, each drawn from its row (`probabilities`) after the ones before it; one that is in `draft.ends` is
       the last one. Never draft where there is room for one token only: that one is the target's own.
    2. translate: `trie.paths[d]` has the atoms of draft token d, () if there are none (then put None: it matches nothing).
       `trie.merge(atoms)` gives the proposals; keep as many as there is room for, besides the target's own token.
    3. one pass of the target over the text and all proposals: a row for each proposal, and one more.
    4. `verify(atoms, trie, p, room, draws)` gives what the round writes. Its atoms are triples: the atom, the row that its
       token was drawn from, and a tuple of the atoms of the same token before it. Nothing may follow an end token.
    5. both sides continue from what was written: the drafter's tokens of it are `draft.write(own, its bytes)`.
"""

from mini import probabilities, verify  # noqa: F401 (you will need them)


def speculate(draft, target, trie, own, ids, k, new, temperature, draws):
    """A list with the target tokens that each round writes, itself a list."""
    raise NotImplementedError("hint: room = (tokens still to write) - 1, then the five steps in their order")
