"""Lesson 8, step 6: the loop.

Write `speculate` of tutorials/mini.py without looking at it: you replace its section 5 and may use everything else.
`draft` and `target` are Models (`logits(ids, n)`, `write(ids, data)`, `bytes(ids)`, `ends`). The text so far is `own` in the
drafter's tokens and `ids` in the target's. Until `new` target tokens are written, or one that is in `target.ends`:

    1. draft up to k tokens, each drawn from its row (`probabilities`) after the ones before it, but no more than there is room
       for next to the target's own token (so none if only one is still to be written). One in `draft.ends` is the last one.
    2. translate: `trie.paths[d]` has the atoms of draft token d, or () if it has none (then use None: it matches nothing).
       `trie.merge(atoms)` gives the proposals; an expansion may make them too many: keep as many as there is room for.
    3. run one pass of the target over the text and all proposals: one row for each proposal, and one more.
    4. `verify(atoms, trie, p, room, draws)` gives what the round writes. Its atoms are triples: the atom, the row that its
       token was drawn from, and a tuple of the earlier atoms of the same token. Nothing may follow an end token.
    5. both sides continue from what was written; for the drafter, `draft.write(own, its bytes)` turns it into tokens.
"""

from mini import probabilities, verify  # noqa: F401 (you will need them)


def speculate(draft, target, trie, own, ids, k, new, temperature, draws):
    """A list of rounds, each a list of the target tokens that it writes."""
    raise NotImplementedError("hint: room = (tokens still to write) - 1, then the five steps in order")
