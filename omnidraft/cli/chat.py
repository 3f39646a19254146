"""`omnidraft chat`: a conversation, one message per line; the answers on stdout."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import numpy as np

from .. import Adapters, OmnidraftError, Pair
from ..files import make_folder_of
from ..learning.online import Schedule
from ..learning.training import Recipe
from ..metrics import summarize
from . import common
from .conversation import Conversation
from .generate import describe, show_legend, write

HELP = "/new starts again, /exit ends, /help shows this; Ctrl-C stops an answer"


@common.command(
    "omnidraft chat", "omnidraft chat --learn --draft draft-general --temperature 0.8",
    "omnidraft chat --system 'Answer in one line.' < questions.txt > answers.txt",
    "omnidraft chat --backend torch -d HuggingFaceTB/SmolLM2-135M-Instruct "
    "-t Qwen/Qwen2.5-1.5B-Instruct -T 0.7", max_new_tokens=256)
def chat(
    models: common.Served, decoding: common.Sampling,
    system: Annotated[str | None, common.models("--system", metavar="TEXT", help=(
        "What the target reads before the first message."))] = None,
    learn: Annotated[bool, common.models("--learn", help=(
        "Let the drafter learn from every answer, and keep that like `omnidraft adapt`."))] = False,
    rounds: common.Rounds = False, plain: common.Plain = False,
) -> None:
    """Converse: /new starts again; /exit, an empty line on a terminal or the end of input ends."""
    options, uniforms = decoding.options(), common.uniforms_of(decoding.seed)
    if learn and not decoding.draft_length:
        raise OmnidraftError("--learn teaches a drafter, and draft length 0 has none: choose more")
    pair, options = common.serve(models, options)
    model, drafts, learner = getattr(pair, "target", pair), isinstance(pair, Pair), None
    if learn:
        store = Adapters(models.adapters)
        make_folder_of(store.folder(pair) / "current.json")  # what cannot be written is found now
        learner = store.resume(pair, Recipe(rank=store.rank(pair)), Schedule(every=1, replay=6),
                               np.random.default_rng(decoding.seed), shipped=True)
        options = common.with_head(options, learner.head)
    talk, form = Conversation(pair, system), "rounds" if rounds else "text"
    terminal = on_a_terminal()
    if rounds:
        show_legend(plain)
    drafter = pair.draft if drafts else model
    if terminal:
        common.note(f"{drafter.name} drafts for {model.name}. {HELP}." if drafts else
                    f"{model.name}. {HELP}.")
    try:
        for message in read_messages(terminal):
            try:
                if message.strip() == "/new":
                    talk.new()
                    continue
                if re.fullmatch(r"/\w*", message.split()[0]):
                    raise OmnidraftError(f"unknown command {message.split()[0]}: {HELP}")
                records = talk.ask(message, options, uniforms, learner)
                if talk.dropped:
                    common.note(f"the context is full: {talk.dropped} old messages were dropped")
                done = write(records, model.tokenizer, drafter.tokenizer, form, plain, " \n")
                line = describe(summarize(done), drafts)
                if learned := talk.learned:
                    line += f", learned in {learned.seconds:.1f} s" if learned.updated else \
                        ", not learned yet"
                    line += f" ({learned.note})" * bool(learned.note)
                    if learned.updated and learner.updates % 8 == 0:
                        store.keep(learner)
                common.note(line)
            except KeyboardInterrupt:
                common.say("")
                common.note("stopped; the answer stays as far as it came")
            except OmnidraftError as error:
                if not terminal:
                    raise
                common.note(f"error: {error}")
    finally:
        if learner and learner.served:
            common.note(f"saved in {store.keep(learner)}")


def on_a_terminal() -> bool:
    """Whether the messages are typed."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_messages(terminal: bool) -> Iterator[str]:
    """The lines of stdin that say something; raises OmnidraftError where there is none."""
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (lines can be edited)
    empty = True
    while True:
        try:
            line = input("> " if terminal and sys.stdout.isatty() else "")
        except (EOFError, KeyboardInterrupt, RuntimeError):  # the last where there is no stdin
            break
        except UnicodeDecodeError:
            raise OmnidraftError("a message on stdin is not UTF-8 text: convert it first") from None
        if line.strip() == "/exit" or terminal and not line.strip():
            return
        if line.strip() == "/help":
            common.note(HELP)
        elif line.strip():
            yield line
        empty = empty and not line.strip()
    if empty and not terminal:
        raise OmnidraftError("no message: write one per line on stdin")
    if terminal:
        common.note("")
