"""The command line, `omnidraft COMMAND`: each command is a thin layer over one function.

Results go to stdout, everything else to stderr. Rich, slow to import, is imported where needed.
"""

import os
import sys
import traceback
from typing import Annotated

import typer

from .. import __version__
from . import adapt, adapters, bench, check, demo, generate, inspect  # noqa: F401
from .common import app
from .printing import note, say


def version(wanted: bool) -> None:
    """Print the version and exit, if asked to."""
    if wanted:
        say(f"omnidraft {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[bool, typer.Option(
        "--version", callback=version, is_eager=True, help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Speculative decoding with one small drafter for targets with any tokenizer."""
    sys.excepthook = lambda *error: note("".join(traceback.format_exception(*error)).rstrip())
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: it is empty, or what is printed there is discarded
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        if mode == "w" and hasattr(getattr(sys, name), "reconfigure"):  # no character ends the run
            getattr(sys, name).reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):  # as in files, a byte order mark is not part of the text
        sys.stdin.reconfigure(encoding="utf-8-sig", errors=sys.stdin.errors)
