"""The translation cache: the paper's figure, the longest match, eviction against simple models, files."""

from __future__ import annotations

import json
import tracemalloc
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from vocabularies import byte_level, real, sentencepiece, snow_drafter, snow_target

from omnidraft.ngram_cache import NGramCache
from omnidraft.pairing import Pairing
from omnidraft.pairs import ngram_files
from omnidraft.text.errors import OmnidraftError
from omnidraft.text.tokenizer import Tokenizer
from omnidraft.vocabulary import align

NGRAM = st.lists(st.integers(0, 2), min_size=2, max_size=4).map(tuple)
POLICY = st.sampled_from(["none", "lru", "lfu"])
STEPS = st.lists(st.tuples(st.booleans(), NGRAM, st.integers(0, 5)), max_size=60)  # (insert, else touch; n-gram; token)


def learnt(text="Snowflake", **options):
    drafter, target = snow_drafter(), snow_target()
    cache = NGramCache(**options)
    cache.observe(drafter.encode(text), target.encode(text), drafter, target)
    return cache, drafter, target


def test_the_papers_figure():
    """Drafter: Snow f la ke; target: Snow flake. The block (f, la, ke) <-> flake is learnt, Snow is a direct pair."""
    cache, drafter, target = learnt()
    ngram, flake = tuple(map(drafter.raw.token_to_id, ("f", "la", "ke"))), target.raw.token_to_id("flake")
    assert list(cache.items()) == [(ngram, flake, 1)]
    draft_tokens = drafter.encode("Snowflake")
    assert cache.longest_match(draft_tokens, 0) is None
    assert cache.longest_match(draft_tokens, 1) == (flake, 3)
    assert cache.longest_match(draft_tokens[:-1], 1) is None  # no token completes the n-gram
    assert cache.split_of(flake) == ngram and cache.split_of(target.raw.token_to_id("Snow")) is None
    assert cache.hits(ngram) == 2 and len(cache) == 1


def test_observing_again_counts_and_changes_nothing():
    cache, drafter, target = learnt()
    version, (ngram, _, hits) = cache.version, next(cache.items())
    assert cache.observe(drafter.encode("Snowflake"), target.encode("Snowflake"), drafter, target) == 0
    assert cache.version == version and cache.hits(ngram) == hits + 1


def test_observe_in_the_middle_of_a_text_and_with_special_tokens():
    drafter, target = snow_drafter(), snow_target()
    cache = NGramCache()
    ours = [1, *drafter.encode_continuation(" flakeflake"), 2]
    theirs = [*target.encode(" flakeflake"), target.roles["eos"][0]]
    assert cache.observe(ours, theirs, drafter, target) == 1
    assert [(len(ngram), hits) for ngram, _, hits in cache.items()] == [(3, 2)]
    assert cache.observe(ours, theirs[:-2], drafter, target) == 0  # the drafter's text is longer: the end is left out
    assert cache.observe(np.array(ours), np.array(theirs), drafter, target) == 0
    inside = drafter.encode_continuation("flake")
    assert NGramCache().observe([*inside[:1], 2, *inside[1:]], target.encode("flake"), drafter, target) == 0
    assert NGramCache().observe(drafter.encode("Snow"), target.encode("flake"), drafter, target) == 0  # another text


def test_a_dummy_space_is_no_part_of_a_spelling():
    """▁ and Snow before "Snow" would be two draft tokens opposite one target token; their bytes differ."""
    drafter, target = sentencepiece("▁Snow"), snow_target()
    cache = NGramCache()
    assert cache.observe(drafter.encode("Snow"), target.encode("Snow"), drafter, target) == 1
    assert [drafter.decode_bytes(ngram) for ngram, _, _ in cache.items()] == [b"Snow"]
    back = NGramCache()  # also with the dummy space on the target's side
    assert back.observe(target.encode("flake"), drafter.encode("flake"), target, drafter) == 0
    assert NGramCache().observe(target.encode("Snow"), snow_drafter().encode("Snow"), target, snow_drafter()) == 0


def test_partial_characters():
    """A target token that is a part of a character is learnt from text that has it, but not by prefill."""
    drafter, target = sentencepiece("▁a"), byte_level("ä ½, ä½ ł, ï ¼")  # 你 is E4 BD A0
    cache = NGramCache()
    cache.prefill(drafter, target, align(drafter, target))
    assert [(drafter.decode_bytes(ngram), token) for ngram, token, _ in cache.items()] == [("你".encode(), 257)]
    text = "！"  # EF BC 81: the target writes EF BC and 81
    assert cache.observe(drafter.encode_continuation(text), target.encode(text), drafter, target) == 1
    assert cache.split_of(258) == (drafter.token_of_byte[0xEF], drafter.token_of_byte[0xBC])


