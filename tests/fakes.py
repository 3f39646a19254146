"""Tiny tokenizers and models in place of real ones, so that tests of the loop take milliseconds."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from omnidraft.exactness.tables import Cache, TableModel
from omnidraft.text.tokenizer import Tokenizer


def byte_level(merges: list[tuple[str, str]], characters: str = "ab ") -> Tokenizer:
    """Byte-level BPE over a few characters, with <|endoftext|>; merges are given as plain text."""
    spell = {c: c.replace(" ", "Ġ").replace("\n", "Ċ") for c in characters}
    pairs = [tuple(part.replace(" ", "Ġ").replace("\n", "Ċ") for part in pair) for pair in merges]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys([*spell.values(), *map("".join, pairs)]))}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    raw.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(r" ?[^ ]+| "), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return Tokenizer(raw, "byte-level", {"eos_token": "<|endoftext|>"})


def sentence_piece(merges: list[tuple[str, str]], characters: str = "ab▁") -> Tokenizer:
    """SentencePiece-style BPE over a few characters, with <s> and </s>; merges are spelled with "▁"."""
    vocabulary = {token: i for i, token in enumerate(
        dict.fromkeys(["<unk>", "<s>", "</s>", *characters, *map("".join, merges)]))}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return Tokenizer(raw, "sentence-piece", {"bos_token": "<s>", "eos_token": "</s>"})


class FakeModel(TableModel):
    """A language model whose rows are random, fixed by (seed, the last `memory` ids); counts the tokens of each pass."""

    def __init__(self, tokenizer: Tokenizer, seed: int, *, memory: int = 2, padding: int = 0, context_size: int = 512,
                 end: float = -1.0, sharpness: float = 1.5):
        super().__init__(tokenizer, seed, context_size, padding)
        self.memory, self.end, self.sharpness, self.name = memory, end, sharpness, f"fake-{seed}"
        self.passes: list[int] = []

    def forward(self, ids, cache: Cache, rows: int = 1) -> np.ndarray:
        self.passes.append(len(ids))
        return super().forward(ids, cache, rows)

    def row(self, ids) -> np.ndarray:
        """Logits (V,) after `ids`: fixed random numbers, the end token's shifted by `end`."""
        rng = np.random.default_rng([self.seed, *ids[-self.memory:]])
        logits = self.sharpness * rng.standard_normal(self.vocab_size)
        for token in self.eos_ids:
            logits[token] += self.end
        for token in (*self.tokenizer.roles["bos"], *self.tokenizer.roles["unk"]):
            logits[token] = -30.0
        return logits


def interrupted(action: Callable[[], object], at: int, modules: tuple[str, ...]) -> int:
    """Run `action` with a KeyboardInterrupt at the line number `at` that it runs in `modules`; returns how many it ran.

    Python delivers Ctrl-C between two lines (and within them); a trace function can raise it at any chosen one.
    """
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_globals.get("__name__") not in modules:
            return None
        if event == "line":
            count += 1
            if count == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count
