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
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from .errors import OmnidraftError
from .roles import find_roles

# GPT-2's stand-ins: a printable Latin-1 byte is its own character, the other 68 take the code points from 256 on.
_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TO_CHARACTER = [chr(b) if b in _PRINTABLE else chr(256 + _OTHERS.index(b)) for b in range(256)]
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRE_TOKENIZERS = {"Split", "Digits", "Punctuation", "UnicodeScripts", "Whitespace", "WhitespaceSplit", "FixedLength"}


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
        self.raw, self.name = raw, name
        kind = type(raw.model).__name__
        if kind == "WordPiece" or getattr(raw.model, "end_of_word_suffix", None) or (
            getattr(raw.model, "continuing_subword_prefix", None)
        ):
            raise OmnidraftError(f"tokenizer {name!r} ({kind}) marks word boundaries outside its bytes: "
                                 "use a SentencePiece-style or byte-level tokenizer")
        parts = " ".join(json.dumps(_state(part)) for part in (raw.normalizer, raw.pre_tokenizer, raw.decoder))
        self.byte_level: bool = '"ByteLevel"' in parts
        self._fallback = '"ByteFallback"' in parts or getattr(raw.model, "byte_fallback", False)
        self._space = "\\u2581" in parts  # "▁" stands for a space
        # Pieces cannot spell bytes that are no UTF-8 (here: surrogate escapes), nor "▁" itself where it means a space.
        self._unspellable = re.compile("([\udc80-\udcff▁]+)" if self._space else "([\udc80-\udcff]+)")
        self.prefix_space: bool = _adds_space(_state(raw.normalizer)) or _adds_space(_state(raw.pre_tokenizer))

        vocabulary = raw.get_vocab(with_added_tokens=True)
        self.size: int = max(vocabulary.values(), default=-1) + 1
        self.strings: list[str | None] = [None] * self.size
        for string, token in vocabulary.items():
            self.strings[token] = string
        self.roles, self._special = find_roles(config or {}, raw, vocabulary, self.byte_level)
        self.byte_fallback: dict[int, int] = {}
        self._fallback_ids: set[int] = set()
        self.token_bytes: list[bytes | None] = self._spell(raw.get_added_tokens_decoder())

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
        config = _read_json(folder / "tokenizer_config.json")
        ends = [_read_json(folder / file).get("eos_token_id") for file in ("generation_config.json", "config.json")]
        config["eos_token_id"] = [i for end in ends for i in (end if isinstance(end, list) else [end])]
        return cls(raw, folder.resolve().name, config)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the tokenizer.json as the library serializes it: same bytes in, same ids out."""
        return hashlib.sha256(self.raw.to_str().encode()).hexdigest()

    def is_fallback(self, token: int) -> bool:
        """True for a byte-fallback token, spelled <0xNN>; never in a byte-level vocabulary."""
        return token in self._fallback_ids

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
        ids: list[int] = []
        for part, spellable in self._stretches(text):
            ids += _run(self._exact, part) if spellable else [self.byte_fallback[byte] for byte in part.encode()]
        return ids

    def split(self, data: bytes) -> tuple[int, ...] | None:
        """How the merges alone split the bytes of one token (no pre-tokenizer); None if they cannot spell them.

        >>> llama2.split(b"flake"), llama2.split(b" flake")  # doctest: +SKIP
        ((29888, 433, 446), (17422, 446))
        """
        ids: list[int] = []
        try:
            if self.byte_level:
                ids = [t.id for t in self.raw.model.tokenize("".join([BYTE_TO_CHARACTER[b] for b in data]))]
            else:  # merges never join byte-fallback tokens, so the spellable parts split independently
                for part, spellable in self._stretches(data.decode("utf-8", "surrogateescape")):
                    if spellable:
                        part = part.replace(" ", "▁") if self._space else part
                        ids += [t.id for t in self.raw.model.tokenize(part)]
                    else:
                        ids += [self.byte_fallback[byte] for byte in part.encode("utf-8", "surrogateescape")]
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
                 "normalizer": _without_changes(_state(self.raw.normalizer)), "post_processor": None,
                 "pre_tokenizer": _without_changes(_state(self.raw.pre_tokenizer)),
                 "model": {"type": "BPE", "vocab": {}, "merges": []}}
        exact = tokenizers.Tokenizer.from_str(json.dumps(shell))
        exact.model = self.raw.model  # shared, not copied
        added = sorted(self.raw.get_added_tokens_decoder().items())
        if any(not token.special for _, token in added):  # plain added tokens, such as runs of spaces, stay
            for i, token in added:  # the library numbers them in this order
                (exact.add_special_tokens if i in self._special else exact.add_tokens)([token])
        exact.encode_special_tokens = True
        return exact

    def _stretches(self, text: str) -> list[tuple[str, bool]]:
        """Cut a text into (part, spellable): the parts that pieces can spell and those that only bytes can."""
        parts = self._unspellable.split(text)  # a captured separator stands at every odd place
        return [(part, place % 2 == 0) for place, part in enumerate(parts) if part]

    def _spell(self, added: dict[int, tokenizers.AddedToken]) -> list[bytes | None]:
        """Bytes of every id; fills `byte_fallback` on the way."""
        spelled: list[bytes | None] = []
        for i, string in enumerate(self.strings):
            match = _FALLBACK.fullmatch(string) if string and self._fallback and string[0] == "<" else None
            if string is None or i in self._special:
                data = None
            elif match:
                data = bytes([int(match[1], 16)])
                self._fallback_ids.add(i)
                self.byte_fallback[data[0]] = i
            elif not self.byte_level:
                data = (string.replace("▁", " ") if self._space else string).encode()
            elif i in added:  # added tokens are spelled in plain text, whatever the vocabulary does
                data = string.encode()
            else:
                try:
                    data = bytes([CHARACTER_TO_BYTE[character] for character in string])
                except KeyError:
                    data = string.encode()
                if len(data) == 1:
                    self.byte_fallback.setdefault(data[0], i)
            spelled.append(data)
        return spelled


def _run(raw: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        text.encode()  # some releases of the library raise TypeError for a lone surrogate, others replace it
        return raw.encode(text, add_special_tokens=False).ids
    except UnicodeEncodeError:
        raise OmnidraftError(f"cannot encode {text!r:.60}: it is not valid Unicode text; "
                             "decode the input as UTF-8 first") from None


def _state(part: object) -> dict | None:
    """The JSON of a normalizer, pre-tokenizer or decoder, without serializing the whole tokenizer."""
    return None if part is None else json.loads(part.__getstate__())


def _adds_space(state: dict | None) -> bool:
    if state is None:
        return False
    if state["type"] == "Sequence":
        return any(map(_adds_space, state.get("normalizers") or state.get("pretokenizers") or []))
    return (state["type"] == "Prepend" or state.get("prepend_scheme", "never") != "never"
            or bool(state.get("add_prefix_space")))


def _without_changes(state: dict | None) -> dict | None:
    """The same component without a dummy space and without normalizations that change bytes (NFC, Strip, ...)."""
    if state is None:
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in state:
            return state | {key: [part for part in map(_without_changes, state[key]) if part]}
    if "prepend_scheme" in state:
        return state | {"prepend_scheme": "never"}
    if state["type"] == "ByteLevel":
        return state | {"add_prefix_space": False} if "add_prefix_space" in state else state
    spells_space = state["type"] == "Replace" and state["content"] == "▁"
    return state if spells_space or state["type"] in _PRE_TOKENIZERS else None


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise OmnidraftError(f"{path} is not readable JSON ({error}): download it again") from None
