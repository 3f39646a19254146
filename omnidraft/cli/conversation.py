"""A conversation: turns of a pair, with all that both models have read kept between them (this project's own).

Each model reads it by the chat template of its own folder (`template`), so a small base model and a large chat model each see
what they know; a drafter without one reads its target's where both have one tokenizer, else the plain form. What the drafter
reads changes how much it gets right, never the law of the text.

An answer stays in the context as the very tokens that were written: only what the template puts around it and the new
message are encoded, and only they are fed (`warm`). Where the template shows earlier answers in another way (some drop what was
thought aloud) the whole is encoded anew, and read anew from the first id that differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..decoding import Round, Warm, check_prompt, plain, speculative
from ..errors import OmnidraftError
from ..generation import Pair
from ..options import Options
from ..sampling import Uniforms
from .template import Template


class Conversation:
    """Turns of a pair, or of a model alone: `messages` holds them as {"role", "content"}, the answers stripped.

    When the target's context is full the oldest turns are dropped until half of it is free; `dropped` says how many messages
    of the latest question's past went. `template` is a Jinja source in place of the one in the target's folder.

    >>> chat = Conversation(pair, system="Answer briefly.")              # doctest: +SKIP
    >>> chat.say("Ann has 3 pens and buys 4. How many has she now?")    # doctest: +SKIP
    '3 + 4 = 7. She has 7 pens.\\n#### 7'
    """

    def __init__(self, pair: Any, system: str | None = None, template: str | None = None) -> None:
        self.pair, self.system, self.warm = pair, system, Warm()
        self.target = pair.target if isinstance(pair, Pair) else pair
        own = Template.of(self.target)
        own = own if template is None else Template(self.target.tokenizer, template, own.variables)
        self._readers = [_Reader(self.target, own)]
        if isinstance(pair, Pair):
            theirs = Template.of(pair.draft)
            self._readers.append(_Reader(pair.draft, own if theirs.source is None and pair.one_vocabulary else theirs))
        self.new()

    def new(self) -> None:
        """Begin anew; what the caches hold of the same beginning still counts."""
        self.messages: list[dict[str, str]] = [{"role": "system", "content": self.system}] if self.system else []
        self.dropped, self.learned = 0, None  # learned: what the learner made of the latest answer

    def say(self, message: str, options: Options | None = None, *, seed: int = 0, **settings: Any) -> str:
        """The whole answer to `message`; `settings` are those of `Options.of`, as for `Pair.generate`."""
        for _ in self.ask(message, options or Options.of(**settings), Uniforms(np.random.default_rng(seed))):
            pass
        return self.messages[-1]["content"]

    def ask(self, message: str, options: Options, uniforms: Uniforms, learner: Any = None) -> Iterator[Round]:
        """The rounds of the answer to `message`, which is in `messages` as far as it was written, also if you stop early.

        An online `Learner` of the same pair learns from each whole answer. Raises OmnidraftError, at once and with the
        conversation as it was, for an empty message, one that does not fit, or one that a template refuses.
        """
        if not message.strip():
            raise OmnidraftError("the message is empty: write something to be answered")
        messages, first = [*self.messages, {"role": "user", "content": message}], bool(self.system)
        limit = self.target.context_size
        read = [reader.read(messages) for reader in self._readers]
        if len(read[0][1]) + min(options.max_new_tokens, limit // 4) > limit:
            while len(read[0][1]) > limit // 2 and len(messages) > first + 1:
                del messages[first:first + 2]
                read = [reader.read(messages) for reader in self._readers]
        check_prompt(self.target, read[0][1])
        self.dropped, self.learned = len(self.messages) + 1 - len(messages), None
        self.messages = [*messages, {"role": "assistant", "content": ""}]
        for reader, (text, ids) in zip(self._readers, read, strict=True):
            reader.text, reader.ids, reader.answer = text, [*ids], ""
        return self._answer([ids for _, ids in read], options, uniforms, learner)

    def _answer(self, prompts: list[list[int]], options: Options, uniforms: Uniforms, learner: Any) -> Iterator[Round]:
        warm, self.warm = self.warm, Warm()  # a round that is cut short leaves the caches in no known state
        if len(prompts) > 1:
            records = speculative(self.pair, tuple(prompts), options, uniforms, learner, warm)
        else:
            records = plain(self.target, prompts[0], options, uniforms, warm)
        if learner is not None:
            learner.begin(options)
        answer, data, rounds = self.messages[-1], b"", []
        for record in records:
            rounds.append(record)
            data += self.target.tokenizer.decode_bytes(record.emitted)
            answer["content"] = data.decode("utf-8", "replace").strip()
            for reader in self._readers:
                reader.answer = answer["content"]
                reader.ids = [*(warm.ids if reader is self._readers[0] else warm.drafter.ids)]
            self.warm = warm
            yield record
            self.warm = Warm()
        self.warm = warm
        if learner is not None:
            # What the drafter could have read of a long conversation, with room for the answer.
            learned = self.learned = learner.finish(prompts[1][-(self.pair.draft.context_size // 2):])
            learned.rounds = rounds
            learner.count(learned)
            if learned.updated:
                warm.drafter = None  # its cache is that of the weights before


class _Reader:
    """How one model reads the conversation: `text`, its latest prompt as rendered, and `ids`, those of it and the `answer`."""

    def __init__(self, model: Any, template: Template) -> None:
        self.ends, self.template = model.eos_ids, template
        self.text, self.answer, self.ids = "", "", []

    def read(self, messages: list[dict[str, str]]) -> tuple[str, list[int]]:
        """The messages as a text, and its ids, of which the latest answer's are those that were written."""
        text = self.template.render(messages)
        if len(messages) > 2 and self.text and text.startswith(self.text) and messages[-2]["content"] == self.answer:
            after, answer = text[len(self.text):], self.template.mark(self.answer)
            place = after.find(answer)
            if place >= 0 and not after[:place].strip():
                # The template spells the end of a turn itself; the model's own end token may be another one, or none.
                ids = self.ids[:-1] if self.ids and self.ids[-1] in self.ends else self.ids
                return text, ids + self.template.encode(after[place + len(answer):], first=False)
        return text, self.template.encode(text)
