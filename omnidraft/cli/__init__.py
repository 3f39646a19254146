"""The command line: `omnidraft COMMAND`, each command thin over one function.

Results go to stdout, all else to stderr. Rich is slow to import: the functions that need it do so.
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
    """Print the version and end, if it is wanted."""
    if wanted:
        say(f"omnidraft {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[bool, typer.Option(
        "--version", callback=version, is_eager=True, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """One small drafter, other people's tokenizers: speculative decoding across vocabularies."""
    sys.excepthook = lambda *error: note("".join(traceback.format_exception(*error)).rstrip())
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: what is printed there goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        if hasattr(getattr(sys, name), "reconfigure"):  # no character ends the run
            getattr(sys, name).reconfigure(errors="backslashreplace")
