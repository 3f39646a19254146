"""The tokenizer in a GGUF file's settings, rebuilt as a pipeline of the tokenizers library.

- "gpt2": byte-level BPE. The file lists tokens and merges, but only *names* the rule that cuts a
  text into words ("pre"): each name stands for a pattern that llama.cpp has in its source.
- "llama": SentencePiece. The file lists tokens with scores: of two neighbours, those are merged
  whose joined token has the highest score.
"""

from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Raw

from ..text.files import paused
from ..text.tokenizer import LONGEST, Tokenizer, in_one_line

WORK, CUTS = 2**28, 2**22  # maximum of `_merges`; Gemma 3 (262,144 pieces) needs a tenth
NORMAL, UNKNOWN, CONTROL, OWN, UNUSED, BYTE = range(1, 7)  # types of tokens
SINGLE = r"\p{N}"  # each digit is a word
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
DEFAULT = r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9]{3}"  # also if the file names none
PATTERNS = {  # name: patterns, each of which cuts the pieces that the one before it left
    "default": DEFAULT, "gpt-2": (GPT2,), "smollm": (SINGLE, GPT2), "starcoder": (SINGLE, GPT2),
    "refact": (SINGLE, GPT2), "llama-bpe": (LLAMA3,), "llama3": (LLAMA3,), "llama-v3": (LLAMA3,),
    "qwen2": (QWEN2,), "deepseek-r1-qwen": (QWEN2,)}
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


@paused()
def build(settings: dict[str, Any], name: str = "") -> Tokenizer:
    """The tokenizer in a GGUF's settings; raises OmnidraftError if it is not one of the two kinds.

    >>> build(Gguf("smollm2.gguf").settings).encode("Hello 12")  # doctest: +SKIP
    [19556, 216, 33, 34]
    """
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in settings.items()}
    with in_one_line(f"the tokenizer of {name or 'this GGUF'} cannot be used"):
        raw = _pipeline(own)
        return Tokenizer(raw, name, _config(own) | {"eos_token_id": end_ids(settings)})


def end_ids(settings: dict[str, Any]) -> list[int]:
    """The ids that end a text: of a document, of a turn, of a message."""
    names = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]
    return [settings[name] for name in names if name in settings]


def _pipeline(own: dict[str, Any]) -> Raw:
    """The tokenizer of the library, with all tokens at the ids of the file's list."""
    kind = own.get("model")
    tokens = own.get("tokens")
    if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
        raise ValueError(f"its kind is {kind!r}, but only gpt2 and llama are supported")
    if max(map(len, tokens), default=0) > LONGEST:  # `_merges` cuts each one everywhere
        raise ValueError(f"it has a token of over {LONGEST:,} characters")
    types = [int(each) for each in own.get("token_type", [])]
    if len(types) != len(tokens):  # which of them are control tokens?
        raise ValueError("it has no type for each token: convert the model again")
    pieces = {token: i for i, token in enumerate(tokens) if types[i] != UNUSED}
    make = _byte_level if kind == "gpt2" else _sentencepiece
    raw = make(own, pieces, types)
    # added in this order, they keep the ids that they have among the pieces
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False)
                            for token in _of_type(CONTROL, pieces, types)])
    raw.add_tokens([AddedToken(token, normalized=False)
                    for token in _of_type(OWN, pieces, types)])
    if raw.get_vocab_size() != len(pieces):
        raise ValueError("it has tokens that are not in its list")
    return raw


def _of_type(kind: int, pieces: dict[str, int], types: list[int]) -> list[str]:
    """The pieces of one type, in the order of their ids."""
    return [piece for piece, i in pieces.items() if types[i] == kind]


def _config(own: dict[str, Any]) -> dict[str, Any]:
    """What a tokenizer_config.json says: special tokens by role, and the chat template."""
    usual = own["model"] == "llama" or PATTERNS.get(own.get("pre")) == (LLAMA3,)
    config = {"add_bos_token": bool(own.get("add_bos_token", usual)),
              "chat_template": own.get("tokenizer.chat_template")}
    tokens = own["tokens"]
    for role, its in ROLES.items():
        token = own.get(f"{its}_token_id")
        if isinstance(token, int) and 0 <= token < len(tokens):
            config[f"{role}_token"] = tokens[token]
    return config


def _byte_level(own: dict[str, Any], pieces: dict[str, int], types: list[int]) -> Raw:
    """Byte-level BPE with the words of the pattern that the file names."""
    words = own.get("pre") or "default"
    if words not in PATTERNS:
        raise ValueError(f"it cuts words like {str(words)[:40]!r}, but only {', '.join(PATTERNS)} "
                         "are supported; use a Hugging Face folder of the model")
    patterns = PATTERNS[words]
    if not own.get("merges"):  # its texts would be single bytes
        raise ValueError("it has no merges: convert the model again")
    merges = [tuple(merge.split(" ", 1)) for merge in own["merges"]]
    # in Llama 3, a word that is a token needs no merges
    raw = Raw(models.BPE(pieces, merges, ignore_merges=patterns == (LLAMA3,)))
    if patterns == (QWEN2,):
        raw.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    raw.pre_tokenizer = pre_tokenizers.Sequence(steps)
    raw.decoder = decoders.ByteLevel()
    return raw


def _sentencepiece(own: dict[str, Any], pieces: dict[str, int], types: list[int]) -> Raw:
    """SentencePiece BPE: "▁" for a space, byte tokens for what has no piece, a dummy space."""
    unknown = _of_type(UNKNOWN, pieces, types)
    if len(own.get("scores", [])) != len(types):
        raise ValueError("it has no score for each token: convert the model again")
    merges = _merges(pieces, types, own["scores"])
    raw = Raw(models.BPE(pieces, merges, unk_token=unknown[0] if unknown else None, fuse_unk=True,
                         byte_fallback=True))
    steps = [normalizers.Replace(" ", "▁")]
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if own.get("add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        back.append(decoders.Strip(" ", 1, 0))
    raw.normalizer = normalizers.Sequence(steps)
    raw.decoder = decoders.Sequence(back)
    return raw


def _merges(pieces: dict[str, int], types: list[int], scores: Any) -> list[tuple[str, str]]:
    """Both parts of each normal piece, for each way to cut it in two others, best pieces first."""
    names = _of_type(NORMAL, pieces, types)
    if sum(len(name)**2 for name in names) > WORK:  # characters that are copied below
        raise ValueError("its pieces are too long: use another one")
    ids = np.array([pieces[name] for name in names], np.int64)
    best = np.lexsort((ids, -np.asarray(scores, float)[ids]))  # equal scores: the lower id first
    normal = set(names)
    found = []
    for piece in [names[i] for i in best.tolist()]:
        for place in range(1, len(piece)):
            left = piece[:place]
            right = piece[place:]
            if left in normal and right in normal:
                found.append((left, right))
        if len(found) > CUTS:
            raise ValueError("its pieces can be cut in too many ways: use another one")
    return found
