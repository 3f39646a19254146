"""Alignment of two vocabularies: worked examples, properties, and the paper's counts on the real tokenizers."""

from __future__ import annotations

from itertools import accumulate, pairwise, product

import numpy as np
import pytest
from fakes import FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import byte_level, real, sentencepiece, snow_drafter, snow_target

from omnidraft.decoding import speculative
from omnidraft.options import Options
from omnidraft.pairing import Pairing
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES
from omnidraft.vocabulary import align, aligned_spans


def ids(tokenizer, *strings):
    return [tokenizer.raw.token_to_id(string) for string in strings]


def test_by_bytes_by_hand():
    drafter, target = snow_drafter(), snow_target()
    alignment = align(drafter, target)
    space, snow, newline, letter = ids(drafter, "▁", "▁Snow", "<0x0A>", "S")
    assert alignment.draft_to_target[[space, snow, newline, letter]].tolist() == ids(target, "Ġ", "ĠSnow", "Ċ", "S")
    assert alignment.draft_to_target[ids(drafter, "la")] == -1  # the target has no "la"
    assert alignment.target_to_draft[ids(target, "flake")] == -1
    assert alignment.target_to_draft[ids(target, "S")] == letter  # never <0x53> while there is a plain "S"
    assert alignment.draft_to_target[drafter.byte_fallback[ord("S")]] == ids(target, "S")[0]
    assert alignment.draft_to_target.dtype == alignment.target_to_draft.dtype == np.int32
    # 256 bytes, the 10 characters, and Sn, Sno, Snow, ▁Snow; the target has no "la" or "ke"
    assert alignment.shared_draft == 256 + len("▁Snowflake") + 4
    assert alignment.shared_target == 256 + 4


def test_by_strings_as_in_the_paper():
    drafter, target = sentencepiece("▁éa", "▁ a"), byte_level("Ġ a")
    strings, right = align(drafter, target, strings=True), align(drafter, target)
    e, newline, piece = ids(drafter, "é", "<0x0A>", "▁a")
    assert strings.draft_to_target[piece] == right.draft_to_target[piece] == ids(target, "Ġa")[0]
    assert strings.draft_to_target[e] == ids(target, "é")[0] == 0xE9  # wrong: that is how byte 0xE9 is written
    assert right.draft_to_target[e] == -1
    assert strings.draft_to_target[newline] == -1 and right.draft_to_target[newline] == 10
    assert strings.shared_draft == 4  # ▁, é, a, ▁a


