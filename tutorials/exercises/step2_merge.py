"""Lesson 3, step 2: translate a draft by merging.

The lesson is "The n-gram cache", in tutorials/03_ngram_cache.py.

`draft` is a list of draft tokens, `direct` a dict from draft tokens to their direct target tokens, and `ngrams` a dict from
tuples of draft tokens to target tokens. All tokens are strings here. At each position of the draft

    take the longest n-gram of the cache that begins there;
    else take the direct token of the draft token there;
    else stop: there are no more proposals.

Example: with ngrams {("f", "la"): "fla", ("f", "la", "ke"): "flake"} and direct {"f": "f", "s": "s"} the draft f, la, ke, s
gives the proposals flake, s.
"""


def merge(draft, direct, ngrams):
    """The proposals: a list of target tokens."""
    raise NotImplementedError("hint: try the lengths from the longest down to 2, and advance by the number of tokens used")
