"""What the commands share: the app they are registered with, and all that is printed."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer
from rich.console import Console
from typer.core import TyperGroup

from ..errors import OUT_OF_MEMORY, OmnidraftError, is_out_of_memory
from .render import escape


def say(text: str, end: str = "\n", exact: bool = False) -> None:
    """Print a result on stdout, escaped; with `exact` only on a terminal: a pipe gets the text."""
    print(text if exact and not sys.stdout.isatty() else escape(text), end=end, flush=True)


def note(line: str) -> None:
    """Print something about the results on stderr, escaped."""
    print(escape(line), file=sys.stderr)


def emit(record: dict[str, Any]) -> None:
    """Print one line of JSON on stdout; NumPy's whole numbers are numbers."""
    print(json.dumps(record, default=int), flush=True)


def console(signs: bool = False, stderr: bool = False) -> tuple[Console, bool]:
    """Rich on a stream as it is now; signs instead of colours, if asked or where these are lost."""
    made = Console(stderr=stderr, highlight=False)
    return made, signs or made.no_color or made.color_system is None


class OneLineErrors(TyperGroup):
    """Prints bad input, a system error or full memory as one line; with --debug it is raised."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # what cannot be written is reported here
            return result
        except (OmnidraftError, MemoryError, RuntimeError, OSError) as error:
            full = is_out_of_memory(error)
            known = isinstance(error, (OmnidraftError, OSError)) or full
            if ctx.params.get("debug") or not known or isinstance(error, BrokenPipeError):
                raise
            note("error: " + (OUT_OF_MEMORY if full else str(error).replace("\n", " ")))
            try:
                sys.stdout.flush()
            except OSError:  # subtle: else the exit would try, and report, the same once more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["Examples:", *lines])


app = typer.Typer(
    name="omnidraft", cls=OneLineErrors, no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog=examples("omnidraft demo", "omnidraft generate 'Once upon a time' --temperature 0.8",
                    "omnidraft demo -h"))


def command(*lines: str, to: typer.Typer = app, **defaults: Any) -> Callable:
    """Register a command whose help ends with the example `lines`.

    A parameter whose type is a dataclass stands for one option per field; `defaults` are by field.
    """
    def register(function: Callable) -> Callable:
        hints, groups, options = get_type_hints(function, include_extras=True), {}, {}
        for name, parameter in inspect.signature(function).parameters.items():
            options[name] = hints[name], parameter.default
            if is_dataclass(kind := hints[name]):
                groups[name], types = kind, get_type_hints(kind, include_extras=True)
                del options[name]
                for f in fields(kind):
                    options[f.name] = types[f.name], defaults.get(f.name, f.default)

        @wraps(function)
        def unfolded(**given: Any) -> None:
            for name, kind in groups.items():
                given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
            function(**given)

        unfolded.__signature__ = inspect.Signature([
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
            for name, (kind, value) in options.items()])
        return to.command(epilog=examples(*lines))(unfolded)

    return register
