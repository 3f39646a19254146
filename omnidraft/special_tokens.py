"""Special tokens by role: begin, end, padding, unknown (limitation 3 of arXiv 2507.02659).

They stand for no text, so they are paired by what they do instead of by their bytes. A model may
have several end tokens, such as <|end_of_text|> after a document and <|eot_id|> after a chat turn:
all are "eos".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tokenizers

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
# Spellings with the same role in many families; tokenizer_config.json comes first.
WELL_KNOWN = {
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", *END_OF_TURN),
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
    "unk": ("<unk>", "<|unk|>", "[UNK]"),
    "pad": ("<pad>", "<|pad|>", "[PAD]", "<|padding|>", "<|finetune_right_pad_id|>"),
}


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of one vocabulary's special tokens."""

    roles: dict[str, tuple[int, ...]]  # "eos", "bos", "unk", "pad": the configured one first
    ids: set[int]  # all of them, those without a role included
    turn_ends: set[int]  # those that end a turn of a chat


def find_roles(config: dict[str, Any], raw: tokenizers.Tokenizer, vocabulary: dict[str, int],
               byte_level: bool) -> SpecialTokens:
    """The special tokens of a tokenizer; the first "eos" is the one that ends a document.

    `config` holds `bos_token`, ... (a string, {"content": string} or None) and `eos_token_id`
    (a list of ids); `vocabulary` maps spelling to id, added tokens included.

    >>> find_roles({}, raw, {"<s>": 1, "</s>": 2, "a": 3}, False).roles  # doctest: +SKIP
    {'eos': (2,), 'bos': (1,), 'unk': (), 'pad': ()}
    """
    added = raw.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    size = max(vocabulary.values(), default=-1) + 1
    roles: dict[str, tuple[int, ...]] = {}
    for role, known in WELL_KNOWN.items():
        name = config.get(f"{role}_token", getattr(raw.model, f"{role}_token", None))
        name = name.get("content") if isinstance(name, dict) else name
        ids = [vocabulary[name]] if isinstance(name, str) and name in vocabulary else []
        if role == "eos" or f"{role}_token" not in config:  # null says that there is none
            found = [vocabulary[spelling] for spelling in known if spelling in vocabulary]
            # subtle: a byte-level "<s>" may be the HTML tag; there only added tokens are special
            ids += [i for i in found if not byte_level or i in added]
        special.update(ids)
        if role == "eos":
            ends = config.get("eos_token_id") or ()
            ids += [i for i in ends if isinstance(i, int) and 0 <= i < size]
        roles[role] = tuple(dict.fromkeys(ids))
    return SpecialTokens(roles, special, {vocabulary[s] for s in END_OF_TURN if s in vocabulary})


def pair_roles(draft: SpecialTokens, target: SpecialTokens) -> tuple[dict[int, int], ...]:
    """Special tokens with the same role: draft id -> target id, and target id -> draft id.

    The first ids of a role correspond; another one goes to one of its kind (end of a turn or of a
    document), else to the first. A token with several roles counts in the first one only: GPT-2's
    <unk> is its <|endoftext|>, and a drafter's <unk> must not end the text.

    >>> pair_roles(llama2.special, llama3.special)  # </s> -> <|end_of_text|>  # doctest: +SKIP
    ({2: 128001, 1: 128000}, {128001: 2, 128009: 2, 128008: 2, 128000: 1})
    """
    to_target: dict[int, int] = {}
    to_draft: dict[int, int] = {}
    for ours, theirs in zip(_first_roles(draft), _first_roles(target), strict=True):
        if ours and theirs:
            to_target |= {i: _partner(i, ours, draft, theirs, target) for i in ours}
            to_draft |= {i: _partner(i, theirs, target, ours, draft) for i in theirs}
    return to_target, to_draft


def _first_roles(side: SpecialTokens) -> list[list[int]]:
    first = {i: role for role in reversed(WELL_KNOWN) for i in side.roles[role]}
    return [[i for i in side.roles[role] if first[i] == role] for role in WELL_KNOWN]


def _partner(token: int, own: list[int], one: SpecialTokens, others: list[int],
             other: SpecialTokens) -> int:
    if token == own[0]:
        return others[0]
    same_kind = [i for i in others if (i in other.turn_ends) == (token in one.turn_ends)]
    return (same_kind or others)[0]
