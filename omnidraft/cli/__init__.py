"""The command line: `omnidraft COMMAND`, one file per group of commands, each thin over one function.

Results go to stdout, everything said about them to stderr. Bad input is one line and exit code 1. NumPy, tokenizers and
Rich's tables are imported where they are needed, so that `omnidraft --help` is quick.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .. import __version__
from .common import app

from . import demo, generate, chat, adapt, bench, inspect, cache, tutorial  # noqa: F401  # isort: skip (help keeps this order)


def _version(asked: bool) -> None:
    if asked:
        print(f"omnidraft {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """One small drafter, other people's tokenizers: speculative decoding across vocabularies, in NumPy."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: what is printed there goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not end the run
