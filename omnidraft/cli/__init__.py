"""The command line: `omnidraft COMMAND`, one file per group of commands, each thin over one function.

Results go to stdout, everything said about them to stderr. Bad input is one line and exit code 1. NumPy, tokenizers and
Rich's tables are imported where they are needed, so that `omnidraft --help` is quick.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import OmnidraftError
from . import cache, demo, generate, inspect
from .common import examples


class _OneLineErrors(TyperGroup):
    """Prints an OmnidraftError as one line; with --debug it is raised."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OmnidraftError as error:
            if ctx.params.get("debug"):
                raise
            line = str(error).replace("\n", " ")
            print(f"error: {line}", file=sys.stderr)
            raise typer.Exit(1) from None


app = typer.Typer(
    name="omnidraft", cls=_OneLineErrors, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode="rich",
    epilog=examples("omnidraft demo", "omnidraft generate 'Once upon a time' --temperature 0.8", "omnidraft demo -h"),
)


def _version(asked: bool) -> None:
    if asked:
        print(f"omnidraft {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                          help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """One small drafter, other people's tokenizers: speculative decoding across vocabularies, in NumPy."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not end the run


demo.add_to(app)
generate.add_to(app)
inspect.add_to(app)
cache.add_to(app)
