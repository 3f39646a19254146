"""`omnidraft align`, `models`, `info`: what two vocabularies share, what ships, what this machine runs it with."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.text import Text

import omnidraft as od

from ..engine.loading import EMBEDDED, folder, load
from ..errors import OmnidraftError
from . import common
from .machine import machine
from .render import escape

SAMPLE = "Snowflakes fell on 128 cafés; she said: \"I'll be back.\"\n    return problem_solver(x)"
# how a block of so many draft and target tokens (2: several) is shown: style, sign, what the legend says
BLOCKS = {(1, 1): ("green", "=", "same token"), (2, 1): ("cyan underline", "*", "several draft tokens, one target token"),
          (1, 2): ("bold magenta", "/", "one draft token, several target tokens"),
          (2, 2): ("yellow", "~", "boundaries that cross")}


@common.command("omnidraft align draft-tasks qwen-like", "omnidraft align draft-tasks llama3-like 'Snowflakes fall.'",
                "omnidraft align ./llama2-32k ./qwen2-151k")
def align(
    draft: common.Side, target: common.Side,
    text: Annotated[str, typer.Argument(help="What both tokenize, one above the other.", show_default="a sample")] = SAMPLE,
    plain: common.Plain = False,
) -> None:
    """Show how much two vocabularies share, and how each spells a text."""
    from ..vocabulary import DEFINITIONS, load_or_build

    one, other, _ = common.tokenizers(draft, target)
    out, _ = common.consoles()
    plain = plain or common.without_colour(out)
    rows = [("shared entries", f"{one.name} (draft)", f"{other.name} (target)", "special tokens paired")]
    for by in DEFINITIONS:
        found = load_or_build(one, other, by)
        shares = [f"{count:,} of {side.size:,} ({count / max(1, side.size):.1%})"
                  for count, side in ((found.shared_draft, one), (found.shared_target, other))]
        rows.append((f"by {by}" + (" (the paper's)" if by == "strings" else ""), *shares, str(found.role_pairs)))
    print("\n".join(columns(rows)))
    legend = [Text(f"{sign} {meaning}") if plain else Text(meaning, style) for style, sign, meaning in BLOCKS.values()]
    if text:
        out.print(Text("\n").join([Text(), *facing(one, other, text, plain, out.width), Text(), Text("   ").join(legend)]),
                  soft_wrap=True)


def facing(one: od.Tokenizer, other: od.Tokenizer, text: str, plain: bool, width: int) -> list[Text]:
    """Both tokenizations, draft above target, in lines of at most `width`, cut into the smallest blocks both have."""
    above, below = spell(one, text), spell(other, text)
    lines = [Text("draft   "), Text("target  ")]
    end = last = 0
    for (start, end), (first, last) in od.aligned_spans(above, below):
        cells = ["|".join(map(show_bytes, side)) for side in (above[start:end], below[first:last])]
        if not any(cells):
            continue
        style, sign, _ = BLOCKS[min(2, end - start), min(2, last - first)]
        if plain:
            style, cells = "", [f"{sign}{cell}" for cell in cells]
        size = max(map(cell_len, cells))
        if lines[-1].cell_len + size + 2 > width and lines[-1].cell_len > 8:
            lines += [Text(" " * 8), Text(" " * 8)]
        for line, cell in zip(lines[-2:], cells, strict=True):
            line.append(cell, style).append(" " * (size - cell_len(cell) + 2))
    for name, rest in (("draft", above[end:]), ("target", below[last:])):
        if any(rest):  # a tokenizer that cannot spell the text
            left = show_bytes(b"".join(rest))
            lines.append(Text(f"one side cannot spell this text; from here on the {name} side has {left}"))
    return lines


def spell(tokenizer: od.Tokenizer, text: str) -> list[bytes]:
    """The bytes of each token of `text`, the dummy space taken off; of its exact bytes if the tokenizer changes it."""
    pieces = [tokenizer.decode_bytes([token]) for token in tokenizer.encode(text)]
    first = next((place for place, data in enumerate(pieces) if data), 0)
    bare = [data.removeprefix(b" ") if i == first else data for i, data in enumerate(pieces)]
    for spelled in (pieces, bare):
        if b"".join(spelled) == text.encode("utf-8", "replace"):
            return spelled
    return [tokenizer.decode_bytes([token]) for token in tokenizer.encode_continuation(text)]


def show_bytes(data: bytes) -> str:
    r"""A token's bytes on one line: "·" is a space, the rest of a cut character \xNN.

    >>> show_bytes(b" caf\xc3")
    '·caf\\xc3'
    """
    return escape(data.decode("utf-8", "backslashreplace").replace(" ", "·"), "")


@common.command("omnidraft models")
def models(adapters: common.AdapterFolder = None) -> None:
    """List the embedded models, and the adapters with what they have learned from."""
    from ..engine.config import ModelConfig
    from ..learning.adapters import SHIPPED

    rows: list[Sequence[str]] = [("name", "parameters", "layers", "width", "entries", "tokenizer", "context", "folder")]
    for name in EMBEDDED:
        try:
            path = folder(name)
        except OmnidraftError:
            rows.append((name, "not installed: run `make models`"))
            continue
        config, tokenizer = ModelConfig.load(path), od.Tokenizer.load(path)
        parameters = sum(map(prod, config.tensor_shapes().values()))
        kind = "byte-level BPE" if tokenizer.byte_level else "SentencePiece BPE"
        rows.append((name, f"{parameters / 1e6:.1f} M", str(config.layers), str(config.width), f"{tokenizer.size:,}",
                     kind, str(config.context_size), str(path)))
    print("\n".join(columns(rows)))
    for store, whose in (od.Adapters(SHIPPED), "in the package"), (own := od.Adapters(adapters), f"in {own.root}"):
        learned = [(name, s["error"]) if "error" in s else (
            name, *(str(s.get(key, 0)) for key in ("prompts", "tokens", "updates")), *(
                f"{s.get(above, 0) / max(1, s.get(below, 0)):{form}}" for above, below, form in (
                    ("kept", "drafted", ".0%"), ("tokens", "rounds", ".2f")))) for name, s in store.all().items()]
        if learned:
            head = ("adapter", "prompts", "tokens", "updates", "draft tokens kept", "per target pass")
            print("\n".join(["", *columns([head, *learned]), f"({whose}, means since the first prompt)"]))


@common.command("omnidraft info")
def info() -> None:
    """Show versions, the machine, and the kernels that a short measurement chose for each embedded model."""
    from importlib.metadata import PackageNotFoundError, version

    from ..vocabulary import default_folder

    rows = [("omnidraft", od.__version__)]
    for package in ("tokenizers", "safetensors", "typer", "rich", "torch", "transformers"):
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    for name, value in machine().items():
        rows.append((name.replace("_", " "), {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)))
    rows.append(("caches", str(default_folder())))
    for name in EMBEDDED:
        try:
            rows.append((f"kernels, {name}", load(name).kernel))
        except OmnidraftError as error:
            rows.append((f"kernels, {name}", str(error)))
    print("\n".join(columns(rows)))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the cells of each column below one another; never cut, so that they can be piped.

    >>> columns([("a", "bb"), ("ccc", "d")])
    ['a    bb', 'ccc  d']
    """
    rows = [[escape(cell, "") for cell in row] for row in rows]  # names and folders may be a stranger's
    full = max(map(len, rows))
    widths = [max(map(len, cells)) for cells in zip(*(row for row in rows if len(row) == full), strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
