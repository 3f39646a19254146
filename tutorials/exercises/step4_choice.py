"""Lesson 5, step 4: one lifted choice.

The lesson is "Lifting", in tutorials/05_lifting.py.

`P` is the result of step 3 at one node: a dict with the atoms of its children, and "stop" (inside the trie) or "rest" (at the
root). `q` is the drafter's distribution of the next atom, a dict over *all* atoms, and `atom` was drawn from it. Its proposal:

    a child of the node        that child;                           Q(child) = q(atom)
    any other, inside a node   "stop": the token has ended here;     Q("stop") = 1 - the sum of Q over the children
    any other, at the root     nothing that the target could write;  Q("rest") = 0

Then continue as in step 1, over these categories: keep the proposal with min(1, P / Q), else draw from max(0, P - Q).
"""


def choose(P, q, atom, draws):
    """(category, kept): what the target writes, as a key of P, and whether it was the draft's proposal."""
    raise NotImplementedError("hint: first make a dict Q with the keys of P; draws.choose takes a list and returns an index")
