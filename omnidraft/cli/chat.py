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
from . import options
from .common import command, note, say
from .conversation import Conversation
from .generate import describe, show_legend, write

HELP = "/new starts again, /exit ends, /help shows this; Ctrl-C stops an answer"


@command("omnidraft chat", "omnidraft chat --learn --draft draft-general --temperature 0.8",
         "omnidraft chat --system 'Answer in one line.' < questions.txt > answers.txt",
         "omnidraft chat --backend torch -d HuggingFaceTB/SmolLM2-135M-Instruct "
         "-t Qwen/Qwen2.5-1.5B-Instruct -T 0.7", max_new_tokens=256)
def chat(
    models: options.Served, decoding: options.Sampling,
    system: Annotated[str | None, options.models(
        "--system", help="What the target reads before the first message.")] = None,
    learn: Annotated[bool, options.models(
        "--learn", help="Learn from every answer, and keep that like `omnidraft adapt`.")] = False,
    rounds: options.Rounds = False, signs: options.Plain = False,
) -> None:
    """Converse: /new starts again; /exit, an empty line on a terminal or the end of input ends."""
    how, uniforms, learner = decoding.options(), decoding.uniforms(), None
    if learn and not decoding.draft_length:
        raise OmnidraftError("--learn teaches a drafter, and draft length 0 has none: choose more")
    pair, how = models.open(how)
    target, draft = getattr(pair, "target", pair), getattr(pair, "draft", pair)
    if learn:
        store = Adapters(models.adapters)
        make_folder_of(store.folder(pair) / "current.json")  # what cannot be written is found now
        learner = store.resume(pair, Recipe(rank=store.rank(pair)), Schedule(every=1, replay=6),
                               np.random.default_rng(decoding.seed), shipped=True)
        how = options.with_head(how, learner.head)
    talk, terminal = Conversation(pair, system), on_a_terminal()
    if terminal:
        who = f"{draft.name} drafts for " * isinstance(pair, Pair) + target.name
        note(f"{who}. {HELP}.")
    if rounds:
        show_legend(signs)
    try:
        for message in read_messages(terminal):
            try:
                if message == "/new":
                    talk.new()
                    continue
                if re.fullmatch(r"/\w*", message.split()[0]):
                    raise OmnidraftError(f"unknown command {message.split()[0]}: {HELP}")
                records = talk.ask(message, how, uniforms, learner)
                if talk.dropped:
                    note(f"the context is full: {talk.dropped} old messages were dropped")
                done = write(records, target.tokenizer, draft.tokenizer,
                             "rounds" if rounds else "text", signs, strip=" \n")
                line = describe(summarize(done))
                if learned := talk.learned:
                    line += f", learned in {learned.seconds:.1f} s" * learned.updated
                    line += f" ({learned.note})" * bool(learned.note)
                    if learned.updated and learner.updates % 8 == 0:
                        store.keep(learner)
                note(line)
            except KeyboardInterrupt:
                say("")
                note("stopped; the answer stays as far as it came")
            except OmnidraftError as error:
                if not terminal:
                    raise
                note(f"error: {error}")
    finally:
        if learner and learner.served:
            note(f"saved in {store.keep(learner)}")


def on_a_terminal() -> bool:
    """Whether the messages are typed."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_messages(terminal: bool) -> Iterator[str]:
    """The lines of stdin that say something; raises OmnidraftError where there is none."""
    empty = True
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (lines can be edited)
    while True:
        try:
            line = input("> " if terminal and sys.stdout.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt, RuntimeError):  # the last where there is no stdin
            break
        except UnicodeDecodeError:
            raise OmnidraftError("a message on stdin is not UTF-8: convert it first") from None
        empty = empty and not line
        if line == "/exit" or terminal and not line:
            return
        if line == "/help":
            note(HELP)
        elif line:
            yield line
    if terminal:
        note("")
    elif empty:
        raise OmnidraftError("no message: write one per line on stdin")
