"""A conversation: chat templates, and turns of a pair that reuse what both models have read.

Subtle: an answer stays in the context as exactly the tokens that were written. Only the new message
and what the template puts around it are encoded and fed to the models (`Warm`).
"""

import math
import re
from collections.abc import Iterator
from typing import Any

from ..decoding import Round, Warm, check_prompt, plain
from ..engine.gguf import is_gguf
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import UNIFORMS, OmnidraftError, expect, shown
from ..text.files import check_readable, read_json
from ..text.special_tokens import Names
from . import template
from .pace import paced
from .settings import usual

PLAIN = {"system": "{}\n", "user": "Question: {}\nAnswer:", "assistant": " {}\n"}  # no template
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # mark added tokens in messages; never used in real text
MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
ROLES = ("system", "user", "assistant", "tool")


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
        self.pair, self.system, self.warm = pair, system, Warm()
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
        self.new()

    def new(self) -> None:
        """Start again; the part of the caches with the same beginning is still reused."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.dropped = 0

    def ask(self, message: str, options: Options, uniforms: Uniforms) -> Iterator[Round]:
        """The rounds of the answer; if a message is rejected (OmnidraftError), nothing changes."""
        expect("message", message, str, "a text")
        expect("options", options, Options, "Options")
        expect("uniforms", uniforms, Uniforms, UNIFORMS)
        if not message.strip():
            raise OmnidraftError("the message is empty: write some text")
        check_prompt(self.target, message)
        messages = [*self.messages, {"role": "user", "content": message}]
        first, limit = bool(self.system), self.target.context_size
        most = limit - min(options.max_new_tokens, limit // 4)
        while True:
            try:
                read = [view.read(messages) for view in self.views]
                fits = len(read[0][1]) <= most
            except TooLong:
                if len(messages) <= first + 1:
                    raise
                fits = False
            if fits or len(messages) <= first + 1:
                break
            most = limit // 2  # once it is full, free half of it
            del messages[first:first + 2]
        check_prompt(self.target, read[0][1])
        self.dropped = len(self.messages) + 1 - len(messages)
        self.messages = [*messages, {"role": "assistant", "content": ""}]
        for view, (text, ids) in zip(self.views, read, strict=True):
            view.text, view.ids, view.answer = text, ids, ""
        return self._answer(usual(options, self.target), uniforms)

    def _answer(self, options: Options, uniforms: Uniforms) -> Iterator[Round]:
        prompts, data = tuple(view.ids for view in self.views), b""
        warm, self.warm = self.warm, Warm()  # after an interrupted round the caches are unknown
        write, prompt = (paced, prompts) if len(prompts) > 1 else (plain, prompts[0])
        for record in write(self.pair, prompt, options, uniforms, warm=warm):
            data += self.target.tokenizer.decode_bytes(record.emitted)
            answer = self.messages[-1]["content"] = data.decode("utf-8", "replace").strip()
            for view, held in zip(self.views, (warm, warm.drafter), strict=False):
                if held is None:  # the drafter has not read it: encode the answer when it is needed
                    view.answer = ""
                else:
                    view.ids, view.answer = [*held.ids], answer
            self.warm = warm
            yield record
            self.warm = Warm()
        self.warm = warm


class View:
    """How one model reads a conversation: with `source`, else its own template, else `other`.

    `drafts`: it reads nothing of a text that its tokenizer cannot spell, which is no error then.
    """

    def __init__(self, model: Any, source: str | None = None, other: Any = None,
                 drafts: bool = False) -> None:
        self.tokenizer, self.ends, self.drafts = model.tokenizer, model.eos_ids, drafts
        self.text, self.answer, self.ids = "", "", []  # latest prompt, its answer, ids of both
        self.most = math.inf  # characters of a text
        own, self.names = template_of(model)
        self.source = source or own or other
        if self.source and not template.is_usable():
            raise OmnidraftError(template.NEEDED)
        strings, added = self.tokenizer.strings, self.tokenizer.raw.get_added_tokens_decoder()
        special = {strings[token] for token in self.tokenizer.special.ids}
        plain = {token.content for token in added.values() if token.content.strip(" \n\t▁")}
        self._special, self._names = Names(special), Names(special | plain)
        # Markers are text if they are typed: special tokens, and what the template writes.
        self._markers = special | {name for name in plain if name in str(self.source or "")
                                   or name.strip("<|[/]>") in ROLES}

    def read(self, messages: list[dict[str, str]]) -> tuple[str, list[int]]:
        """The messages as text and as ids; the latest answer keeps the ids that were written."""
        text, size, answer = self.render(messages), len(self.text), self.mark(self.answer)
        known = len(messages) > 2 and messages[-2]["content"] == self.answer
        place = text.find(answer, size) if known and text.startswith(self.text) else -1
        if place < 0 or text[size:place].strip():
            return text, self.encode(text)
        # The template ends the turn; the model may have ended it with another token, or none.
        ids = self.ids[:-1] if self.ids and self.ids[-1] in self.ends else self.ids
        return text, ids + self.encode(text[place + len(answer):], first=False)

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text after which the answer to the last message begins."""
        messages = [one | {"content": self.mark(one["content"])} for one in messages]
        if not self.source:
            return "".join(PLAIN.get(m["role"], "{}\n").format(m["content"]) for m in messages)
        found = template.run(self.source, self.names, messages)
        if "error" in found:
            raise broken(self.tokenizer.name, found["error"])
        # subtle: a typed marker has at least one character between its two marks
        if len(found["text"]) > self.most + 2 * min(found["text"].count(OPEN), self.most):
            raise TooLong(f"the chat template of {self.tokenizer.name!r} makes a text of "
                          f"{len(found['text'])} characters, but at most {self.most} can be read: "
                          "write a shorter message")  # in any tokenization: do not parse it
        for part in MARKED.split(found["text"])[::2]:
            self._markers.update(part[begin:end] for begin, end in self._names.find(part))
        return found["text"]

    def mark(self, content: str) -> str:
        """A message whose added tokens are marked as typed, so that it cannot end its turn."""
        content, place, parts = content.replace(OPEN, "").replace(CLOSE, ""), 0, []
        for begin, end in self._names.find(content):
            parts += [content[place:begin], OPEN, content[begin:end], CLOSE]
            place = end
        return "".join([*parts, content[place:]])

    def encode(self, text: str, first: bool = True) -> list[int]:
        """Ids of a rendered text; `first` False: of one that follows other text."""
        try:
            return self._encode(text, first)
        except OmnidraftError:
            if self.drafts:
                return []
            raise

    def _encode(self, text: str, first: bool) -> list[int]:
        ids = self.tokenizer.encode("", bos=True) if first and not self.source else []
        # A typed token that is no marker, such as <table>, stays a token.
        text = MARKED.sub(lambda one: one[one[1] not in self._markers], text)
        for place, part in enumerate(MARKED.split(text)):  # every second is a typed marker
            part = part.replace(OPEN, "").replace(CLOSE, "")
            if place % 2:
                for piece in (part[:1], part[1:]):  # cut in two, it is no token
                    ids += self.tokenizer.encode_continuation(piece)
                continue
            found = self._special.find(part)
            # Up to its first special token, a part continues the previous one: no dummy space.
            size = found[0][0] if found else len(part)
            size = 0 if first and not place else size
            ids += self.tokenizer.encode_continuation(part[:size])
            ids += self.tokenizer.encode(part[size:], specials=True)
        return ids


