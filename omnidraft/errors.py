"""The one exception of omnidraft: bad input, said in one line."""

from __future__ import annotations


class OmnidraftError(ValueError):
    """What is wrong, why, and what to do about it, in one line that a command line can print as it is.

    >>> str(OmnidraftError("k is -1: a draft length cannot be negative; pass 0 or more"))
    'k is -1: a draft length cannot be negative; pass 0 or more'
    """
