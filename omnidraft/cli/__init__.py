"""The command line: `omnidraft COMMAND`, each command thin over one function.

Results go to stdout, everything said about them to stderr. Bad input is one line and exit code 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer

from .. import __version__
from .common import app, note, say

# isort: off (the help keeps this order)
from . import demo, generate, chat, adapt, bench, inspect, cache, tutorial  # noqa: F401, E402
# isort: on


def _version(asked: bool) -> None:
    if asked:
        say(f"omnidraft {__version__}")
        raise typer.Exit


def _show_traceback(*error: Any) -> None:
    note("".join(traceback.format_exception(*error)).rstrip())


@app.callback()
def main(
    version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """One small drafter, other people's tokenizers: speculative decoding across vocabularies."""
    sys.excepthook = _show_traceback  # an error's text may come from a file
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: what is printed there goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        if hasattr(getattr(sys, name), "reconfigure"):  # no character ends the run
            getattr(sys, name).reconfigure(errors="backslashreplace")
