"""`omnidraft align`, `cache`, `models`, `info`: what two vocabularies share, and what is here."""

from math import prod
from typing import Annotated

import typer

from .. import Adapters, OmnidraftError, Tokenizer, __version__, vocabulary
from ..engine.config import ModelConfig
from ..engine.loading import EMBEDDED, folder, load
from ..files import default_folder, make_folder_of
from ..learning.adapters import SHIPPED
from ..ngram_cache import NGramCache
from ..vocabulary import DEFINITIONS, aligned_spans
from . import options
from .common import app, command, examples
from .machine import machine
from .printing import columns, console, say, show_bytes

SAMPLE = " Snowflakes fell on 128 cafés; she said: \"I'll be back.\"\n    return problem_solver(x)"
# a block of so many draft and target tokens (2: several): style, sign, what the legend says
BLOCKS = {(1, 1): ("green", "=", "same token"),
          (2, 1): ("cyan underline", "*", "several draft tokens, one target token"),
          (1, 2): ("bold magenta", "/", "one draft token, several target tokens"),
          (2, 2): ("yellow", "~", "boundaries that cross")}


def tokenizers(*names: str) -> list[Tokenizer]:
    """The tokenizers of models by name or folder."""
    return [Tokenizer.load(folder(name)) for name in names]


@command("omnidraft align draft-tasks qwen-like", "omnidraft align ./llama2-32k ./qwen2-151k",
         "omnidraft align draft-tasks llama3-like 'The windows were broken.'")
def align(draft: options.Side, target: options.Side, text: Annotated[str, typer.Argument(
        help="What both tokenize.", show_default="a sample")] = SAMPLE,
          plain: options.Plain = False) -> None:
    """Show what two vocabularies share, and how each spells a text."""
    one, other = tokenizers(draft, target)
    rows = [("shared entries", f"draft {one.name}", f"target {other.name}", "special tokens")]
    for by in DEFINITIONS:
        found = vocabulary.align(one, other, by)
        shares = [f"{count:,} of {side.size:,} ({count / max(1, side.size):.1%})"
                  for count, side in ((found.shared_draft, one), (found.shared_target, other))]
        rows.append((f"by {by}", *shares, str(found.role_pairs)))
    say(columns(rows))
    if text:
        show_facing(one, other, text, plain)


def show_facing(one: Tokenizer, other: Tokenizer, text: str, plain: bool) -> None:
    """Print both tokenizations, draft above target, in the smallest blocks that both have."""
    from rich.text import Text

    above, below = ([side.decode_bytes([token]) for token in side.encode_continuation(text)]
                    for side in (one, other))
    (out, signs), end, last = console(plain), 0, 0
    lines = [Text("draft   "), Text("target  ")]
    for (start, end), (first, last) in aligned_spans(above, below):
        sides = ["|".join(map(show_bytes, side)) for side in (above[start:end], below[first:last])]
        if not any(sides):  # a character that neither vocabulary has
            continue
        style, sign, _ = BLOCKS[min(2, end - start), min(2, last - first)]
        cells = [Text(sign * signs + side, style) for side in sides]
        size = max(cell.cell_len for cell in cells) + 2
        if lines[-1].cell_len + size > out.width and lines[-1].cell_len > 8:
            lines += [Text(" " * 8), Text(" " * 8)]
        for line, cell in zip(lines[-2:], cells, strict=True):
            line.append_text(cell).append(" " * (size - cell.cell_len))
    for name, rest in (("draft", above[end:]), ("target", below[last:])):
        if any(rest):
            lines.append(Text("one side cannot spell this text; from here on the "
                              f"{name} side has {show_bytes(b''.join(rest))}"))
    legend = [Text(f"{sign} " * signs + meaning, style) for style, sign, meaning in BLOCKS.values()]
    out.print(Text("\n").join([Text(), *lines, Text(), Text("   ").join(legend)]), soft_wrap=True)


SHOW, PREFILL = (f"omnidraft cache {name} draft-tasks qwen-like" for name in ("show", "prefill"))
cache = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=examples(PREFILL, SHOW),
                    help="Show or fill the n-gram cache of a pair.")
app.add_typer(cache, name="cache")


