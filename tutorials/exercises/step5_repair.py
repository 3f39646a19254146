"""Lesson 4, step 5: repair the paper's Eq. 1.

The lesson is "Translation and the paper's rule, and where it is biased", in tutorials/04_translation_and_bias.py.

The drafter's tokens are letters, and each is its own direct token. `ngrams` is a set of tuples of letters. Each is one token of
the target, written as its letters joined: ("a", "b") is "ab". The drafter draws as many letters as the longest n-gram has.
`row(beginning)` is the distribution of its next letter after these letters, as a dict. Then step 2 merges.

Eq. 1 says that "a" is proposed with probability q(a). That is too much: if the next letters complete an n-gram that begins with
this a, the n-gram is proposed instead. And if a longer n-gram takes the place of a shorter one, the shorter is not proposed.

How probable is each token as the *first* proposal? Used in the rule in place of q', these numbers make it exact.
"""


def first_proposal(row, ngrams):
    """{token: probability that it is the first proposal}; you may leave out what is impossible."""
    raise NotImplementedError("hint: the probability of an n-gram is a product over rows; subtract what longer ones take")