def test_prefill_is_every_stable_split():
    drafter, target = snow_drafter(), snow_target()
    alignment, cache = align(drafter, target), NGramCache()
    assert cache.prefill(drafter, target, alignment) == len(cache) == 4  # fl, ak, flak, flake; the other tokens are direct
    for ngram, token, hits in cache.items():
        assert drafter.decode_bytes(ngram) == target.token_bytes[token] and hits == 0
        assert alignment.target_to_draft[token] < 0 and cache.split_of(token) == ngram
    assert cache.prefill(drafter, target, alignment) == 0
    bounded = NGramCache(capacity=2, eviction="lru")
    assert bounded.prefill(drafter, target, alignment) == len(bounded) == 2
    assert bounded.split_of(target.raw.token_to_id("fl"))  # the most frequent merges have the lowest ids
    narrow = align(drafter, target, sizes=(None, target.raw.token_to_id("flak")))  # a model with fewer rows
    assert NGramCache().prefill(drafter, target, narrow) == 2


def test_prefill_leaves_out_splits_that_the_drafter_has_no_logits_for():
    drafter, target = snow_drafter(), snow_target()
    alignment, cache, every = align(drafter, target, sizes=(drafter.raw.token_to_id("ke"), None)), NGramCache(), NGramCache()
    every.prefill(drafter, target, align(drafter, target))
    assert 0 < cache.prefill(drafter, target, alignment) < len(every)
    assert all(max(ngram) < len(alignment.draft_to_target) for ngram, *_ in cache.items())


def test_what_a_text_ends_with_is_evicted_last():
    drafter, target, splits = snow_drafter(), snow_target(), NGramCache()
    splits.prefill(drafter, target, align(drafter, target))
    tokens, cache = [target.raw.token_to_id(one) for one in ("flake", "fl", "flak")], NGramCache(9, "lru")
    ours = [token for one in tokens for token in splits.split_of(one)]
    assert cache.observe(ours, tokens, drafter, target) == 3
    assert [token for _, token, _ in cache.items()] == tokens


def test_prefill_asks_the_library_for_many_splits_at_once(monkeypatch: pytest.MonkeyPatch):
    """One call a token took 50 seconds for 49,152 and 262,144 tokens."""
    words = "abcdefghij"
    target = byte_level(", ".join(f"{one} {two}" for one in words for two in words))
    drafter, calls = byte_level(), []
    for name in ("encode_continuation", "split"):
        one_at_a_time = getattr(Tokenizer, name)
        monkeypatch.setattr(Tokenizer, name, lambda *args, run=one_at_a_time: (calls.append(args), run(*args))[1])
    cache = NGramCache()
    assert cache.prefill(drafter, target, align(drafter, target)) == 100 and not calls
    sides = [SimpleNamespace(name=one.name, tokenizer=one, vocab_size=one.size) for one in (target, drafter)]
    pair = Pairing(*sides)  # the drafter has the longer tokens
    assert len(pair.spellings) == 100 and not calls


def test_the_usual_split_of_a_token_is_the_most_used_one():
    cache = NGramCache()
    cache.insert((1, 2), 9)
    cache.insert((3, 4, 5), 9)
    assert cache.split_of(9) == (1, 2)  # a tie: the shortest split wins
    version = cache.version
    assert cache.longest_match([3, 4, 5], 0) == (9, 3)
    assert cache.split_of(9) == (3, 4, 5) and cache.version == version + 1
    assert cache.touch((1, 2)) and cache.split_of(9) == (1, 2) and not cache.touch((7, 7))
    assert cache.insert((3, 4, 5), 8) and cache.split_of(8) == (3, 4, 5) and len(cache) == 2  # the n-gram now has another token
    assert not cache.insert((3, 4, 5), 8)


@pytest.mark.parametrize("ngram, token", [((1,), 2), ((), 2), ((1, -1), 2), ((1, 2), -1)])
def test_bad_entries(ngram, token):
    with pytest.raises(OmnidraftError, match="two or more draft ids"):
        NGramCache().insert(ngram, token)


@pytest.mark.parametrize("options", [{"eviction": "fifo"}, {"eviction": "lru"}, {"capacity": 0}])
def test_bad_settings(options):
    with pytest.raises(OmnidraftError):
        NGramCache(**options)


