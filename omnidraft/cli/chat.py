"""`omnidraft chat`: a conversation, one message per line; the answers on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import omnidraft as od

from ..engine.loading import load
from ..errors import OmnidraftError
from . import common
from .generate import describe, show_legend, write


@common.command("omnidraft chat", "omnidraft chat --learn --draft draft-general --temperature 0.8",
                "omnidraft chat --system 'Answer in one line.' < questions.txt > answers.txt",
                "omnidraft chat --backend torch -d HuggingFaceTB/SmolLM2-135M-Instruct -t Qwen/Qwen2.5-1.5B-Instruct -T 0.7")
def chat(
    draft: common.Draft = "draft-tasks", target: common.Target = "qwen-like",
    backend: common.Backend = "numpy", device: common.Device = "auto", dtype: common.Dtype = "auto",
    device_map: common.DeviceMap = None, compile: common.Compile = False,
    adapter: common.Adapted = False, adapters: common.AdapterFolder = None,
    system: Annotated[str | None, common.models("--system", metavar="TEXT", help=(
        "What the target is told before the first message."))] = None,
    learn: Annotated[bool, common.models("--learn", help=(
        "Let the drafter learn from every answer, and keep that as `omnidraft adapt` does."))] = False,
    verify: common.Verify = "lossless", draft_length: common.DraftLength = 12, threshold: common.Threshold = 0.4,
    tune: common.Tune = False, payoff: common.Payoff = False, temperature: common.Temperature = 0.0,
    top_k: common.TopK = 0, top_p: common.TopP = 1.0, seed: common.Seed = 0, max_new_tokens: common.Tokens = 256,
    rounds: common.Rounds = False, plain: common.Plain = False,
) -> None:
    """Converse: /new begins anew; /exit, an empty line on a terminal or the end of input ends; Ctrl-C stops an answer."""
    import numpy as np

    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens, top_k=top_k, top_p=top_p,
                                tune=tune, payoff=payoff)
    uniforms = common.uniforms_of(seed)
    how = {"backend": backend, "device": device, "dtype": dtype, "device_map": device_map}
    if learn and not draft_length:
        raise OmnidraftError("--learn teaches a drafter, and draft length 0 has none: choose 1 or more")
    pair = common.load_pair(draft, target, compile=compile, **how) if draft_length else None
    model, learner, store, head = pair.target if pair else load(target, **how), None, od.Adapters(adapters), None
    if learn:
        from ..files import make_folder_of

        make_folder_of(store.folder(pair) / "current.json")  # what cannot be written is found before the first answer
        recipe, schedule = od.Recipe(rank=store.rank(pair)), od.Schedule(every=1, replay=6)
        learner = store.resume(pair, recipe, schedule, np.random.default_rng(seed), shipped=True)
        head = learner.head
    elif pair and adapter:
        head = common.use_adapter(pair, adapters)
    if head:
        options = replace(options, stop=replace(options.stop, head=head))
    talk, form = od.Conversation(pair or model, system), "rounds" if rounds else "stream"
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if terminal:
        print(f"{model.name}{f', drafted for by {pair.draft.name}' if pair else ''}. /new begins anew, Ctrl-C stops an "
              "answer, /exit or an empty line ends.", file=sys.stderr)
    if rounds:
        show_legend(plain)
    try:
        for message in read_messages(terminal):
            if message.strip() == "/new":
                talk.new()
                continue
            try:
                records = talk.ask(message, options, uniforms, learner)
                if talk.dropped:
                    print(f"the context is full: the oldest {talk.dropped} messages were dropped", file=sys.stderr)
                done = write(records, model.tokenizer, pair.draft.tokenizer if pair else model.tokenizer, form, plain, " \n")
                note = describe(od.summarize(done), speculated=pair is not None)
                if learner:
                    note += f", learned in {talk.learned.seconds:.1f} s" if talk.learned.updated else ", not learned yet"
                    note += f" ({talk.learned.note})" if talk.learned.note else ""
                print(note, file=sys.stderr)
            except KeyboardInterrupt:
                print()
                print("stopped; the answer stays as far as it came", file=sys.stderr)
            except OmnidraftError as error:
                if not terminal:
                    raise
                print(f"error: {error}", file=sys.stderr)
            if talk.learned and talk.learned.updated and learner.updates % 8 == 0:
                store.keep(learner)
    finally:
        if learner and learner.served:
            print(f"saved in {store.keep(learner)}", file=sys.stderr)


def read_messages(terminal: bool) -> Iterator[str]:
    """The lines of stdin that say something, to the end; raises OmnidraftError where there is none, or it is not UTF-8."""
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401 (lines can be edited)
    any_yet = terminal
    while True:
        try:
            line = input("> " if terminal and sys.stdout.isatty() else "")
        except (EOFError, KeyboardInterrupt, RuntimeError):  # the last where there is no stdin
            break
        except UnicodeDecodeError:
            raise OmnidraftError("the message on stdin is not UTF-8 text: convert it first") from None
        if line.strip() == "/exit" or terminal and not line.strip():
            return
        if line.strip():
            any_yet = True
            yield line
    if not any_yet:
        raise OmnidraftError("no message: write one per line on stdin")
    if terminal:
        print(file=sys.stderr)
