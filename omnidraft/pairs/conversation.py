"""A conversation: chat templates, and turns of a pair that reuse what both models have read.

Subtle: an answer stays in the context as exactly the tokens that were written. Only the new message
and what the template puts around it are encoded and fed to the models (`decoding.Text`).
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ..decoding import Round, Text, check_prompt, plain
from ..engine.gguf import is_gguf
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.added_tokens import read_settings
from ..text.errors import UNIFORMS, OmnidraftError, expect, shown
from ..text.files import check_readable, read_json
from . import template
from .markers import Markers
from .pace import paced

PLAIN = {"system": "{}\n", "user": "Question: {}\nAnswer:", "assistant": " {}\n"}  # no template

# How a model has read a chat: its text up to the latest answer, all ids, and that answer.
Turn = tuple[str, list[int], str]


class TooLong(OmnidraftError):
    """A conversation that no tokenization makes short enough for the model's context."""


class Conversation:
    """Turns of a pair, or of a model alone; `messages` holds them as {"role", "content"}.

    Each model reads them through the chat template in its own folder (`template`: a Jinja source to
    use for the target instead). The drafter's template affects only speed, not the distribution.
    When the target's context is full, the oldest turns are dropped; `dropped` counts the messages.
    """

    def __init__(self, pair: Any, system: str | None = None, template: str | None = None) -> None:
        expect("system", system, (None, str), "a text")
        expect("template", template, (None, str), "a Jinja source")
        self.pair = pair
        self.system = system
        self.target = getattr(pair, "target", pair)
        if not hasattr(self.target, "tokenizer"):
            raise OmnidraftError(f"pair is {shown(pair)}, but must be a pair or a model, as "
                                 "omnidraft.pair and omnidraft.load return them")
        self.views = [View(self.target, template)]
        if isinstance(pair, Pairing):  # a drafter without a template uses the target's, if it can
            other = pair.one_vocabulary and self.views[0].source
            self.views.append(View(pair.draft, other=other, drafts=True))
        longest = max(view.tokenizer.longest for view in self.views)
        for view in self.views:
            view.most = self.target.context_size * longest
        self.text = Text(pair)
        self.new()

    def new(self) -> None:
        """Start again; the part of the caches with the same beginning is still reused."""
        self.messages: list[dict[str, str]] = []
        if self.system:
            self.messages.append({"role": "system", "content": self.system})
        self.dropped = 0
        # of each view, after the latest round; None: its model has not followed the answer
        self.turns: list[Turn | None] = [None] * len(self.views)

    def ask(self, message: str, options: Options, uniforms: Uniforms) -> Iterator[Round]:
        """The rounds of the answer; if a message is rejected (OmnidraftError), nothing changes."""
        expect("message", message, str, "a text")
        expect("options", options, Options, "Options")
        expect("uniforms", uniforms, Uniforms, UNIFORMS)
        if not message.strip():
            raise OmnidraftError("the message is empty: write some text")
        check_prompt(self.target, message)
        messages = [*self.messages, {"role": "user", "content": message}]
        first = int(bool(self.system))  # the system message is never dropped
        limit = self.target.context_size
        most = limit - min(options.max_new_tokens, limit // 4)
        while True:
            is_last = len(messages) <= first + 1  # there is nothing left to drop
            try:
                prompts = self.read(messages)
                if is_last or len(prompts[0][1]) <= most:
                    break
            except TooLong:
                if is_last:
                    raise
            most = limit // 2  # once it is full, free half of it
            del messages[first:first + 2]
        check_prompt(self.target, prompts[0][1])
        self.dropped = len(self.messages) + 1 - len(messages)
        self.messages = [*messages, {"role": "assistant", "content": ""}]
        self.turns = [(text, ids, "") for text, ids in prompts]
        return self._answer(prompts, options, uniforms)

    def read(self, messages: list[dict[str, str]]) -> list[tuple[str, list[int]]]:
        """The messages as each view reads them: as text and as ids."""
        return [view.read(messages, turn)
                for view, turn in zip(self.views, self.turns, strict=True)]

    def _answer(self, prompts: list[tuple[str, list[int]]], options: Options,
                uniforms: Uniforms) -> Iterator[Round]:
        texts, ids = zip(*prompts, strict=True)
        if len(ids) > 1:
            rounds = paced(self.pair, ids, options, uniforms, self.text)
        else:
            rounds = plain(self.pair, ids[0], options, uniforms, self.text)
        for record in rounds:
            written = self.text.ids[len(ids[0]):]
            answer = self.target.tokenizer.decode_bytes(written).decode("utf-8", "replace").strip()
            self.messages[-1]["content"] = answer
            # copies: a round that is interrupted may leave more there
            read = (self.text.ids, self.text.draft_ids)
            self.turns = [one and (text, list(one), answer)
                          for text, one in zip(texts, read, strict=False)]
            yield record


class View:
    """How one model reads a chat: with `source`, else its own template, else `other`.

    `drafts`: it reads nothing of a text that its tokenizer cannot spell, which is no error then.
    """

    def __init__(self, model: Any, source: str | None = None, other: Any = None,
                 drafts: bool = False) -> None:
        self.tokenizer = model.tokenizer
        self.ends = model.eos_ids
        self.drafts = drafts
        self.most = math.inf  # characters of a text
        own, self.names = template_of(model)
        self.source = source or own or other
        if self.source and not template.is_usable():
            raise OmnidraftError(template.NEEDED)
        self.markers = Markers(self.tokenizer, str(self.source or ""))

    def read(self, messages: list[dict[str, str]],
             latest: Turn | None = None) -> tuple[str, list[int]]:
        """The messages as text and as ids; the latest answer keeps the ids that were written."""
        text = self.render(messages)
        typed = self._typed(text, messages)
        if latest is None:
            return text, self.encode(text, typed)
        before, ids, answer = latest
        size = len(before)
        place = text.find(answer, size)
        follows = text.startswith(before) and len(text) > size
        if not follows or place < 0 or text[size:place].strip():
            return text, self.encode(text, typed)
        # The template ends the turn; the model may have ended it with another token, or none.
        if ids and ids[-1] in self.ends:
            ids = ids[:-1]
        return text, ids + self.encode(text, typed, start=place + len(answer))

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text after which the answer to the last message begins."""
        if not self.source:
            return "".join(PLAIN.get(m["role"], "{}\n").format(m["content"]) for m in messages)
        found = template.run(self.source, self.names, messages)
        if "error" in found:
            raise broken(self.tokenizer.name, found["error"])
        text = found["text"]
        if len(text) > self.most:  # in any tokenization: do not parse it
            raise TooLong(f"the chat template of {self.tokenizer.name!r} makes a text of "
                          f"{len(text)} characters, but at most {self.most} can be read: "
                          "write a shorter message")
        return text

    def _typed(self, text: str, messages: list[dict[str, str]]) -> list[tuple[int, int]]:
        """Begin and end of the names in a rendered text that are not the template's."""
        hidden = [self.markers.hide(one) for one in messages]
        if hidden == messages:
            return []
        other = ""
        with suppress(OmnidraftError):  # a template may refuse what it does not know
            other = self.render(hidden)
        return self.markers.typed(text, other, messages)

    def encode(self, text: str, typed: Sequence[tuple[int, int]] = (), start: int = 0) -> list[int]:
        """Ids of a rendered text from `start` on; `typed`: the names in it that stay text."""
        try:
            return self._encode(text, [name for name in typed if name[0] >= start], start)
        except OmnidraftError:
            if self.drafts:
                return []
            raise

    def _encode(self, text: str, typed: Sequence[tuple[int, int]], place: int) -> list[int]:
        ids = []
        if not (place or self.source):
            ids += self.tokenizer.encode("", bos=True)
        for begin, end in typed:
            ids += self._written(text[place:begin], follows=place > 0)
            for part in (text[begin], text[begin + 1:end]):  # cut in two, it is no token
                ids += self.tokenizer.encode_continuation(part)
            place = end
        return ids + self._written(text[place:], follows=place > 0)

    def _written(self, text: str, follows: bool) -> list[int]:
        """Ids of a part in which names are tokens; `follows`: other text."""
        size = 0
        if follows:  # up to its first special token, it has no dummy space
            found = self.markers.special.find(text)
            size = found[0][0] if found else len(text)
        ids = self.tokenizer.encode_continuation(text[:size])
        return ids + self.tokenizer.encode(text[size:], specials=True)


def template_of(model: Any) -> tuple[str | None, dict[str, Any]]:
    """The chat template of a model (of several, the default), and the tokens it may name."""
    try:
        found = _settings_of(model)
        source = found.get("chat_template")
        if isinstance(source, list):
            source = {one["name"]: one["template"] for one in source}
        if isinstance(source, dict):
            source = source["default"]
        if not isinstance(source, str | None):
            raise TypeError("the template is no text")
        names = {}
        for name, value in found.items():
            if name.endswith(("_token", "_tokens")):
                names[name] = value["content"] if isinstance(value, dict) else value
        return source, names
    except (OSError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise broken(model.tokenizer.name, repr(error)) from error


def _settings_of(model: Any) -> dict[str, Any]:
    """What a model's tokenizer or folder says about chats: its template and tokens by name."""
    loaded = getattr(model, "speaks", None)
    if loaded is not None:
        return loaded.special_tokens_map | {"chat_template": loaded.chat_template}
    folder = getattr(model, "folder", None)
    if folder is None:
        return {}
    parts = [read_json(folder / "chat_template.json"), read_settings(folder)]
    if is_gguf(folder):
        parts.append(model.tokenizer.config)
    found: dict[str, Any] = {}
    for part in parts:
        found |= {name: value for name, value in part.items() if value}
    path = folder / "chat_template.jinja"
    if os.path.lexists(path):  # as in `read_json`
        check_readable(path)
        found["chat_template"] = path.read_text(encoding="utf-8")
    return found


def broken(owner: str, why: str) -> OmnidraftError:
    """The error for a template that fails; it is a program from somebody else."""
    why = why.splitlines()[0]
    return OmnidraftError(f"the chat template of {owner!r} fails, {why}: correct it")
