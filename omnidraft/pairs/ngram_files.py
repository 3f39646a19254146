"""N-gram caches on disk: JSON files, checked against the pair of tokenizers before use."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ..ngram_cache import NGramCache
from ..text.errors import OmnidraftError
from ..text.files import default_folder, make_folder_of, paused, read_json, write_text
from ..text.tokenizer import Tokenizer

FORMAT = "omnidraft n-gram cache 4"
LARGE = 2**16  # tokens of both vocabularies, from which their spellings are kept on disk


def computed_once(what: str, spelling: Tokenizer, spelled: Tokenizer,
                  compute: Callable[[], NGramCache]) -> NGramCache:
    """How one vocabulary spells the other; between large ones it takes long, so a file keeps it."""
    if spelling.size + spelled.size < LARGE:
        return compute()
    path = default_folder() / f"{what}-{spelling.key[:16]}-{spelled.key[:16]}.json"
    with suppress(OmnidraftError), paused():  # missing, damaged, or for other vocabularies
        return load(path, spelling, spelled)
    sys.stderr.write(f"computing once how {spelling.size:,} tokens spell {spelled.size:,} others\n")
    with paused():
        made = compute()
    with suppress(OmnidraftError):  # if it cannot be written, it is computed each time
        save(made, path)
    return made


def save(cache: NGramCache, path: str | Path) -> None:
    """Write all entries to a JSON file; raises OmnidraftError if it cannot be written."""
    entries = list(cache.items())
    ngrams = [ngram for ngram, _, _ in entries]
    columns = {"ids": list(chain.from_iterable(ngrams)),  # they load faster than rows
               "lengths": [len(ngram) for ngram in ngrams],
               "tokens": [token for _, token, _ in entries],
               "hits": [hits for _, _, hits in entries]}
    make_folder_of(Path(path))
    write_text(Path(path), json.dumps({
        "format": FORMAT, "pair": cache.pair, "columns": list(columns.values()),
        "capacity": cache.capacity, "eviction": cache.eviction}))


def load(path: str | Path, draft: Tokenizer, target: Tokenizer) -> NGramCache:
    """Read a saved cache for this pair; OmnidraftError if missing, damaged, or another pair's."""
    try:
        saved = read_json(Path(path))
        cache = NGramCache(saved["capacity"], saved["eviction"])
        cache.bind(draft, target)
        ids, lengths, tokens, hits = saved["columns"]
        _check(ids, lengths, tokens, hits)
        ours = (saved["format"], saved["pair"]) == (FORMAT, cache.pair)
        fits = max(ids, default=0) < draft.size and max(tokens, default=0) < target.size
        if not ours or not fits or len(tokens) > (cache.capacity or len(tokens)):
            raise ValueError
        rest = iter(ids)
        ngrams = [tuple(islice(rest, length)) for length in lengths]
        cache.add(dict(zip(ngrams, zip(tokens, hits, strict=True), strict=True)))
    except (KeyError, TypeError, ValueError, OverflowError):  # OmnidraftError is a ValueError
        raise OmnidraftError(f"{path} holds no n-gram cache of this pair (missing, damaged or "
                             "another pair's): delete it, then use observe or prefill") from None
    return cache


def _check(ids: list[int], lengths: list[int], tokens: list[int], hits: list[int]) -> None:
    """Raise ValueError unless these are columns of whole numbers that belong together."""
    numbers = np.array([0] + ids + lengths + tokens + hits)
    if numbers.dtype != int or numbers.min() < 0:
        raise ValueError
    if not len(lengths) == len(tokens) == len(hits):
        raise ValueError
    if sum(lengths) != len(ids) or min(lengths, default=2) < 2:
        raise ValueError