@given(st.dictionaries(NGRAM, st.integers(0, 5), max_size=60), st.lists(st.integers(0, 2), max_size=12))
@example({(0, 1): 3, (0, 1, 2): 4}, [0, 1, 2])
def test_the_longest_match_is_the_longest(entries, text):
    cache = NGramCache()
    for ngram, token in entries.items():
        cache.insert(ngram, token)
    for start in range(len(text) + 1):
        lengths = [n for n in range(2, len(text) - start + 1) if tuple(text[start:start + n]) in entries]
        found = (entries[tuple(text[start:start + max(lengths)])], max(lengths)) if lengths else None
        assert cache.longest_match(text, start) == found


class NaiveCache:
    """The meaning of the policies, in the simplest code: a dict in order of use."""

    def __init__(self, capacity, eviction):
        self.capacity, self.eviction, self.entries = capacity, eviction, OrderedDict()  # ngram -> [token, hits]

    def insert(self, ngram, token):
        if ngram in self.entries:
            if self.entries[ngram][0] != token:
                del self.entries[ngram]
                self.entries[ngram] = [token, 0]
            return
        if len(self.entries) == self.capacity:
            if self.eviction == "none":
                return
            least = min(hits for _, hits in self.entries.values()) if self.eviction == "lfu" else None
            del self.entries[next(n for n, (_, hits) in self.entries.items() if least in (None, hits))]
        self.entries[ngram] = [token, 0]

    def touch(self, ngram):
        if ngram in self.entries:
            self.entries[ngram][1] += 1
            self.entries.move_to_end(ngram)

    def split_of(self, token):
        splits = [(-hits, len(ngram), ngram) for ngram, (t, hits) in self.entries.items() if t == token]
        return min(splits)[2] if splits else None


@settings(max_examples=150, deadline=None)
@given(POLICY, st.integers(1, 12), STEPS)
def test_eviction_equals_the_naive_model(eviction, capacity, steps):
    cache, naive = NGramCache(capacity, eviction), NaiveCache(capacity, eviction)
    for inserting, ngram, token in steps:
        before, version = answers(cache), cache.version
        if inserting:
            cache.insert(ngram, token)
            naive.insert(ngram, token)
        else:
            cache.touch(ngram)
            naive.touch(ngram)
        assert {n: [t, h] for n, t, h in cache.items()} == naive.entries and len(cache) == len(naive.entries)
        assert [cache.split_of(t) for t in range(6)] == [naive.split_of(t) for t in range(6)]
        assert (answers(cache) != before) <= (cache.version > version)


def stepped(cache, steps):
    for inserting, ngram, token in steps:
        if inserting:
            cache.insert(ngram, token)
        else:
            cache.touch(ngram)
    return cache


def answers(cache):
    return {n: t for n, t, _ in cache.items()}, [cache.split_of(t) for t in range(6)]


@settings(max_examples=30, deadline=None)
@given(POLICY, STEPS)
def test_save_and_load(tmp_path_factory, eviction, steps):
    path = tmp_path_factory.mktemp("cache") / "new" / "cache.json"
    drafter, target = snow_drafter(), snow_target()
    cache = stepped(NGramCache(8, eviction), steps)
    cache.bind(drafter, target)
    ngram_files.save(cache, path)
    again = ngram_files.load(path, drafter, target)
    assert list(again.items()) == list(cache.items())
    assert (again.capacity, again.eviction) == (8, eviction)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file is left
    for ngram in ((9, 9), (9, 8), (9, 7)):  # and evicts in the same order as before
        cache.insert(ngram, 5)
        again.insert(ngram, 5)
    assert answers(again) == answers(cache)


def test_wrong_pair_and_damaged_files(tmp_path):
    cache, drafter, target = learnt()
    path = tmp_path / "cache.json"
    ngram_files.save(cache, path)
    assert len(ngram_files.load(path, drafter, target)) == 1
    for wrong in ((drafter, drafter), (target, target), (target, drafter)):
        with pytest.raises(OmnidraftError, match="another pair"):
            ngram_files.load(path, *wrong)
        with pytest.raises(OmnidraftError, match="another pair"):
            cache.observe([], [], *wrong)
    with pytest.raises(OmnidraftError, match="missing"):
        ngram_files.load(tmp_path / "none", drafter, target)
    good = path.read_bytes()
    for bad in (b"", b"{}", b"[]", b"[" * 100_000, good[:-3], b"\xff" * 40, good.replace(b"gram cache 4", b"gram cache 9")):
        path.write_bytes(bad)
        with pytest.raises(OmnidraftError, match="holds no n-gram cache") as caught:
            ngram_files.load(path, drafter, target)
        assert "\n" not in str(caught.value)
    with pytest.raises(OmnidraftError, match="cannot write"):
        ngram_files.save(cache, path / "below" / "a file")


