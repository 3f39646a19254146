"""What draws a text, changes the target's rows and ends the text, under transformers' names."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..engine.arguments import shown
from ..options import Options
from ..sampler import Sampler
from ..sampling import Uniforms
from ..text.errors import OmnidraftError
from .prompts import as_lists, kind_of


@dataclass
class Control:
    """What changes the target's rows and ends a text, under transformers' names.

    Processors and criteria are called as in transformers, with ids (1, n) and logits (1, V): these
    are tensors if the target runs in PyTorch or their class is from transformers, else arrays.
    At temperature 0 a processor is called once per token of the text, in order, so it may keep
    state. Above, it must be a function of the ids and logits only: it also sees drafts that do not
    stay. OmnidraftError if it raises, or if its rows turn out to depend on earlier calls.
    """

    stop_strings: str | Sequence[str] | None = None
    stopping_criteria: Any = None
    logits_processor: Any = None
    repetition_penalty: float | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        strings, words = several(self.stop_strings), as_lists(self.bad_words_ids) or []
        penalty = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        for name, holds, needed in (
            ("stop_strings", all(isinstance(one, str) and one for one in strings), "texts"),
            ("repetition_penalty", isinstance(penalty, Real) and penalty > 0, "above 0"),
            ("bad_words_ids", isinstance(words, list) and {*map(kind_of, words)} <= {"ids"},
             "lists of ids"),
            ("logits_processor", all(map(callable, several(self.logits_processor))), "callable"),
            ("stopping_criteria", all(map(callable, several(self.stopping_criteria))), "callable"),
        ):
            if not holds:
                value = shown(getattr(self, name))
                raise OmnidraftError(f"{name} is {value}, but must be {needed}")
        self.strings = [one.encode(errors="surrogatepass") for one in strings]
        self.penalty, self.words = penalty, [[int(token) for token in word] for word in words]

    def processor(self, target: Any, options: Options) -> Callable[[list[int], Any], Any] | None:
        """All processors as one function, in transformers' order, or None."""
        ends, steps = options.ends(target), []
        if not all(token in range(target.vocab_size) for token in chain(*self.words)):
            raise OmnidraftError(f"bad_words_ids has ids that {target.name} does not have")
        if self.penalty != 1:
            steps.append(lambda ids, row: penalise(ids, row, self.penalty))
        if words := [word for word in self.words if len(word) > 1 or word[0] not in ends]:
            steps.append(lambda ids, row: forbid(ids, row, words))
        own = several(self.logits_processor)
        steps += [_processor(one, target) for one in own]
        steps += [_checked(options.processor)] if options.processor is not None else []

        def run(ids: list[int], row: Any) -> Any:
            return reduce(lambda row, step: step(ids, row), steps, row)
        if own and not options.exact_match:
            return stateless(run, names_of(own))
        return run if steps else None


def penalise(ids: Sequence[int], row: Any, penalty: float) -> Any:
    """Divide the logits (V,) of `ids` by `penalty`, multiply negative ones (arXiv 1909.05858).

    >>> penalise([0, 1], np.array([2.0, -1.0, 1.0]), 2.0)
    array([ 1., -2.,  1.])
    """
    seen = sorted({token for token in ids if token < len(row)})
    row[seen] = row[seen].clip(0, None) / penalty + row[seen].clip(None, 0) * penalty
    return row


def forbid(ids: list[int], row: Any, words: Sequence[Sequence[int]]) -> Any:
    """Set to -inf, in place, the logit of each word's last id if `ids` end with its other ids."""
    for *before, last in words:
        if ids[len(ids) - len(before):] == before:
            row[last] = -np.inf
    return row


def uniforms_of(seed: int, generator: Any = None) -> Uniforms:
    """Draws from a seed or a NumPy generator; PyTorch's makes a seed. OmnidraftError for others.

    >>> uniforms_of(0).accept(0.7)  # the first draw is 0.637
    True
    """
    if isinstance(generator, np.random.Generator):
        return Uniforms(generator)
    if hasattr(generator, "initial_seed"):  # PyTorch's
        torch = sys.modules["torch"]
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    elif generator is not None:
        raise OmnidraftError(f"generator is {generator!r}, but must be NumPy's or PyTorch's")
    if not isinstance(seed, Integral) or seed < 0:
        raise OmnidraftError(f"seed is {seed!r}, but must be a whole number of 0 or more")
    return Uniforms(np.random.default_rng(seed))


