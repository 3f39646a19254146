"""Small tokenizers for tests: built by hand, one of each kind; and real ones, where available."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from omnidraft.text.tokenizer import BYTE_TO_CHARACTER, Tokenizer

REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA") or Path(__file__).resolve().parents[1] / ".." / "shared" / "real")
REAL_TOKENIZERS = ("tokenizers/llama2-32k", "tokenizers/llama3-128k", "tokenizers/qwen2-151k", "tokenizers/gpt2-50k",
                   "tokenizers/tok512", "models/stories260K", "models/babyllama-tok361")


@cache
def real(name: str) -> Tokenizer:
    """One of REAL_TOKENIZERS; skips the test if it is absent."""
    if not (REAL / name).is_dir():
        pytest.skip(f"{REAL / name} is not here (set OMNIDRAFT_REAL_DATA)")
    return Tokenizer.load(REAL / name)


def sentencepiece(characters: str, merges: str = "", fallback: bool = True, metaspace: bool = False,
                  config: dict | None = None, name: str = "pieces", extra: tuple[str, ...] = ()) -> Tokenizer:
    """SentencePiece-style: <unk>, <s>, </s>, the 256 bytes, single characters, then one piece per merge "a b"."""
    strings = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] * fallback + [*characters, *extra]
    pairs = [tuple(pair.split()) for pair in merges.split(", ") if pair]
    strings += ["".join(pair) for pair in pairs]
    raw = tokenizers.Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(strings)}, merges=pairs, unk_token="<unk>",
                                          byte_fallback=fallback, fuse_unk=True))
    if metaspace:
        raw.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    else:
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(raw, name, {"add_bos_token": True} | (config or {}))


def byte_level(merges: str = "", specials: tuple[str, ...] = ("<|endoftext|>",), added: tuple[str, ...] = (),
               config: dict | None = None, name: str = "bytes", gap: int = 0) -> Tokenizer:
    """GPT-2-style: the 256 byte characters, one piece per merge "a b", then special and plain added tokens."""
    pairs = [tuple(pair.split()) for pair in merges.split(", ") if pair]
    vocabulary = {s: i for i, s in enumerate([*BYTE_TO_CHARACTER, *("".join(pair) for pair in pairs)])}
    if gap:  # unused ids before the last piece
        vocabulary[list(vocabulary)[-1]] += gap
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(specials))
    raw.add_tokens([AddedToken(content, normalized=False) for content in added])
    return Tokenizer(raw, name, config)


def snow_drafter(**options: object) -> Tokenizer:
    """Writes "Snowflake" as ▁Snow f la ke."""
    return sentencepiece("▁Snowflake", "S n, Sn o, Sno w, ▁ Snow, l a, k e", **options)


def snow_target(**options: object) -> Tokenizer:
    """Writes "Snowflake" as Snow flake."""
    return byte_level("S n, Sn o, Sno w, f l, a k, fl ak, flak e, Ġ Snow", **options)
