"""Table models: tiny random tokenizers, and models whose logits after a text are looked up."""

from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from ..text.tokenizer import Tokenizer

OFTEN = 0.4  # probability that a tokenizer or a world has an optional feature


class Cache:
    """A cache: the ids that a table model has read."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    length = property(lambda self: len(self.ids))
    hidden = property(lambda self: np.array([[1.0, len(self.ids) % 3]]))  # for an acceptance head

    def rewind(self, length: int) -> None:
        """Keep only the first `length` ids."""
        assert 0 <= length <= len(self.ids)
        del self.ids[length:]


class TableModel:
    """A model that looks up its rows. Few tokens are possible: those that continue `stream`, and
    two others. Ids beyond the tokenizer's have the highest logit: drawing one would show."""

    stream = b""
    new_cache = Cache

    def __init__(self, tokenizer: Tokenizer, seed: int, context_size: int = 512,
                 padding: int = 2) -> None:
        self.tokenizer = tokenizer
        self.seed = seed
        self.name = f"table-{seed}"
        self.vocab_size = tokenizer.size + padding
        self.context_size = context_size
        self.eos_ids = tokenizer.roles["eos"]
        self.embedding = np.random.default_rng(seed).standard_normal((self.vocab_size, 2))
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def forward(self, ids: Sequence[int], cache: Cache, rows: int = 1) -> np.ndarray:
        """Logits (rows, V) after the last of `ids`, which are added to the cache."""
        assert 1 <= rows <= len(ids)
        assert all(0 <= token < self.tokenizer.size for token in ids)
        cache.ids += [int(token) for token in ids]
        end = len(cache.ids)
        assert end <= self.context_size
        return np.array([self.row(tuple(cache.ids[:end - back])) for back in reversed(range(rows))])

    def row(self, ids: tuple[int, ...]) -> np.ndarray:
        """Logits (V,) after `ids`, computed once."""
        if ids not in self._rows:
            self._rows[ids] = self._new_row(ids)
        return self._rows[ids]

    def _new_row(self, ids: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, *ids])
        likely = self._continuing(self.tokenizer.decode_bytes(ids))
        possible = likely + rng.integers(self.tokenizer.size, size=2).tolist()
        logits = np.full(self.vocab_size, -np.inf)
        logits[possible] = rng.standard_normal(len(possible))
        logits[likely] += 3.0
        logits[self.tokenizer.size:] = 9.0
        return logits

    def _continuing(self, text: bytes) -> list[int]:
        """The last three tokens that continue the stream after this text."""
        place = self.stream.find(text[-3:])  # the drafter may have dropped the start of the text
        if place >= 0:
            ahead = self.stream[place + 3:]
        else:
            ahead = self.stream[len(text) % 20:]
        fits = [token for token, data in enumerate(self.tokenizer.token_bytes)
                if data and ahead.startswith(data)]
        return fits[-3:]


def random_tokenizer(rng: np.random.Generator, most: int) -> Tokenizer:
    """BPE over a few letters with at most `most` merges, byte-level or as in SentencePiece.

    It may have two end tokens, cut characters, byte tokens, an empty token, a second "a" or " a".
    """
    byte_level, two_ends, cut, odd, twin = rng.random(5) < [0.5, OFTEN, OFTEN, OFTEN, OFTEN]
    if byte_level:
        return _byte_level(rng, most, two_ends, cut, odd, twin)
    return _pieces(rng, most, two_ends, cut, odd)


def _byte_level(rng: np.random.Generator, most: int, two_ends: bool, cut: bool, odd: bool,
                twin: bool) -> Tokenizer:
    strings = ["a", "b", "Ġ"]
    if cut:
        strings += ["Ã", "©"]  # the two bytes of é
    merges = _random_merges(rng, most, strings)
    if odd:
        strings.append("")
    raw = tokenizers.Tokenizer(models.BPE(_numbered(strings), merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    if twin:
        raw.add_tokens([AddedToken(" a", normalized=False)])
    return _with_ends(raw, "<|endoftext|>", two_ends, "byte-level")


def _pieces(rng: np.random.Generator, most: int, two_ends: bool, cut: bool,
            odd: bool) -> Tokenizer:
    strings = ["a", "b", "▁"]
    if cut:
        strings.append("é")
    merges = _random_merges(rng, most, strings)
    if odd:
        strings = ["<0xC3>", "<0xA9>", "<0x61>"] + strings
    raw = tokenizers.Tokenizer(models.BPE(_numbered(["<unk>"] + strings), merges,
                                          unk_token="<unk>", byte_fallback=bool(odd)))
    raw.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    return _with_ends(raw, "</s>", two_ends, "pieces")


def _random_merges(rng: np.random.Generator, most: int,
                   strings: list[str]) -> list[tuple[str, str]]:
    """At most `most` merges, whose results are added to the strings."""
    merges = []
    for _ in range(rng.integers(most + 1)):
        one = strings[rng.integers(len(strings))]
        other = strings[rng.integers(len(strings))]
        if len(one + other) <= 4 and one + other not in strings:
            merges.append((one, other))
            strings.append(one + other)
    return merges


def _numbered(strings: list[str]) -> dict[str, int]:
    return {string: token for token, string in enumerate(strings)}


def _with_ends(raw: tokenizers.Tokenizer, end: str, two_ends: bool, name: str) -> Tokenizer:
    ends = [end]
    if two_ends:
        ends.append("<|im_end|>")
    raw.add_special_tokens(ends)
    return Tokenizer(raw, name)
