"""Coloured tokens: fates, signs, rejected proposals, untrusted and incomplete characters."""

from __future__ import annotations

import doctest
import json

import pytest
from rich.text import Text

from benchmarks import common
from benchmarks.common import as_lines, sparkline
from omnidraft.cli.printing import escape
from omnidraft.cli.render import FATES, Painter, drafted, headline, legend, speed_table
from omnidraft.decoding import Round


class Pieces:
    """The part of a tokenizer that painting needs: id -> bytes."""

    def __init__(self, *pieces: bytes):
        self.pieces = pieces

    def decode_bytes(self, ids) -> bytes:
        return b"".join(self.pieces[i] for i in ids)


WORDS = Pieces(b" We", b" know", b" to", b" that", b"[b]", b"\n", b"")


def styles(text: Text) -> list[tuple[str, str]]:
    return [(text.plain[span.start:span.end], str(span.style)) for span in text.spans]


def test_each_fate_has_its_own_colour_and_sign():
    assert len({style for style, _, _ in FATES.values()}) == len({sign for _, sign, _ in FATES.values()}) == 6
    assert "".join(sign for _, sign, _ in FATES.values()) == "+*-!^." and FATES["alone"][0] == ""
    for signs in (True, False):
        shown = legend(signs)
        assert all(name in shown.plain for name in ("accepted", "merge", "rejected", "recovered", "bonus", "alone"))
        assert len(shown.spans) == 5 and ("[+ accepted]" in shown.plain) == signs  # "alone" has no colour
        assert ("alone: written by the target" in shown.plain) != signs


def test_round_with_a_rejected_proposal():
    record = Round(proposals=[0, 1, 2, 0], accepted=2, emitted=[0, 1, 3], kinds=["accepted", "merged", "recovered"])
    assert styles(Painter(WORDS).paint(record)) == [
        (" We", "green"), (" know", "cyan underline"), (" to", "red strike"), (" that", "bold yellow")]
    assert Painter(WORDS, signs=True).paint(record).plain == "[+ We][* know][- to][! that]"


def test_colours_and_signs_together():
    record = Round(proposals=[0, 2], accepted=1, emitted=[0, 3], kinds=["accepted", "recovered"])
    shown = Painter(WORDS, signs=True).paint(record)
    assert shown.plain == "[+ We][- to][! that]"
    assert ("to", "red strike") in styles(shown) and ("[- ", "red") in styles(shown)  # the sign is not struck through


def test_nothing_is_shown_as_rejected_that_was_only_not_reached():
    cut = Round(proposals=[0, 1], accepted=1, emitted=[0], kinds=["accepted"], done=True)  # the text ended here
    assert Painter(WORDS, signs=True).paint(cut).plain == "[+ We]"
    uncovered = Round(proposals=[0], accepted=1, emitted=[0, 3], kinds=["accepted", "recovered"])  # only one proposal
    assert Painter(WORDS, signs=True).paint(uncovered).plain == "[+ We][! that]"


def test_tokens_are_text_never_markup_and_end_tokens_show_nothing():
    record = Round(emitted=[4, 6], kinds=["bonus", "bonus"])
    assert Painter(WORDS).paint(record).plain == "[b]"


def test_a_token_that_was_written_alone_is_no_bonus():
    """Its kind in the record is "bonus" too, but nothing was proposed in its round."""
    alone, bonus = Round(emitted=[0], kinds=["bonus"]), Round(proposals=[1], accepted=1, emitted=[1, 2],
                                                              kinds=["accepted", "bonus"])
    assert styles(Painter(WORDS).paint(alone)) == [] and Painter(WORDS).paint(alone).plain == " We"
    assert styles(Painter(WORDS).paint(bonus))[-1] == (" to", "bold magenta")
    assert Painter(WORDS, signs=True).paint(alone).plain == "[. We]"
    assert Painter(WORDS, signs=True).paint(bonus).plain == "[+ know][^ to]"


def test_new_lines_break_the_line_except_where_they_were_rejected():
    record = Round(proposals=[5], accepted=0, emitted=[5, 0], kinds=["recovered", "bonus"])
    assert Painter(WORDS).paint(record).plain == "\\n\n We"
    assert Painter(WORDS, signs=True).paint(record).plain == "[-\\n][!\\n]\n[^ We]"


def test_characters_of_several_tokens_appear_with_the_last_one():
    euro = Pieces(b"\xe2", b"\x82", b"\xac", b"x")
    painter = Painter(euro)
    first = painter.paint(Round(proposals=[0, 3], accepted=1, emitted=[0, 1], kinds=["accepted", "recovered"]))
    assert first.plain == "\ufffdx"  # only the rejected proposal is shown; the text's own character is not complete yet
    last = Round(proposals=[2, 3], accepted=2, emitted=[2], kinds=["accepted"])
    assert styles(painter.paint(last)) == [("€", "green")]
    painter.paint(Round(emitted=[0], kinds=["bonus"]))
    assert painter.finish().plain == "\ufffd" and painter.finish().plain == ""