def template_of(model: Any) -> tuple[str | None, dict[str, Any]]:
    """The chat template of a model (of several, the default), and the tokens it may name."""
    found: dict[str, Any] = {}
    try:
        if (loaded := getattr(model, "speaks", None)) is not None:
            found = loaded.special_tokens_map | {"chat_template": loaded.chat_template}
        elif (folder := getattr(model, "folder", None)) is not None:
            parts = [read_json(folder / file) for file in (
                "chat_template.json", "special_tokens_map.json", "tokenizer_config.json")]
            parts += [model.tokenizer.config] if is_gguf(folder) else []
            for part in parts:
                found |= {name: value for name, value in part.items() if value}
            if (path := folder / "chat_template.jinja").exists():
                check_readable(path)
                found["chat_template"] = path.read_text(encoding="utf-8")
        source = found.get("chat_template")
        if isinstance(source, list):
            source = {one["name"]: one["template"] for one in source}
        source = source["default"] if isinstance(source, dict) else source
        if not isinstance(source, (str, type(None))):
            raise TypeError("the template is no text")
        return source, {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in found.items() if name.endswith(("_token", "_tokens"))}
    except (OSError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise broken(model.tokenizer.name, repr(error)) from error


def broken(owner: str, why: str) -> OmnidraftError:
    """The error for a template that fails; it is a program from somebody else."""
    why = why.splitlines()[0]
    return OmnidraftError(f"the chat template of {owner!r} fails, {why}: correct it")
