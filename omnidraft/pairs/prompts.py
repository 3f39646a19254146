"""What a text starts from: a prompt (a text, ids, or a chat), and a seed or generator."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..decoding import check_prompt
from ..options import as_ids
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import GENERATOR, OmnidraftError, expect, expect_number, shown
from ..text.special_tokens import Names
from .conversation import Conversation


def ids_of(pair: Pairing, prompt: Any) -> tuple[list[int], list[int]]:
    """The ids that target and drafter read for one text, list of ids or chat."""
    if is_chat(prompt):
        messages = [one | {"content": joined(one["content"])} for one in prompt]
        (_, target_ids), (_, draft_ids) = Conversation(pair).read(messages)
        return check_prompt(pair.target, target_ids), draft_ids
    if isinstance(prompt, tuple) and len(prompt) == 2 and isinstance(prompt[1], Iterable):
        # already read
        return check_prompt(pair.target, prompt[0]), as_ids("the drafter's prompt", prompt[1])
    if prompt is None or isinstance(prompt, (Mapping, bytes, int)):
        raise OmnidraftError(f"{shown(prompt)} is not a prompt: give a text, ids, or a chat")
    target_ids = check_prompt(pair.target, prompt)
    if isinstance(prompt, str):
        check_names(pair.target, prompt)
    if pair.one_vocabulary:
        return target_ids, target_ids
    text = prompt if isinstance(prompt, str) else pair.target.tokenizer.decode(target_ids)
    return target_ids, pair.draft.tokenizer.encode_possible(text)


def ids_of_each(pair: Pairing, prompt: Any) -> Any:
    """Like `ids_of`; for a list of prompts, a list of what it returns for each."""
    if is_several(prompt):
        return [ids_of(pair, one) for one in prompt]
    return ids_of(pair, prompt)


def check_names(target: Any, text: str) -> None:
    """OmnidraftError for the name of a special token in a text, if transformers reads it as one."""
    if getattr(target, "speaks", None) is None:
        return
    tokenizer = target.tokenizer
    names = Names(tokenizer.strings[token] for token in tokenizer.special.ids)
    for begin, end in names.find(text)[:1]:
        raise OmnidraftError(f"the prompt has {text[begin:end]!r}, a special token in "
                             "transformers, but plain text here: give ids to say which, or a chat")


def is_several(prompt: Any) -> bool:
    """Is it a list of prompts, all of one kind: texts, lists of ids, or chats?

    >>> is_several(["a", "b"]), is_several([[1, 2], [3]]), is_several([1, 2])
    (True, True, False)
    """
    if not isinstance(prompt, list) or not prompt or is_chat(prompt):
        return False
    if all(isinstance(one, str) for one in prompt):
        return True
    return all(isinstance(one, Iterable) and not isinstance(one, (str, bytes, Mapping))
               for one in prompt)


def is_chat(prompt: Any) -> bool:
    """Is it a list of messages, each with a role and a content?"""
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(isinstance(one, Mapping) and isinstance(one.get("role"), str)
               and isinstance(one.get("content"), (str, list)) for one in prompt)


def joined(content: str | list[Any]) -> str:
    """The content of a message as one text, also if it is in parts; OmnidraftError for no text.

    >>> joined([{"type": "text", "text": "Hi"}])
    'Hi'
    """
    if isinstance(content, str):
        return content
    text = ""
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise OmnidraftError(f"a message has a part of type {kind!r}: these models read text "
                                 "only, so give parts of type 'text' or a plain text")
        text += part["text"]
    return text


def uniforms_of(seed: int, generator: Any = None) -> Uniforms:
    """Draws from a seed, or from NumPy's `generator`; OmnidraftError for anything else.

    >>> uniforms_of(0).accept(0.7)  # the first draw is 0.637
    True
    """
    if generator is not None:
        expect("generator", generator, np.random.Generator, GENERATOR)
        return Uniforms(generator)
    expect_number("seed", seed, "of 0 or more")
    return Uniforms(np.random.default_rng(seed))
