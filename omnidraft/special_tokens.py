"""Special tokens by role: begin, end, padding and unknown (what arXiv 2507.02659 leaves open as its limitation 3).

Special tokens stand for no text, so they cannot be compared by bytes; they are paired by what they do. Their spellings
come from tokenizer_config.json, from the spellings that model families share, and from the configured end token ids.
A model may have several end tokens (<|end_of_text|> after a document, <|eot_id|> after a chat turn): all are "eos".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tokenizers

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
# Spellings with a fixed role across model families; tokenizer_config.json comes first, these complete it.
WELL_KNOWN = {
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", *END_OF_TURN),
    "pad": ("<pad>", "<|pad|>", "[PAD]", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unk": ("<unk>", "<|unk|>", "[UNK]"),
}

Roles = dict[str, tuple[int, ...]]


def find_roles(config: dict, raw: tokenizers.Tokenizer, vocabulary: dict[str, int], byte_level: bool) -> tuple[Roles, set[int]]:
    """Ids by role, the configured one first, and the set of all special ids of a tokenizer.

    `config` holds `bos_token`, ... (a string, {"content": string} or None) and `eos_token_id` (a list of ids);
    `vocabulary` maps spelling to id, added tokens included. The first "eos" is the one that ends a document.

    >>> find_roles({"eos_token": "</s>"}, raw, {"<s>": 1, "</s>": 2, "a": 3}, byte_level=False)  # doctest: +SKIP
    ({'bos': (1,), 'eos': (2,), 'pad': (), 'unk': ()}, {1, 2})
    """
    added = raw.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    size = max(vocabulary.values(), default=-1) + 1
    roles: Roles = {}
    for role, known in WELL_KNOWN.items():
        name = config.get(f"{role}_token", getattr(raw.model, "unk_token", None) if role == "unk" else None)
        name = name.get("content") if isinstance(name, dict) else name
        ids = [vocabulary[name]] if isinstance(name, str) and name in vocabulary else []
        if role == "eos" or f"{role}_token" not in config:  # "bos_token": null says that there is none
            # In a byte-level vocabulary "<s>" may well be the HTML tag: only added tokens are markers there.
            ids += [vocabulary[k] for k in known if k in vocabulary and (not byte_level or vocabulary[k] in added)]
        special.update(ids)
        if role == "eos":
            ids += [i for i in config.get("eos_token_id") or () if isinstance(i, int) and 0 <= i < size]
        roles[role] = tuple(dict.fromkeys(ids))
    return roles, special


def pair_roles(draft: Tokenizer, target: Tokenizer) -> tuple[dict[int, int], dict[int, int]]:
    """Special tokens with the same role: draft id -> target id, and target id -> draft id.

    The configured end tokens correspond; any further one goes to one of its kind (end of turn or end of document),
    else to the configured one. A token with two roles (GPT-2's <unk> is <|endoftext|>) counts only in the first of
    eos, bos, unk, pad: a drafter's <unk> must not become the end of the text.

    >>> pair_roles(llama2, llama3)  # </s> -> <|end_of_text|>; <|eot_id|> -> </s>  # doctest: +SKIP
    ({2: 128001, 1: 128000}, {128001: 2, 128009: 2, 128008: 2, 128000: 1})
    """
    to_target: dict[int, int] = {}
    to_draft: dict[int, int] = {}
    for ours, theirs in zip(_first_roles(draft), _first_roles(target), strict=True):
        if ours and theirs:
            to_target |= {i: _same_kind(draft, i, ours, target, theirs) for i in ours}
            to_draft |= {i: _same_kind(target, i, theirs, draft, ours) for i in theirs}
    return to_target, to_draft


def _first_roles(tokenizer: Tokenizer) -> list[list[int]]:
    groups: list[list[int]] = []
    for role in ("eos", "bos", "unk", "pad"):
        groups.append([i for i in tokenizer.roles[role] if not any(i in group for group in groups)])
    return groups


def _same_kind(one: Tokenizer, token: int, own: list[int], other: Tokenizer, choices: list[int]) -> int:
    if token == own[0]:
        return choices[0]
    ends_turn = one.strings[token] in END_OF_TURN
    return next((i for i in choices if (other.strings[i] in END_OF_TURN) == ends_turn), choices[0])
