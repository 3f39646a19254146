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
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby, islice, product
from math import prod
from pathlib import Path
from typing import Any

import tokenizers

from .errors import OmnidraftError
from .files import check_readable, read_json
from .names import Names
from .special_tokens import find_roles
from .trial import tried

# GPT-2's stand-ins: printable Latin-1 bytes are themselves, the other 68 get code points 256, ...
_HIDDEN = [*range(33), *range(127, 161), 173]
BYTE_TO_CHARACTER = [chr(256 + _HIDDEN.index(b) if b in _HIDDEN else b) for b in range(256)]
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
_TO_LATIN_1 = {b: "\uffff" for b in _HIDDEN} | {ord(c): b for c, b in CHARACTER_TO_BYTE.items()}

OURS = Path(__file__).resolve().parents[1]  # the package, whose tokenizers need no trial
LARGEST = 2**27  # maximum bytes of a tokenizer.json; one with 262k tokens has 33 MB
LONGEST = 1024  # maximum bytes of a token; published vocabularies have up to 256
GROWTH = 64  # maximum growth of a text by a normalizer (factor) or a post-processor (ids)
BATCH = 2**14  # texts that the library encodes at a time
CANNOT = "cannot encode: the text is not valid Unicode, or the tokenizer.json is broken"
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Parts of a pipeline that neither add, change nor remove text, without these two settings.
_HARMLESS = {"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "UnicodeScripts",
             "FixedLength"}
_NO_DUMMY_SPACE = {"prepend_scheme": "never", "add_prefix_space": False}
_SPACE_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PROBES = " ", "\n", "\t", "a", "B", "1", ",", "é", "e\u0301", "中"  # `check_bytes` joins any two


