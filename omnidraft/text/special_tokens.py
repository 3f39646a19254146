"""Special tokens by role: begin, end, padding, unknown (limitation 3 of arXiv 2507.02659).

They stand for no text, so they are paired by their function. A model may have several end tokens,
such as <|end_of_text|> after a document and <|eot_id|> after a chat turn: all are "eos".
"""

from dataclasses import dataclass
from typing import Any

import tokenizers

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
# Names with the same role in many model families; tokenizer_config.json takes precedence.
WELL_KNOWN = {"eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", *END_OF_TURN),
              "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
              "unk": ("<unk>", "<|unk|>", "[UNK]"),
              "pad": ("<pad>", "<|pad|>", "[PAD]", "<|padding|>", "<|finetune_right_pad_id|>")}


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of one vocabulary's special tokens."""

    roles: dict[str, tuple[int, ...]]  # "eos", "bos", "unk", "pad"; the configured token first
    ids: set[int]  # all special tokens, including those without a role
    turn_ends: set[int]  # those that end a chat turn


def find_roles(config: dict[str, Any], raw: tokenizers.Tokenizer, vocabulary: dict[str, int],
               byte_level: bool) -> SpecialTokens:
    """The special tokens of a tokenizer; `vocabulary` maps spelling to id, added tokens included.

    `config` may have `bos_token`, ... (string, {"content": string} or None), `eos_token_id` (ids).
    """
    added = raw.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    size = max(vocabulary.values(), default=-1) + 1
    roles = {}
    for role, known in WELL_KNOWN.items():
        name = config.get(f"{role}_token", getattr(raw.model, f"{role}_token", None))
        name = name.get("content") if isinstance(name, dict) else name
        ids = [vocabulary[name]] if isinstance(name, str) and name in vocabulary else []
        if role == "eos" or f"{role}_token" not in config:  # a null there means: no such token
            found = [vocabulary[spelling] for spelling in known if spelling in vocabulary]
            if byte_level:  # subtle: "<s>" may be an HTML tag: only added tokens are special
                found = [i for i in found if i in added]
            if ids:  # subtle: beside a configured token, "</s>" may be plain text, as in Gemma
                found = [i for i in found if i in special or i != vocabulary.get("</s>")]
            ids += found
        special.update(ids)
        if role == "eos":
            ids += [i for i in config.get("eos_token_id") or () if type(i) is int and 0 <= i < size]
        roles[role] = tuple(dict.fromkeys(ids))
    return SpecialTokens(roles, special, {vocabulary[s] for s in END_OF_TURN if s in vocabulary})


def partners(one: SpecialTokens, other: SpecialTokens) -> dict[int, int]:
    """Special tokens of one side -> those of the other side with the same role.

    The first ids of a role are paired. Any other id maps to one of its kind (end of a turn or of a
    document) if there is one, else to the first: </s> <-> <|end_of_text|>, <|eot_id|> -> </s>.
    """
    found = {}
    for ours, theirs in zip(_first_roles(one), _first_roles(other), strict=True):
        for token in ours if theirs else ():
            kind = [i for i in theirs if (i in other.turn_ends) == (token in one.turn_ends)]
            found[token] = theirs[0] if token == ours[0] or not kind else kind[0]
    return found


def _first_roles(side: SpecialTokens) -> list[list[int]]:
    """The ids by role, each id in its first role only: GPT-2's <|endoftext|> is also its <unk>."""
    first = {i: role for role in reversed(WELL_KNOWN) for i in side.roles[role]}
    return [[i for i in side.roles[role] if first[i] == role] for role in WELL_KNOWN]
