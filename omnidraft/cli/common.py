"""The app in which commands are registered, their help, and errors in one line."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..engine.model import OUT_OF_MEMORY, is_out_of_memory
from ..text.errors import OmnidraftError
from .printing import note

# the commands in help
ORDER = "demo generate chat adapt adapters bench align check models info tutorial".split()


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
        topics: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            usual = "Arguments" if param.param_type_name == "argument" else "Other options"
            topic = getattr(param, "rich_help_panel", None) or usual
            topics.setdefault(topic, []).append(param.get_help_record(ctx))
        for topic, rows in topics.items():
            with formatter.section(topic):
                formatter.write_dl(rows)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n  ".join(["\b\nExamples:", *lines])  # \b: do not wrap these lines


app = typer.Typer(
    name="omnidraft", cls=OneLineErrors, no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    result_callback=lambda *_, **__: sys.stdout.flush(),  # report write errors here
    rich_markup_mode=None, epilog=examples(
        "omnidraft demo", "omnidraft generate 'Once upon a time' -T 0.8", "omnidraft demo -h"))


def command(*lines: str, to: typer.Typer = app, **defaults: Any) -> Callable:
    """Register a command whose help ends with the example `lines`.

    A parameter whose type is a dataclass becomes one option per field; `defaults` are by field.
    """
    def register(function: Callable) -> Callable:
        parameters = inspect.signature(function).parameters
        groups = {name: parameter.annotation for name, parameter in parameters.items()
                  if is_dataclass(parameter.annotation)}

        @wraps(function)
        def unfolded(**given: Any) -> None:
            for name, kind in groups.items():
                given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            function(**given)

        unfolded.__signature__ = inspect.Signature([
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
            for name, (kind, value) in unfolded_options(parameters, defaults).items()])
        return to.command(cls=Topics, epilog=examples(*lines))(unfolded)

    return register


def unfolded_options(parameters: Mapping[str, inspect.Parameter],
                     defaults: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The (type, default) of each option: of the parameters, or of their dataclass's fields."""
    options = {}
    for name, parameter in parameters.items():
        if is_dataclass(parameter.annotation):
            for field in fields(parameter.annotation):
                options[field.name] = field.type, defaults.get(field.name, field.default)
        else:
            options[name] = parameter.annotation, parameter.default
    return options
