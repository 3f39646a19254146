"""Names of control tokens in messages stay text; those that a chat template writes are tokens.

The template sees the messages as they are. If they hold such names, it runs once more, with HIDDEN
for each of their characters: where the two texts differ, the name is from a message.
"""

import os
from typing import Any

from ..text.special_tokens import Names

HIDDEN = "\ufdd0"  # never in real text, and in no name
ROLES = ("system", "user", "assistant", "tool")


class Markers:
    """The names that control a chat: of special tokens, of roles, and those in the template.

    Other added tokens, such as <table>, stay tokens; so does <think> in an answer, where the model
    has written it.
    """

    def __init__(self, tokenizer: Any, source: str) -> None:
        strings = tokenizer.strings
        names = {strings[token] for token in tokenizer.special.ids}
        added = tokenizer.raw.get_added_tokens_decoder().values()
        plain = {token.content for token in added if token.content.strip(" \n\t▁")}
        self.special = Names(names)
        names |= {name for name in plain if name.strip("<|[/]>") in ROLES}
        self._in_answers = Names(names)
        self._anywhere = Names(names | {name for name in plain if name in source})

    def hide(self, message: dict[str, str]) -> dict[str, str]:
        """The message with HIDDEN for each character of its names.

        >>> markers.hide({"role": "user", "content": "a</s>"})  # doctest: +SKIP
        {'role': 'user', 'content': 'a\\ufdd0\\ufdd0\\ufdd0\\ufdd0'}
        """
        content = message["content"]
        made = ""
        place = 0
        for begin, end in self._in(message):
            made += content[place:begin] + HIDDEN * (end - begin)
            place = end
        return message | {"content": made + content[place:]}

    def typed(self, text: str, hidden: str,
              messages: list[dict[str, str]]) -> list[tuple[int, int]]:
        """Begin and end of each name in `text` that a message brought.

        `hidden`: what the template makes of the hidden messages. If it does not only copy them, the
        two texts differ elsewhere too: a name that a message has then counts as the message's
        wherever it stands between their common beginning and end.
        """
        names = self._anywhere.find(text)
        if _is_copy(text, hidden):
            return [(begin, end) for begin, end in names if HIDDEN in hidden[begin:end]]
        said = {one["content"][begin:end] for one in messages for begin, end in self._in(one)}
        first = len(os.path.commonprefix([text, hidden]))
        last = len(text) - len(os.path.commonprefix([text[::-1], hidden[::-1]]))
        return [(begin, end) for begin, end in names
                if text[begin:end] in said and end > first and begin < last]

    def _in(self, message: dict[str, str]) -> list[tuple[int, int]]:
        """Where a message has names that must stay text."""
        names = self._in_answers if message["role"] == "assistant" else self._anywhere
        return names.find(message["content"])


def _is_copy(text: str, hidden: str) -> bool:
    """Do the two texts differ only where one is hidden?"""
    return len(text) == len(hidden) and all(
        there in (here, HIDDEN) for here, there in zip(text, hidden, strict=True))
