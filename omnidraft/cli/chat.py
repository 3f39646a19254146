"""`omnidraft chat`: a conversation, one message per line; the answers on stdout."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

from .. import OmnidraftError, Pair
from ..engine.loading import EMBEDDED
from ..metrics import summarize
from ..serving.conversation import Conversation
from . import options
from .common import command
from .generate import describe, show_rounds, write
from .printing import note

HELP = "/new starts again, /exit ends, /help shows this; Ctrl-C stops an answer"
KNOWN = (" It knows sums told as stories, short Python functions, short stories; to all else it "
         "says so. It reads each message by itself.")


@command("omnidraft chat", "omnidraft chat --draft draft-general --adapter --temperature 0.8",
         "omnidraft chat --system 'Answer in one line.' < questions.txt > answers.txt",
         "omnidraft chat --backend torch -d ./my-drafter -t Qwen/Qwen2.5-1.5B-Instruct -T 0.7",
         max_new_tokens=256)
def chat(
    models: options.Served, decoding: options.Decoding,
    system: Annotated[str | None, options.models(
        "--system", help="What the target reads before the first message.")] = None,
    rounds: options.Rounds = False, signs: options.Plain = False,
) -> None:
    """Converse, one message per line (embedded models read each by itself). /exit ends."""
    how, uniforms = decoding.options(), options.uniforms_of(decoding.seed)
    pair, how = models.open(how)
    talk, terminal = Conversation(pair, system), on_a_terminal()
    if terminal:
        who = f"{pair.draft.name} drafts for " if isinstance(pair, Pair) else ""
        note(f"{who}{talk.target.name}.{KNOWN * (talk.target.name in EMBEDDED)} {HELP}.")
    show = show_rounds(pair, signs) if rounds else None
    for message in read_messages(terminal):
        try:
            if message == "/help":
                note(HELP)
            elif message == "/new":
                talk.new()
            elif word := re.match(r"/\w*(?!\S)", message):
                raise OmnidraftError(f"unknown command {word[0]}: {HELP}")
            else:
                if talk.target.name in EMBEDDED:  # these have learned from single answers only
                    talk.new()
                records = talk.ask(message, how, uniforms)
                if talk.dropped:
                    note(f"the context is full: {talk.dropped} old messages were dropped")
                done, _ = write(records, talk.target.tokenizer, show, strip=" \n")
                note(describe(summarize(done)))
        except KeyboardInterrupt:
            note("\nstopped; what was written stays in the conversation")
        except OmnidraftError as error:
            if not terminal:
                raise
            note(f"error: {error}")


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
        if line == "/exit" or terminal and not line:
            return
        if line:
            empty = False
            yield line
    if terminal:
        note("")
    elif empty:
        raise OmnidraftError("no message: write one per line on stdin")
