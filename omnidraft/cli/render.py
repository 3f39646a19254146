"""Rounds as coloured text: one style per fate of a token, and a sign where there are no colours.

It is `rich.text.Text`, never markup: tokens contain "[".
"""

import codecs
from collections.abc import Sequence

from rich.text import Text

from ..decoding import Round
from ..text.tokenizer import Tokenizer
from .printing import columns, escape, show_bytes

# fate: (style, sign, legend)
FATES = {
    "accepted": ("green", "+", "accepted: drafted, and the target agrees"),
    "merged": ("cyan underline", "*", "accepted merge: several draft tokens make one target token"),
    "rejected": ("red strike", "-", "rejected: drafted, but the target disagrees"),
    "recovered": ("bold yellow", "!", "recovered: what the target writes instead"),
    "bonus": ("bold magenta", "^", "bonus: the target's own next token, free if all was accepted"),
    "alone": ("", ".", "alone: written by the target; nothing was drafted"),
}
END = "│"  # of a round: one pass of the target
COLUMNS = """plain, drafts: tokens per second, without loading and prefill
per pass: tokens written per pass of the target (block efficiency)
kept: draft tokens that entered the text; accepted: proposed tokens, mean over rounds"""


class Painter:
    """Turns the rounds of one text into coloured pieces, with `signs` such as [+ We][- to][! that].

    A character split over tokens appears with its last one. `one_line`: no line breaks.
    """

    def __init__(self, tokenizer: Tokenizer, signs: bool = False, one_line: bool = False) -> None:
        self.tokenizer = tokenizer
        self.signs = signs
        self.one_line = one_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def paint(self, record: Round) -> Text:
        """The tokens that a round wrote, a rejected proposal before the one that replaced it."""
        text = Text()
        for place, (token, kind) in enumerate(zip(record.emitted, record.kinds, strict=True)):
            if kind == "recovered" and place == record.accepted < len(record.proposals):
                state = self._decoder.getstate()  # subtle: its bytes are not part of the text
                self._append(text, record.proposals[place], "rejected")
                self._decoder.setstate(state)
            if kind == "bonus" and not record.proposals:
                kind = "alone"  # `kinds` calls each token after the proposals a bonus
            self._append(text, token, kind)
        if record.done:
            text.append_text(self.finish())
        return text

    def paint_with_end(self, record: Round) -> Text:
        """Like `paint`, with `END` if another round follows."""
        return self.paint(record).append("" if record.done else END, "dim")

    def finish(self) -> Text:
        """A replacement character if the text ends inside a character."""
        return Text(self._decoder.decode(b"", final=True))

    def _append(self, text: Text, token: int, fate: str) -> None:
        """Add a token in the style of its fate, with `signs` as in [+ We]."""
        style, sign, _ = FATES[fate]
        data = self.tokenizer.decode_bytes([token])
        if not data:  # end tokens and the like
            return
        piece = self._decoder.decode(data)
        breaks = "\n"
        if self.one_line or fate == "rejected":
            breaks = ""
        if not self.signs:
            text.append(escape(piece, breaks + "\t"), style)
            return
        word = piece.lstrip(" ")  # do not strike through the sign or the space before a word
        spaces = " " * (len(piece) - len(word))
        around = style.removesuffix(" strike").removesuffix(" underline")
        text.append(f"[{sign}{spaces}", around)
        text.append(escape(word, ""), style)
        text.append("]" + breaks * piece.count("\n"), around)


def drafted(record: Round, tokenizer: Tokenizer) -> Text:
    """What a round drafted, in the tokens of the drafter's `tokenizer`."""
    pieces = (show_bytes(tokenizer.decode_bytes([token])) for token in record.draft_tokens)
    return Text("|".join(pieces), "dim")


def legend(signs: bool = False, rounds: bool = False) -> Text:
    """One line per fate in its colour, with its sign if `signs`, and one line for `rounds`."""
    lines = []
    for style, sign, meaning in FATES.values():
        name, rest = meaning.split(":")
        if signs:
            lines.append(Text.assemble("  ", f"[{sign} ", (name, style), "]", rest))
        else:
            lines.append(Text.assemble("  ", (name, style), ":", rest))
    if rounds:
        lines.append(Text(f"  {END} end of a round (one target pass)", "dim"))
    return Text("\n").join(lines)


def headline(rows: Sequence[dict]) -> Text:
    """In bold the figure over all texts that needs no clock, then the speedup."""
    alone, passes, tokens = (sum(row[way][key] for row in rows) for way, key in (
        ("plain", "rounds"), ("speculative", "rounds"), ("speculative", "tokens")))
    if "same_text" in rows[0]:
        same = {"yes": "same text", "tie": "same text up to a rounding tie", "NO": "DIFFERENT TEXT"}
        worst = max(map(sameness, rows), key=list(same).index)
        said = f"{alone} target passes -> {passes}, {same[worst]}"
    else:
        said = f"{tokens} tokens in {passes} target passes, distribution {sameness(rows[0])}"
    speedup = tokens_per_second(rows, "speculative") / tokens_per_second(rows, "plain")
    return Text.assemble((said, "bold"), f"; {speedup:.2f}x speedup on this machine")


def tokens_per_second(rows: Sequence[dict], way: str) -> float:
    """Over all texts."""
    return sum(row[way]["tokens"] for row in rows) / sum(row[way]["seconds"] for row in rows)


def sameness(row: dict) -> str:
    """Does a greedy text equal the plain one? Or: how its distribution relates to the target's."""
    if "same_text" not in row:
        return row["distribution"]
    if row["same_text"]:
        return "yes"
    return "tie" if row["tie"] else "NO"


def speed_table(rows: Sequence[dict]) -> str:
    """The demo's figures, one line per text (keys as in its JSON), within 80 columns."""
    last = "same text" if "same_text" in rows[0] else "distribution"
    table: list[Sequence[str]] = [
        ("task", "plain", "drafts", "speedup", "per pass", "kept", "accepted", "merges", last)]
    for row in rows:
        fast = row["speculative"]
        table.append((
            row["task"],
            f"{row['plain']['tokens_per_second']:.0f}",
            f"{fast['tokens_per_second']:.0f}",
            f"{row['speedup']:.2f}x",
            f"{fast['block_efficiency']:.2f}",
            f"{fast['acceptance_draft']:.0%}",
            f"{fast['acceptance_proposed']:.0%}",
            str(fast["merges"]),
            sameness(row).split()[0]))
    return columns(table)
