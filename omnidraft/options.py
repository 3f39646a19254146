"""How to decode: the rule, how far to draft, how to sample, when to end; checked in one place."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, fields
from numbers import Integral, Real
from typing import Any

from .errors import OmnidraftError
from .stopping import Confidence, Stop, Throughput
from .verification import RULES

ALIASES = {"lossless": "lifted"}


@dataclass(frozen=True)
class Options:
    """Settings of one text; None stands for a setting's default, as in transformers.

    Raises OmnidraftError for a value that will not do.
    """

    verify: str = "lifted"  # one of verification.RULES; "lossless" is another name for "lifted"
    stop: Stop = Confidence()  # noqa: RUF009 (frozen); its `limit` bounds the draft length
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    max_new_tokens: int = 128
    heal: bool = True  # take back a context token that a longer draft token begins with (`lifted`)
    learn: bool = False  # insert the n-grams of the written text into the cache
    do_sample: InitVar[bool | None] = None  # False is temperature 0, True never is (0 becomes 1)

    def __post_init__(self, do_sample: bool | None) -> None:
        for name, kind in (("temperature", Real), ("top_k", Integral), ("top_p", Real),
                           ("max_new_tokens", Integral)):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, getattr(Options, name))
            elif not isinstance(value, kind) or isinstance(value, bool):
                what = "a whole number" if kind is Integral else "a number"
                raise OmnidraftError(f"{name} is {value!r}, but must be {what}")
        if do_sample is not None:
            temperature = (self.temperature or 1.0) if do_sample else 0.0
            object.__setattr__(self, "temperature", temperature)
        object.__setattr__(self, "verify", ALIASES.get(self.verify, self.verify))
        if self.verify not in RULES:
            raise OmnidraftError(f"unknown rule {self.verify!r}: choose one of {', '.join(RULES)}")
        k, new = getattr(self.stop, "limit", None), self.max_new_tokens
        if not isinstance(k, Integral):
            raise OmnidraftError(f"draft length is {k!r}, but must be a whole number")
        for name, value, holds, needed in (
            ("draft length", k, k >= 0, "0 or more"),
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top-p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]"),
            ("number of new tokens", new, new >= 1, "1 or more"),
        ):
            if not holds:
                raise OmnidraftError(f"{name} is {value}, but must be {needed}")

    @classmethod
    def of(cls, draft_length: int = 12, threshold: float = 0.4, do_sample: bool | None = None,
           tune: bool = False, **settings: Any) -> Options:
        """Options by the names that transformers users know.

        `draft_length` and `threshold` make the confidence rule, unless a `stop` is given; with
        `tune` it rests where drafting does not pay. Raises OmnidraftError for a name or value that will not do.

        >>> Options.of(do_sample=True, top_p=0.9, draft_length=4).temperature
        1.0
        """
        known = {field.name for field in fields(cls)}
        if unknown := settings.keys() - known:
            raise OmnidraftError(f"unknown option {min(unknown)!r}: choose from draft_length, "
                                 "threshold, do_sample, tune, " + ", ".join(sorted(known)))
        if not 0 <= threshold <= 1:
            raise OmnidraftError(f"threshold is {threshold}, but must be from 0 to 1")
        rule = Throughput if tune else Confidence
        settings.setdefault("stop", rule(draft_length, threshold=threshold))
        return cls(**settings, do_sample=do_sample)
