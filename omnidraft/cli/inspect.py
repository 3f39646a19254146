"""`omnidraft align`, `models`, `info`: what two vocabularies share, what ships, what this machine runs it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OmnidraftError
from . import common

if TYPE_CHECKING:
    from rich.text import Text

    from ..tokenizer import Tokenizer

SAMPLE = "Snowflakes fell on 128 cafés; she said: \"I'll be back.\"\n    return problem_solver(x)"
Side = Annotated[str, typer.Argument(metavar="MODEL", show_default=False,
                                     help="An embedded model, or a folder with a tokenizer.json.")]
# how a block of aligned tokens is shown: (style, sign)
BLOCKS = {"same": ("green", "="), "merge": ("cyan underline", "*"), "expand": ("bold magenta", "/"),
          "mixed": ("yellow", "~")}


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog=common.examples(
        "omnidraft align draft-tasks qwen-like",
        "omnidraft align draft-tasks llama3-like 'Snowflakes fall.'",
        "omnidraft align ./llama2-32k ./qwen2-151k",
    ))(align)
    app.command(epilog=common.examples("omnidraft models"))(models)
    app.command(epilog=common.examples("omnidraft info"))(info)


def align(
    draft: Side,
    target: Side,
    text: Annotated[str, typer.Argument(help="What both tokenize, one above the other.",
                                        show_default="a sample")] = SAMPLE,
    plain: common.Plain = False,
) -> None:
    """Show how much two vocabularies share, and how each spells a text."""
    from rich.text import Text

    from ..models import folder
    from ..tokenizer import Tokenizer
    from ..vocabulary import DEFINITIONS, load_or_build

    one, other = Tokenizer.load(folder(draft)), Tokenizer.load(folder(target))
    out, _ = common.consoles()
    plain = plain or common.without_colour(out)
    rows = [("shared entries", f"{one.name} (draft)", f"{other.name} (target)", "special tokens paired")]
    for by in DEFINITIONS:
        found = load_or_build(one, other, by)
        rows.append((f"by {by}" + (" (the paper's)" if by == "strings" else ""),
                     _share(found.shared_draft, one), _share(found.shared_target, other), str(found.role_pairs)))
    print("\n".join(columns(rows)))
    if text:
        out.print(Text("\n").join([Text(), *facing(one, other, text, plain, out.width), Text(), block_legend(plain)]),
                  soft_wrap=True)


def facing(one: Tokenizer, other: Tokenizer, text: str, plain: bool, width: int) -> list[Text]:
    """Both tokenizations, draft above target, in lines of at most `width`, cut into the smallest blocks both have."""
    from rich.cells import cell_len
    from rich.text import Text

    from ..vocabulary import aligned_spans

    above, below = spell(one, text), spell(other, text)
    pairs: list[list[Text]] = [[Text("draft   "), Text("target  ")]]
    reached = 0, 0
    for (start, end), (first, last) in aligned_spans([len(b) for b in above], [len(b) for b in below]):
        reached = end, last
        cells = ["|".join(map(show_bytes, side)) for side in (above[start:end], below[first:last])]
        if not any(cells):
            continue
        style, sign = BLOCKS[_kind(end - start, last - first)]
        if plain:
            style, cells = "", [f"{sign}{cell}" for cell in cells]
        size = max(map(cell_len, cells))
        if pairs[-1][0].cell_len + size + 2 > width and pairs[-1][0].cell_len > 8:
            pairs.append([Text(" " * 8), Text(" " * 8)])
        for line, cell in zip(pairs[-1], cells, strict=True):
            line.append(cell, style).append(" " * (size - cell_len(cell) + 2))
    rest = [b"".join(side[place:]) for side, place in zip((above, below), reached, strict=True)]
    lines = [line for pair in pairs for line in pair]
    for name, left in zip(("draft", "target"), rest, strict=True):
        if left:
            lines.append(Text(f"the {name} side goes on with {show_bytes(left)}: the other cannot spell this text"))
    return lines


def spell(tokenizer: Tokenizer, text: str) -> list[bytes]:
    """The bytes of each token of `text`, the dummy space taken off; of its exact bytes if the tokenizer changes it."""
    data = text.encode("utf-8", "replace")
    pieces = [tokenizer.decode_bytes([token]) for token in tokenizer.encode(text)]
    if tokenizer.prefix_space and b"".join(pieces) == b" " + data:
        first = next(place for place, piece in enumerate(pieces) if piece)
        pieces[first] = pieces[first][1:]
    if b"".join(pieces) != data:
        pieces = [tokenizer.decode_bytes([token]) for token in tokenizer.encode_continuation(text)]
    return pieces


def show_bytes(data: bytes) -> str:
    r"""A token's bytes on one line: "·" is a space, the rest of a cut character \xNN.

    >>> show_bytes(b" caf\xc3")
    '·caf\\xc3'
    """
    from ..render import escape

    return escape(data.decode("utf-8", "backslashreplace").replace(" ", "·"), "")


def block_legend(plain: bool) -> Text:
    """What the blocks' styles (or signs) mean."""
    from rich.text import Text

    meanings = {"same": "same token", "merge": "several draft tokens, one target token",
                "expand": "one draft token, several target tokens", "mixed": "boundaries that cross"}
    parts = [(f"{sign} {meanings[kind]}", "") if plain else (meanings[kind], style)
             for kind, (style, sign) in BLOCKS.items()]
    return Text("   ").join([Text(*part) for part in parts])


def models() -> None:
    """List the embedded models."""
    from ..models import EMBEDDED, folder
    from ..models.config import ModelConfig
    from ..models.weights import load_tensors
    from ..tokenizer import Tokenizer

    rows: list[Sequence[str]] = [("name", "parameters", "layers", "width", "entries", "tokenizer", "context", "folder")]
    for name in EMBEDDED:
        try:
            path = folder(name)
        except OmnidraftError:
            rows.append((name, "not installed: run `make models`"))
            continue
        config, tokenizer = ModelConfig.load(path), Tokenizer.load(path)
        parameters = sum(tensor.size for tensor in load_tensors(path).values())
        kind = "byte-level BPE" if tokenizer.byte_level else "SentencePiece BPE"
        rows.append((name, f"{parameters / 1e6:.1f} M", str(config.layers), str(config.width), f"{tokenizer.size:,}",
                     kind, str(config.context_size), str(path)))
    print("\n".join(columns(rows)))


def info() -> None:
    """Show versions, the machine, and the kernels that a short measurement chose for each embedded model."""
    from importlib.metadata import PackageNotFoundError, version

    from .. import __version__
    from ..machine import machine
    from ..models import EMBEDDED, load
    from ..vocabulary import default_folder

    rows = [("omnidraft", __version__)]
    for package in ("tokenizers", "safetensors", "typer", "rich", "torch", "transformers"):
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    rows += [(name.replace("_", " "), _plainly(value)) for name, value in machine().items()]
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
    full = max(map(len, rows))
    widths = [max((len(row[i]) for row in rows if len(row) > i and len(row) == full), default=0) for i in range(full)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def _kind(above: int, below: int) -> str:
    if above == below == 1:
        return "same"
    if below == 1 and above:
        return "merge"
    return "expand" if above == 1 and below else "mixed"


def _share(count: int, tokenizer: Tokenizer) -> str:
    return f"{count:,} of {tokenizer.size:,} ({count / max(1, tokenizer.size):.1%})"


def _plainly(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
