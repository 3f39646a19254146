"""Lesson 2, step 8: the direct map.

The lesson is "Two tokenizers, one text", in tutorials/02_two_tokenizers.py.

`draft` and `target` are two vocabularies: lists with the bytes of each token. A special token has b"": it spells nothing. For
each draft token find its direct token, an index in `target`:

    an ordinary token    the target token with the same bytes. If there are several, the one that the target's own tokenizer
                         writes: `split(data)` is the tuple of tokens in which it writes these bytes;
    a special token      the target's special token with the same role. `draft_roles` and `target_roles` are dicts from roles
                         ("bos", "eos") to tokens; a model may lack a role, and a special token may have none;
    without such a token -1.

Example: draft [b"", b"a", b"c"] with {"eos": 0}, and target [b"a", b"b", b"", b"a"] with {"eos": 2} and split(b"a") == (3,),
give [2, 3, -1].
"""


def direct_map(draft, target, draft_roles, target_roles, split):
    """The direct token of each draft token, or -1: a list as long as `draft`."""
    raise NotImplementedError("hint: first a dict from bytes to target tokens; a special token must not enter it")
