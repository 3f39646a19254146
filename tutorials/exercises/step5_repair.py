"""Lesson 4, step 5: repair the paper's Eq. 1.

The drafter's tokens are letters, and each is its own direct token. `ngrams` is a set of tuples of letters; for each of them
the target has one token (written as the joined letters: ("a", "b") is "ab"). The drafter draws as many letters as the longest
n-gram has; `row(beginning)` is the distribution of the next letter after these letters, a dict. Then step 2 merges.

Eq. 1 says that "a" is proposed with q(a). This is too much: if the next letters complete an n-gram that begins with this a,
the n-gram is proposed instead. And if a longer n-gram replaces a shorter one, the shorter one is not proposed.

How probable is each token as the *first* proposal? With these numbers in place of q', the rule is exact.
"""


def first_proposal(row, ngrams):
    """{token: probability that the first proposal is this token}; impossible tokens may be omitted."""
    raise NotImplementedError("hint: the probability of an n-gram is a product of rows; subtract what longer ones take")
