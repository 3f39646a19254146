"""What is refused of a tokenizer.json, and why: whatever would break a text or memory unnoticed.

Also which parts of its pipeline are kept where the bytes of a text must stay as they are.
"""

import json
import re
from base64 import b64decode
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from .errors import OmnidraftError

GROWTH = 64  # maximum growth of a text by a normalizer (factor) or a post-processor (ids)
PROBES = " ", "\n", "\t", "a", "B", "1", ",", "é", "e\u0301", "中"  # `check_bytes` joins any two
# Parts of a pipeline that neither add, change nor remove text, without these two settings.
_HARMLESS = {"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "UnicodeScripts",
             "FixedLength"}
_NO_DUMMY_SPACE = {"prepend_scheme": "never", "add_prefix_space": False}
SPACE_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def refuse(tokenizer: Any, problem: str) -> NoReturn:
    """Raise OmnidraftError: which tokenizer has this problem."""
    kind = type(tokenizer.raw.model).__name__
    raise OmnidraftError(f"tokenizer {tokenizer.name!r} ({kind}) {problem}")


def parts_of(component: Any) -> list[dict[str, Any]]:
    """The parts of a normalizer, pre-tokenizer or decoder, as JSON; a sequence has several."""
    if component is None:
        return []
    if not isinstance(component, dict):
        component = json.loads(component.__getstate__())
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in component:
            return [part for nested in component[key] for part in parts_of(nested)]
    return [component]


def before_model(raw: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The parts that a text goes through before the model sees it."""
    return parts_of(raw.normalizer) + parts_of(raw.pre_tokenizer)


def harmless(component: Any) -> list[dict[str, Any]]:
    """The parts of a component that neither add, change nor remove text (as NFC and Strip do)."""
    kept = []
    for part in parts_of(component):
        for key in part.keys() & _NO_DUMMY_SPACE.keys():
            part[key] = _NO_DUMMY_SPACE[key]
        removes = part.get("behavior") == "Removed"
        if removes and part.get("invert"):  # its pattern says what is kept: cut in the same places
            part["behavior"] = "Isolated"
            removes = False
        if part == SPACE_TO_MARK or part["type"] in _HARMLESS and not removes:
            kept.append(part)
    return kept


def check_kind(tokenizer: Any) -> None:
    """Raise OmnidraftError for a kind of tokenizer that has no bytes, or that bloats a text."""
    raw = tokenizer.raw
    marks = [getattr(raw.model, "end_of_word_suffix", None),
             getattr(raw.model, "continuing_subword_prefix", None)]
    if type(raw.model).__name__ == "WordPiece" or any(marks):
        refuse(tokenizer, "marks word boundaries outside its bytes: use a SentencePiece or "
                          "byte-level one")
    growth = prod(_growth(part) for part in before_model(raw))
    if max(growth, raw.num_special_tokens_to_add(False)) > GROWTH:
        refuse(tokenizer, f"makes a text over {GROWTH} times longer: use another one")


def _growth(part: dict[str, Any]) -> int:
    """The maximum number of characters that a part of a normalizer writes for one."""
    written = [part.get("content") or part.get("prepend") or ""]
    table = b64decode(part.get("precompiled_charsmap") or "")
    size = int.from_bytes(table[:4], "little")  # of a trie, after which come the texts
    written += table[4 + size:].decode("utf-8", "replace").split("\0")
    return max(1, max(map(len, written)))


def check_size(tokenizer: Any, tokens: int, last: int) -> None:
    """Raise OmnidraftError if a list of all ids would be far larger than the file."""
    if last >= 2 * tokens + 2**16:
        refuse(tokenizer, f"has {tokens} tokens but ids up to {last}: download its "
                          "tokenizer.json again")


def check_ids(path: Path, content: str, raw: tokenizers.Tokenizer) -> None:
    """Raise OmnidraftError if the library moved an added token: it leaves no gaps before them."""
    found = re.search(r'"added_tokens"\s*:\s*(?=\[)', content)  # most of a file is vocabulary
    if not found:
        return
    listed, _ = json.JSONDecoder().raw_decode(content, found.end())
    for token in listed:
        check_id(path, token["content"], token["id"], raw)


def check_id(path: Path, name: str, given: int, raw: tokenizers.Tokenizer) -> None:
    """Raise OmnidraftError if an added token has another id than `path` gives it."""
    here = raw.token_to_id(name)
    if here != given:
        raise OmnidraftError(f"{path} gives {name!r} the id {given}, but the tokenizers library "
                             f"{here}: fill the gap in the added tokens")


def check_bytes(tokenizer: Any) -> None:
    """Raise OmnidraftError for a tokenizer that cannot continue a text with exactly its bytes.

    Joins any two of `PROBES` and of its own words that the model can spell. A space must be among
    them if a part of the pipeline had to go that removes text, which is a space in most.
    """
    words = (data.decode() for data in tokenizer.token_bytes
             if data and len(data) > 1 and data.isalpha())  # of letters from a to z
    probes = PROBES + tuple(islice(words, 2))
    known = [probe for probe in probes if tokenizer.split(probe.encode())]
    before = tokenizer.raw.pre_tokenizer
    if " " not in known and len(harmless(before)) < len(parts_of(before)):
        known.append(" ")
    for one, other in product(known, repeat=2):
        text = one + other
        made = tokenizer.decode_bytes(tokenizer.encode_continuation(text))
        if made != text.encode():
            refuse(tokenizer, f"cannot spell {text!r} exactly (its tokens say {made!r}): use a "
                              "model with another tokenizer")