@pytest.mark.parametrize(("text", "shown"), [
    ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"), ("\r", "\\r"), ("\u202eabc", "\\u202eabc"), ("\x9b2J", "\\x9b2J"),
    ("\u2028", "\\u2028"), ("tab\tand\nline", "tab\tand\nline"), ("café 日本 ✓", "café 日本 ✓"), ("\ud800", "\\ud800"),
])
def test_what_steers_a_terminal_is_spelled_out(text, shown):
    assert escape(text) == shown


def test_painted_text_holds_no_control_characters():
    everything = Pieces(*[bytes([b]) for b in range(256)])
    record = Round(proposals=list(range(256)), accepted=128, emitted=list(range(128)) + [27],
                   kinds=["accepted"] * 128 + ["recovered"])
    for signs in (False, True):
        shown = Painter(everything, signs).paint(record).plain
        assert not [c for c in shown if c < " " and c not in "\n\t"] and "\x7f" not in shown


def test_rounds_are_seen_apart_and_a_draft_in_the_tokens_of_the_drafter():
    records = [Round(draft_tokens=[0, 2, 5], proposals=[0], accepted=1, emitted=[0, 2], kinds=["accepted", "bonus"]),
               Round(emitted=[1], kinds=["bonus"], done=True)]
    painter = Painter(WORDS, signs=True)
    assert "".join(painter.paint_with_end(record).plain for record in records) == "[+ We][^ to]│[. know]"
    assert "│ end of a round" in legend(rounds=True).plain and "│" not in legend().plain
    grey = drafted(records[0], WORDS)
    assert grey.plain == "·We|·to|\\n" and str(grey.style) == "dim"


def text_figures(passes: int, seconds: float, **more) -> dict:
    """The results of a text of 60 tokens, for which plain decoding takes 2 seconds."""
    return {"plain": {"tokens": 60, "rounds": 60, "seconds": 2.0}, **more,
            "speculative": {"tokens": 60, "rounds": passes, "seconds": seconds}}


@pytest.mark.parametrize(("rows", "expected"), [
    ([text_figures(20, 1.0, same_text=True, tie=False), text_figures(17, 0.6, same_text=True, tie=False)],
     "120 target passes -> 37, same text; 2.50x speedup on this machine"),
    ([text_figures(20, 1.0, same_text=True, tie=False), text_figures(17, 1.0, same_text=False, tie=True)],
     "120 target passes -> 37, same text up to a rounding tie; 2.00x speedup on this machine"),
    ([text_figures(20, 4.0, same_text=False, tie=False), text_figures(17, 4.0, same_text=False, tie=True)],
     "120 target passes -> 37, DIFFERENT TEXT; 0.50x speedup on this machine"),
    ([text_figures(12, 1.0, distribution="exact (lifted)")],
     "60 tokens in 12 target passes, distribution exact (lifted); 2.00x speedup on this machine")])
def test_the_headline_begins_with_what_needs_no_clock(rows, expected):
    found = headline(rows)
    assert found.plain == expected and styles(found) == [(expected.split(";")[0], "bold")]


def figures(**more) -> dict:
    one = {"tokens_per_second": 300.4, "block_efficiency": 3.14159, "acceptance_draft": 0.75,
           "acceptance_proposed": 0.5, "merges": 12}
    return {"task": "math", "plain": one, "speculative": one | {"tokens_per_second": 801.0}, "speedup": 2.666, **more}


@pytest.mark.parametrize(("row", "expected"), [
    (figures(same_text=True, tie=False), "yes"), (figures(same_text=False, tie=False), "NO"),
    (figures(same_text=False, tie=True), "tie"), (figures(distribution="exact (lossless)"), "exact"),
    (figures(distribution="biased (omnidraft)"), "biased")])
def test_table_fits_80_columns(row, expected):
    header, line = speed_table([row]).splitlines()
    assert line.split() == ["math", "300", "801", "2.67x", "3.14", "75%", "50%", "12", expected]
    assert header.split()[:3] == ["task", "plain", "drafts"] and len(header) <= 80


def test_curves_that_are_compared_share_a_scale():
    curves = [0.1, 0.2, 0.4], [0.4, 0.8]
    everything = [value for curve in curves for value in curve]
    assert [sparkline(curve) for curve in curves] == ["▁▃█  min 0.10, max 0.40", "▁█  min 0.40, max 0.80"]
    one, other = (sparkline(curve, everything) for curve in curves)
    assert one == "▁▂▄  min 0.10, max 0.40" and other == "▄█  min 0.40, max 0.80"  # 0.4 is the same bar in both
    assert sparkline([2.0]) == "▁  min 2.00, max 2.00"


def test_results_have_one_record_a_line():
    found = {"pairs": [{"a": [1, 2]}, {"b": {"c": None}}], "empty": {}, "text": "ä\n"}
    assert as_lines(found).split("\n") == ["{", ' "pairs": [', '  {"a": [1, 2]},', "  {", '   "b": {"c": null}', "  }", " ],",
                                           ' "empty": {},', r' "text": "\u00e4\n"', "}"]
    assert json.loads(as_lines(found)) == found and not doctest.testmod(common).failed
