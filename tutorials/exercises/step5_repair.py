"""Lesson 4, step 5: repair the paper's Eq. 1.

The drafter's tokens are letters, and each is its own direct token. `ngrams` is a set of tuples of letters, each of which the
target has as one token (written as the letters together: ("a", "b") is "ab"). The drafter draws as many letters as the longest
n-gram has; `row(beginning)` is the distribution of its next letter after these letters, a dict. Then step 2 merges.

Eq. 1 says that "a" is proposed with q(a). That is too much: where the next letters make an n-gram that begins with this a, the
n-gram is proposed instead. And where a longer n-gram takes the place of a shorter one, the shorter one is not proposed.

How probable is each token as the *first* proposal? Put into the rule in place of q', these numbers make it exact.
"""


def first_proposal(row, ngrams):
    """{token: probability that the first proposal is this token}; what is impossible may be left out."""
    raise NotImplementedError("hint: the probability of an n-gram is a product of rows; take off what longer ones take")
