"""Prompts in the forms that users have: a text, ids, a chat, or a batch of one kind."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from ..decoding import check_prompt
from ..pairing import Pairing
from ..text.errors import OmnidraftError
from ..text.names import Names
from .conversation import Conversation


def read(pair: Pairing, prompt: Any) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Each prompt's ids for target and drafter, and whether the prompts are a batch."""
    spoken, roles = getattr(pair.target, "speaks", None), pair.target.tokenizer.roles
    pads = [*roles["pad"], getattr(spoken, "pad_token_id", None)]  # it may have been set meanwhile
    prompts, batch = split(prompt, pads, [*roles["bos"], getattr(spoken, "bos_token_id", None)])
    return [ids_of(pair, one) for one in prompts], batch


def ids_of(pair: Pairing, prompt: str | list[Any]) -> tuple[list[int], list[int]]:
    """The ids that target and drafter read for one text, list of ids or chat."""
    if kind_of(prompt) == "chat":
        target_ids, draft_ids = (view.read(prompt)[1] for view in Conversation(pair).views)
        return check_prompt(pair.target, target_ids), draft_ids
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


def split(prompt: Any, pads: Sequence[int | None] = (),
          begins: Sequence[int | None] = ()) -> tuple[list[Any], bool]:
    """The prompts in a prompt or batch, each a text, ids or messages, and whether it is a batch.

    Raises OmnidraftError for anything ambiguous, including padding without a mask. A token of
    `pads` that is also one of `begins`, once before each row, is no padding.

    >>> split(["a", "b"]), split([1, 2])
    ((['a', 'b'], True), ([[1, 2]], False))
    """
    mask, table = None, getattr(prompt, "ndim", 1) == 2
    if isinstance(prompt, Mapping) and "input_ids" in prompt:
        mask, prompt, table = as_lists(prompt.get("attention_mask")), prompt["input_ids"], True
    prompt = joined(as_lists(prompt))
    if (kind := kind_of(prompt)) == "ids" and table:
        prompt, mask = [prompt], mask and [mask]
    elif kind in ("text", "ids", "chat") and mask is None:
        return [prompt], False
    elif kind != "prompts":
        raise OmnidraftError(f"{str(prompt)[:40]!r} is not a prompt: give a text, ids (only ids "
                             "may have a mask) or a chat; a list of prompts of one kind is a batch")
    if mask is not None:
        size = [len(row) for row in mask if isinstance(row, list)] if isinstance(mask, list) else 0
        if size != [*map(len, prompt)] or not all(map(any, mask)):
            raise OmnidraftError("attention_mask does not fit the ids, or hides a whole prompt")
        prompt = [[token for token, seen in zip(row, shown, strict=True) if seen]
                  for row, shown in zip(prompt, mask, strict=True)]
    elif table or len(prompt) > 1 == len({*map(len, prompt)}):
        rows = [row for row in prompt if kind_of(row) == "ids"]
        begun = all(row[0] in begins for row in rows)
        if any(row[begun:] and (row[begun] in pads or row[-1] in pads) for row in rows):
            raise OmnidraftError("the ids are padded: give an attention_mask, or remove the "
                                 "padding")
    return prompt, not (table and len(prompt) == 1)


def kind_of(value: Any) -> str:
    """The kind of a value: "text", "id", "ids", "message", "chat" (messages), "prompts" or "?"."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return "id"
    if isinstance(value, Mapping) and {type(value.get(k)) for k in ("role", "content")} == {str}:
        return "message"
    kinds = {kind_of(one) for one in value} if isinstance(value, list) else set()
    plural = {"id": "ids", "message": "chat", **dict.fromkeys(("text", "ids", "chat"), "prompts")}
    return "text" if isinstance(value, str) else plural.get(*kinds, "?") if len(kinds) == 1 else "?"


def joined(value: Any) -> Any:
    """Chats in which each content is a text: parts of kind "text" are joined.

    OmnidraftError for other parts (images, sounds), which the models here cannot read.

    >>> joined([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    [{'role': 'user', 'content': 'Hi'}]
    """
    if isinstance(value, list) and not all(isinstance(one, Integral) for one in value[:1]):
        return [joined(one) for one in value]
    if not (isinstance(value, Mapping) and isinstance(value.get("content"), list)):
        return value
    texts = []
    for part in value["content"]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise OmnidraftError(f"a message has a part of type {kind!r}: these models read text "
                                 "only, so give parts of type 'text' or a plain text")
        texts.append(text)
    return {**value, "content": "".join(texts)}


def as_lists(value: Any) -> Any:
    """Arrays, tensors and tuples as lists."""
    return (value.tolist() if hasattr(value, "tolist") else
            [*map(as_lists, value)] if isinstance(value, (list, tuple)) else value)