class Tokenizer:
    """A tokenizer and the bytes of its tokens; `config`: see `special_tokens.find_roles`.

    `raw` is modified: truncation, padding, BPE dropout and special tokens in a text are switched
    off. Tokenizers read from equal files have equal `key`s. OmnidraftError if pieces do not join to
    the text (WordPiece) or a continuation cannot be spelled exactly (`check_bytes`).
    """

    def __init__(self, raw: tokenizers.Tokenizer, name: str = "",
                 config: dict[str, Any] | None = None, key: str = "") -> None:
        _switch_off(raw)
        self.raw = raw
        self.name = name
        self.config = config or {}
        self.strings = _strings(raw)
        vocabulary = {string: i for i, string in enumerate(self.strings)}
        if None in vocabulary:  # the ids have gaps (without gaps, the line above is faster)
            vocabulary = raw.get_vocab(with_added_tokens=True)
        self.size: int = max(vocabulary.values(), default=-1) + 1
        before = _parts(raw.normalizer) + _parts(raw.pre_tokenizer)
        problem = _problem(raw, before, self.size, len(vocabulary))
        if problem:
            raise OmnidraftError(f"tokenizer {name!r} ({type(raw.model).__name__}) {problem}")
        self.strings += [raw.id_to_token(i) for i in range(len(self.strings), self.size)]
        self._read_pipeline(before)
        self.special = find_roles(self.config, raw, vocabulary, self.byte_level)
        self.roles = self.special.roles
        self._read_bytes()
        if self.longest > LONGEST:  # texts of so many tokens would be far too long
            raise OmnidraftError(f"tokenizer {name!r} has a token of {self.longest:,} bytes, over "
                                 f"{LONGEST:,}: use another one")
        self._unspellable = re.compile(f"([{self._not_in_pieces()}]+)")
        self._controls = Names(self._controls_of_the_model())
        self.key = key or self.fingerprint
        check_bytes(self)

    def _read_pipeline(self, before: list[dict[str, Any]]) -> None:
        """How the vocabulary is written."""
        parts = json.dumps(before + _parts(self.raw.decoder), ensure_ascii=False)
        self.byte_level: bool = '"ByteLevel"' in parts
        self._space = "▁" in parts  # does "▁" stand for a space?
        self._has_fallback = ('"ByteFallback"' in parts
                              or getattr(self.raw.model, "byte_fallback", False))
        self.prefix_space: bool = any(
            part["type"] == "Prepend" or part.get("add_prefix_space")
            or part.get("prepend_scheme", "never") != "never" for part in before)

    def _read_bytes(self) -> None:
        """Which bytes each id stands for (None: special or unused), and which id spells a byte."""
        added = self.raw.get_added_tokens_decoder()
        self.token_bytes = [None if s is None else self._bytes_of(s) for s in self.strings]
        if self.byte_level:
            for i in added:  # written as they are, without stand-ins
                self.token_bytes[i] = self.strings[i].encode()
        self.fallback = {}
        for i, string in enumerate(self.strings if self._has_fallback else ()):
            byte = _FALLBACK.fullmatch(string or "")
            if byte:
                self.fallback[i] = self.token_bytes[i] = bytes.fromhex(byte[1])
        for i in self.special.ids:
            self.token_bytes[i] = None
        self.longest = max(map(len, filter(None, self.token_bytes)), default=1)  # in bytes
        self.token_of_byte: dict[int, int] = {}  # byte -> the lowest token that spells it alone
        for i, data in enumerate(self.token_bytes):
            if data and len(data) == 1:
                if i in self.fallback or self.byte_level and i not in added:
                    self.token_of_byte.setdefault(data[0], i)

    def _controls_of_the_model(self) -> list[str]:
        """Control tokens that the model itself may find in a text: Unigram finds all of these."""
        names = [self.strings[i] for i in sorted(self.special.ids | self.fallback.keys())]
        known = self.raw.model.token_to_id
        return [name for name in names if len(name) > 1 and known(name) is not None]

    def _not_in_pieces(self) -> str:
        """The characters that pieces cannot spell, as in a regular expression's brackets."""
        mark = ""  # a "▁" in the text, if it has byte tokens
        if self._space and self.token_of_byte.keys() >= set("▁".encode()):
            mark = "▁"
        if not self.byte_level and _fails_at_unknown(self.raw.model):
            known = {string for string in self.strings if string and len(string) == 1}
            return "^" + re.escape("".join(sorted(known - {mark} | {" "})))
        return f"\udc80-\udcff{mark}"  # surrogate escapes: bytes that are not UTF-8

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
            content = path.read_bytes()
            raw = tokenizers.Tokenizer.from_buffer(content)
        if OURS not in path.resolve().parents:
            tried(_parts(raw.normalizer) + _parts(raw.pre_tokenizer), path.parent.name)
        config = read_json(path.with_name("tokenizer_config.json")) | {"eos_token_id": []}
        for file in ("generation_config.json", "config.json"):
            end = read_json(path.with_name(file)).get("eos_token_id")
            config["eos_token_id"] += end if isinstance(end, list) else [end]
        key = hashlib.sha256(content).hexdigest()
        made = cls(raw, path.parent.resolve().name, config, key)
        _check_ids(path, content.decode(), raw)
        return made

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
        ids = _run(self._with_specials if specials else self.raw, text)
        if not specials and self._has_control(ids, text):
            first = self.decode_bytes(_run(self.raw, text[0]))
            dummy = " " if first == b" " + text[0].encode() else ""
            ids = self.encode_continuation(dummy + text)
        return [*(self.begin if bos else ()), *ids]

    def encode_possible(self, text: str) -> list[int]:
        """Ids of a drafter's prompt after the begin token; what it cannot spell is left out."""
        with suppress(OmnidraftError):
            return self.encode(text, bos=True)
        with suppress(OmnidraftError):
            return list(self.begin) + self.encode_continuation(text)
        return []

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of a text that continues another: its exact bytes, without a dummy space.

        Llama-2 encodes a text "flake" as " fl", "ake", but a continuation as "f", "la", "ke".
        Surrogate escapes (PEP 383) are bytes of cut characters; they become byte tokens, if any.
        """
        return self._spell(text, self._continued)

    def encode_continuations(self, texts: Sequence[str]) -> Iterator[tuple[list[int], bool]]:
        """For each text: its `encode_continuation`, and whether the model spelled it in one piece.

        If so, `split` gives the same ids: no pre-tokenizer cut the text before the model saw it.
        The library gets thousands of texts at a time, in half the time of as many calls.
        """
        for first in range(0, len(texts), BATCH):
            some = texts[first:first + BATCH]
            # nearly always there are no names in any of them, which is found out at once
            names = self._controls.find("\n".join(some))
            simple = {text for text in some if text and not self._unspellable.search(text)
                      and not (names and self._controls.find(text))}
            asked = [text for text in some if text in simple]
            with _library(CANNOT):
                encoded = iter(self._exact.encode_batch(asked, add_special_tokens=False))
            for text in some:
                if text in simple:
                    found = next(encoded)
                    yield found.ids, found.word_ids[-1:] == [0]
                else:
                    yield self.encode_continuation(text), False

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
        with suppress(TypeError, ValueError):  # the latter for rows of an array
            if not len(ids) or min(ids) >= 0:
                return [self.token_bytes[i] or b"" if i < self.size else b"" for i in ids]
        raise OmnidraftError("cannot decode this: give a list of ids, none negative")

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
            return self.roles["bos"][:bool(self.config.get("add_bos_token", True))]
        with _library("cannot encode"):
            made = self.raw.encode("a 0")
        return tuple(made.ids[:[*made.sequence_ids, 0].index(0)])  # sequence 0: the text itself

    def _has_control(self, ids: Sequence[int], text: str) -> bool:
        """Has the library found a control token, or a byte such as "<0x0A>", in a typed text?"""
        for i in {*ids} & (self.special.ids | self.fallback.keys()):
            usual = i in self.fallback or i in self.roles["unk"]  # stands for other characters too
            if not usual or self.strings[i] in text:
                return True
        return False

    def _continued(self, part: str) -> list[int]:
        """Ids of a part by the exact pipeline; the names of control tokens are spelled as text."""
        ids = _run(self._exact, part)
        names = self._controls.find(part)
        if not names or self.decode_bytes(ids) == part.encode():
            return ids
        ids = []
        start = 0
        for begin, _ in names:
            ids += _run(self._exact, part[start:begin + 1])  # cut each name in two
            start = begin + 1
        return ids + _run(self._exact, part[start:])

    @cached_property
    def _with_specials(self) -> tokenizers.Tokenizer:
        """The same tokenizer, for which special tokens in a text are tokens.

        Two objects, not one with a switch: several threads may encode at the same time.
        """
        made = tokenizers.Tokenizer(self.raw.model)  # shared, not copied
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self.raw, part):
                setattr(made, part, getattr(self.raw, part))
        _add(made, [token for _, token in sorted(self.raw.get_added_tokens_decoder().items())])
        return made

    @cached_property
    def _exact(self) -> tokenizers.Tokenizer:
        """The same model, with a pipeline that neither adds, changes nor removes bytes."""
        shell = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
        normalizers = list(_harmless(self.raw.normalizer))
        pre_tokenizers = list(_harmless(self.raw.pre_tokenizer))
        if self._space and _SPACE_TO_MARK not in normalizers:
            normalizers.append(_SPACE_TO_MARK)  # whichever part did that before
        shell["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
        shell["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": pre_tokenizers}
        exact = tokenizers.Tokenizer.from_str(json.dumps(shell))
        exact.model = self.raw.model  # shared, not copied
        added = sorted(self.raw.get_added_tokens_decoder().items())
        if any(not token.special for _, token in added):  # keep plain ones, such as runs of spaces
            _add(exact, [tokenizers.AddedToken(  # without those that take away spaces around them
                token.content, single_word=token.single_word, normalized=token.normalized,
                special=i in self.special.ids) for i, token in added])
        exact.encode_special_tokens = True
        return exact

    def _spell(self, text: str, run: Callable[[str], list[int]]) -> list[int]:
        """Ids by `run` for the parts of a text that pieces can spell; byte tokens for the rest."""
        ids = []
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
    with _library(CANNOT):
        text.encode()  # some releases of the library accept a lone surrogate, others do not
        return raw.encode(text, add_special_tokens=False).ids


def _switch_off(raw: tokenizers.Tokenizer) -> None:
    """Switch off whatever keeps a text from having exactly one tokenization."""
    raw.no_truncation()
    raw.no_padding()
    raw.encode_special_tokens = True  # as text: they are tokens only for `_with_specials`
    if getattr(raw.model, "dropout", None):
        raw.model.dropout = None


def _add(made: tokenizers.Tokenizer, tokens: list[tokenizers.AddedToken]) -> None:
    """Add tokens in this order, in which the library numbers them.

    In runs of special or other ones: each call takes as long as all tokens before it (Gemma 3 adds
    6,384).
    """
    for special, group in groupby(tokens, lambda token: token.special):
        (made.add_special_tokens if special else made.add_tokens)([*group])


def _strings(raw: tokenizers.Tokenizer) -> list[str | None]:
    """How each id is written, up to the number of tokens."""
    count = raw.get_vocab_size()
    while raw.id_to_token(count) is not None:  # subtle: an old release counts equal strings once
        count += 1
    strings = [raw.id_to_token(i) for i in range(count)]
    for i, token in raw.get_added_tokens_decoder().items():
        if i < len(strings):  # subtle: the library may name it as normalized, "▁..."
            strings[i] = token.content
    return strings


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


def _harmless(component: Any) -> Iterator[dict[str, Any]]:
    """The parts of a component that neither add, change nor remove text (as NFC and Strip do)."""
    for part in _parts(component):
        part |= {key: off for key, off in _NO_DUMMY_SPACE.items() if key in part}
        if part.get("behavior") == "Removed":
            if not part.get("invert"):
                continue
            part["behavior"] = "Isolated"  # its pattern says what is kept: cut in the same places
        if part["type"] in _HARMLESS or part == _SPACE_TO_MARK:
            yield part


def check_bytes(tokenizer: Tokenizer) -> None:
    """Raise OmnidraftError for a tokenizer that cannot continue a text with exactly its bytes.

    Joins any two of `PROBES` and of its own words that the model can spell. A space must be among
    them if a part of the pipeline had to go that removes text, which is a space in most.
    """
    words = (data.decode() for data in tokenizer.token_bytes
             if data and len(data) > 1 and data.isalpha())
    known = [probe for probe in (*PROBES, *islice(words, 2)) if tokenizer.split(probe.encode())]
    before = tokenizer.raw.pre_tokenizer
    if len(_parts(before)) > len(list(_harmless(before))) and " " not in known:
        known.append(" ")
    for text in map("".join, product(known, repeat=2)):
        made = tokenizer.decode_bytes(tokenizer.encode_continuation(text))
        if made != text.encode():
            raise OmnidraftError(f"tokenizer {tokenizer.name!r} cannot spell {text!r} exactly (its "
                                 f"tokens say {made!r}): use a model with another tokenizer")


def _fails_at_unknown(model: Any) -> bool:
    """Does the library fail at a character that the model lacks, as Unigram without <unk> does?"""
    try:
        with _library("no unknown token"):
            model.tokenize("\U0010ffff")  # not a character, so no token has it
    except OmnidraftError:
        return True
    return False


def _check_ids(path: Path, content: str, raw: tokenizers.Tokenizer) -> None:
    """Raise OmnidraftError if the library moved an added token: it leaves no gaps before them."""
    found = re.search(r'"added_tokens"\s*:\s*(?=\[)', content)  # most of a file is vocabulary
    listed = json.JSONDecoder().raw_decode(content, found.end())[0] if found else []
    for token in listed:
        here = raw.token_to_id(token["content"])
        if here != token["id"]:
            raise OmnidraftError(f"{path} gives {token['content']!r} the id {token['id']}, but the "
                                 f"tokenizers library {here}: fill the gap in the added tokens")
