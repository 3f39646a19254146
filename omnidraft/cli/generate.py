"""`omnidraft generate` and `chat`: the model's text on stdout, everything else on stderr."""

import codecs
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from .. import OmnidraftError, Options, Pair, Round, Tokenizer
from ..engine.load import EMBEDDED
from ..metrics import Summary, summarize
from ..pairs.conversation import Conversation
from ..pairs.pace import why_plain
from ..pairs.prompts import uniforms_of
from ..sampling import Uniforms
from . import options
from .app import command, one_line
from .printing import emit, note, say
from .prompts import Request, asked

HELP = "/new starts over, /exit quits, /help shows this; Ctrl-C stops an answer"
KNOWN = (" It answers word problems and writes short Python functions and stories; it says so if "
         "you ask for anything else. It does not remember earlier messages.")


@command("omnidraft generate 'Write a Python function that adds two numbers.'",
         "cat prompt.txt | omnidraft generate -k 8 --json",
         "omnidraft generate - --backend torch -d JackFram/llama-68m -t Qwen/Qwen2.5-1.5B-Instruct",
         "omnidraft generate -d ./my-drafter -t ./my-target -T 0.8 --seed 7 < prompt.txt",
         "omnidraft generate -t smollm2 'Write a story about a dog.'",
         "omnidraft generate --chat 'Ann has 3 boxes of 12 pens. How many pens does she have?'")
def generate(
    models: options.Served, decoding: options.Decoding,
    prompt: Annotated[str | None, typer.Argument(
        show_default=False, help="Text to continue; read from stdin if - or missing.")] = None,
    chat: options.Chat = None,
    stop: Annotated[list[str] | None, options.output(
        show_default=False, help="A string that ends the text; repeatable.")] = None,
    json_lines: options.JsonLines = False,
) -> None:
    """Continue a text by speculative decoding."""
    how = decoding.options()
    if prompt is None and sys.stdin.isatty():
        raise OmnidraftError("no prompt: give it as an argument, or on stdin with -")
    if prompt in (None, "-"):
        prompt = re.sub(r"\r?\n\Z", "", sys.stdin.read())  # one line end, of any system
    pair, how = models.served(how)
    if sys.stderr.isatty():
        note(f"{pair.draft.name} drafts for {pair.target.name}")
    request = next(asked(pair.target, [Request(prompt)], chat))
    records = rounds_of(pair, request, how, decoding.seed, stop_strings=stop)
    figures = write(records, pair.target.tokenizer, as_json=json_lines)
    note_plain(figures, pair, how)


def rounds_of(pair: Pair, prompt: Any, how: Options, seed: int, **more: Any) -> Iterator[Round]:
    """The rounds of `pair.stream`, one after another, also those that end within a character."""
    rounds: list[Round] = []
    for _ in pair.stream(prompt, how, rounds=rounds, seed=seed, **more):
        yield from rounds
        rounds.clear()
    yield from rounds


@command("omnidraft chat", "omnidraft chat --draft draft-general --adapter auto -T 0.8",
         "omnidraft chat --system 'Answer in one line.' < questions.txt > answers.txt",
         "omnidraft chat --backend torch -d ./my-drafter -t Qwen/Qwen2.5-1.5B-Instruct -T 0.7",
         max_new_tokens=256)
def chat(
    models: options.Served, decoding: options.Decoding,
    system: Annotated[str | None, options.models(
        help="System message.")] = None,
) -> None:
    """Chat, one message per line (embedded models forget earlier ones). /exit quits."""
    pair, how = models.served(decoding.options())
    uniforms = uniforms_of(decoding.seed)
    talk = Conversation(pair, system)
    terminal = on_a_terminal()
    forgets = models.target in EMBEDDED  # these were trained only on single answers
    if terminal:
        note(f"{pair.draft.name} drafts for {pair.target.name}.{KNOWN if forgets else ''} {HELP}.")
    for message in read_messages(terminal):
        try:
            reply(talk, message, how, uniforms, forgets)
        except OmnidraftError as error:
            if not terminal:  # nobody is there to go on
                raise
            note(f"error: {one_line(error)}")
        except KeyboardInterrupt:
            if not terminal:
                raise
            note("\nstopped" if forgets else
                 "\nstopped; the partial answer stays in the conversation")


def reply(talk: Conversation, message: str, how: Options, uniforms: Uniforms,
          forgets: bool) -> None:
    """Write the answer to a message, or do what it says if it begins with a slash."""
    if message == "/help":
        note(HELP)
        return
    if message == "/new":
        talk.new()
        return
    word = re.match(r"/\w*(?!\S)", message)
    if word:
        raise OmnidraftError(f"unknown command {word[0]}: {HELP}")
    if forgets:
        talk.new()
    records = talk.ask(message, how, uniforms)
    if talk.dropped:
        note(f"the context is full: dropped the {talk.dropped} oldest messages")
    figures = write(records, talk.target.tokenizer, strip=" \n")
    note_plain(figures, talk.pair, how)


def on_a_terminal() -> bool:
    """Are the messages typed?"""
    return sys.stdin.isatty()


def read_messages(terminal: bool) -> Iterator[str]:
    """The non-empty lines of stdin; raises OmnidraftError if there are none."""
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (lines can be edited)
    prompt = "> " if terminal and sys.stdout.isatty() else ""
    empty = True
    try:
        while True:
            line = input(prompt).strip()
            if line == "/exit":
                return
            if line:
                empty = False
                yield line
    except EOFError:
        pass
    except KeyboardInterrupt:
        if not terminal:
            raise
    if terminal:
        note("")
    elif empty:
        raise OmnidraftError("no message: give one per line on stdin")


def write(records: Iterable[Round], tokenizer: Tokenizer, strip: str = "",
          as_json: bool = False) -> Summary:
    """Print a text without leading `strip` characters, or its rounds as JSON, and the figures."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    done = []
    text = ""
    for record in records:
        done.append(record)
        piece = decoder.decode(tokenizer.decode_bytes(record.emitted), final=record.done)
        if not text:
            piece = piece.lstrip(strip)
        if as_json:
            emit({"type": "round", **vars(record), "text": piece})
        else:
            say(piece, end="", exact=True)
        text += piece
    figures = summarize(done)
    if as_json:
        emit({"type": "summary", **vars(figures), "text": text})
    else:
        say("")
        note(describe(figures))
    return figures


def note_plain(figures: Summary, pair: Pair, how: Options) -> None:
    """Say why a text was written without drafts."""
    if figures.rounds > 1 and not figures.drafted:
        note(why_plain(pair, how))


def describe(s: Summary) -> str:
    """The figures in one line."""
    merges = "1 merge" if s.merges == 1 else f"{s.merges} merges"
    return (f"{s.tokens} tokens in {s.seconds:.2f} s ({s.tokens_per_second:.0f} tokens/s), "
            f"{s.block_efficiency:.2f} per target pass, {s.acceptance_draft:.0%} of {s.drafted} "
            f"draft tokens kept, {merges}")
