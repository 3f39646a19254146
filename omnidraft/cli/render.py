"""Rounds as coloured text: one style per fate of a token, with a second sign for those who see no colours.

Builds `rich.text.Text` only, never markup, because tokens contain "[". Model text is untrusted: what could steer a
terminal is escaped. Characters whose bytes come from several tokens appear with the token that completes them.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # so that NumPy is not imported for this
    from ..decoding import Round
    from ..tokenizer import Tokenizer

# fate: (style, sign in plain mode, what the legend says)
FATES = {
    "accepted": ("green", "+", "accepted: the target agrees with a drafted token"),
    "merged": ("cyan underline", "*", "accepted merge: several draft tokens are one target token"),
    "rejected": ("red strike", "-", "rejected: drafted, but the target disagrees"),
    "recovered": ("bold yellow", "!", "recovered: what the target writes instead"),
    "bonus": ("bold magenta", "^", "bonus: the target's own next token, free in every round that kept all"),
}
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # controls, direction marks, surrogates, line separators


def escape(text: str, keep: str = "\n\t") -> str:
    r"""Text that steers no terminal: control characters other than `keep` are spelled out.

    >>> escape("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join([character if character in keep or unicodedata.category(character) not in _UNSAFE
                    and ord(character) & 0xFFFE != 0xFFFE  # no characters at all, nor allowed in SVG
                    else character.encode("unicode_escape", "surrogatepass").decode() for character in text])


class Painter:
    """Turns the rounds of one text into coloured pieces; `plain` puts every token in brackets behind its sign instead.

    With `one_line` a new line in the text is shown as \\n and not begun; with `signs` colours and signs are both there.

    >>> painter = Painter(tokenizer, plain=True); painter.paint(round).plain  # doctest: +SKIP
    '[+ We][* know][- to][! that]'
    """

    def __init__(self, tokenizer: Tokenizer, plain: bool = False, one_line: bool = False, signs: bool = False) -> None:
        self.tokenizer, self.plain, self.one_line, self.signs = tokenizer, plain, one_line, plain or signs
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def paint(self, record: Round) -> Text:
        """The tokens that a round wrote, its first rejected proposal before the token that replaced it."""
        text = Text()
        for place, (token, kind) in enumerate(zip(record.emitted, record.kinds, strict=True)):
            if kind == "recovered" and place == record.accepted < len(record.proposals):
                # Decoded on the side: its bytes are no part of the text.
                state = self._decoder.getstate()
                self._append(text, record.proposals[place], "rejected")
                self._decoder.setstate(state)
            self._append(text, token, kind)
        return text.append_text(self.finish()) if record.done else text

    def finish(self) -> Text:
        """What is left at the text's end: a replacement character if the last one is incomplete."""
        return Text(self._decoder.decode(b"", final=True))

    def _append(self, text: Text, token: int, fate: str) -> None:
        style, sign, _ = FATES[fate]
        data = self.tokenizer.decode_bytes([token])
        if not data:  # end tokens and the like
            return
        piece = self._decoder.decode(data)
        breaks = "" if self.one_line or fate == "rejected" else "\n"
        style = "" if self.plain else style
        if self.signs:  # no line through the sign itself, nor through the space before a word
            around, word = style.removesuffix(" strike").removesuffix(" underline"), escape(piece.lstrip(" "), "")
            text.append(f"[{sign}{' ' * (len(piece) - len(piece.lstrip(' ')))}", around).append(word, style)
            text.append("]" + breaks * piece.count("\n"), around)
        else:
            text.append(escape(piece, breaks + "\t"), style)


def legend(plain: bool = False, signs: bool = False) -> Text:
    """One line per fate, in its own colour, behind its sign (`plain`), or both (`signs`)."""
    lines = []
    for style, sign, meaning in FATES.values():
        name, _, rest = meaning.partition(":")
        around = (f"[{sign} ", "]") if plain or signs else ("", "")
        lines.append(Text.assemble("  ", around[0], (name, "" if plain else style), around[1], rest))
    return Text("\n").join(lines)


def speed_table(rows: Sequence[dict]) -> Table:
    """The demo's figures as a table, one row per text (keys as in the demo's JSON); it fits into 80 columns."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, caption_justify="left", caption=(
        "Wall clock of the decoding, without loading and prefill.\n"
        "block efficiency: target tokens written per target pass\n"
        "drafted kept: share of the draft tokens that entered the text\n"
        "proposed accepted: share of the proposed target tokens, mean over rounds"))
    table.add_column("task", no_wrap=True)
    greedy = bool(rows) and "same_text" in rows[0]
    for name in ("plain\ntok/s", "spec.\ntok/s", "speedup", "block\neffic.", "drafted\nkept", "proposed\naccepted",
                 "merges", "same text\nas plain" if greedy else "same dis-\ntribution"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        fast = row["speculative"]
        same = Text(row["distribution"].replace(" ", "\n")) if not greedy else (
            Text("yes", "green") if row["same_text"] else Text("tie" if row["tie"] else "NO", "bold red"))
        table.add_row(
            row["task"], f"{row['plain']['tokens_per_second']:.0f}", f"{fast['tokens_per_second']:.0f}",
            Text(f"{row['speedup']:.2f}x", "bold"), f"{fast['block_efficiency']:.2f}",
            f"{fast['acceptance_draft']:.0%}", f"{fast['acceptance_proposed']:.0%}", str(fast["merges"]), same)
    return table


def export_svg(parts: Iterable[RenderableType], title: str, width: int = 84) -> str:
    """The parts as one picture in SVG that names no file outside itself."""
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Group(*parts))
    svg = console.export_svg(title=title, unique_id="omnidraft")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # Rich's would be fetched from the network


def sparkline(values: Sequence[float]) -> str:
    """A curve in one line, from the least value to the greatest.

    >>> sparkline([1.0, 2.0, 3.0])
    '▁▅█  1.00 to 3.00'
    """
    low, high = min(values), max(values)
    bars = "".join("▁▂▃▄▅▆▇█"[round(7 * (v - low) / ((high - low) or 1))] for v in values)
    return f"{bars}  {values[0]:.2f} to {values[-1]:.2f}"
