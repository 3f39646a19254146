"""A conversation: chat templates, and turns of a pair that reuse what both models have read.

Subtle: an answer stays in the context as exactly the tokens that were written. Only the new message
and what the template puts around it are encoded and fed to the models (`decoding.Text`).
"""

import math
import re
from collections.abc import Iterator
from typing import Any

from ..decoding import Round, Text, check_prompt, plain
from ..engine.gguf import is_gguf
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import UNIFORMS, OmnidraftError, expect, shown
from ..text.files import check_readable, read_json
from ..text.special_tokens import Names
from . import template
from .pace import paced

PLAIN = {"system": "{}\n", "user": "Question: {}\nAnswer:", "assistant": " {}\n"}  # no template
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # mark added tokens in messages; never used in real text
MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
ROLES = ("system", "user", "assistant", "tool")
FILES = ("chat_template.json", "special_tokens_map.json", "tokenizer_config.json")

# How a model has read a chat: as text and ids, up to the latest answer, and that answer.
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
        self.prompts: list[tuple[str, list[int]]] = []  # of each view: the latest, as text and ids
        self.size = 0  # number of ids in `text` after the latest round; 0: no round yet

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
        self.prompts = prompts
        self.size = 0
        return self._answer(options, uniforms)

    def read(self, messages: list[dict[str, str]]) -> list[tuple[str, list[int]]]:
        """The messages as each view reads them: as text and as ids."""
        latest: list[Turn | None] = [None] * len(self.views)
        if self.prompts and self.messages:
            latest = self._latest(self.messages[-1]["content"])
        return [view.read(messages, turn) for view, turn in zip(self.views, latest, strict=True)]

    def _latest(self, answer: str) -> list[Turn | None]:
        """The latest turn of each view; None if its model has not followed the answer."""
        ids = [prompt for _, prompt in self.prompts]
        if self.size:
            is_whole = self.size == len(self.text.ids)  # if not, a round was interrupted
            draft_ids = self.text.draft_ids if is_whole else None
            ids = [self.text.ids[:self.size], draft_ids]
        return [None if one is None else (text, one, answer)
                for (text, _), one in zip(self.prompts, ids, strict=False)]

    def _answer(self, options: Options, uniforms: Uniforms) -> Iterator[Round]:
        prompts = tuple(ids for _, ids in self.prompts)
        if len(prompts) > 1:
            rounds = paced(self.pair, prompts, options, uniforms, self.text)
        else:
            rounds = plain(self.pair, prompts[0], options, uniforms, self.text)
        for record in rounds:
            self.size = len(self.text.ids)
            written = self.text.ids[len(prompts[0]):]
            answer = self.target.tokenizer.decode_bytes(written).decode("utf-8", "replace")
            self.messages[-1]["content"] = answer.strip()
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
        strings = self.tokenizer.strings
        special = {strings[token] for token in self.tokenizer.special.ids}
        added = self.tokenizer.raw.get_added_tokens_decoder().values()
        plain = {token.content for token in added if token.content.strip(" \n\t▁")}
        self._special = Names(special)
        self._names = Names(special | plain)
        # Markers are text if they are typed: special tokens, and what the template writes.
        self._markers = set(special)
        for name in plain:
            if name in str(self.source or "") or name.strip("<|[/]>") in ROLES:
                self._markers.add(name)

    def read(self, messages: list[dict[str, str]],
             latest: Turn | None = None) -> tuple[str, list[int]]:
        """The messages as text and as ids; the latest answer keeps the ids that were written."""
        text = self.render(messages)
        if latest is None:
            return text, self.encode(text)
        before, ids, answer = latest
        size = len(before)
        marked = self.mark(answer)
        place = text.find(marked, size)
        follows = text.startswith(before) and len(text) > size
        if not follows or place < 0 or text[size:place].strip():
            return text, self.encode(text)
        # The template ends the turn; the model may have ended it with another token, or none.
        if ids and ids[-1] in self.ends:
            ids = ids[:-1]
        return text, ids + self.encode(text[place + len(marked):], first=False)

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text after which the answer to the last message begins."""
        messages = [one | {"content": self.mark(one["content"])} for one in messages]
        if not self.source:
            return "".join(PLAIN.get(m["role"], "{}\n").format(m["content"]) for m in messages)
        found = template.run(self.source, self.names, messages)
        if "error" in found:
            raise broken(self.tokenizer.name, found["error"])
        text = found["text"]
        # subtle: a typed marker has at least one character between its two marks
        if len(text) > self.most + 2 * min(text.count(OPEN), self.most):
            raise TooLong(f"the chat template of {self.tokenizer.name!r} makes a text of "
                          f"{len(text)} characters, but at most {self.most} can be read: "
                          "write a shorter message")  # in any tokenization: do not parse it
        for part in MARKED.split(text)[::2]:
            for begin, end in self._names.find(part):
                self._markers.add(part[begin:end])
        return text

    def mark(self, content: str) -> str:
        """A message whose added tokens are marked as typed, so that it cannot end its turn."""
        content = unmarked(content)
        made = ""
        place = 0
        for begin, end in self._names.find(content):
            made += content[place:begin] + OPEN + content[begin:end] + CLOSE
            place = end
        return made + content[place:]

    def encode(self, text: str, first: bool = True) -> list[int]:
        """Ids of a rendered text; `first` False: of one that follows other text."""
        try:
            return self._encode(text, first)
        except OmnidraftError:
            if self.drafts:
                return []
            raise

    def _encode(self, text: str, first: bool) -> list[int]:
        ids = []
        if first and not self.source:
            ids += self.tokenizer.encode("", bos=True)
        text = MARKED.sub(self._only_markers, text)
        for place, part in enumerate(MARKED.split(text)):
            part = unmarked(part)
            if place % 2:  # every second is a typed marker: cut in two, it is no token
                ids += self.tokenizer.encode_continuation(part[:1])
                ids += self.tokenizer.encode_continuation(part[1:])
                continue
            # Up to its first special token, a part continues the previous one: no dummy space.
            size = 0
            if place or not first:
                found = self._special.find(part)
                size = found[0][0] if found else len(part)
            ids += self.tokenizer.encode_continuation(part[:size])
            ids += self.tokenizer.encode(part[size:], specials=True)
        return ids

    def _only_markers(self, found: re.Match[str]) -> str:
        """A typed token that is no marker, such as <table>, without its marks: it stays a token."""
        if found[1] in self._markers:
            return found[0]
        return found[1]


def unmarked(text: str) -> str:
    """The text without marks."""
    return text.replace(OPEN, "").replace(CLOSE, "")


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
    parts = [read_json(folder / file) for file in FILES]
    if is_gguf(folder):
        parts.append(model.tokenizer.config)
    found: dict[str, Any] = {}
    for part in parts:
        found |= {name: value for name, value in part.items() if value}
    path = folder / "chat_template.jinja"
    if path.exists():
        check_readable(path)
        found["chat_template"] = path.read_text(encoding="utf-8")
    return found


def broken(owner: str, why: str) -> OmnidraftError:
    """The error for a template that fails; it is a program from somebody else."""
    why = why.splitlines()[0]
    return OmnidraftError(f"the chat template of {owner!r} fails, {why}: correct it")
