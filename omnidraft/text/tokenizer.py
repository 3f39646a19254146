"""A tokenizer.json in terms of bytes: which bytes each token id stands for, however it is written.

- SentencePiece: "▁" is a space, "<0xNN>" is the byte NN (byte fallback), the rest is plain text.
  Most add a dummy space before a text: "Snow" is encoded as if it were " Snow".
- Byte-level BPE (GPT-2, Llama-3, Qwen): a stand-in character for each byte, "Ġ" for a space.
"""

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import tokenizers

from .errors import OmnidraftError
from .files import check_readable, read_json
from .special_tokens import find_roles

# GPT-2's stand-ins: printable Latin-1 bytes are themselves, the other 68 get code points 256, ...
_HIDDEN = [*range(33), *range(127, 161), 173]
BYTE_TO_CHARACTER = [chr(256 + _HIDDEN.index(b) if b in _HIDDEN else b) for b in range(256)]
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
_TO_LATIN_1 = {b: "\uffff" for b in _HIDDEN} | {ord(c): b for c, b in CHARACTER_TO_BYTE.items()}

LARGEST = 2**27  # maximum bytes of a tokenizer.json; one with 262k tokens has 33 MB
GROWTH = 64  # maximum growth of a text by a normalizer (factor) or a post-processor (ids)
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRE_TOKENIZERS = {"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "UnicodeScripts",
                   "Whitespace", "WhitespaceSplit", "FixedLength"}
_NO_DUMMY_SPACE = {"prepend_scheme": "never", "add_prefix_space": False}


