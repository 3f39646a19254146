"""Lesson 5, step 3: the trie of splits, with the target's probabilities.

The lesson is "Lifting", in tutorials/05_lifting.py.

`splits` is a dict from target tokens to their splits, which are tuples of atoms. `p` is a dict from all target tokens to their
probabilities. A token of p without a split is uncovered. A node is the beginning of a split, as a tuple; the root is ().

The mass of a node is the total p of the tokens whose split begins with it. At each node that has a longer split below it the
target has a choice: the next atom, with probability mass(child) / mass(node), or "stop" if the node's own token ends here. No
token can end at the root; there "rest" stands for the uncovered tokens.

Example: the tokens a (a), ab (a, b) and z (uncovered) with p = 0.3, 0.5 and 0.2 give

    {(): {"a": 0.8, "rest": 0.2},  ("a",): {"b": 0.625, "stop": 0.375}}
"""


def trie(splits, p):
    """{node: {atom, "stop" or "rest": probability}} for all nodes with children; you may leave out what is impossible."""
    raise NotImplementedError("hint: first the masses of all beginnings of all splits, then the ratios")
