"""A tokenizer.json in terms of bytes: which bytes each token id stands for, however it is written.

- SentencePiece: "▁" is a space, "<0xNN>" is the byte NN (byte fallback), the rest is plain text.
  Most add a dummy space before a text: "Snow" is encoded as if it were " Snow".
- Byte-level BPE (GPT-2, Llama-3, Qwen): a stand-in character for each byte, "Ġ" for a space.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers

from .added_tokens import add_missing, read_settings
from .errors import OmnidraftError
from .files import check_readable, read_json
from .special_tokens import Names, find_roles
from .tokenizer_checks import (
    SPACE_TO_MARK,
    before_model,
    check_bytes,
    check_ids,
    check_kind,
    check_size,
    harmless,
    parts_of,
    refuse,
)
from .trial import tried

# GPT-2's stand-ins: printable Latin-1 bytes are themselves, the other 68 get code points 256, ...
_HIDDEN = [*range(33), *range(127, 161), 173]
BYTE_TO_CHARACTER = [chr(256 + _HIDDEN.index(b) if b in _HIDDEN else b) for b in range(256)]
CHARACTER_TO_BYTE = {character: byte for byte, character in enumerate(BYTE_TO_CHARACTER)}
_TO_LATIN_1 = {b: "\uffff" for b in _HIDDEN} | {ord(c): b for c, b in CHARACTER_TO_BYTE.items()}

OURS = Path(__file__).resolve().parents[1]  # the package, whose tokenizers need no trial
LARGEST = 2**27  # maximum bytes of a tokenizer.json; one with 262k tokens has 33 MB
LONGEST = 1024  # maximum bytes of a token; published vocabularies have up to 256
BATCH = 2**14  # texts that the library encodes at a time
CANNOT = "cannot encode: the text is not valid Unicode, or the tokenizer.json is broken"
_DUMMY_SPACE = ('"Prepend"', '"add_prefix_space": true', '"prepend_scheme": "always"',
                '"prepend_scheme": "first"')  # settings of a pipeline that put one before a text
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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
        check_kind(self)
        self.strings = self._read_strings()
        self.size = len(self.strings)
        self._read_pipeline()
        vocabulary = {string: i for i, string in enumerate(self.strings) if string is not None}
        self.special = find_roles(self.config, raw, vocabulary, self.byte_level)
        self.roles = self.special.roles
        self._read_bytes()
        if self.longest > LONGEST:  # texts of so many tokens would be far too long
            refuse(self, f"has a token of {self.longest:,} bytes, over {LONGEST:,}: use another "
                         "one")
        self._unspellable = re.compile(f"([{self._not_in_pieces()}]+)")
        self._controls = Names(self._controls_of_the_model())
        self.key = key or self.fingerprint
        check_bytes(self)

    def _read_strings(self) -> list[str | None]:
        """How each id is written; None for an id without a token."""
        count = self.raw.get_vocab_size()
        while self.raw.id_to_token(count) is not None:
            count += 1  # subtle: an old release of the library counts equal strings once
        strings = [self.raw.id_to_token(i) for i in range(count)]
        if None in strings:  # the ids have gaps, and end later
            last = max(self.raw.get_vocab(with_added_tokens=True).values())
            check_size(self, count, last)
            strings += [self.raw.id_to_token(i) for i in range(count, last + 1)]
        for i, token in self.raw.get_added_tokens_decoder().items():
            strings[i] = token.content  # subtle: the library may name it as normalized, "▁..."
        return strings

    def _read_pipeline(self) -> None:
        """How the vocabulary is written."""
        before = json.dumps(before_model(self.raw), ensure_ascii=False)
        pipeline = before + json.dumps(parts_of(self.raw.decoder), ensure_ascii=False)
        self.byte_level = '"ByteLevel"' in pipeline
        self._space = "▁" in pipeline  # does "▁" stand for a space?
        byte_fallback = getattr(self.raw.model, "byte_fallback", False)
        self._has_fallback = byte_fallback or '"ByteFallback"' in pipeline
        self.prefix_space = any(setting in before for setting in _DUMMY_SPACE)

    def _read_bytes(self) -> None:
        """Which bytes each id stands for (None: special or unused), and which id spells a byte."""
        self.token_bytes: list[bytes | None] = []
        self.token_of_byte: dict[int, int] = {}  # the lowest token that spells a byte alone
        self.fallback = set()
        added = self.raw.get_added_tokens_decoder()
        for i, string in enumerate(self.strings):
            if string is None or i in self.special.ids:
                self.token_bytes.append(None)
                continue
            byte = self._has_fallback and _FALLBACK.fullmatch(string)
            if byte:
                data = bytes.fromhex(byte[1])
                self.fallback.add(i)
            else:
                data = self._bytes_of(string, i in added)
            if len(data) == 1 and (byte or self.byte_level and i not in added):
                self.token_of_byte.setdefault(data[0], i)
            self.token_bytes.append(data)
        self.longest = max(map(len, filter(None, self.token_bytes)), default=1)  # in bytes

    def _controls_of_the_model(self) -> list[str]:
        """Control tokens that the model itself may find in a text: Unigram finds all of these."""
        names = [self.strings[i] for i in sorted(self.special.ids | self.fallback)]
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
        with in_one_line(f"{path} is not a readable tokenizer.json: download it again"):
            content = path.read_bytes()
            raw = tokenizers.Tokenizer.from_buffer(content)
        if OURS not in path.resolve().parents:
            tried(before_model(raw), path.parent.name)
        ends = []
        for file in ("generation_config.json", "config.json"):
            end = read_json(path.with_name(file)).get("eos_token_id")
            ends += end if isinstance(end, list) else [end]
        config = read_settings(path.parent) | {"eos_token_id": ends}
        config.pop("add_bos_token", None)  # next to a tokenizer.json, which says it
        key = hashlib.sha256(content).hexdigest()
        with in_one_line(f"the tokenizer settings in {folder} are not usable: copy them again"):
            if add_missing(raw, config, path.parent):
                key = ""
        made = cls(raw, path.parent.resolve().name, config, key)
        check_ids(path, content.decode(), raw)
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
        if specials:
            ids = _run(self._with_specials, text)
        else:
            ids = _run(self.raw, text)
            if self._has_control(ids, text):
                first = self.decode_bytes(_run(self.raw, text[0]))
                if first == b" " + text[0].encode():
                    text = " " + text  # its dummy space
                ids = self.encode_continuation(text)
        if bos:
            ids = list(self.begin) + ids
        return ids

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
            found = self._encode_simple(some)
            for text in some:
                yield found.get(text) or (self.encode_continuation(text), False)

    def _encode_simple(self, texts: Sequence[str]) -> dict[str, tuple[list[int], bool]]:
        """What `encode_continuations` yields for the texts that are only pieces of the model."""
        # nearly always there are no names in any of them, which is found out at once
        names = self._controls.find("\n".join(texts))
        simple = [text for text in texts if text and not self._unspellable.search(text)
                  and not (names and self._controls.find(text))]
        with in_one_line(CANNOT):
            encoded = self._exact.encode_batch(simple, add_special_tokens=False)
        return {text: (one.ids, one.word_ids[-1:] == [0])
                for text, one in zip(simple, encoded, strict=True)}

    def split(self, data: bytes) -> tuple[int, ...] | None:
        """How the model alone (no pre-tokenizer) spells the bytes of a token; None if it cannot."""
        def merged(part: str) -> list[int]:
            if self._space:
                part = part.replace(" ", "▁")
            return [token.id for token in self.raw.model.tokenize(part)]

        if self.byte_level:
            text = "".join([BYTE_TO_CHARACTER[b] for b in data])
        else:
            text = data.decode("utf-8", "surrogateescape")
        with suppress(OmnidraftError), in_one_line("no unknown token"):
            ids = self._spell(text, merged)  # merges never join byte tokens
            if data and self.decode_bytes(ids) == data:
                return tuple(ids)
        return None

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
        """What the post-processor puts before a text; without one, nothing, as in transformers.

        GPT-2's begin token is <|endoftext|>, but nothing is put before a text; OPT puts </s>.
        """
        if self.raw.post_processor is None:
            return self.roles["bos"][:bool(self.config.get("add_bos_token"))]  # GGUF says it so
        with in_one_line("cannot encode"):
            made = self.raw.encode("a 0")
        return tuple(made.ids[:[*made.sequence_ids, 0].index(0)])  # sequence 0: the text itself

    def _has_control(self, ids: Sequence[int], text: str) -> bool:
        """Has the library found a control token, or a byte such as "<0x0A>", in a typed text?"""
        usual = self.fallback.union(self.roles["unk"])  # they stand for other characters too
        found = set(ids) & (self.special.ids | self.fallback)
        return any(i not in usual or self.strings[i] in text for i in found)

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
        made.normalizer = self.raw.normalizer
        made.pre_tokenizer = self.raw.pre_tokenizer
        _add(made, self.raw.get_added_tokens_decoder())
        return made

    @cached_property
    def _exact(self) -> tokenizers.Tokenizer:
        """The same model, with a pipeline that neither adds, changes nor removes bytes."""
        normalizers = harmless(self.raw.normalizer)
        if self._space and SPACE_TO_MARK not in normalizers:
            normalizers.append(SPACE_TO_MARK)  # whichever part did that before
        pre_tokenizers = harmless(self.raw.pre_tokenizer)
        exact = tokenizers.Tokenizer.from_str(json.dumps({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
            "model": {"type": "BPE", "vocab": {}, "merges": []}}))
        exact.model = self.raw.model  # shared, not copied
        added = self.raw.get_added_tokens_decoder()
        if not all(token.special for token in added.values()):
            for i, token in added.items():  # none may take the spaces around it
                changed = {"lstrip": False, "rstrip": False, "special": i in self.special.ids}
                added[i] = tokenizers.AddedToken(**(token.__getstate__() | changed))
            _add(exact, added)
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

    def _bytes_of(self, string: str, is_added: bool) -> bytes:
        """The bytes that a token with this spelling stands for."""
        if self.byte_level and not is_added:  # added tokens are written without stand-ins
            with suppress(UnicodeEncodeError):  # U+FFFF: not all are stand-ins, it is plain text
                return string.translate(_TO_LATIN_1).encode("latin-1")
        if self._space and not self.byte_level:
            string = string.replace("▁", " ")
        return string.encode()


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Turn whatever the tokenizer library raises into an OmnidraftError that begins with `what`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, OmnidraftError):
        raise
    except BaseException as error:  # subtle: a panic of its Rust code is not an Exception
        raise OmnidraftError(f"{what} ({' '.join(str(error).split())[:200]})") from None


def _run(raw: tokenizers.Tokenizer, text: str) -> list[int]:
    with in_one_line(CANNOT):
        text.encode()  # some releases of the library accept a lone surrogate, others do not
        return raw.encode(text, add_special_tokens=False).ids


def _switch_off(raw: tokenizers.Tokenizer) -> None:
    """Switch off whatever keeps a text from having exactly one tokenization."""
    raw.no_truncation()
    raw.no_padding()
    raw.encode_special_tokens = True  # as text: they are tokens only for `_with_specials`
    if getattr(raw.model, "dropout", None):
        raw.model.dropout = None


def _add(made: tokenizers.Tokenizer, tokens: dict[int, tokenizers.AddedToken]) -> None:
    """Add tokens in the order of their ids, in which the library numbers them.

    In runs of special or other ones: each call takes as long as all tokens before it (Gemma 3 adds
    6,384).
    """
    in_order = [tokens[i] for i in sorted(tokens)]
    for special, group in groupby(in_order, lambda token: token.special):
        if special:
            made.add_special_tokens(list(group))
        else:
            made.add_tokens(list(group))


def _fails_at_unknown(model: Any) -> bool:
    """Does the library fail at a character that the model lacks, as Unigram without <unk> does?"""
    with suppress(OmnidraftError), in_one_line("no unknown token"):
        model.tokenize("\U0010ffff")  # not a character, so no token has it
        return False
    return True
