"""The names of options: with their types, for type checkers, and as other libraries call them."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from ..stopping import FixedLength

if TYPE_CHECKING:
    from ..options import Options

ELSEWHERE = {  # what other libraries call an option -> what it is here
    "max_tokens": "use max_new_tokens",
    "max_length": "use max_new_tokens, which does not count the prompt",
    "n": "use num_return_sequences",
    "best_of": "use num_return_sequences, and choose",
    "stop": "use stop_strings; a `stop` here is a rule of `omnidraft.stopping`",
    "num_beams": "there are no beams: the text is greedy, or drawn with do_sample=True",
    "tools": "apply your tokenizer's chat template with them, and give the ids that it makes",
    "num_assistant_tokens": "use draft_length",
    "gamma": "use draft_length",
}


class Settings(TypedDict, total=False):
    """The names and types that `Options.of` takes; None is a setting's default."""

    draft_length: int
    threshold: float
    verify: str | None
    stop: "FixedLength | None"
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    max_new_tokens: int | None
    heal: bool | None
    learn: bool | None
    adaptive: bool | None
    processor: Callable[[list[int], Any], Any] | None
    eos_token_id: Any  # an id, several, an array or a tensor
    do_sample: bool | None


def usual(options: "Options", target: Any) -> "Options":
    """The options, without drafts if drafting cannot pay and `stop` is the default.

    A target whose `drafting_pays` is false reads each proposal in a pass of its own.
    """
    if getattr(target, "drafting_pays", True) or options.stop != type(options).stop:
        return options
    return replace(options, stop=FixedLength(0))