@command(SHOW, to=cache)
def show(draft: options.Side, target: options.Side) -> None:
    """Show a stored cache: its size, its use, its ten most used n-grams."""
    one, other = tokenizers(draft, target)
    if not (path := options.cache_file(one, other)).is_file():
        raise OmnidraftError(f"no cache is stored for {one.name} -> {other.name}: "
                             f"run `omnidraft cache prefill {draft} {target}`")
    stored = NGramCache.load(path, one.fingerprint, other.fingerprint)
    bound = f"at most {stored.capacity:,}, {stored.eviction}" if stored.capacity else "no limit"
    say(columns([
        ("file", str(path)), ("pair", f"{one.name} -> {other.name}"),
        ("entries", f"{len(stored):,} ({bound})"),
        ("learned from", f"{stored.tokens_seen:,} target tokens")]))
    most = sorted(stored.items(), key=lambda entry: -entry[2])[:10]
    rows = [(str(uses), "|".join(show_bytes(one.decode_bytes([i])) for i in ngram),
             show_bytes(other.decode_bytes([token]))) for ngram, token, uses in most]
    if rows:
        say("\n" + columns([("uses", "draft n-gram", "target token"), *rows]))


@command(PREFILL, f"{PREFILL} --capacity 4096 --eviction lfu", to=cache)
def prefill(draft: options.Side, target: options.Side,
            capacity: Annotated[int | None, typer.Option(help="Most entries.")] = None,
            eviction: Annotated[str, typer.Option(help="Full: none, lru, lfu.")] = "none") -> None:
    """Fill and store the cache of a pair from the two tokenizers alone."""
    one, other = tokenizers(draft, target)
    path = options.cache_file(one, other)
    make_folder_of(path)
    filled = NGramCache(capacity, eviction, one.fingerprint, other.fingerprint)
    filled.prefill(one, other, vocabulary.align(one, other))
    filled.save(path)
    say(f"{len(filled):,} n-grams stored in {path}")


@command("omnidraft models")
def models(adapters: options.Store = None) -> None:
    """List the embedded models and all adapters."""
    rows = [("name", "parameters", "layers", "width", "entries", "tokenizer", "context", "folder")]
    for name in EMBEDDED:
        try:
            config, [tokenizer] = ModelConfig.load(folder(name)), tokenizers(name)
        except OmnidraftError as error:
            rows.append((name, str(error)))
            continue
        parameters = sum(map(prod, config.tensor_shapes().values())) / 1e6
        kind = "byte-level BPE" if tokenizer.byte_level else "SentencePiece BPE"
        rows.append((name, f"{parameters:.1f} M", f"{config.layers}", f"{config.width}",
                     f"{tokenizer.size:,}", kind, f"{config.context_size}", str(folder(name))))
    say(columns(rows))
    own = Adapters(adapters)
    for store, whose in (Adapters(SHIPPED), "in the package"), (own, f"in {own.root}"):
        rows = [("adapter", "prompts", "tokens", "updates", "draft tokens kept", "per target pass")]
        for name, s in store.all().items():
            counts = [str(s.get(key, 0)) for key in ("prompts", "tokens", "updates")]
            kept = f"{s.get('kept', 0) / max(1, s.get('drafted', 0)):.0%}"
            each = f"{s.get('tokens', 0) / max(1, s.get('rounds', 0)):.2f}"
            rows.append((name, s["error"]) if "error" in s else (name, *counts, kept, each))
        if rows[1:]:
            say(f"\n{columns(rows)}\n({whose}, means since the first prompt)")


@command("omnidraft info")
def info() -> None:
    """Show versions, the machine, and the kernels chosen for it."""
    from importlib.metadata import PackageNotFoundError, version

    rows = [("omnidraft", __version__), ("caches", str(default_folder()))]
    for package in ("tokenizers", "safetensors", "typer", "rich", "torch", "transformers"):
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    rows += [(name.replace("_", " "), str(value)) for name, value in machine().items()]
    for name in EMBEDDED:
        try:
            rows.append((f"kernels, {name}", load(name).kernel))
        except OmnidraftError as error:
            rows.append((f"kernels, {name}", str(error)))
    say(columns(rows))
