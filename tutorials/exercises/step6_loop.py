"""Lesson 9, step 6: the loop.

The lesson is "One drafter, two targets", in tutorials/09_all_together.py.

Write `speculate` of tutorials/mini.py without looking at it: you replace its section 4 and may use everything else.
`draft` and `target` are Models: `write(text)` gives ids, `words[id]` what a token spells, and `rows(ids, temperature)` the
distribution after each of the ids (of bigram models, so a token looks only at the one before it). Until at least `new`
target tokens are written after `text`:

    1. draft up to k tokens, each drawn (`choose(row)`) from its row after the one before it, but fewer than the tokens still to
       write, because the target adds one of its own (so none if only one is still to be written).
    2. translate: `trie.paths[d]` has the atoms of draft token d. `trie.walk(atoms)` gives a route, the proposals, and the node
       in which the atoms end. If a token ends there (`trie.token`), it is the last proposal.
    3. run one pass of the target, over the last token of the text and all proposals: one row for each, and one more.
    4. `verify(atoms, q, p, trie, choose)` gives what the round writes, and the steps to it. Its atoms are triples: the atom,
       the number j of its draft token, and a tuple of the atoms before it in this token; q are the rows that were drawn from.
    5. both sides continue from what was written; for the drafter, `draft.write` turns the text into tokens.
"""

from mini import verify  # noqa: F401 (you will need it)


def speculate(draft, target, trie, text, k, new, temperature, choose):
    """A list of rounds, each a list of the target tokens that it writes."""
    raise NotImplementedError("hint: k or (tokens still to write) - 1 draft tokens, then the five steps in order")
