"""How to decode: rule, draft length, sampling, end of the text; validated in one place."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, fields
from numbers import Integral, Real
from typing import Any

from .stopping import Confidence, FixedLength
from .text.errors import OmnidraftError
from .verification import RULES


@dataclass(frozen=True)
class Options:
    """Settings for one text (None: a setting's default); OmnidraftError for an invalid value."""

    verify: str = "lifted"  # one of verification.RULES; "lossless" is another name for "lifted"
    stop: FixedLength = Confidence()  # noqa: RUF009 (frozen); its `limit` bounds the draft length
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off; relative to the likeliest token's probability
    max_new_tokens: int = 128
    heal: bool = True  # redraw a last context token that could begin a longer one (`drafting`)
    learn: bool = False  # insert the n-grams of the written text into the cache
    # (ids before, logits (V,)) -> logits (V,): changes the target's rows before temperature. If
    # `exact_match`, it may keep state; else only ids and logits may decide what it returns
    processor: Callable[[list[int], Any], Any] | None = None
    eos_token_id: int | Sequence[int] | None = None  # replaces the target's end tokens; (): none
    do_sample: InitVar[bool | None] = None  # False: temperature 0; True: temperature 0 becomes 1

    def __post_init__(self, do_sample: bool | None) -> None:
        own = vars(self)  # set directly, because the class is frozen
        own |= {field.name: field.default for field in fields(self) if own[field.name] is None}
        if do_sample is not None:
            own["temperature"] = (self.temperature or 1.0) if do_sample else 0.0
        if self.verify == "lossless":
            own["verify"] = "lifted"
        if self.verify not in RULES:
            raise OmnidraftError(f"unknown rule {self.verify!r}: choose one of {', '.join(RULES)}")
        if not isinstance(self.stop, FixedLength):
            raise OmnidraftError(f"stop is {self.stop!r}: use a rule of `stopping` or stop_strings")
        if (ends := self.eos_token_id) is not None:
            ends = ends.tolist() if hasattr(ends, "tolist") else ends  # an array or a tensor
            own["eos_token_id"] = ends = [*ends] if isinstance(ends, Iterable) else [ends]
            if not all(isinstance(token, Integral) for token in ends):
                raise OmnidraftError(f"eos_token_id is {ends!r}, but must be one or more ids")
        for name, value, kind, holds, needed in (
            ("draft length", self.stop.limit, Integral, lambda k: k >= 0, "0 or more"),
            ("temperature", self.temperature, Real, lambda t: 0 <= t <= 1e30, "from 0 to 1e30"),
            ("top-k", self.top_k, Integral, lambda k: k >= 0, "0 (off) or more"),
            ("top-p", self.top_p, Real, lambda p: 0 < p <= 1, "in (0, 1]"),
            ("min-p", self.min_p, Real, lambda p: 0 <= p <= 1, "from 0 (off) to 1"),
            ("number of new tokens", self.max_new_tokens, Integral, lambda n: n > 0, "1 or more")):
            if not isinstance(value, kind) or isinstance(value, bool):
                whole = "whole " * (kind is Integral)
                raise OmnidraftError(f"{name} is {value!r}, but must be a {whole}number")
            if not holds(value):
                raise OmnidraftError(f"{name} is {value}, but must be {needed}")

    @property
    def exact_match(self) -> bool:
        """Are proposals compared, in order, with what the target itself chooses?"""
        return self.temperature == 0 or self.verify == "slem"

    @property
    def sampling(self) -> tuple[float, int, float, float]:
        """The arguments of `sampling.process`."""
        return self.temperature, self.top_k, self.top_p, self.min_p

    def ends(self, model: Any) -> Sequence[int]:
        """The tokens that end a text of `model`."""
        return model.eos_ids if self.eos_token_id is None else self.eos_token_id

    @classmethod
    def of(cls, draft_length: int = 12, threshold: float = 0.4, **settings: Any) -> "Options":
        """Options under the names that transformers users know.

        `draft_length` and `threshold` set the confidence rule, unless a `stop` is given.
        Raises OmnidraftError for an unknown name.

        >>> Options.of(do_sample=True, top_p=0.9, draft_length=4).temperature
        1.0
        """
        known = {field.name for field in fields(cls)} | {"do_sample"}
        if unknown := settings.keys() - known:
            raise OmnidraftError(f"unknown option {min(unknown)!r}: choose from draft_length, "
                                 "threshold, " + ", ".join(sorted(known)))
        if not (isinstance(threshold, Real) and 0 <= threshold <= 1):
            raise OmnidraftError(f"threshold is {threshold!r}, but must be from 0 to 1")
        return cls(**{"stop": Confidence(draft_length, threshold=threshold)} | settings)
