"""N-gram caches on disk: JSON files, checked against the pair of tokenizers before use."""

import json
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ..ngram_cache import NGramCache
from ..text.errors import OmnidraftError
from ..text.files import make_folder_of, read_json, write_text
from ..text.tokenizer import Tokenizer

FORMAT = "omnidraft n-gram cache 4"


def save(cache: NGramCache, path: str | Path) -> None:
    """Write all entries to a JSON file; raises OmnidraftError if it cannot be written."""
    make_folder_of(Path(path))
    ngrams, tokens, hits = zip(*cache.items(), strict=True) if len(cache) else ((), (), ())
    columns = [*chain(*ngrams)], [*map(len, ngrams)], tokens, hits  # they load faster than rows
    write_text(Path(path), json.dumps({"format": FORMAT, "pair": cache.pair, "columns": columns,
                                       "capacity": cache.capacity, "eviction": cache.eviction}))


def load(path: str | Path, draft: Tokenizer, target: Tokenizer) -> NGramCache:
    """Read a saved cache for this pair; OmnidraftError if missing, damaged, or another pair's."""
    try:
        saved = read_json(Path(path))
        cache = NGramCache(saved["capacity"], saved["eviction"])
        cache.bind(draft, target)
        ids, lengths, tokens, hits = saved["columns"]
        flat, table = np.array([0, *ids]), np.array([[2, *lengths], [0, *tokens], [0, *hits]])
        if not ((saved["format"], saved["pair"]) == (FORMAT, cache.pair)
                and len(tokens) <= (cache.capacity or len(tokens)) and sum(lengths) == len(ids)
                and flat.dtype == table.dtype == int and table[0].min() > 1
                and 0 <= min(flat.min(), table.min()) and flat.max() < draft.size
                and table[1].max() < target.size):
            raise ValueError
        rest = iter(ids)
        ngrams = [tuple(islice(rest, length)) for length in lengths]
        cache.add(dict(zip(ngrams, zip(tokens, hits, strict=True), strict=True)))
    except (KeyError, TypeError, ValueError, OverflowError):  # OmnidraftError is a ValueError
        raise OmnidraftError(f"{path} holds no n-gram cache of this pair (missing, damaged or "
                             "another pair's): delete it, then use observe or prefill") from None
    return cache
