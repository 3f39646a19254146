"""Lesson 6, step 7: how much of a block is kept.

The lesson is "Blocks", in tutorials/06_blocks.py.

A draft is a list of comparisons. For each there are P and Q, arrays over the same categories, and the category that was
drafted, drawn from Q. Judge them as a block:

    1. r is 1 at first, and each comparison makes it min(1, r P / Q), with the P and Q of the drafted category. Keep the r
       *before* each comparison, too.
    2. With the last r, all are kept.
    3. Otherwise go back from the last comparison, and stop at each with probability h = Z / (Z + 1 - r): r is the one
       before it, and Z the sum of its residual max(0, r P - Q). The comparisons before it are kept, and its residual draws a
       category.

`draws.accept(probability)` and `draws.choose(weights)` make the random decisions. Where r is 1, h is 1.
"""

import numpy as np  # noqa: F401 (you may need it)


def keep(comparisons, drafted, draws):
    """comparisons: [(P, Q), ...]; drafted: [category, ...]. How many are kept, and the category drawn next (or None)."""
    raise NotImplementedError("hint: collect the r before each comparison in a list, then go through it backwards")
