"""The three tokenizers of the embedded models, trained from the recipe's own text.

`drafter`      SentencePiece-style BPE: "▁" for a space, a dummy space before the text, `<0xNN>` byte fallback,
               single digits; a run of spaces leaves its last one to the next word, as Llama-2's pieces do.
`qwen-like`    byte-level BPE, single digits, `<|endoftext|>` and chat markers.
`llama3-like`  byte-level BPE, digits in groups of one to three, `<|begin_of_text|>` put before the text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# The word pattern that Qwen2 and Llama-3 share, but for how many digits make a group.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Where SentencePiece-style merges may not cross: words keep their "▁", digits stand alone, indents are runs of "▁".
_PIECES = r"▁?\p{L}+|▁?[^\p{L}\p{N}\s▁]+|\p{N}|▁+(?=▁)|▁|\n"


def train_drafter(texts: Iterator[str], size: int = 2048) -> Tokenizer:
    """SentencePiece-style BPE of `size` entries: 3 special, 256 byte tokens, then characters and merges."""
    specials = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    alphabet = [chr(code) for code in range(33, 127)] + ["▁", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials + fallback, initial_alphabet=alphabet, limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator((" " + text for text in texts), trainer)
    # Byte tokens are ordinary entries that the byte fallback looks up, so only three entries stay special.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [entry for entry in document["added_tokens"] if entry["content"] in specials]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = _bos_first(tokenizer, "<s>")
    return tokenizer


def train_byte_level(texts: Iterator[str], size: int, digits: str, specials: list[str], bos: str | None) -> Tokenizer:
    """Byte-level BPE of `size` entries; `digits` is the pattern of one digit group, such as r"\\p{N}{1,3}"."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS % digits), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(specials), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Special tokens come last, as in Qwen2 and Llama-3.
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in specials])
    if bos:
        tokenizer.post_processor = _bos_first(tokenizer, bos)
    return tokenizer


def _bos_first(tokenizer: Tokenizer, bos: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


ROLES = {
    "drafter": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "qwen-like": {"bos_token": None, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "llama3-like": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
}


def train_all(folder: Path, sample: list[str]) -> None:
    """Train the three tokenizers on `sample` into `folder`/<name>/; what exists already is kept."""
    makers = {
        "drafter": lambda: train_drafter(iter(sample)),
        "qwen-like": lambda: train_byte_level(
            iter(sample), 4096, r"\p{N}", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None),
        "llama3-like": lambda: train_byte_level(
            iter(sample), 6000, r"\p{N}{1,3}", ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
            "<|begin_of_text|>"),
    }
    for name, make in makers.items():
        place = folder / name
        if (place / "tokenizer_config.json").exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        make().save(str(place / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512,
                  "clean_up_tokenization_spaces": False, **ROLES[name]}
        part = place / "tokenizer_config.json.part"
        part.write_text(json.dumps({k: v for k, v in config.items() if v is not None}, indent=1), encoding="utf-8")
        os.replace(part, place / "tokenizer_config.json")
