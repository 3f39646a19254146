"""Special tokens: their roles (limitation 3 of arXiv 2507.02659), and their names in a text.

They stand for no text, so they are paired by their role: begin, end, padding, unknown. A model may
have several end tokens, such as <|end_of_text|> after a document and <|eot_id|> after a chat turn:
all are "eos".
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tokenizers

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
# Names with the same role in many model families; tokenizer_config.json takes precedence.
WELL_KNOWN = {"eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>") + END_OF_TURN,
              "bos": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>"),
              "unk": ("<unk>", "<|unk|>", "[UNK]"),
              "pad": ("<pad>", "<|pad|>", "[PAD]", "<|padding|>", "<|finetune_right_pad_id|>")}
_SURROGATES = re.compile("[\ud800-\udfff]")  # cut characters, which the library refuses


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
    roles = {}
    for role, known in WELL_KNOWN.items():
        setting = f"{role}_token"
        name = name_of(config.get(setting, getattr(raw.model, setting, None)))
        ids = [vocabulary[name]] if name in vocabulary else []
        if role == "eos" or setting not in config:  # a null there means: no such token
            configured = list(ids)
            for spelling in known:
                token = vocabulary.get(spelling)
                # subtle: "<s>" may be an HTML tag: only added tokens are special
                is_text = byte_level and token not in added
                # subtle: next to a configured token, "</s>" may be plain text, as in Gemma
                if configured and spelling == "</s>" and token not in special:
                    is_text = True
                if token is not None and not is_text:
                    ids.append(token)
        special.update(ids)
        roles[role] = ids
    last = max(vocabulary.values(), default=-1)
    given = config.get("eos_token_id") or ()
    roles["eos"] += [i for i in given if type(i) is int and 0 <= i <= last]
    return SpecialTokens({role: tuple(dict.fromkeys(ids)) for role, ids in roles.items()}, special,
                         {vocabulary[name] for name in END_OF_TURN if name in vocabulary})


def name_of(setting: Any) -> str | None:
    """The name of a token in a tokenizer's settings, if there is one."""
    if isinstance(setting, dict):
        setting = setting.get("content")
    return setting if isinstance(setting, str) else None


def partners(one: SpecialTokens, other: SpecialTokens) -> dict[int, int]:
    """Special tokens of one side -> those of the other side with the same role.

    The first ids of a role are paired. Any other id maps to one of its kind (end of a turn or of a
    document) if there is one, else to the first: </s> <-> <|end_of_text|>, <|eot_id|> -> </s>.
    """
    found = {}
    for ours, theirs in zip(_first_roles(one), _first_roles(other), strict=True):
        if not (ours and theirs):
            continue
        for token in ours:
            ends_turn = token in one.turn_ends
            same_kind = [i for i in theirs if (i in other.turn_ends) == ends_turn]
            found[token] = (same_kind or theirs)[0]
        found[ours[0]] = theirs[0]
    return found


def _first_roles(side: SpecialTokens) -> list[list[int]]:
    """The ids by role, each id in its first role only: GPT-2's <|endoftext|> is also its <unk>."""
    first = {i: role for role in reversed(WELL_KNOWN) for i in side.roles[role]}
    return [[i for i in side.roles[role] if first[i] == role] for role in WELL_KNOWN]


class Names:
    """Names of special tokens, which `find` finds in time in proportion to the text.

    However many names there are and however alike they begin, the library looks for all of them at
    once, where a regular expression would try each of them at every place.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted({name for name in names if name})
        # a tokenizer that has the names, and nothing for the text between them
        self._finder = tokenizers.Tokenizer(tokenizers.models.BPE())
        self._finder.add_special_tokens([
            tokenizers.AddedToken(name, normalized=False, special=True) for name in self.names])

    def find(self, text: str) -> list[tuple[int, int]]:
        """Begin and end of each name in a text; of several at one place, the longest.

        >>> Names(["</s>", "</s>>"]).find("one</s> two</s>>")
        [(3, 7), (11, 16)]
        """
        if not self.names:
            return []
        text = _SURROGATES.sub("\ufffd", text)
        return self._finder.encode(text, add_special_tokens=False).offsets
