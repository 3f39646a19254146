"""`omnidraft cache`: the stored n-gram caches, which translate draft n-grams to target tokens; one file per pair."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

import omnidraft as od

from ..errors import OmnidraftError
from ..files import make_folder_of
from . import common
from .inspect import columns, show_bytes

EXAMPLES = ("omnidraft cache prefill draft-tasks qwen-like", "omnidraft cache show draft-tasks qwen-like",
            "omnidraft cache prefill ./drafter ./target --capacity 4096 --eviction lfu",
            "omnidraft cache clear draft-tasks qwen-like")
group = typer.Typer(no_args_is_help=True, help="Show, fill or forget the n-gram cache of a (drafter, target) pair.",
                    epilog=common.examples(*EXAMPLES))
common.app.add_typer(group, name="cache")


@common.command(EXAMPLES[1], to=group)
def show(
    draft: common.Side, target: common.Side,
    entries: Annotated[int, typer.Option("--entries", "-e", metavar="N", help="List the N most used.")] = 10,
) -> None:
    """Show a stored cache: its size, its use, its most used n-grams."""
    one, other, path = common.tokenizers(draft, target)
    if not path.is_file():
        raise OmnidraftError(f"no cache is stored for {one.name} -> {other.name}: "
                             f"run `omnidraft cache prefill {draft} {target}`")
    cache = od.NGramCache.load(path, one.fingerprint, other.fingerprint)
    found = list(cache.items())
    lengths = sorted(Counter(len(ngram) for ngram, _, _ in found).items())
    bound = f"at most {cache.capacity:,}, {cache.eviction}" if cache.capacity else "no limit"
    print("\n".join(columns([
        ("file", str(path)),
        ("pair", f"{one.name} -> {other.name}"),
        ("entries", f"{len(cache):,} ({bound})"),
        ("draft tokens", ", ".join(f"{length}: {count:,}" for length, count in lengths) or "none"),
        ("memory", f"{cache.size_bytes / 1e6:.2f} MB"),
        ("learnt from", f"{cache.tokens_seen:,} target tokens"),
    ])))
    rows = [("uses", "draft n-gram", "target token")]
    for ngram, token, hits in sorted(found, key=lambda entry: -entry[2])[:max(0, entries)]:
        rows.append((str(hits), "|".join(show_bytes(one.decode_bytes([i])) for i in ngram),
                     show_bytes(other.decode_bytes([token]))))
    if rows[1:]:
        print("\n" + "\n".join(columns(rows)))


@common.command(EXAMPLES[0], EXAMPLES[2], to=group)
def prefill(
    draft: common.Side, target: common.Side,
    capacity: Annotated[int | None, typer.Option("--capacity", metavar="N", help="Most entries.",
                                                 show_default="no limit")] = None,
    eviction: Annotated[str, typer.Option("--eviction", help="What a full cache forgets: none, lru or lfu.")] = "none",
) -> None:
    """Fill and store the cache of a pair from the two tokenizers alone."""
    from ..vocabulary import load_or_build

    one, other, path = common.tokenizers(draft, target)
    make_folder_of(path)
    cache = od.NGramCache(capacity, eviction, one.fingerprint, other.fingerprint)
    cache.prefill(one, other, load_or_build(one, other))
    cache.save(path)
    print(f"{len(cache):,} n-grams stored in {path}")


@common.command(EXAMPLES[3], to=group)
def clear(draft: common.Side, target: common.Side) -> None:
    """Remove the stored cache of a pair."""
    one, other, path = common.tokenizers(draft, target)
    try:
        path.unlink()
        print(f"removed {path}")
    except FileNotFoundError:
        print(f"no cache is stored for {one.name} -> {other.name}")
    except OSError as error:
        raise OmnidraftError(f"cannot remove {path}: {error.strerror}") from None
