"""The loop's two functions as a program calls them: their arguments are checked before they run.

The lesson (`decoding`) itself trusts its caller.
"""

from typing import Any, Protocol, runtime_checkable

from .. import decoding
from ..decoding import Warm
from ..engine.model import Model
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import UNIFORMS, checked


@runtime_checkable
class Observer(Protocol):
    """What the loop needs of a learner."""

    def observe(self, *round: Any) -> None:
        """Called after every round."""


MODEL = "a model, such as omnidraft.load gives"
OPTIONS = Options, "Options, such as Options.of(max_new_tokens=32)"
WARM = (None, Warm), "a Warm of `decoding`, which keeps the caches"

plain = checked(
    decoding.plain, model=(Model, MODEL), options=OPTIONS, uniforms=(Uniforms, UNIFORMS), warm=WARM)
speculative = checked(
    decoding.speculative, pair=(Pairing, "a pair, such as omnidraft.pair gives"),
    prompt=((str, tuple), "a text, or a tuple: the ids for target and drafter"), options=OPTIONS,
    uniforms=(Uniforms, UNIFORMS), learner=((None, Observer), "a Learner"), warm=WARM)