class Tokenizer:
    """A tokenizer and the bytes of its tokens; `config`: see `special_tokens.find_roles`.

    `raw` is modified: truncation, padding and BPE dropout are switched off. Tokenizers read from
    equal files have equal `key`s. OmnidraftError if pieces do not join to the text (WordPiece).
    """

    def __init__(self, raw: tokenizers.Tokenizer, name: str = "",
                 config: dict[str, Any] | None = None, key: str = "") -> None:
        raw.no_truncation()
        raw.no_padding()
        if getattr(raw.model, "dropout", None):
            raw.model.dropout = None  # each text has exactly one tokenization
        self.raw, self.name, self.config = raw, name, config or {}
        self.strings = [*map(raw.id_to_token, range(raw.get_vocab_size()))]
        vocabulary = {string: i for i, string in enumerate(self.strings)}
        if None in vocabulary:  # the ids have gaps (without gaps, the line above is faster)
            vocabulary = raw.get_vocab(with_added_tokens=True)
        before = _parts(raw.normalizer) + _parts(raw.pre_tokenizer)
        self.size: int = max(vocabulary.values(), default=-1) + 1
        if problem := _problem(raw, before, self.size, len(vocabulary)):
            raise OmnidraftError(f"tokenizer {name!r} ({type(raw.model).__name__}) {problem}")
        parts = json.dumps(before + _parts(raw.decoder), ensure_ascii=False)
        self.byte_level: bool = '"ByteLevel"' in parts
        has_fallback = '"ByteFallback"' in parts or getattr(raw.model, "byte_fallback", False)
        self._space = "▁" in parts  # does "▁" stand for a space?
        self.prefix_space: bool = any(part["type"] == "Prepend" or part.get("add_prefix_space")
            or part.get("prepend_scheme", "never") != "never" for part in before)
        added = raw.get_added_tokens_decoder()
        self.strings += map(raw.id_to_token, range(len(self.strings), self.size))  # after gaps
        self.special = find_roles(self.config, raw, vocabulary, self.byte_level)
        self.roles = self.special.roles
        self.fallback = {i: bytes.fromhex(byte[1]) for i, string in enumerate(self.strings)
                         if has_fallback and (byte := _FALLBACK.fullmatch(string or ""))}
        own = {i: self.strings[i].encode() for i in added if self.byte_level} | self.fallback
        self.token_bytes = [None if s is None else self._bytes_of(s) for s in self.strings]
        for token, data in (own | dict.fromkeys(self.special.ids)).items():
            self.token_bytes[token] = data
        self.longest = max(map(len, filter(None, self.token_bytes)), default=1)  # in bytes
        alone = [i for i, data in enumerate(self.token_bytes) if data and len(data) == 1]
        self.token_of_byte = {  # byte -> the lowest token that spells it alone
            self.token_bytes[i][0]: i for i in reversed(alone)
            if i in self.fallback or self.byte_level and i not in added}
        # Pieces cannot spell bytes that are not UTF-8 (surrogate escapes), or a "▁" in the text.
        mark = "▁" if self._space and self.token_of_byte.keys() >= set("▁".encode()) else ""
        self._unspellable = re.compile(f"([\udc80-\udcff{mark}]+)")
        self.key = key or self.fingerprint

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}: {self.size:,} tokens)"

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read a Hugging Face folder; OmnidraftError if its tokenizer.json is not usable."""
        path = Path(folder, "tokenizer.json")
        if not path.exists():
            raise OmnidraftError(f"no tokenizer.json in {folder}: pass a Hugging Face folder")
        check_readable(path, LARGEST)
        with _library(f"{path} is not a readable tokenizer.json: download it again"):
            raw = tokenizers.Tokenizer.from_buffer(content := path.read_bytes())
        config = read_json(path.with_name("tokenizer_config.json")) | {"eos_token_id": []}
        for file in ("generation_config.json", "config.json"):
            end = read_json(path.with_name(file)).get("eos_token_id")
            config["eos_token_id"] += end if isinstance(end, list) else [end]
        return cls(raw, path.parent.resolve().name, config, hashlib.sha256(content).hexdigest())

    def within(self, size: int) -> "Tokenizer":
        """Without added tokens past a model's `size` logits; OmnidraftError for other such ids."""
        if self.size <= size:
            return self
        data = json.loads(self.raw.to_str())
        data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < size]
        made = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(data)), self.name, self.config)
        if made.size > size:
            raise OmnidraftError(f"tokenizer {self.name!r} has ids up to {made.size - 1}, but the "
                                 f"model has {size} logits: they do not belong together")
        return made

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the tokenizer.json as the library writes it: equal hash, equal ids."""
        return hashlib.sha256(self.raw.to_str().encode()).hexdigest()

    def encode(self, text: str, bos: bool = False, specials: bool = False) -> list[int]:
        """Ids of a whole text, as the library gives them; `bos`: after the begin token, if any.

        "</s>" in a text stays text, unless `specials`: text must never become an end token.
        """
        self.raw.encode_special_tokens = not specials
        return [*(self.begin if bos else ()), *_run(self.raw, text)]

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of a text that continues another: its exact bytes, without a dummy space.

        Llama-2 encodes a text "flake" as " fl", "ake", but a continuation as "f", "la", "ke".
        Surrogate escapes (PEP 383) are bytes of cut characters; they become byte tokens, if any.
        """
        return self._spell(text, lambda part: _run(self._exact, part))

    def split(self, data: bytes) -> tuple[int, ...] | None:
        """How the model alone (no pre-tokenizer) spells the bytes of a token; None if it cannot."""
        def merged(part: str) -> list[int]:
            part = part.replace(" ", "▁") if self._space else part
            return [token.id for token in self.raw.model.tokenize(part)]
        text = ("".join([BYTE_TO_CHARACTER[b] for b in data]) if self.byte_level
                else data.decode("utf-8", "surrogateescape"))
        try:
            with _library("no unknown token"):
                ids = self._spell(text, merged)  # merges never join byte tokens
        except OmnidraftError:
            return None
        return tuple(ids) if data and self.decode_bytes(ids) == data else None

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token, as for `decode_bytes`."""
        if len(ids) and min(ids) < 0:
            raise OmnidraftError(f"token id {min(ids)} is negative: it stands for no token")
        return [self.token_bytes[i] or b"" if i < self.size else b"" for i in ids]

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The joined bytes of tokens (special, unused, padding ids: none); negative ids raise."""
        return b"".join(self.pieces(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of ids from the start of a text: no dummy space, invalid UTF-8 replaced."""
        text = self.decode_bytes(ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.prefix_space else text

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """What the post-processor puts before a text; without one, the begin token, if any.

        GPT-2's begin token is <|endoftext|>, but nothing is put before a text; OPT puts </s>.
        """
        if self.raw.post_processor is None:
            return self.roles["bos"][:self.config.get("add_bos_token", True)]
        made = self.raw.encode("a 0")
        return tuple(made.ids[:[*made.sequence_ids, 0].index(0)])  # sequence 0: the text itself

    @cached_property
    def _exact(self) -> tokenizers.Tokenizer:
        """The same model, with a normalizer and pre-tokenizer that neither change nor add bytes."""
        shell = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
        shell["normalizer"] = _without_changes(self.raw.normalizer, "normalizers")
        shell["pre_tokenizer"] = _without_changes(self.raw.pre_tokenizer, "pretokenizers")
        exact = tokenizers.Tokenizer.from_str(json.dumps(shell))
        exact.model = self.raw.model  # shared, not copied
        added = sorted(self.raw.get_added_tokens_decoder().items())
        if any(not token.special for _, token in added):  # keep plain ones, such as runs of spaces
            for i, token in added:  # sorted, since the library numbers them in this order
                (exact.add_special_tokens if i in self.special.ids else exact.add_tokens)([token])
        exact.encode_special_tokens = True
        return exact

    def _spell(self, text: str, run: Callable[[str], list[int]]) -> list[int]:
        """Ids by `run` for the parts of a text that pieces can spell; byte tokens for the rest."""
        ids: list[int] = []
        for place, part in enumerate(self._unspellable.split(text)):
            if place % 2:  # a captured separator
                data = part.encode("utf-8", "surrogateescape")
                ids += [self.token_of_byte[b] for b in data if b in self.token_of_byte]
            elif part:
                ids += run(part)
        return ids

    def _bytes_of(self, string: str) -> bytes:
        """The bytes that a token with this spelling stands for."""
        if not self.byte_level:
            return (string.replace("▁", " ") if self._space else string).encode()
        try:
            return string.translate(_TO_LATIN_1).encode("latin-1")
        except UnicodeEncodeError:  # U+FFFF: not all are stand-in characters, so it is plain text
            return string.encode()


@contextmanager
def _library(what: str) -> Iterator[None]:
    """Turn whatever the tokenizer library raises into an OmnidraftError that begins with `what`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # subtle: a panic of its Rust code is not an Exception
        raise OmnidraftError(f"{what} ({' '.join(str(error).split())[:200]})") from None


def _run(raw: tokenizers.Tokenizer, text: str) -> list[int]:
    with _library("cannot encode: the text is not valid Unicode, or the tokenizer.json is broken"):
        text.encode()  # some releases of the library accept a lone surrogate, others do not
        return raw.encode(text, add_special_tokens=False).ids


def _problem(raw: Any, before: list[dict[str, Any]], size: int, tokens: int) -> str:
    """Why a tokenizer is refused, checked before memory is allocated; empty if it is accepted."""
    marks, model = ("end_of_word_suffix", "continuing_subword_prefix"), raw.model
    if type(model).__name__ == "WordPiece" or any(getattr(model, mark, None) for mark in marks):
        return "marks word boundaries outside its bytes: use a SentencePiece or byte-level one"
    if size > 2 * tokens + 2**16:  # a list of all ids would be far larger than the file
        return f"has {tokens} tokens but ids up to {size - 1}: download its tokenizer.json again"
    grown = max(prod(map(_growth, before)), raw.num_special_tokens_to_add(False))
    return f"makes a text over {GROWTH} times longer: use another one" if grown > GROWTH else ""


def _growth(part: dict[str, Any]) -> int:
    """The maximum number of characters that a part of a normalizer writes for one."""
    data = b64decode(part.get("precompiled_charsmap") or "")  # trie size (4 bytes), trie, texts
    texts = data[4 + int.from_bytes(data[:4], "little"):].decode("utf-8", "replace").split("\0")
    return max(1, *map(len, texts), len(part.get("content") or part.get("prepend") or ""))


def _parts(component: Any) -> list[dict[str, Any]]:
    """The parts of a normalizer, pre-tokenizer or decoder, as JSON."""
    if component is None:
        return []
    state = component if isinstance(component, dict) else json.loads(component.__getstate__())
    lists = ("normalizers", "pretokenizers", "decoders")
    inner = next((state[key] for key in lists if key in state), None)
    return [state] if inner is None else [part for nested in inner for part in _parts(nested)]


def _without_changes(component: Any, key: str) -> dict[str, Any]:
    """A component without its dummy space and without parts that change bytes (NFC, Strip, ...)."""
    kept = [part | {key: off for key, off in _NO_DUMMY_SPACE.items() if key in part}
            for part in _parts(component) if part["type"] in _PRE_TOKENIZERS
            or part["type"] == "Replace" and part["content"] == "▁"]
    return {"type": "Sequence", key: kept}
