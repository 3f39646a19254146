"""Chat templates: a conversation as the text that a chat model was trained on.

A model's folder may bring a Jinja template: chat_template.jinja, or `chat_template` in tokenizer_config.json or
chat_template.json. It is a program that others wrote, so it runs in jinja2's sandbox, with what transformers offers there
(jinja2 is loaded when a template is). Without one a turn reads "Question: ...\\nAnswer:", as the embedded models learned it.

Special tokens of the template are read as such, with the ids that transformers' `apply_chat_template` gives. What a *message*
spells is always text: its special tokens are marked before rendering and encoded by their letters, so that no message can
end its turn and speak as someone else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import OmnidraftError
from ..files import read_json
from ..tokenizer import Tokenizer

PLAIN = {"system": "{}\n", "user": "Question: {}\nAnswer:", "assistant": " {}\n"}
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # put around what a message spells; Unicode keeps them out of texts


class Template:
    """A chat template (`source` None: the plain form) with the tokenizer that reads what it renders.

    `variables` are those that it may name: bos_token, eos_token, ... Raises OmnidraftError for a template with an error in
    it, or where jinja2 is missing.

    >>> Template(tokenizer).render([{"role": "user", "content": "Who?"}])  # doctest: +SKIP
    'Question: Who?\\nAnswer:'
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None, variables: dict[str, str] | None = None) -> None:
        self.tokenizer, self.source, self.variables = tokenizer, source, variables or {}
        special = [string for string, data in zip(tokenizer.strings, tokenizer.token_bytes, strict=True)
                   if string and data is None]
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self._render = None if source is None else self._run(lambda: _environment().from_string(source)).render

    @classmethod
    def of(cls, model: Any) -> Template:
        """The template in a model's folder, else the plain form; raises OmnidraftError where it cannot be read."""
        folder, tokenizer = getattr(model, "folder", None), model.tokenizer
        if folder is None:
            return cls(tokenizer)
        config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
        named = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
        variables = {key: value for key, value in named.items() if key.endswith("_token") and isinstance(value, str)}
        for role in ("bos", "eos"):
            if f"{role}_token" not in config and tokenizer.roles[role]:
                variables[f"{role}_token"] = tokenizer.strings[tokenizer.roles[role][0]]
        return cls(tokenizer, _source(folder, config), variables)

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The text that an answer to the last of `messages` ({"role", "content"} each) goes on from."""
        if self._render is None:
            return "".join(PLAIN[message["role"]].format(message["content"]) for message in messages)
        marked = [message | {"content": self.mark(message["content"])} for message in messages]
        return self._run(lambda: self._render(messages=marked, tools=None, documents=None, add_generation_prompt=True,
                                              **self.variables))

    def mark(self, content: str) -> str:
        """What stands for a message's content in the rendered text."""
        if self._render is None:
            return content
        return self._special.sub(lambda found: OPEN + found[0] + CLOSE, content.replace(OPEN, "").replace(CLOSE, ""))

    def encode(self, text: str, first: bool = True) -> list[int]:
        """Ids of a rendered text, or with `first` False of one that other text comes before."""
        if self._render is None:
            return self.tokenizer.encode(text, bos=True) if first else self.tokenizer.encode_continuation(text)
        ids: list[int] = []
        for place, part in enumerate(re.split(f"{OPEN}(.*?){CLOSE}", text, flags=re.DOTALL)):  # every other part was marked
            part = part.replace(OPEN, "").replace(CLOSE, "")
            found = None if place % 2 else self._special.search(part)
            # Up to its first special token a part goes on from what comes before it, without a dummy space.
            size = 0 if first and not place else found.start() if found else len(part)
            ids += self.tokenizer.encode_continuation(part[:size]) + self.tokenizer.encode(part[size:], specials=True)
        return ids

    def _run(self, step: Any) -> Any:
        """The result of a step of Jinja, whose errors can be of any kind: the template's own code runs in it."""
        try:
            return step()
        except OmnidraftError:
            raise
        except Exception as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise OmnidraftError(f"the chat template of {self.tokenizer.name} fails: {line} (change the conversation, or "
                                 "correct the template in the model's folder)") from error


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    """The template in a folder where transformers looks for it; of several with names, the default one."""
    path = folder / "chat_template.jinja"
    try:
        found: Any = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
        found = found or read_json(folder / "chat_template.json").get("chat_template")
        if isinstance(found, list):
            found = {one["name"]: one["template"] for one in found}
        if isinstance(found, dict):
            found = found["default"]
        if found is None or isinstance(found, str):
            return found
    except (OSError, UnicodeDecodeError, KeyError, TypeError):
        pass
    raise OmnidraftError(f"the chat template in {folder} is neither text nor a list of texts with one named default: "
                         "copy the model's folder again")


@cache
def _environment() -> Any:
    """jinja2's sandbox with what transformers' templates may use."""
    try:
        from jinja2 import TemplateError, ext, sandbox

        if [int(number) for number in re.findall(r"\d+", version("jinja2"))[:3]] < [3, 1, 6]:
            raise ImportError  # there are known ways out of older sandboxes
    except ImportError:
        raise OmnidraftError("this model's chat template needs jinja2: pip install 'jinja2>=3.1.6'") from None

    class Generation(ext.Extension):
        """{% generation %} ... {% endgeneration %} shows trainers where answers are; here it changes nothing."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
               sort_keys: bool = False) -> str:  # jinja2's own escapes HTML
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                 extensions=[Generation, ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return made
