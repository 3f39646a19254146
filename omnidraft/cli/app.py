"""The app: its commands, their help with examples, and errors in one line.

`command` registers a function. Of its parameters, one whose type is a dataclass stands for a group
of options, one per field; so commands share groups, and get each as one object.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..engine.model import OUT_OF_MEMORY, is_out_of_memory
from ..text.errors import OmnidraftError
from .printing import note, say

# the commands in help
ORDER = "demo play generate chat adapt adapters bench align check models info tutorial".split()


class OneLineErrors(TyperGroup):
    """Prints any error as one line; with --debug it is raised."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands' names, in the order of the help (not that of their imports)."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def main(self, args: Any = None, **more: Any) -> Any:
        """Run a command or show help, then end the program."""
        if "--debug" in (sys.argv if args is None else args):
            return super().main(args, **more)
        os.environ["RUST_BACKTRACE"] = "0"  # otherwise a panic in tokenizers prints a page
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy's, about numbers that are rejected later
                return super().main(args, **more)
        except Exception as error:
            note(f"error: {one_line(error)}")
            flush_or_drop()
            raise SystemExit(1) from None


def one_line(error: Exception) -> str:
    """What is said about an error; an unexpected one is called a bug."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    line = str(error).replace("\n", " ")
    if isinstance(error, UnicodeDecodeError):
        return f"the input is not valid UTF-8: convert it ({line})"
    if isinstance(error, (OmnidraftError, OSError)):
        return line
    return (f"{type(error).__name__}: {line}; this is a bug in omnidraft: please report it with "
            "the output of `omnidraft --debug ...`")


def flush_or_drop() -> None:
    """Write what is left for stdout; if it is full or closed, drop that."""
    try:
        sys.stdout.flush()
    except OSError:  # subtle: otherwise Python retries it at exit, with another error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Topics(TyperCommand):
    """A command whose help lists options by topic, in plain text (importing Rich takes 0.1 s)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per `rich_help_panel`."""
        unnamed = {"argument": "Arguments", "option": "Other options"}
        topics: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            topic = getattr(param, "rich_help_panel", None) or unnamed[param.param_type_name]
            topics.setdefault(topic, []).append(param.get_help_record(ctx))
        for topic, rows in topics.items():
            with formatter.section(topic):
                formatter.write_dl(rows)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n  ".join(("\b\nExamples:", *lines))  # \b: do not wrap these lines


app = typer.Typer(
    name="omnidraft",
    cls=OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    result_callback=lambda *_, **__: sys.stdout.flush(),  # report write errors here
    rich_markup_mode=None,
    epilog=examples(
        "omnidraft demo",
        "omnidraft generate 'Once upon a time' -T 0.8",
        "omnidraft demo -h"))


def command(*lines: str, to: typer.Typer = app, **defaults: Any) -> Callable:
    """Register a command whose help ends with the example `lines`.

    A parameter whose type is a dataclass becomes one option per field; `defaults` are by field.
    """
    def register(function: Callable) -> Callable:
        parameters = signature(function).parameters.values()
        groups = [one for one in parameters if is_dataclass(one.annotation)]

        @wraps(function)
        def with_groups(**given: Any) -> None:
            for group in groups:
                names = [field.name for field in fields(group.annotation)]
                own = {name: given.pop(name) for name in names}
                given[group.name] = group.annotation(**own)
            function(**given)

        options = [option for one in parameters for option in options_of(one, defaults)]
        with_groups.__signature__ = Signature(options)  # what typer reads
        return to.command(cls=Topics, epilog=examples(*lines))(with_groups)

    return register


def options_of(parameter: Parameter, defaults: dict[str, Any]) -> list[Parameter]:
    """A parameter as it is, or one for each field if its type is a dataclass."""
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    found = []
    for field in fields(parameter.annotation):
        default = defaults.get(field.name, field.default)
        found.append(Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type))
    return found


def version(wanted: bool) -> None:
    """Print the version and exit, if asked to."""
    if wanted:
        say(f"omnidraft {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[bool, typer.Option(
        "--version", callback=version, is_eager=True,
        help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option(
        "--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Speculative decoding with one small drafter for targets with any tokenizer."""
    sys.excepthook = lambda *error: note("".join(traceback.format_exception(*error)).rstrip())
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: it is empty, or what is printed there is discarded
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # no character ends the run
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):  # as in files, a byte order mark is not part of the text
        sys.stdin.reconfigure(encoding="utf-8-sig", errors=sys.stdin.errors)
