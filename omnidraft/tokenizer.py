"""An ordinary tokenizer.json seen as bytes: what each token id stands for, whatever spelling its vocabulary uses.

Two tokenizers can only be compared by bytes (arXiv 2507.02659, section 3.1 compares strings; see `vocabulary.py`).
Two spellings are in use:

- SentencePiece: "▁" is a space, "<0xNN>" is the single byte NN (byte fallback), all else is plain text. Such a
  tokenizer usually puts a dummy space before the text: "Snow" is encoded as if it were " Snow".
- Byte-level BPE (GPT-2, Llama-3, Qwen): each byte is one of 256 stand-in characters, "Ġ" = space, "Ċ" = newline.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from .errors import OmnidraftError
from .special_tokens import find_roles

# GPT-2's stand-ins: a printable Latin-1 byte is its own character, the other 68 take the code points from 256 on.
_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TO_CHARACTER = [chr(b) if b in _PRINTABLE else chr(256 + _OTHERS.index(b)) for b in range(256)]
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
_STAND_INS = set(BYTE_TO_CHARACTER)

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRE_TOKENIZERS = {"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "UnicodeScripts", "Whitespace",
                   "WhitespaceSplit", "FixedLength"}
_NO_DUMMY_SPACE = {"prepend_scheme": "never", "add_prefix_space": False}


class Tokenizer:
    """A tokenizer and the bytes of its tokens.

    `raw` is taken over (truncation and padding are switched off); `config` is tokenizer_config.json, completed with
    `eos_token_id` of config.json and generation_config.json. Raises OmnidraftError for a model whose pieces do not
    concatenate to the text (WordPiece, "</w>" suffixes).

    >>> llama2 = Tokenizer.load("llama2-32k")                         # doctest: +SKIP
    >>> [llama2.token_bytes[i] for i in llama2.encode("Snowflake")]  # doctest: +SKIP
    [b' Snow', b'f', b'la', b'ke']
    """

    def __init__(self, raw: tokenizers.Tokenizer, name: str = "", config: dict | None = None) -> None:
        raw.no_truncation()
        raw.no_padding()
        self.raw, self.name, self._config = raw, name, config or {}
        kind, marks = type(raw.model).__name__, ("end_of_word_suffix", "continuing_subword_prefix")
        if kind == "WordPiece" or any(getattr(raw.model, mark, None) for mark in marks):
            raise OmnidraftError(f"tokenizer {name!r} ({kind}) marks word boundaries outside its bytes: "
                                 "use a SentencePiece-style or byte-level tokenizer")
        before = _parts(raw.normalizer) + _parts(raw.pre_tokenizer)
        parts = json.dumps(before + _parts(raw.decoder))
        self.byte_level: bool = '"ByteLevel"' in parts
        self._fallback = '"ByteFallback"' in parts or getattr(raw.model, "byte_fallback", False)
        self._space = "\\u2581" in parts  # "▁" stands for a space
        # Pieces cannot spell bytes that are no UTF-8 (here: surrogate escapes), nor "▁" itself where it means a space.
        self._unspellable = re.compile("([\udc80-\udcff▁]+)" if self._space else "([\udc80-\udcff]+)")
        self.prefix_space: bool = any(part["type"] == "Prepend" or part.get("add_prefix_space")
                                      or part.get("prepend_scheme", "never") != "never" for part in before)

        vocabulary = raw.get_vocab(with_added_tokens=True)
        self.size: int = max(vocabulary.values(), default=-1) + 1
        spellings = {token: string for string, token in vocabulary.items()}
        self.strings: list[str | None] = [spellings.get(token) for token in range(self.size)]
        self.roles, self._special = find_roles(self._config, raw, vocabulary, self.byte_level)
        added = raw.get_added_tokens_decoder()
        self.token_bytes: list[bytes | None] = [self._bytes_of(i, i in added) for i in range(self.size)]
        self.byte_fallback: dict[int, int] = {}
        for i, data in enumerate(self.token_bytes):
            if data and len(data) == 1 and (self.is_fallback(i) or self.byte_level and i not in added):
                self.byte_fallback.setdefault(data[0], i)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json of a Hugging Face folder, and the special tokens its other .json files name.

        Raises OmnidraftError where the folder or its tokenizer.json is missing or broken.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise OmnidraftError(f"no tokenizer.json in {folder}: pass a Hugging Face folder that has one")
        try:
            raw = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise OmnidraftError(f"{path} is not a readable tokenizer.json ({error}): download it again") from None
        config = read_json(folder / "tokenizer_config.json")
        ends = [read_json(folder / file).get("eos_token_id") for file in ("generation_config.json", "config.json")]
        config["eos_token_id"] = [i for end in ends for i in (end if isinstance(end, list) else [end])]
        return cls(raw, folder.resolve().name, config)

    def within(self, size: int) -> Tokenizer:
        """This tokenizer without the added tokens beyond the `size` ids that a model has logits for.

        Such a token was added after the training and means nothing to the model; its text is read by other tokens. Raises
        OmnidraftError where ordinary tokens lie beyond.
        """
        if self.size <= size:
            return self
        data = json.loads(self.raw.to_str())
        data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < size]
        made = tokenizers.Tokenizer.from_str(json.dumps(data))
        if (most := max(made.get_vocab(with_added_tokens=True).values(), default=-1)) >= size:
            raise OmnidraftError(f"the tokenizer {self.name!r} has ids up to {most}, but the model's logits end at {size - 1}: "
                                 "they do not belong together")
        return Tokenizer(made, self.name, self._config)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the tokenizer.json as the library serializes it: same bytes in, same ids out."""
        return hashlib.sha256(self.raw.to_str().encode()).hexdigest()

    def is_fallback(self, token: int) -> bool:
        """True for a byte-fallback token, spelled <0xNN>; never in a byte-level vocabulary."""
        return bool(self._fallback and _FALLBACK.fullmatch(self.strings[token] or ""))

    def encode(self, text: str, bos: bool = False, specials: bool = False) -> list[int]:
        """Ids of a whole text, as the library gives them; with `bos` after the begin token, if there is one.

        Special tokens spelled in the text ("</s>") are text, unless `specials` lets them be read as tokens:
        what a model wrote must never become an end token by being read again.
        """
        self.raw.encode_special_tokens = not specials
        return [*(self.roles["bos"][:1] if bos else ()), *_run(self.raw, text)]

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of a text that goes on from other text: its exact bytes, no dummy space, no normalisation.

        >>> llama2.encode("flake"), llama2.encode_continuation("flake")  # doctest: +SKIP
        ([17422, 446], [29888, 433, 446])
        """
        if not self._space or "▁" not in text or not self.byte_fallback.keys() >= set("▁".encode()):
            return _run(self._exact, text)
        return self._spell(text, lambda part: _run(self._exact, part))

    def split(self, data: bytes) -> tuple[int, ...] | None:
        """How the merges alone split the bytes of one token (no pre-tokenizer); None if they cannot spell them.

        >>> llama2.split(b"flake"), llama2.split(b" flake")  # doctest: +SKIP
        ((29888, 433, 446), (17422, 446))
        """
        def merged(text: str) -> list[int]:
            return [token.id for token in self.raw.model.tokenize(text)]

        try:
            if self.byte_level:
                ids = merged("".join([BYTE_TO_CHARACTER[b] for b in data]))
            else:  # merges never join byte-fallback tokens, so the spellable parts split independently
                ids = self._spell(data.decode("utf-8", "surrogateescape"),
                                  lambda part: merged(part.replace(" ", "▁") if self._space else part))
        except Exception:  # KeyError: no fallback token; bare Exception: the library has no unknown token
            return None
        return tuple(ids) if data and self.decode_bytes(ids) == data else None

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The joined bytes of the tokens; special, unused and padded ids give nothing. Raises on a negative id."""
        if len(ids) and min(ids) < 0:
            raise OmnidraftError(f"token id {min(ids)} is negative: -1 means 'no such token' and cannot be decoded")
        spelled, size = self.token_bytes, self.size
        return b"".join([spelled[i] or b"" for i in ids if i < size])

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids that start a text: broken UTF-8 replaced, the dummy space taken off."""
        text = self.decode_bytes(ids).decode("utf-8", "replace")
        return text[1:] if self.prefix_space and text.startswith(" ") else text

    @cached_property
    def _exact(self) -> tokenizers.Tokenizer:
        """The same model behind a normalizer and pre-tokenizer that change no byte and add no space."""
        shell = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "decoder": None,
                 "normalizer": {"type": "Sequence", "normalizers": _without_changes(self.raw.normalizer)},
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": _without_changes(self.raw.pre_tokenizer)},
                 "post_processor": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}
        exact = tokenizers.Tokenizer.from_str(json.dumps(shell))
        exact.model = self.raw.model  # shared, not copied
        added = sorted(self.raw.get_added_tokens_decoder().items())
        if any(not token.special for _, token in added):  # plain added tokens, such as runs of spaces, stay
            for i, token in added:  # the library numbers them in this order
                (exact.add_special_tokens if i in self._special else exact.add_tokens)([token])
        exact.encode_special_tokens = True
        return exact

    def _spell(self, text: str, run: Callable[[str], list[int]]) -> list[int]:
        """Ids by `run` for the parts of a text that pieces can spell, byte tokens for the others."""
        ids: list[int] = []
        for place, part in enumerate(self._unspellable.split(text)):  # a captured separator stands at every odd place
            if place % 2:
                ids += [self.byte_fallback[byte] for byte in part.encode("utf-8", "surrogateescape")]
            elif part:
                ids += run(part)
        return ids

    def _bytes_of(self, token: int, added: bool) -> bytes | None:
        string = self.strings[token]
        if string is None or token in self._special:
            return None
        if self.is_fallback(token):
            return bytes([int(string[3:5], 16)])
        if not self.byte_level:
            return (string.replace("▁", " ") if self._space else string).encode()
        if added or not _STAND_INS.issuperset(string):  # added tokens are spelled in plain text, whatever the vocabulary does
            return string.encode()
        return bytes([CHARACTER_TO_BYTE[character] for character in string])


def _run(raw: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        text.encode()  # some releases of the library raise TypeError for a lone surrogate, others replace it
        return raw.encode(text, add_special_tokens=False).ids
    except UnicodeEncodeError:
        raise OmnidraftError(f"cannot encode {text!r:.60}: it is not valid Unicode text; "
                             "decode the input as UTF-8 first") from None


def _parts(component: Any) -> list[dict]:
    """The JSON of a normalizer's, pre-tokenizer's or decoder's parts; quicker than that of the whole tokenizer."""
    if component is None:
        return []
    state = component if isinstance(component, dict) else json.loads(component.__getstate__())
    inner = next((state[key] for key in ("normalizers", "pretokenizers", "decoders") if key in state), None)
    return [state] if inner is None else [part for nested in inner for part in _parts(nested)]


def _without_changes(component: Any) -> list[dict]:
    """Its parts without a dummy space, less those that change bytes (NFC, Strip, ...)."""
    return [part | {key: _NO_DUMMY_SPACE[key] for key in _NO_DUMMY_SPACE.keys() & part.keys()} for part in _parts(component)
            if part["type"] in _PRE_TOKENIZERS or part["type"] == "Replace" and part["content"] == "▁"]


def read_json(path: Path) -> dict:
    """The dictionary in a JSON file, empty where there is no file; raises OmnidraftError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise OmnidraftError(f"{path} is not readable JSON (copy the model's folder again)")
    return content
