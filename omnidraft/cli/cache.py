"""`omnidraft cache`: the stored n-gram caches, which translate draft n-grams to target tokens."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from .. import OmnidraftError
from ..files import make_folder_of
from ..ngram_cache import NGramCache
from ..vocabulary import load_or_build
from . import common
from .render import columns, show_bytes

SHOW, PREFILL, CLEAR = (f"omnidraft cache {name} draft-tasks qwen-like"
                        for name in ("show", "prefill", "clear"))
BOUND = "omnidraft cache prefill ./drafter ./target --capacity 4096 --eviction lfu"
group = typer.Typer(
    no_args_is_help=True, epilog=common.examples(PREFILL, SHOW, BOUND, CLEAR),
    help="Show, fill or remove the n-gram cache of a (drafter, target) pair.")
common.app.add_typer(group, name="cache")


@common.command(SHOW, to=group)
def show(draft: common.Side, target: common.Side, entries: Annotated[int, typer.Option(
        "--entries", "-e", metavar="N", help="List the N most used.")] = 10) -> None:
    """Show a stored cache: its size, its use, its most used n-grams."""
    one, other, path = common.tokenizers(draft, target)
    if not path.is_file():
        raise OmnidraftError(f"no cache is stored for {one.name} -> {other.name}: "
                             f"run `omnidraft cache prefill {draft} {target}`")
    cache = NGramCache.load(path, one.fingerprint, other.fingerprint)
    found = sorted(cache.items(), key=lambda entry: -entry[2])
    lengths = sorted(Counter(len(ngram) for ngram, _, _ in found).items())
    bound = f"at most {cache.capacity:,}, {cache.eviction}" if cache.capacity else "no limit"
    common.say(columns([
        ("file", str(path)), ("pair", f"{one.name} -> {other.name}"),
        ("entries", f"{len(cache):,} ({bound})"),
        ("draft tokens", ", ".join(f"{size}: {count:,}" for size, count in lengths) or "none"),
        ("memory", f"{cache.size_bytes / 1e6:.2f} MB"),
        ("learned from", f"{cache.tokens_seen:,} target tokens")]))
    rows = [("uses", "draft n-gram", "target token")]
    for ngram, token, hits in found[:max(0, entries)]:
        spelled = "|".join(show_bytes(one.decode_bytes([i])) for i in ngram)
        rows.append((str(hits), spelled, show_bytes(other.decode_bytes([token]))))
    if rows[1:]:
        common.say("\n" + columns(rows))


@common.command(PREFILL, BOUND, to=group)
def prefill(
    draft: common.Side, target: common.Side,
    capacity: Annotated[int | None, typer.Option(
        "--capacity", metavar="N", help="Most entries.", show_default="no limit")] = None,
    eviction: Annotated[str, typer.Option(
        "--eviction", help="What a full cache forgets: none, lru or lfu.")] = "none",
) -> None:
    """Fill and store the cache of a pair from the two tokenizers alone."""
    one, other, path = common.tokenizers(draft, target)
    make_folder_of(path)
    cache = NGramCache(capacity, eviction, one.fingerprint, other.fingerprint)
    cache.prefill(one, other, load_or_build(one, other))
    cache.save(path)
    common.say(f"{len(cache):,} n-grams stored in {path}")


@common.command(CLEAR, to=group)
def clear(draft: common.Side, target: common.Side) -> None:
    """Remove the stored cache of a pair."""
    one, other, path = common.tokenizers(draft, target)
    try:
        path.unlink()
        common.say(f"removed {path}")
    except FileNotFoundError:
        common.say(f"no cache is stored for {one.name} -> {other.name}")
    except OSError as error:
        raise OmnidraftError(f"cannot remove {path}: {error.strerror}") from None
