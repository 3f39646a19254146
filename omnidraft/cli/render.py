"""Rounds as coloured text: one style per fate of a token, and a sign where there are no colours.

It is `rich.text.Text`, never markup: tokens contain "[".
"""

import codecs
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..decoding import Round
from ..text.tokenizer import Tokenizer
from .printing import FLAG_SIZE, escape, show_bytes

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


class Painter:
    """Turns the rounds of one text into coloured pieces, with `signs` such as [+ We][- to][! that].

    A character split over tokens appears with its last one. `one_line`: no line breaks.
    """

    def __init__(self, tokenizer: Tokenizer, signs: bool = False, one_line: bool = False) -> None:
        self.tokenizer, self.signs, self.one_line = tokenizer, signs, one_line
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before = ""  # the end of what was written

    def paint(self, record: Round) -> Text:
        """The tokens that a round wrote, a rejected proposal before the one that replaced it."""
        text = Text()
        for place, (token, kind) in enumerate(zip(record.emitted, record.kinds, strict=True)):
            if kind == "recovered" and place == record.accepted < len(record.proposals):
                state = self._decoder.getstate()  # subtle: its bytes are not part of the text
                self._append(text, record.proposals[place], "rejected")
                self._decoder.setstate(state)
            # `kinds` calls each token after the proposals a bonus, even if there are no proposals
            self._append(text, token, kind if kind != "bonus" or record.proposals else "alone")
        return text.append_text(self.finish()) if record.done else text

    def paint_with_end(self, record: Round) -> Text:
        """Like `paint`, with `END` if another round follows."""
        return self.paint(record).append("" if record.done else END, "dim")

    def finish(self) -> Text:
        """A replacement character if the text ends inside a character."""
        return Text(self._decoder.decode(b"", final=True))

    def _append(self, text: Text, token: int, fate: str) -> None:
        style, sign, _ = FATES[fate]
        data = self.tokenizer.decode_bytes([token])
        if not data:  # end tokens and the like
            return
        piece = self._decoder.decode(data)
        breaks = "" if self.one_line or fate == "rejected" else "\n"
        before = self._before
        if fate != "rejected":
            self._before = (before + piece)[-FLAG_SIZE:]
        if not self.signs:
            text.append(escape(piece, breaks + "\t", before), style)
            return
        word = piece.lstrip(" ")  # do not strike through the sign or the space before a word
        around = style.removesuffix(" strike").removesuffix(" underline")
        text.append(f"[{sign}{' ' * (len(piece) - len(word))}", around)
        text.append(escape(word, ""), style).append("]" + breaks * piece.count("\n"), around)


def drafted(record: Round, tokenizer: Tokenizer) -> Text:
    """What a round drafted, in the tokens of the drafter's `tokenizer`."""
    pieces = (show_bytes(tokenizer.decode_bytes([token])) for token in record.draft_tokens)
    return Text("|".join(pieces), "dim")


def legend(signs: bool = False, rounds: bool = False) -> Text:
    """One line per fate in its colour, with its sign if `signs`, and one line for `rounds`."""
    lines = [Text.assemble("  ", f"[{sign} " * signs, (name, style), "]" if signs else ":", rest)
             for style, sign, meaning in FATES.values() for name, rest in [meaning.split(":")]]
    end = Text(f"  {END} end of a round (one target pass)", "dim")
    return Text("\n").join(lines + [end] * rounds)


def headline(rows: Sequence[dict]) -> Text:
    """In bold the figure over all texts that needs no clock, then the speedup."""
    plain, fast = ([row[way] for row in rows] for way in ("plain", "speculative"))
    tokens, passes = (sum(one[key] for one in fast) for key in ("tokens", "rounds"))
    speeds = [sum(one["tokens"] for one in way) / sum(one["seconds"] for one in way)
              for way in (plain, fast)]
    if "same_text" in rows[0]:
        same = {"yes": "same text", "tie": "same text up to a rounding tie", "NO": "DIFFERENT TEXT"}
        worst = max(map(sameness, rows), key=[*same].index)
        said = f"{sum(one['rounds'] for one in plain)} target passes -> {passes}, {same[worst]}"
    else:
        said = f"{tokens} tokens in {passes} target passes, distribution {sameness(rows[0])}"
    return Text.assemble((said, "bold"), f"; {speeds[1] / speeds[0]:.2f}x speedup on this machine")


def sameness(row: dict) -> str:
    """Does a greedy text equal the plain one? Or: how its distribution relates to the target's."""
    if "same_text" not in row:
        return row["distribution"]
    return "yes" if row["same_text"] else "tie" if row["tie"] else "NO"


def speed_table(rows: Sequence[dict]) -> Table:
    """The demo's figures, one row per text (keys as in its JSON), within 80 columns."""
    ranges = any("each" in row for row in rows)
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, caption_justify="left",
                  caption=f"Time without loading and prefill{'; median and range' * ranges}.\n"
                          "block efficiency: tokens written per target pass\n"
                          "drafted kept: share of draft tokens that entered the text\n"
                          "proposed accepted: share of proposed tokens, mean over rounds")
    greedy = bool(rows) and "same_text" in rows[0]
    for name in ("task", "plain\ntok/s", "spec.\ntok/s", "speedup", "block\neffic.",
                 "drafted\nkept", "proposed\naccepted", "merges",
                 "same text\nas plain" if greedy else "distri-\nbution"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    for row in rows:
        fast, same = row["speculative"], sameness(row).replace(" ", "\n")
        spread = f"\n{min(row['each']):.2f}-{max(row['each']):.2f}" if ranges else ""
        speeds = (f"{one['tokens_per_second']:.0f}" for one in (row["plain"], fast))
        table.add_row(
            row["task"], *speeds, Text.assemble((f"{row['speedup']:.2f}x", "bold"), spread),
            f"{fast['block_efficiency']:.2f}", f"{fast['acceptance_draft']:.0%}",
            f"{fast['acceptance_proposed']:.0%}", str(fast["merges"]),
            Text(same, {"yes": "green", "tie": "bold red", "NO": "bold red"}.get(same, "")))
    table.width = Console(width=200).measure(table).maximum  # otherwise a narrow terminal cuts it
    return table
