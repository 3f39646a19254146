"""The package's one exception, and one clear line for a wrong argument."""

import reprlib
from collections.abc import Callable
from functools import wraps
from inspect import signature
from math import inf
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

GENERATOR = "a NumPy generator, such as np.random.default_rng(0)"
UNIFORMS = "Uniforms(np.random.default_rng(0))"
Given, Made = ParamSpec("Given"), TypeVar("Made")


class OmnidraftError(ValueError):
    """What is wrong, why, and what to do about it, in one line that can be printed as it is."""


def expect(name: str, value: Any, kinds: Any, needed: str) -> None:
    """Raise OmnidraftError unless `value` is of one of the `kinds` (types, or None for None).

    >>> expect("options", None, dict, "Options")
    Traceback (most recent call last):
    omnidraft.text.errors.OmnidraftError: options is None, but must be Options
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, tuple(type(None) if kind is None else kind for kind in kinds)):
        raise OmnidraftError(f"{name} is {shown(value)}, but must be {needed}")


def expect_number(name: str, value: Any, needed: str, least: float = 0, most: float = inf,
                  kind: type = Integral) -> None:
    """Raise OmnidraftError unless `value` is a number of this `kind` from `least` to `most`.

    >>> expect_number("seed", -1, "of 0 or more")
    Traceback (most recent call last):
    omnidraft.text.errors.OmnidraftError: seed is -1, but must be a whole number of 0 or more
    """
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not (is_number and least <= value <= most):
        whole = "whole " if kind is Integral else ""
        raise OmnidraftError(f"{name} is {shown(value)}, but must be a {whole}number {needed}")


def shown(value: Any) -> str:
    """What a value looks like, in one short line."""
    return " ".join(reprlib.repr(value).split())


def checked(function: Callable[Given, Made], **needed: tuple[Any, str]) -> Callable[Given, Made]:
    """The function, which `expect`s for each argument here what is given: its kinds, in words.

    >>> half = checked(lambda number: number / 2, number=(float, "a float"))
    >>> half("7")
    Traceback (most recent call last):
    omnidraft.text.errors.OmnidraftError: number is '7', but must be a float
    """
    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        for name, value in signature(function).bind(*args, **kwargs).arguments.items():
            if name in needed:
                expect(name, value, *needed[name])
        return function(*args, **kwargs)
    return call
