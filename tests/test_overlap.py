"""Acceptance by overlap: a drafter with a smaller vocabulary keeps its distribution, and the figures agree with the counts."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from test_cli import write_model
from vocabularies import byte_level, sentencepiece, snow_target

from benchmarks import overlap, report_overlap
from benchmarks.revocabulary import Split, cut, merges_of, with_merges
from benchmarks.writing import emitted, write, write_plainly
from omnidraft import Options, Pair
from omnidraft.engine.load import load
from omnidraft.sampling import process
from omnidraft.stopping import FixedLength

TEXT = "the thing in the other thing"
MERGES = "▁ t, ▁t h, ▁th e, i n, in g, ▁ i, ▁i n, ▁th ing, ▁ o"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    more = {"model_type": "llama", "num_key_value_heads": 2, "eos_token_id": 2}
    tokenizer = sentencepiece("▁abcdefghinopqrt", MERGES, name="small")
    return load(write_model(tmp_path_factory.mktemp("models") / "small", tokenizer, 1, **more))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    more = {"model_type": "llama", "num_key_value_heads": 2, "eos_token_id": None}
    return load(write_model(tmp_path_factory.mktemp("models") / "big", byte_level("Ġ t, h e, Ġt he, i n, in g"), 2, **more))


def rows(model, ids: list[int], count: int) -> np.ndarray:
    return process(model.forward(ids, model.new_cache(), count))


@pytest.mark.parametrize("count", [0, 4, 9])
def test_a_smaller_vocabulary_spells_the_same_text_with_the_first_merges(model, count):
    whole = model.tokenizer
    made, old = with_merges(whole, count)
    assert merges_of(whole) == 9 and made.size == len(old) == whole.size - 9 + count
    assert [made.token_bytes[new] for new in range(made.size)] == [whole.token_bytes[token] for token in old]
    assert made.decode_bytes(made.encode_continuation(TEXT)) == TEXT.encode() and made.roles["eos"] == whole.roles["eos"]
    again, _ = with_merges(whole, 9)
    assert again.encode(TEXT) == whole.encode(TEXT)
    kept = {"".join(pair.split()) for pair in MERGES.split(", ")[:count]}
    assert kept <= set(made.strings) and not set(made.strings) & ({"▁the", "▁thing", "▁o"} - kept)


def test_with_all_merges_both_ways_are_the_drafter_itself(model):
    ids = model.tokenizer.encode(TEXT, bos=True)
    expected = rows(model, ids, 3)
    for way in (Split, cut):
        np.testing.assert_allclose(rows(way(model, 9), ids, 3), expected, atol=1e-5)


@pytest.mark.parametrize("count", [0, 2, 6])
def test_pieces_have_the_probabilities_of_the_tokens_that_begin_with_them(model, count):
    made = Split(model, count)
    pieces, whole = made.tokenizer.encode("the ot", bos=True), model.tokenizer.encode("the ot", bos=True)
    [q] = rows(model, whole, 1)
    splits = {token: made.tokenizer.split(data) for token, data in enumerate(model.tokenizer.token_bytes) if data}
    splits |= {int(token): (piece,) for piece, token in enumerate(made.old)}  # every remaining token is its own split
    got = rows(made, pieces, len(pieces))
    np.testing.assert_allclose(got.sum(-1), 1, atol=1e-5)
    assert not made.children[made.children[0][pieces[-1]]]  # no split continues after "t", so the next token begins
    for piece in range(made.vocab_size):
        below = [token for token, split in splits.items() if split[0] == piece]
        assert got[-1][piece] == pytest.approx(q[below].sum(), abs=1e-5)
    for token, split in splits.items():  # drawing a token's pieces is at least as likely as drawing the token
        read = list(pieces)
        chance = 1.0
        for piece in split:
            chance *= rows(made, read, 1)[0][piece]
            read.append(piece)
        if len(split) > 1:
            assert chance >= q[token] - 1e-6


def test_cut_keeps_the_rows_that_are_left(model):
    made, (_, old) = cut(model, 0), with_merges(model.tokenizer, 0)
    ids = [1, 2, *range(4, 9)]
    raw = (one.forward(part, one.new_cache(), 2) for one, part in ((made, ids), (model, old[ids].tolist())))
    np.testing.assert_allclose(next(raw), next(raw)[:, old], atol=1e-5)
    assert [old[end] for end in made.eos_ids] == [*model.eos_ids]


def test_a_rewound_cache_leaves_no_trace(model):
    made = Split(model, 2)
    ids, cache = made.tokenizer.encode(TEXT, bos=True), made.new_cache()
    made.forward([*ids[:9], 20, 21, 22], cache)
    cache.rewind(9)
    np.testing.assert_allclose(process(made.forward(ids[9:], cache, 2)), rows(made, ids, 2), atol=1e-5)


@pytest.mark.parametrize("rule", ["lifted", "omnidraft", "slem", "tli"])
def test_its_text_is_the_targets(model, target, rule):
    options = Options(verify=rule, stop=FixedLength(5), max_new_tokens=16)
    for count in (0, 4):
        found = write(Pair(Split(model, count), target), "the thing", options)
        assert emitted(found) == emitted(write_plainly(target, "the thing", options))
        assert sum(len(one.draft_tokens) for one in found) > 0


def test_overlap_by_entries_and_by_text():
    found = overlap.overlap(byte_level("S n, Sn o"), snow_target(), ["Snowflake"])
    # snow_target has 256 bytes, 9 merges and an end token; the drafter has the bytes, Sn, Sno, and writes Sno w f l a k e
    assert found == {"entries": round(258 / 265, 3), "text": 0.0, "pieces": 3.5}


def test_counts_of_merges_go_from_all_to_none():
    assert overlap.counts_of(900, 4) == [900, 300, 100, 0]


def test_ratio_and_paired_difference_by_hand():
    run = {"tokens": [4, 8], "passes": [2, 2]}
    other = {"tokens": [4, 4], "passes": [2, 2]}
    assert report_overlap.efficiency(run) == (3.0, pytest.approx(1.0))  # (4 - 6) / 4 and (8 - 6) / 4
    assert report_overlap.difference(run, other) == (1.0, pytest.approx(1.0))
    assert report_overlap.difference(run, run) == (0.0, 0.0)


def figures() -> dict:
    def at(most: int) -> dict:
        runs = {rule: {"tokens": [most - i, most], "passes": [2, 3], "bytes_kept": 0.5}
                for i, rule in enumerate(("lifted", "omnidraft", "slem", "tli"))}
        return runs | {"lifted, cut": {"tokens": [3, 3], "passes": [2, 3], "bytes_kept": 0.2}}

    def level(share: float) -> dict:
        return {"overlap": {"entries": share / 2, "text": share, "pieces": 2.0}, "k": 6, "T=0": at(9), "T=1": at(7)}

    return {"settings": {"k": 6, "tokens": 8, "prompts": 1}, "pairs": {"a<b:c": {"9": level(0.9), "0": level(0.2), "4": {
        "overlap": {"entries": 0.1, "text": 0.5, "pieces": 1.0}, "k": 3, "T=0": at(9)}}}, "real": {},
            "published": {"one:two": {"entries": 0.1, "text": 0.4, "pieces": 1.5}}}


def test_the_figure_is_xml_with_a_point_for_each_measurement():
    tree = ElementTree.fromstring(report_overlap.figure(figures()))
    lines = [one for one in tree.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 2 * 5 and all(len(one.get("points").split()) == 2 for one in lines)  # the unfinished level is left out
    assert "a<b → c, T=1" in "".join(tree.itertext())
    assert sum(one.get("stroke-dasharray") == "1 3" for one in tree.iter()) == 2  # the published pair, in both panels


def test_the_table_compares_every_rule_with_the_first():
    page = report_overlap.report(figures())
    assert "| a<b → c | 10.0 % | 20.0 % | T=0 | 6 | 3.60 ± " in page and "(-0.20 ± " in page and page.count("| a<b") == 4
    assert "| 1 | one → two | 10.0 % | 40.0 % | 1.50 |" in page
