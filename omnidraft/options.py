"""How to decode one text: rule, draft length, sampling, end of the text; validated in one place.

The loop reads `Options`, and can rely on them: an invalid value never gets past the constructor.
Two ways to write the same, the second with the names that transformers users know:

    Options(temperature=1.0, top_p=0.9, stop=Confidence(limit=4))
    Options.of(do_sample=True, top_p=0.9, draft_length=4)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from .stopping import AcceptanceHead, Confidence, FixedLength
from .text.errors import OmnidraftError, expect, expect_number, shown
from .verification import RULES, Rule

ABOVE_ZERO = 5e-324  # the least float above 0


@dataclass(frozen=True)
class Options:
    """Settings for one text (None: a setting's default); OmnidraftError for an invalid value.

    Temperature and filters apply to both models, and the text is the target's with these settings.
    If the rule is lossless, what concerns the drafter changes nothing but the speed.
    """

    # ---- speculation: who proposes how much, and what is kept ----
    verify: str = "lifted"  # one of verification.RULES; "lossless" is another name for "lifted"
    stop: FixedLength = Confidence()  # noqa: RUF009 (frozen); its `limit` bounds the draft length
    # ---- sampling: how logits become a distribution ----
    temperature: float = 0.0  # 0: the likeliest token
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off; relative to the likeliest token's probability
    max_new_tokens: int = 128
    # ---- the drafter: its boundary, its cache, its pace ----
    heal: bool = True  # redraw a last context token that could begin a longer one (`drafting`)
    learn: bool = False  # insert the n-grams of the written text into the cache
    # Draft only while it pays (`pairs.pace`)? None: only at temperature 0, because measured times
    # decide: above 0, True keeps the distribution, but a seed no longer writes the same text
    adaptive: bool | None = None
    # ---- the target: its rows, its end tokens ----
    # (ids before, logits (V,)) -> logits (V,): changes the target's rows before temperature. If
    # `exact_match`, it may keep state; else only ids and logits may decide what it returns
    processor: Callable[[list[int], Any], Any] | None = None
    eos_token_id: int | Sequence[int] | None = None  # replaces the target's end tokens; (): none
    do_sample: InitVar[bool | None] = None  # False: temperature 0; True: temperature 0 becomes 1

    def __post_init__(self, do_sample: bool | None) -> None:
        own = vars(self)  # subtle: a frozen class forbids self.x = ..., but not this
        for field in fields(self):
            if own[field.name] is None:
                own[field.name] = field.default
        self._check_kinds(do_sample)
        if do_sample is not None:
            own["temperature"] = (self.temperature or 1.0) if do_sample else 0.0
        if self.verify == "lossless":
            own["verify"] = "lifted"
        if self.verify not in RULES:
            raise OmnidraftError(f"unknown rule {self.verify!r}: choose one of {', '.join(RULES)}")
        if self.eos_token_id is not None:
            own["eos_token_id"] = as_ids("eos_token_id", self.eos_token_id)
        expect_number("draft length", self.stop.limit, "of 0 or more")
        threshold = getattr(self.stop, "threshold", 0)  # only the confidence rule has one
        expect_number("threshold", threshold, "from 0 (off) to 1", 0, 1, Real)
        expect_number("temperature", self.temperature, "from 0 to 1e30", 0, 1e30, Real)
        expect_number("top-k", self.top_k, "of 0 (off) or more")
        expect_number("top-p", self.top_p, "in (0, 1]", ABOVE_ZERO, 1, Real)
        expect_number("min-p", self.min_p, "from 0 (off) to 1", 0, 1, Real)
        expect_number("number of new tokens", self.max_new_tokens, "from 1", 1)

    def _check_kinds(self, do_sample: Any) -> None:
        """Raise OmnidraftError unless what is no number is of its kind."""
        expect("verify", self.verify, str, "the name of a rule")
        switches = {"do_sample": do_sample, "heal": self.heal, "learn": self.learn,
                    "adaptive": self.adaptive}
        for name, value in switches.items():
            expect(name, value, (None, bool, np.bool_), "True or False")
        if not isinstance(self.stop, FixedLength):
            raise OmnidraftError(f"stop is {self.stop!r}: use a rule of `stopping` or stop_strings")
        if not isinstance(self.stop.head, AcceptanceHead | None):
            raise OmnidraftError(f"head is {self.stop.head!r}, but must be an AcceptanceHead")
        if self.processor is not None and not callable(self.processor):
            raise OmnidraftError(f"processor is {shown(self.processor)}, but must be a function of "
                                 "ids and logits")

    @property
    def rule(self) -> Rule:
        """The rule that `verify` names."""
        return RULES[self.verify]

    @property
    def exact_match(self) -> bool:
        """Are proposals compared, in order, with what the target itself chooses?

        At temperature 0 always; above, with a rule that judges no probabilities (`slem`).
        """
        return self.temperature == 0 or self.rule.judge is None

    @property
    def sampling(self) -> tuple[float, int, float, float]:
        """The arguments of `sampling.process`."""
        return self.temperature, self.top_k, self.top_p, self.min_p

    def ends(self, model: Any) -> Sequence[int]:
        """The tokens that end a text of `model`."""
        if self.eos_token_id is None:
            return model.eos_ids
        return self.eos_token_id

    @classmethod
    def of(cls, **settings: Any) -> "Options":
        """Options under the names that transformers users know.

        `draft_length` (12) and `threshold` (0.4) set the confidence rule, unless a `stop` is given.
        Raises OmnidraftError for an unknown name.

        >>> Options.of(do_sample=True, top_p=0.9, draft_length=4).temperature
        1.0
        """
        draft_length, threshold = settings.pop("draft_length", 12), settings.pop("threshold", 0.4)
        known = cls.__dataclass_fields__  # with do_sample
        unknown = settings.keys() - known
        if unknown:
            raise OmnidraftError(f"unknown option {min(unknown)!r}: choose from draft_length, "
                                 f"threshold, {', '.join(sorted(known))}, stop_strings, seed; "
                                 "for more, call transformers' "
                                 "generate(custom_generate=pair.decoder())")
        settings.setdefault("stop", Confidence(draft_length, threshold))
        return cls(**settings)


def as_ids(name: str, value: Any) -> list[int]:
    """One or more ids, also from an array or a tensor, as a list; OmnidraftError if they are not.

    >>> as_ids("the prompt", (3, 4)), as_ids("the prompt", 5)
    ([3, 4], [5])
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    ids = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(token, Integral) and token is not True for token in ids):
        raise OmnidraftError(f"{name} is {value!r:.60}, but must be one or more ids")
    return ids
