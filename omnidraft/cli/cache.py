"""`omnidraft cache`: the stored n-gram caches, which translate draft n-grams to target tokens; one file per pair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import OmnidraftError
from . import common

EXAMPLES = ("omnidraft cache prefill draft-tasks qwen-like", "omnidraft cache show draft-tasks qwen-like",
            "omnidraft cache prefill ./drafter ./target --capacity 4096 --eviction lfu",
            "omnidraft cache clear draft-tasks qwen-like")
Draft = Annotated[str, typer.Argument(help="The drafter, or a folder with its tokenizer.json.", show_default=False)]
Target = Annotated[str, typer.Argument(help="The target, or a folder with its tokenizer.json.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    """Register the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Show, fill or forget the n-gram cache of a (drafter, target) pair.",
                        epilog=common.examples(*EXAMPLES))
    group.command(epilog=common.examples(EXAMPLES[1]))(show)
    group.command(epilog=common.examples(EXAMPLES[0], EXAMPLES[2]))(prefill)
    group.command(epilog=common.examples(EXAMPLES[3]))(clear)
    app.add_typer(group, name="cache")


def show(
    draft: Draft,
    target: Target,
    entries: Annotated[int, typer.Option("--entries", "-e", metavar="N", help="List the N most used.")] = 10,
) -> None:
    """Show a stored cache: its size, its use, its most used n-grams."""
    from ..ngram_cache import NGramCache
    from .inspect import columns, show_bytes

    one, other, path = _pair(draft, target)
    if not path.is_file():
        raise OmnidraftError(f"no cache is stored for {one.name} -> {other.name}: "
                             f"run `omnidraft cache prefill {draft} {target}`")
    cache = NGramCache.load(path, one.fingerprint, other.fingerprint)
    lengths: dict[int, int] = {}
    for ngram, _, _ in cache.items():
        lengths[len(ngram)] = lengths.get(len(ngram), 0) + 1
    bound = f"at most {cache.capacity:,}, {cache.eviction}" if cache.capacity else "no limit"
    print("\n".join(columns([
        ("file", str(path)),
        ("pair", f"{one.name} -> {other.name}"),
        ("entries", f"{len(cache):,} ({bound})"),
        ("draft tokens", ", ".join(f"{length}: {count:,}" for length, count in sorted(lengths.items())) or "none"),
        ("memory", f"{cache.size_bytes / 1e6:.2f} MB"),
        ("learnt from", f"{cache.tokens_seen:,} target tokens"),
    ])))
    used = sorted(cache.items(), key=lambda entry: -entry[2])[:max(0, entries)]
    rows = [("uses", "draft n-gram", "target token")]
    for ngram, token, hits in used:
        rows.append((str(hits), "|".join(show_bytes(one.decode_bytes([i])) for i in ngram),
                     show_bytes(other.decode_bytes([token]))))
    if used:
        print("\n" + "\n".join(columns(rows)))


def prefill(
    draft: Draft,
    target: Target,
    capacity: Annotated[int | None, typer.Option("--capacity", metavar="N", help="Most entries.",
                                                 show_default="no limit")] = None,
    eviction: Annotated[str, typer.Option("--eviction", help="What a full cache forgets: none, lru or lfu.")] = "none",
) -> None:
    """Fill and store the cache of a pair from the two tokenizers alone."""
    from ..files import make_folder_of
    from ..ngram_cache import NGramCache
    from ..vocabulary import load_or_build

    one, other, path = _pair(draft, target)
    make_folder_of(path)
    cache = NGramCache(capacity, eviction, one.fingerprint, other.fingerprint)
    cache.prefill(one, other, load_or_build(one, other))
    cache.save(path)
    print(f"{len(cache):,} n-grams stored in {path}")


def clear(draft: Draft, target: Target) -> None:
    """Remove the stored cache of a pair."""
    one, other, path = _pair(draft, target)
    try:
        path.unlink()
    except FileNotFoundError:
        print(f"no cache is stored for {one.name} -> {other.name}")
    except OSError as error:
        raise OmnidraftError(f"cannot remove {path}: {error.strerror}") from None
    else:
        print(f"removed {path}")


def _pair(draft: str, target: str) -> tuple[Any, Any, Path]:
    from ..models import folder
    from ..tokenizer import Tokenizer

    one, other = Tokenizer.load(folder(draft)), Tokenizer.load(folder(target))
    return one, other, common.cache_file(one, other)
