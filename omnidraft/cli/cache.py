"""`omnidraft cache`: the stored n-gram caches, which translate draft n-grams to target tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import OmnidraftError, Tokenizer
from ..engine.loading import folder
from ..files import make_folder_of
from ..ngram_cache import NGramCache
from ..vocabulary import load_or_build
from . import common, options
from .render import columns, show_bytes

SHOW, PREFILL, CLEAR = (f"omnidraft cache {name} draft-tasks qwen-like"
                        for name in ("show", "prefill", "clear"))
BOUND = "omnidraft cache prefill ./drafter ./target --capacity 4096 --eviction lfu"
group = typer.Typer(
    no_args_is_help=True, epilog=common.examples(PREFILL, SHOW, BOUND, CLEAR),
    help="Show, fill or remove the n-gram cache of a (drafter, target) pair.")
common.app.add_typer(group, name="cache")


@common.command(SHOW, to=group)
def show(draft: options.Side, target: options.Side, entries: Annotated[int, typer.Option(
        "--entries", "-e", metavar="N", help="List the N most used.")] = 10) -> None:
    """Show a stored cache: its size, its use, its most used n-grams."""
    one, other = Tokenizer.load(folder(draft)), Tokenizer.load(folder(target))
    path = options.cache_file(one, other)
    if not path.is_file():
        raise OmnidraftError(f"no cache is stored for {one.name} -> {other.name}: "
                             f"run `omnidraft cache prefill {draft} {target}`")
    cache = NGramCache.load(path, one.fingerprint, other.fingerprint)
    bound = f"at most {cache.capacity:,}, {cache.eviction}" if cache.capacity else "no limit"
    common.say(columns([
        ("file", str(path)), ("pair", f"{one.name} -> {other.name}"),
        ("entries", f"{len(cache):,} ({bound}, {cache.size_bytes / 1e6:.2f} MB)"),
        ("learned from", f"{cache.tokens_seen:,} target tokens")]))
    rows = [("uses", "draft n-gram", "target token")]
    for ngram, token, hits in sorted(cache.items(), key=lambda one: -one[2])[:max(0, entries)]:
        spelled = "|".join(show_bytes(one.decode_bytes([i])) for i in ngram)
        rows.append((str(hits), spelled, show_bytes(other.decode_bytes([token]))))
    if rows[1:]:
        common.say("\n" + columns(rows))


@common.command(PREFILL, BOUND, to=group)
def prefill(
    draft: options.Side, target: options.Side,
    capacity: Annotated[int | None, typer.Option(
        help="Most entries.", show_default="no limit")] = None,
    eviction: Annotated[str, typer.Option(
        help="What a full cache forgets: none, lru or lfu.")] = "none",
) -> None:
    """Fill and store the cache of a pair from the two tokenizers alone."""
    one, other = Tokenizer.load(folder(draft)), Tokenizer.load(folder(target))
    path = options.cache_file(one, other)
    make_folder_of(path)
    cache = NGramCache(capacity, eviction, one.fingerprint, other.fingerprint)
    cache.prefill(one, other, load_or_build(one, other))
    cache.save(path)
    common.say(f"{len(cache):,} n-grams stored in {path}")


@common.command(CLEAR, to=group)
def clear(draft: options.Side, target: options.Side) -> None:
    """Remove the stored cache of a pair."""
    one, other = Tokenizer.load(folder(draft)), Tokenizer.load(folder(target))
    path = options.cache_file(one, other)
    found = path.exists()
    path.unlink(missing_ok=True)
    common.say(f"removed {path}" if found else f"no cache is stored at {path}")