def several(value: Any) -> Sequence[Any]:
    """One value or a list of values, as a list; None gives an empty list."""
    return [] if value is None else value if isinstance(value, (list, tuple)) else [value]


def takes_tensors(function: Any, target: Any) -> bool:
    """Does a processor or criterion take tensors? See `Control`."""
    of_transformers = any(kind.__module__.startswith("transformers.")
                          for kind in type(function).__mro__)
    return of_transformers or getattr(target, "sampler", Sampler) is not Sampler


def as_batch(row: Any, tensor: bool, **how: Any) -> Any:
    """Ids or logits (n,) as (1, n), tensor or array; for a tensor, PyTorch must be loaded."""
    return (sys.modules["torch"].as_tensor(row, **how) if tensor else np.asarray(row))[None]


def names_of(processors: Sequence[Any]) -> str:
    """The names of functions and the classes of objects, for messages."""
    return ", ".join(getattr(one, "__name__", type(one).__name__) for one in processors)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn an error of somebody's own function into one line."""
    try:
        yield
    except OmnidraftError:
        raise
    except Exception as error:
        says = f"{type(error).__name__} {error}".strip().splitlines()[0]
        raise OmnidraftError(f"{what} failed: {says}") from error


def stateless(run: Callable[[list[int], Any], Any], names: str) -> Callable[[list[int], Any], Any]:
    """`run`, a processor of ids [n] and logits (V,); its first call looks whether it keeps state.

    Then it is called for a text, a longer one, and the first again, which must give the same row.
    """
    looked: list[bool] = []

    def first(ids: list[int], row: Any) -> Any:
        if not looked:
            try:
                before = run(ids, row + 0)  # + 0: a copy, as it may change its argument
                likely = before + 0
                likely[sorted(set(ids))] = -np.inf  # a token that is new to the text
                run([*ids, int(likely.argmax())], row + 0)
                after = run(ids, row + 0)
            except OmnidraftError as error:
                raise OmnidraftError(f"{error}; above temperature 0 it also sees drafts that do "
                                     "not stay: if it keeps state, use do_sample=False, where it "
                                     "is called once per token") from error
            with np.errstate(invalid="ignore"):
                same = (before == after) | (abs(before - after) < 1e-3) | (before != before)
            if not same.all():
                raise OmnidraftError(f"{names} keeps state: its rows depend on earlier calls, but "
                                     "above temperature 0 only ids and logits may decide: use "
                                     "do_sample=False, where it is called once per token")
            looked.append(True)
        return run(ids, row)

    return first


def check_streamer(streamer: Any) -> None:
    """Raise OmnidraftError for a streamer without the methods that are called."""
    if not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise OmnidraftError(f"streamer is {shown(streamer)}, but needs `put` and `end`")


def logits_of(made: Any, row: Any, who: str) -> Any:
    """What a processor returned for `row`; OmnidraftError if it has another shape."""
    if getattr(made, "shape", None) != row.shape:
        raise OmnidraftError(f"the logits processor {who} returned {shown(made)}, but must return "
                             f"logits of shape {tuple(row.shape)}")
    return made


def _checked(function: Any) -> Callable[[list[int], Any], Any]:
    """A processor of ids [n] and logits (V,), whose result is checked."""
    if not callable(function):
        raise OmnidraftError(f"processor is {shown(function)}, but must be a function of ids and "
                             "logits")
    return lambda ids, row: logits_of(function(ids, row), row, names_of([function]))


def _processor(function: Any, target: Any) -> Callable[[list[int], Any], Any]:
    """Turn a processor of ids (1, n) and logits (1, V) into one of ids [n] and logits (V,)."""
    tensors = takes_tensors(function, target)

    def run(ids: list[int], row: Any) -> Any:
        rows = as_batch(row, tensors)
        with told(f"the logits processor {names_of([function])}"):
            made = function(as_batch(ids, tensors, **{"device": rows.device} if tensors else {}),
                            rows)
        made = logits_of(made, rows, names_of([function]))
        return np.asarray(made[0]) if isinstance(row, np.ndarray) else made[0]

    return run
