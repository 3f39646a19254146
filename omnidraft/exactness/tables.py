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

    stream, new_cache = b"", Cache

    def __init__(self, tokenizer: Tokenizer, seed: int, context_size: int = 512,
                 padding: int = 2) -> None:
        self.tokenizer, self.seed, self.name = tokenizer, seed, f"table-{seed}"
        self.vocab_size, self.context_size = tokenizer.size + padding, context_size
        self.eos_ids = tokenizer.roles["eos"]
        self.embedding = np.random.default_rng(seed).standard_normal((self.vocab_size, 2))
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def forward(self, ids: Sequence[int], cache: Cache, rows: int = 1) -> np.ndarray:
        """Logits (rows, V) after the last of `ids`, which are added to the cache."""
        cache.ids += [int(i) for i in ids]
        assert 1 <= rows <= len(ids) and len(cache.ids) <= self.context_size
        assert all(0 <= i < self.tokenizer.size for i in ids)
        end = len(cache.ids)
        return np.array([self.row(tuple(cache.ids[:end - back])) for back in reversed(range(rows))])

    def row(self, ids: tuple[int, ...]) -> np.ndarray:
        """Logits (V,) after `ids`, computed once."""
        if ids not in self._rows:
            rng, text = np.random.default_rng([self.seed, *ids]), self.tokenizer.decode_bytes(ids)
            at = self.stream.find(text[-3:])  # the drafter may have dropped the start of the text
            ahead = self.stream[at + 3 if at >= 0 else len(text) % 20:]
            likely = [i for i, data in enumerate(self.tokenizer.token_bytes)
                      if data and ahead.startswith(data)][-3:]
            possible = likely + rng.integers(self.tokenizer.size, size=2).tolist()
            logits = np.full(self.vocab_size, -np.inf)
            logits[possible] = rng.standard_normal(len(possible))
            logits[likely] += 3.0
            logits[self.tokenizer.size:] = 9.0
            self._rows[ids] = logits
        return self._rows[ids]


def random_tokenizer(rng: np.random.Generator, most: int) -> Tokenizer:
    """BPE over a few letters with at most `most` merges, byte-level or as in SentencePiece.

    It may have two end tokens, cut characters, byte tokens, an empty token, a second "a" or " a".
    """
    byte_level, two, cut, odd, twin = map(int, rng.random(5) < [0.5, *[OFTEN] * 4])
    pieces = ["a", "b", "Ġ" if byte_level else "▁"] + (["Ã", "©"] if byte_level else ["é"]) * cut
    merges: list[tuple[str, str]] = []
    for _ in range(rng.integers(most + 1)):
        pair = pieces[rng.integers(len(pieces))], pieces[rng.integers(len(pieces))]
        if len("".join(pair)) <= 4 and "".join(pair) not in pieces:
            merges.append(pair)
            pieces.append("".join(pair))
    special = ["<|endoftext|>" if byte_level else "</s>"] + ["<|im_end|>"] * two
    strings = pieces + [""] * odd if byte_level else [
        "<unk>", *["<0xC3>", "<0xA9>", "<0x61>"] * odd, *pieces]
    unknown = {} if byte_level else {"unk_token": "<unk>", "byte_fallback": bool(odd)}
    raw = tokenizers.Tokenizer(models.BPE({s: i for i, s in enumerate(strings)}, merges, **unknown))
    if byte_level:
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.decoder = decoders.ByteLevel()
        raw.add_tokens([AddedToken(" a", normalized=False)] * twin)
    else:
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                               normalizers.Replace(" ", "▁")])
        raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                         decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    raw.add_special_tokens(special)
    return Tokenizer(raw, "byte-level" if byte_level else "pieces")
