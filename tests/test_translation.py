"""Translation: the paper's merge by hand, expansion, and re-tokenizing only near the end."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import byte_level as letters
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import real

from omnidraft.translation import (
    WINDOW,
    Direct,
    _restart,
    common_prefix,
    continuation,
    extend,
    merge,
)

SNOW, F, LA, KE, S = range(5)  # draft tokens
T_SNOW, T_FLAKE, T_F, T_S = range(4)  # target tokens
DIRECT = Direct(np.array([T_SNOW, T_F, -1, -1, T_S]))


def flake(tokens, start):
    """The cache of the paper's figure: "f", "la", "ke" is the target's "flake"."""
    return (T_FLAKE, 3) if tuple(tokens[start:start + 3]) == (F, LA, KE) else None


def rows(*likely: float) -> list[np.ndarray]:
    """One row per drafted token: it has the given probability, and the others share the rest."""
    made = []
    for token, probability in zip((SNOW, F, LA, KE, S), likely, strict=False):
        row = np.full(5, (1 - probability) / 4)
        row[token] = probability
        made.append(row)
    return made


def whole(row) -> list[float]:
    """All entries of q'."""
    return row.tolist()


def spread(direct: Direct, size: int = 4):
    return lambda q: np.bincount(direct.targets, q[direct.drafts], size)


def test_snow_flakes_by_hand():
    q = rows(0.9, 0.8, 0.7, 0.6, 0.5)
    made = merge([SNOW, F, LA, KE, S], q, DIRECT, flake, {}, spread(DIRECT))
    assert (made.tokens, made.spans) == ([T_SNOW, T_FLAKE, T_S], [1, 3, 1])
    assert whole(made.rows[0]) == pytest.approx([0.9, 0, 0.025, 0.025])
    # Eq. 1: 0.8 * 0.7 * 0.6; Eq. 2: the direct token of "f" keeps what is left of 0.8
    assert whole(made.rows[1]) == pytest.approx([0.05, 0.336, 0.8 - 0.336, 0.05])


def test_a_piece_that_completes_nothing_ends_the_proposals():
    assert merge([SNOW, F, LA], rows(0.9, 0.8, 0.7), DIRECT, flake, {}, spread(DIRECT)).tokens == [T_SNOW, T_F]
    assert merge([LA, SNOW], [np.full(5, 0.2)] * 2, DIRECT, flake, {}, spread(DIRECT)).tokens == []


def test_two_draft_tokens_with_one_direct_token_add_up():
    direct = Direct(np.array([0, 0, 1]))
    made = merge([0, 2], [np.array([0.5, 0.2, 0.3])] * 2, direct, lambda t, i: (2, 2) if i == 0 else None, {},
                 spread(direct))
    assert whole(made.rows[0]) == pytest.approx([0.7 - 0.15, 0.3, 0.15, 0])


def test_what_a_merge_is_worth_is_added_to_what_its_token_has_already():
    q = rows(0.9, 0.8, 0.7)[1:]
    own = merge([F, LA], q, DIRECT, lambda t, i: (T_S, 2) if i == 0 else None, {}, spread(DIRECT))  # also S's token
    assert whole(own.rows[0]) == pytest.approx([0.05, 0, 0.8 - 0.56, 0.05 + 0.56]) and own.probs == pytest.approx([0.61])
    same = merge([F, LA], q, DIRECT, lambda t, i: (T_F, 2) if i == 0 else None, {}, spread(DIRECT))  # F's own
    assert same.probs == pytest.approx([0.8])


def test_an_expansion_proposes_each_of_its_tokens():
    made = merge([LA, S], [np.full(5, 0.2)] * 2, DIRECT, flake, {LA: (T_F, T_S)}, spread(DIRECT))
    assert (made.tokens, made.spans) == ([T_F, T_S, T_S], [1, 0, 1])
    assert made.rows[0][T_F] == pytest.approx(0.4) and whole(made.rows[1]) == [0, 0, 0, 1]


def test_a_merge_never_takes_more_than_the_direct_token_has():
    """A float32 row may sum to slightly more than 1: the remainder of Eq. 2 is then 0, not negative."""
    certain = np.float32(1) + np.finfo(np.float32).eps
    q = [np.array([0.5, 0.5, 0, 0, 0], np.float32), np.array([0, 0, certain, 0, 0], np.float32)]
    made = merge([F, LA], q, DIRECT, lambda t, i: (T_FLAKE, 2) if i == 0 else None, {}, spread(DIRECT))
    assert made.rows[0][T_FLAKE] > 0.5 and made.rows[0][T_F] == 0


def test_retokenizing_restarts_where_no_tokenizer_joins():
    """At the last word with one space before it, or after a special token; never inside a run of spaces."""
    tokenizer = letters([(" ", "a"), (" ", " "), ("  ", "a"), ("a", "b")])
    a, b, space, word, spaces, run, ab, end = range(8)
    assert [tokenizer.token_bytes[i] for i in range(8)] == [b"a", b"b", b" ", b" a", b"  ", b"  a", b"ab", None]
    for ids, start in (([a, word, b], 1), ([word, b, word, ab], 2), ([a, end, b], 2), ([a, end], 2), ([word, spaces], 0),
                       ([word, run, b], 0), ([a, space, b], 0), ([word, space], 0), ([a, b], 0), ([], 0), ([word, 99], 2)):
        assert _restart(tokenizer, ids) == start, ids
    assert _restart(tokenizer, [word] + [b] * WINDOW) == 1  # it never goes further back


def test_common_prefix():
    assert common_prefix([], [1]) == 0 and common_prefix([1, 2], [1, 2, 3]) == 2 and common_prefix([1, 2], [1, 3]) == 1


TEXTS = ["Once upon a time, in 1987, there were 12 caf\u00e9s.\n\n    return [x for x in rows]\n",
         "a  b   c    d \u4e2d\u6587 \U0001f642 e"]


@pytest.mark.parametrize("name", ["tokenizers/llama2-32k", "tokenizers/llama3-128k", "tokenizers/qwen2-151k",
                                  "tokenizers/gpt2-50k"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_extending_keeps_every_byte(name, data):
    tokenizer = real(name)
    text = data.draw(st.text(st.sampled_from("ab 1\n\u00e9\u4e2d."), max_size=30)) + data.draw(st.sampled_from(TEXTS))
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    ids = extend(tokenizer, tokenizer.encode_continuation(raw[:cut].decode(errors="ignore")), b"")
    start = tokenizer.decode_bytes(ids)
    longer = extend(tokenizer, ids, raw[len(start):cut] + raw[cut:])
    assert tokenizer.decode_bytes(longer) == raw
    steps = ids
    for place in range(len(start), len(raw), 3):  # cut at any byte, also inside characters
        steps = extend(tokenizer, steps, raw[place:place + 3])
    assert tokenizer.decode_bytes(steps) == raw
    new = continuation(tokenizer, ids, raw[len(start):])
    assert tokenizer.decode_bytes(ids + new) == raw


@pytest.mark.parametrize("name", ["tokenizers/llama2-32k", "tokenizers/llama3-128k", "tokenizers/qwen2-151k"])
def test_growing_word_by_word_gives_the_whole_texts_ids(name):
    tokenizer = real(name)
    text = "Snowflakes fall on the old town. Nobody saw 1234 of them, they're gone; def f(x): return x + 1"
    ids: list[int] = []
    for place in range(0, len(text), 5):
        ids = extend(tokenizer, ids, text[place:place + 5].encode())
    assert ids == tokenizer.encode_continuation(text)
