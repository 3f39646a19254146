"""Finds the names of special tokens in a text."""

import re
from collections.abc import Iterable
from functools import cached_property

import tokenizers

_SURROGATES = re.compile("[\ud800-\udfff]")  # cut characters, which the library refuses


class Names:
    """Some names, which `find` finds in time in proportion to the text.

    However many names there are and however alike they begin, the library looks for all of them at
    once, where a regular expression would try each of them at every place.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted({name for name in names if name})

    def find(self, text: str) -> list[tuple[int, int]]:
        """Begin and end of each name in a text; of several at one place, the longest.

        >>> Names(["</s>", "</s>>"]).find("one</s> two</s>>")
        [(3, 7), (11, 16)]
        """
        if not self.names:
            return []
        text = _SURROGATES.sub("\ufffd", text)
        return self._finder.encode(text, add_special_tokens=False).offsets

    @cached_property
    def _finder(self) -> tokenizers.Tokenizer:
        """A tokenizer that has the names, and nothing for the text between them."""
        finder = tokenizers.Tokenizer(tokenizers.models.BPE())
        finder.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True)
                                   for name in self.names])
        return finder
