"""Prompts in the forms that users have: a text, ids, or a chat."""

from collections.abc import Mapping
from typing import Any

from ..decoding import check_prompt
from ..pairing import Pairing
from ..text.errors import OmnidraftError, shown
from ..text.special_tokens import Names
from .conversation import Conversation


def ids_of(pair: Pairing, prompt: Any) -> tuple[list[int], list[int]]:
    """The ids that target and drafter read for one text, list of ids or chat."""
    if is_chat(prompt):
        target_ids, draft_ids = (view.read(prompt)[1] for view in Conversation(pair).views)
        return check_prompt(pair.target, target_ids), draft_ids
    if isinstance(prompt, tuple) and len(prompt) == 2:  # already read
        return check_prompt(pair.target, prompt[0]), list(prompt[1])
    if prompt is None or isinstance(prompt, (Mapping, bytes, int)):
        raise OmnidraftError(f"{shown(prompt)} is not a prompt: give a text, ids, or a chat")
    target_ids = check_prompt(pair.target, prompt)
    if isinstance(prompt, str):
        check_names(pair.target, prompt)
    if pair.one_vocabulary:
        return target_ids, target_ids
    text = prompt if isinstance(prompt, str) else pair.target.tokenizer.decode(target_ids)
    return target_ids, pair.draft.tokenizer.encode_possible(text)


def check_names(target: Any, text: str) -> None:
    """OmnidraftError for the name of a special token in a text, if transformers reads it as one."""
    if getattr(target, "speaks", None) is None:
        return
    tokenizer = target.tokenizer
    names = Names(tokenizer.strings[token] for token in tokenizer.special.ids)
    for begin, end in names.find(text)[:1]:
        raise OmnidraftError(f"the prompt has {text[begin:end]!r}, a special token in "
                             "transformers, but plain text here: give ids to say which, or a chat")


def is_chat(prompt: Any) -> bool:
    """Is it a list of messages, each with a role and a content that are texts?"""
    return isinstance(prompt, list) and bool(prompt) and all(
        isinstance(one, Mapping) and {type(one.get(k)) for k in ("role", "content")} == {str}
        for one in prompt)