def test_special_tokens_go_by_role():
    drafter = snow_drafter()
    chat = byte_level(specials=("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_start|>"))
    there = align(drafter, chat)
    assert there.draft_to_target[[0, 1, 2]].tolist() == [-1, 256, 257]  # <unk> has no partner; <s>, </s>
    assert there.target_to_draft[256:].tolist() == [1, 2, 2, -1]
    back = align(chat, drafter)
    assert back.draft_to_target[256:].tolist() == [1, 2, 2, -1]
    other = byte_level(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    assert align(other, chat).draft_to_target[256:].tolist() == [257, -1, 258]  # document end, turn end
    # In GPT-2 one token is bos, eos and unk: here it only means the end of the text.
    gpt2 = byte_level(config=dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"))
    assert align(drafter, gpt2).draft_to_target[[0, 1, 2]].tolist() == [-1, -1, 256]


def test_of_several_tokens_with_the_same_bytes_the_produced_one_is_chosen():
    target = byte_level("a b, ab c")
    drafter = sentencepiece("▁ab", "a b", extra=(" ",))  # "▁" and " " both are a space; only "▁" is ever produced
    low, high = sorted(ids(drafter, "▁", " "))
    assert align(target, drafter).draft_to_target[ids(target, "Ġ")] == ids(drafter, "▁")[0] == low
    assert align(drafter, target).draft_to_target[[low, high]].tolist() == ids(target, "Ġ") * 2
    reversed_order = sentencepiece(" ab▁", "a b")  # here the produced token has the higher id
    assert align(target, reversed_order).draft_to_target[ids(target, "Ġ")] == ids(reversed_order, "▁")
    never_produced = sentencepiece("▁ab", extra=("a▁b", "a b"))  # no merge makes either token: the lowest id is used
    added = byte_level(added=("a b",))
    assert align(added, never_produced).draft_to_target[ids(added, "a b")] == ids(never_produced, "a▁b")


def test_empty_and_unused_ids_have_no_partner():
    drafter = sentencepiece("▁a", extra=("",))
    target = sentencepiece("a▁", extra=("",))
    assert align(drafter, target).draft_to_target[ids(drafter, "")] == -1
    gaps = byte_level("a b, ab c", gap=9)
    assert (align(gaps, gaps).draft_to_target[257:266] == -1).sum() == 8  # 258 is <|endoftext|>
    assert align(gaps, gaps).draft_to_target[258] == 258


def test_padded_logits_are_never_proposed():
    drafter, target = snow_drafter(), snow_target()
    models = FakeModel(drafter, 0, padding=5), FakeModel(target, 1, padding=64)
    for seed, (rule, temperature) in enumerate(product(RULES, (0.0, 3.0))):
        options = Options(verify=rule, temperature=temperature, stop=FixedLength(6), max_new_tokens=40)
        rounds = [*speculative(Pairing(*models), "Snow", options, Uniforms(np.random.default_rng(seed)))]
        drafted, proposed = ([token for r in rounds for token in tokens(r)] for tokens in (
            lambda r: r.draft_tokens, lambda r: r.proposals + r.emitted))
        assert drafted and max(drafted) < drafter.size and max(proposed) < target.size
    narrow = align(drafter, target, sizes=(drafter.size, 256))  # a model without the last rows, which are the special tokens
    assert narrow.draft_to_target.max() < 256 and len(narrow.target_to_draft) == 256


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab", min_size=2, max_size=4), unique=True), st.lists(st.text("ab", min_size=2, max_size=4)))
def test_partners_have_equal_bytes(one, other):
    drafter = sentencepiece("▁ab", extra=tuple(one))
    target = byte_level(added=tuple(dict.fromkeys(other)))
    alignment = align(drafter, target)
    forth, back = alignment.draft_to_target, alignment.target_to_draft
    for here, there, table in ((drafter, target, forth), (target, drafter, back)):
        known = set(filter(None, there.token_bytes))
        for token, partner in enumerate(table.tolist()):
            data = here.token_bytes[token]
            if data is not None:
                assert (partner >= 0) == (data in known)
                assert partner < 0 or there.token_bytes[partner] == data


def test_spans_by_hand():
    assert spans("Snow f la ke", "Snow flake") == [((0, 1), (0, 1)), ((1, 4), (1, 2))]
    assert spans("flake", "fl ake") == [((0, 1), (0, 2))]
    assert spans("fl ak", "f la k") == [((0, 2), (0, 3))]
    assert spans("_ f _", "f _") == [((0, 1), (0, 0)), ((1, 2), (0, 1)), ((2, 3), (1, 1)), ((3, 3), (1, 2))]
    assert spans("f la", "f l") == [((0, 1), (0, 1))]  # the last span is not complete
    assert list(aligned_spans([], [])) == []


def spans(one, other):
    """The spans of two tokenizations; tokens are separated by spaces, and "_" has no bytes."""
    return list(aligned_spans(*([token.strip("_").encode() for token in side.split()] for side in (one, other))))


def test_spans_end_where_the_texts_part():
    """Equal numbers of bytes are not equal text: a tokenizer that cannot spell "é" leaves it out."""
    assert spans("ca f _ xy z", "caf é x") == [((0, 2), (0, 1)), ((2, 3), (1, 1))]
    assert spans("a bc d", "a xy d") == [((0, 1), (0, 1))]
    assert spans("abc", "xyz") == []


@given(st.lists(st.integers(0, 4), max_size=20), st.lists(st.integers(0, 4), max_size=20))
def test_spans_are_the_minimal_common_blocks(one, other):
    total = min(sum(one), sum(other))
    text = bytes(range(max(sum(one), sum(other))))
    blocks = list(aligned_spans(cut(text, one), cut(text, other)))
    i = j = 0
    for (start, end), (target_start, target_end) in blocks:
        assert (start, target_start) == (i, j) and (end, target_end) > (start, target_start)
        assert sum(one[start:end]) == sum(other[target_start:target_end])
        i, j = end, target_end
    common = boundaries(one) & boundaries(other)
    found = {sum(one[:end]) for (_, end), _ in blocks}
    assert found | {0} == common | {0} and max(common) <= total


def cut(text, lengths):
    ends = [0, *accumulate(lengths)]
    return [text[start:end] for start, end in pairwise(ends)]


def boundaries(lengths):
    return {sum(lengths[:n]) for n in range(len(lengths) + 1)}


@pytest.mark.parametrize("target, strings, by_bytes, distinct", [
    ("tokenizers/llama3-128k", 22_416, 26_695, 26_599),
    ("tokenizers/qwen2-151k", 22_275, 26_438, 26_342),
])
def test_counts_of_the_real_vocabularies(target, strings, by_bytes, distinct):
    drafter, target = real("tokenizers/llama2-32k"), real(target)
    alignment = align(drafter, target)
    assert (alignment.shared_draft, alignment.shared_target) == (by_bytes, distinct)
    assert align(drafter, target, strings=True).shared_draft == strings  # arXiv 2507.02659, Table 8
    assert alignment.draft_to_target[2] in target.roles["eos"]
    mapped = np.flatnonzero(alignment.draft_to_target >= 0)
    texts = [i for i in mapped.tolist() if drafter.token_bytes[i] is not None]
    assert all(drafter.token_bytes[i] == target.token_bytes[alignment.draft_to_target[i]] for i in texts)


def test_the_models_vocabularies():
    babyllama, stories = real("models/babyllama-tok361"), real("models/stories260K")
    shared = {data for data in babyllama.token_bytes if data} & {data for data in stories.token_bytes if data}
    assert len(shared) == 270 <= align(babyllama, stories).shared_draft