COLUMNS = [[1, 2, 3, 4], [2, 2], [4, 5], [1, 1]]  # ids, lengths, tokens, hits


def columns(**change):
    names = ("ids", "lengths", "tokens", "hits")
    return {"columns": [change.get(name, column) for name, column in zip(names, COLUMNS, strict=True)]}


@pytest.mark.parametrize("change", [
    columns(lengths=[3, 1]), columns(lengths=[2, 3]), columns(ids=[1, 2, 3]), columns(ids=[1, 2, 3, 4, 5]),
    columns(tokens=[-1, 5]), columns(ids=[1, -2, 3, 4]), columns(tokens=[4]), columns(hits=[1]), columns(hits=[-1, 1]),
    columns(ids=[1, 2**40, 3, 4]), columns(ids=[1, 2**70, 3, 4]), columns(ids=[1, 2.5, 3, 4]), columns(hits=[0.5, 1]),
    columns(tokens=["4", 5]), columns(ids=[[1, 2], 3, 4]), columns(hits=[True, "x"]), columns(lengths=[4, 0]),
    columns(lengths=[[2], 2]), {"columns": 3}, {"columns": COLUMNS[:3]}, {"capacity": 1}, {"pair": 5},
    {"eviction": "fifo"}, {"capacity": "9"}, {"capacity": 0}, {"pair": "another"}, {"pair": ""},
    columns(ids=[1, 2, 3, 10**4]), columns(tokens=[4, 10**4])])
def test_inconsistent_files(tmp_path, change):
    drafter, target = snow_drafter(), snow_target()
    good = {"format": "omnidraft n-gram cache 4", "pair": f"{drafter.key} {target.key}", "capacity": None,
            "eviction": "none", **columns()}
    path = tmp_path / "cache"
    path.write_text(json.dumps(good))
    cache = ngram_files.load(path, drafter, target)
    assert [*cache.items()] == [((1, 2), 4, 1), ((3, 4), 5, 1)] and cache.split_of(5) == (3, 4)
    assert cache.splits() == {4: (1, 2), 5: (3, 4)}
    path.write_text(json.dumps(good | change))
    with pytest.raises(OmnidraftError, match="holds no n-gram cache"):
        ngram_files.load(path, drafter, target)


@pytest.mark.parametrize("eviction", ["none", "lru", "lfu"])
def test_an_entry_takes_about_350_bytes(eviction):
    """The paper's cache on GSM8K has 5,569 n-grams, 245 bytes an entry (arXiv 2507.02659, Table 2)."""
    rng = np.random.default_rng(0)
    entries = [tuple(rng.integers(300, 32000, rng.integers(2, 5)).tolist()) for _ in range(5569)]
    text = json.dumps(entries)
    del entries
    tracemalloc.start()
    try:
        cache = NGramCache(5569, eviction)
        for token, ngram in enumerate(json.loads(text)):
            cache.insert(ngram, token)
        del ngram
        taken, _ = tracemalloc.get_traced_memory()
        (ngram, token, _) = next(cache.items())
        for _ in range(300):
            cache.touch(ngram)
        later, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 280 * 5569 < taken < 420 * 5569  # Python reuses some tuples
    assert later < 1.5 * taken and cache.hits(ngram) == 300


def test_real_tokenizers():
    drafter, target = real("tokenizers/llama2-32k"), real("tokenizers/qwen2-151k")
    cache, text = NGramCache(), "Snowflakes fell.\n\nAppropriately, 12 snowmen smiled appropriately at the 你好 sign."
    assert cache.observe(drafter.encode(text), target.encode(text), drafter, target) == 3
    for ngram, token, _ in cache.items():
        assert drafter.decode_bytes(ngram) == target.token_bytes[token]
        assert cache.longest_match(list(ngram), 0) == (token, len(ngram))


def test_prefill_of_real_models_vocabularies():
    drafter, target = real("models/babyllama-tok361"), real("models/stories260K")
    alignment, cache = align(drafter, target), NGramCache()
    assert cache.prefill(drafter, target, alignment) == 151
    covered = {token for _, token, _ in cache.items()} | set(np.flatnonzero(alignment.target_to_draft >= 0).tolist())
    assert len(covered) == target.size  # every target token is covered
    assert cache.prefill(drafter, target, alignment) == 0
