"""Where decoding begins: a prompt that fits, read from where it parts from what the caches hold (this project's own).

The next prompt of a conversation is the last one with an answer and a question more, so a cache that is rewound to the ids
that both share needs to be fed the new ones only. A cache that cannot be rewound reads all again (`transformers_model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import ModuleType
from typing import Any

from .errors import OmnidraftError
from .translation import common_prefix


@dataclass
class Warm:
    """What a pair has read: the target's `ids`, a cache that holds the first of them, and the `drafting.Drafter`.

    The decoding loop goes on from it and keeps it up to date. It is whole between rounds; one that an exception cut short
    is to be thrown away.

    >>> warm = Warm(); speculative(pair, prompt, options, uniforms, warm=warm)  # doctest: +SKIP
    """

    ids: list[int] = field(default_factory=list)
    cache: Any = None
    drafter: Any = None

    def read(self, model: Any, ops: ModuleType, ids: list[int]) -> tuple[Any, float]:
        """The target's cache with `ids` but the last in it (the first round feeds that one), and the seconds it took."""
        cache = self.cache or ops.new_cache(model)
        seconds = prefill(model, cache, self.ids[:cache.length], ids, 1)
        self.ids, self.cache = ids, cache
        return cache, seconds


def prefill(model: Any, cache: Any, held: Sequence[int], ids: list[int], last: int) -> float:
    """Rewind a cache that holds `held` to what `ids` begin with too, and feed those but the `last`; seconds."""
    began, end = perf_counter(), max(0, len(ids) - last)
    shared = min(common_prefix(held, ids), end)
    cache.rewind(shared)
    if shared < end:
        model.forward(ids[shared:end], cache)
    return perf_counter() - began


def check_prompt(model: Any, prompt: str | Sequence[int]) -> list[int]:
    """The ids of a text (behind the begin token, if there is one), or a copy of ids, to decode from.

    Raises OmnidraftError where there is nothing to go on from, or no room is left in the model's context.
    """
    if not prompt:
        raise OmnidraftError("the prompt is empty: give some text to go on from")
    ids = model.tokenizer.encode(prompt, bos=True) if isinstance(prompt, str) else list(prompt)
    if not len(ids):
        raise OmnidraftError(f"no token of {model.name} spells any of the prompt: write it in characters that the model knows")
    if len(ids) >= model.context_size:
        raise OmnidraftError(f"the prompt has {len(ids)} tokens, but {model.name} reads at most {model.context_size - 1}: "
                             "shorten it")
    return ids
