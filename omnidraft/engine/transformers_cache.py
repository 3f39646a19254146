"""What a model of transformers has read of a text, and how rejected tokens are taken back.

Every round takes back tokens (arXiv 2507.02659, Algorithm 1). Four ways; `choose` tries which of
them gives the model's own logits, and takes the cheapest:

- `Cut`: a cache with one entry per token loses its last entries;
- `Copies`: linear attention and state spaces keep one state, which goes back to a copy (our own);
- `Ahead`: the cache only grows; after a rejection the text is read again;
- `Again`: each pass reads the whole text again.
"""

import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ..text.errors import OmnidraftError
from .model import check_rewind
from .transformers_loading import one_line

# transformers' name for a cache; until 5.23 the second, or the third for a state; RWKV's the last
NAMES = ("cache", "past_key_values", "cache_params", "state")
CAN_CUT = {"DynamicLayer", "DummyLayer"}  # kinds of layers that have an entry per token
LONGEST = 16  # accepted tokens that are read again together with new ones; more get their own pass
KEPT = 2  # copies: of this round and the one before, as a drafter may take back a token of the text
# how copies are tried: read ids from `begin` to `end`, and go back to `stays`
READS = ((0, 24, 24), (24, 28, 25), (25, 26, 26), (26, 30, 27), (27, 30, 30))
PROMPT = 24  # how a cache that only grows is tried: so many at once, the others one at a time
CLEARLY = 0.7  # of the time of four passes: the most that one pass over four tokens may take
ALONE = "as a target it writes without drafts, unless you give a draft length or a stop rule"
DIFFERS = ("; it has other logits for a token after others than for a whole text, so the text of a "
           "chat can differ from generate's")

Logits = tuple[Tensor, Tensor | None]  # (1, rows, V), and the last hidden states (rows, width)


def cache_name(names: Container[str]) -> str:
    """What transformers calls a cache among these arguments or fields; "" if there is none.

    >>> cache_name(["input_ids", "past_key_values"])
    'past_key_values'
    """
    for name in NAMES:
        if name in names:
            return name
    return ""


class Cut:
    """One text: its `ids`, and transformers' cache for the first `held` of them.

    `make` gives an empty cache. `on_device`: logits are tensors that stay on the model's device.
    """

    how = "cut on rewind"

    def __init__(self, make: Callable[[], Any], device: Any, on_device: bool = False) -> None:
        self.make = make
        self.on_device = on_device
        self.keeps_hidden = False
        self.hidden: Tensor | None = None  # (rows, width) the head's last input, if it is kept
        self.ids = torch.empty((1, 0), dtype=torch.long, device=device)  # (1, n)
        self.reset()

    @property
    def length(self) -> int:
        """The number of tokens that have been read and not taken back."""
        return self.ids.shape[1]

    def reset(self) -> None:
        """Forget what was read, but not the text: the next pass reads it again."""
        self.cache = self.make()
        self.held = 0

    def hold(self, cache: Any, ids: Sequence[int]) -> None:
        """Go on from a cache of transformers that has read `ids`."""
        self.cache = cache
        self.held = len(ids)
        self.ids = torch.tensor([ids], dtype=torch.long, device=self.ids.device)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError if there are fewer."""
        check_rewind(self.length, length)
        if length:
            self.back_to(length)
        elif self.length:  # subtle: an empty cache of transformers' `generate` stays that cache
            self.reset()
        self.ids = self.ids[:, :length]

    def back_to(self, length: int) -> None:
        """Take back what the cache holds after the first `length` tokens."""
        if length < self.held:
            self.cache.crop(length - self.held)  # minus the number of entries to remove
            self.held = length

    def read(self, run: Callable, ids: Tensor, rows: int) -> Logits:
        """Add ids (1, m) to the text; what `run`, a model's, gives for the last `rows`."""
        self.ids = torch.cat([self.ids, ids], 1)
        return self._feed(run, [self.ids[:, self.held:]], rows)

    def _feed(self, run: Callable, pieces: Sequence[Tensor], rows: int) -> Logits:
        """Read pieces (1, m) of the text, a pass for each."""
        logits: list[Tensor] = []
        states: list[Tensor] = []
        for piece in pieces:
            count = piece.shape[1]
            made, state, cache = run(piece, min(rows, count), self.cache, self.held)
            if not isinstance(self.cache, DynamicCache):  # of the model's own kind
                self.cache = cache
            self.held += count
            logits = [*logits, made][-rows:]
            if state is not None:
                states = [*states, state][-rows:]
        if len(pieces) == 1:  # without a copy
            return made, state
        return torch.cat(logits, 1)[:, -rows:], torch.cat(states)[-rows:] if states else None


class Copies(Cut):
    """Layers that keep a state are copied before each round; the copies do not grow with the text.

    After a rejection the copies are put back, and the few accepted tokens are read again.
    `at_once`: does the model read several tokens correctly after others? Else each is one pass.
    """

    how = "copied every round"
    at_once = True

    def reset(self) -> None:
        """As in `Cut`; the copies go, too."""
        super().reset()
        self.copies: list[tuple[int, list[Any]]] = []  # (tokens, layers), None for one that is cut
        self.ended = True  # is it time for a copy: at first, and once a round or a prompt ended?
        self.fresh = 0  # tokens of the present round

    def read(self, run: Callable, ids: Tensor, rows: int) -> Logits:
        """As in `Cut`; at the start of a round, the state is copied first."""
        late = self.ids[:, self.held:]
        apart = late.shape[1] > LONGEST or self.held == 0
        if self.ended and late.shape[1] and apart:
            self._feed(run, self._pieces(late), 1)
            late = late[:, :0]
        if self.ended and not late.shape[1]:
            self._copy()
        self.ids = torch.cat([self.ids, ids], 1)
        new = self.ids[:, self.held:]
        self.ended = new.shape[1] > LONGEST
        self.fresh += ids.shape[1]
        return self._feed(run, self._pieces(new), rows)

    def back_to(self, length: int) -> None:
        """Put back the latest copy that is no longer than `length`, or start again."""
        # subtle: a round of one token that stays, as in plain decoding, needs no copy after it
        alone = self.fresh <= 1 and length == self.held
        near = bool(self.copies) and length - self.copies[-1][0] < LONGEST
        if not (alone and near):
            self.ended = True
        self.fresh = 0
        if length < self.held:
            while self.copies and self.copies[-1][0] > length:
                self.copies.pop()
            if self.copies:
                self._restore()
            else:
                self.reset()

    def _pieces(self, ids: Tensor) -> Sequence[Tensor]:
        if self.at_once or self.held == 0:
            return [ids]
        return ids.split(1, 1)

    def _copy(self) -> None:
        layers = [None if type(layer).__name__ in CAN_CUT else deepcopy(layer)
                  for layer in self.cache.layers]
        self.copies = [*self.copies, (self.held, layers)][-KEPT:]

    def _restore(self) -> None:
        length, layers = self.copies[-1]
        for place, layer in enumerate(layers):
            if layer is not None:
                self.cache.layers[place] = deepcopy(layer)
            elif self.held > length:
                self.cache.layers[place].crop(length - self.held)
        self.held = length


class CopiesAlone(Copies):
    """As `Copies`, for a model that reads the tokens after a prompt one at a time."""

    how = "copied every round, one token at a time"
    at_once = False


class Ahead(Cut):
    """A cache that only grows, of any kind, read as transformers' `generate` reads.

    First the prompt in one pass, then one token at a time, also when the text is read again: some
    models have other logits for several tokens than for one after another. `make` gives `cache`
    or, if that is None, the model makes one. `whole`: the prompt is read with its last token, which
    the loop reads later; then it is read a second time.
    """

    how = "read again after a rejection"
    whole = False

    def reset(self) -> None:
        """As in `Cut`; which ids are the prompt is forgotten, too."""
        super().reset()
        self.prompt: int | None = None  # how many tokens are read in the first pass
        self.part = self.whole  # was only a part of the prompt read?

    def read(self, run: Callable, ids: Tensor, rows: int) -> Logits:
        """As in `Cut`, but the prompt in one pass, and what follows it token by token."""
        self.ids = torch.cat([self.ids, ids], 1)
        before_proposals = self.length - rows + 1
        if self.prompt is None:
            self.prompt = before_proposals
            if self.prompt == 1:  # subtle: of one token, nobody knows whether it is all
                self.part = False
        elif self.part:  # the prompt without its last token was read
            super().reset()
            self.prompt = before_proposals
            self.part = False
        first = self.ids[:, self.held:self.prompt]
        late = self.ids[:, max(self.held, self.prompt):]
        pieces = [piece for piece in (first, *late.split(1, 1)) if piece.shape[1]]
        return self._feed(run, pieces, rows)

    def back_to(self, length: int) -> None:
        """Nothing can be taken back: the text is read again in the next pass."""
        if length < self.held:
            super().reset()
            self.prompt = min(self.prompt or 0, length)


class AheadWhole(Ahead):
    """As `Ahead`, for a model whose logits after others differ from those of a whole text."""

    whole = True


class Again(Cut):
    """No cache: each pass reads the whole text."""

    how = "none, all is read every time"

    def back_to(self, length: int) -> None:
        """There is nothing to take back."""

    def read(self, run: Callable, ids: Tensor, rows: int) -> Logits:
        """As in `Cut`, but the whole text in every pass."""
        self.ids = torch.cat([self.ids, ids], 1)
        logits, states, _ = run(self.ids, rows)
        return logits, states


@dataclass(frozen=True)
class Choice:
    """What `choose` found: the kind of `Cut`, and what its `make` is."""

    kind: type[Cut]
    make: Callable[[], Any]
    rereads: str = ""  # why a text is read again, "" if it is not
    alone: str = ""  # why proposals are read one at a time, "" if they are not

    @property
    def drafting_pays(self) -> bool:
        """Does a pass read several proposals, and can rejected ones be taken back?"""
        return not (self.alone or issubclass(self.kind, Ahead))

    def __str__(self) -> str:
        return f"{self.kind.how}: {self.rereads}" if self.rereads else self.kind.how

    def warning(self) -> str:
        """What its user should know, after the model's name; "" for nothing."""
        if issubclass(self.kind, Ahead):
            return ("would read the whole text again after a rejected proposal: "
                    f"{self.rereads}; {ALONE}")
        if self.rereads:
            return f"reads the whole text again in every pass, which is slow: {self.rereads}"
        if self.alone:
            return ("reads proposals one at a time, as several at once are "
                    f"{self.alone} here: {ALONE}")
        return ""


def choose(model: Any) -> Choice:
    """The best way for a `TransformersModel` that gives its own logits."""
    make = partial(_entries, model)
    why = _why_not_cut(model, make)
    if not why:
        return Choice(Cut, make)
    found = None
    if model.cache_name:
        found = _try_copies(model, make) or _try_ahead(model, why)
    return found or Choice(Again, lambda: None, why)


def _entries(model: Any) -> DynamicCache:
    """An empty cache of transformers that keeps what a sliding window leaves: the mask hides it."""
    cache = DynamicCache(config=model.model.config)
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[place] = DynamicLayer()
    return cache


def _why_not_cut(model: Any, make: Callable[[], DynamicCache]) -> str:
    """Why a new text cannot continue what the model has read; "" if it can."""
    if not model.cache_name:
        return "its forward takes no cache"
    if model.cache_name == "state":
        return "it keeps one state for the whole text"
    cache = make()
    others = {type(layer).__name__ for layer in cache.layers} - CAN_CUT
    if others:
        return f"tokens cannot be taken back from its cache ({', '.join(sorted(others))})"
    ids = model.trial_ids[:, :4]
    try:
        wanted, *_ = model.run(ids, 4, cache)
    except OmnidraftError:  # a cache of its own kind
        return "it does not take transformers' cache"
    # some models in older transformers keep their state elsewhere and leave this one empty
    for layer in cache.layers:
        if type(layer) is DynamicLayer and layer.get_seq_length() != 4:
            return "it does not use transformers' cache"
    with suppress(OmnidraftError):
        for count in (2, 1):
            cache.crop(-count)
            found, *_ = model.run(ids[:, -count:], count, cache, 4 - count)
            difference = (found - wanted[:, -count:]).abs().max()
            # subtle: coarse, as this must not cost a model its cache for half precision's noise
            if not difference < 0.5 * wanted.std():
                break
        else:
            return ""
    return "its cache does not take several tokens after others"


def _try_copies(model: Any, make: Callable[[], DynamicCache]) -> Choice | None:
    """Copies, if they give the logits that the model has without a cache.

    Several tokens are read at once, if that is right and clearly faster here than one after
    another, which must be right in any case: plain decoding reads so.
    """
    ids = model.trial_ids
    wanted = model.run(ids, ids.shape[1])[0].cpu()
    seconds: dict[type[Copies], float] = {}  # of reading four tokens, if the logits are right
    for kind in (Copies, CopiesAlone, Copies, CopiesAlone):
        with suppress(OmnidraftError), one_line("its cache cannot be copied"):
            cache, found, took = kind(make, model.device), [], []
            for begin, end, stays in READS:
                began = time.perf_counter()
                logits, _ = cache.read(model.run, ids[:, begin:end], end - begin)
                found.append(logits[:, :stays - begin].cpu())  # waits for the device
                if end - begin == 4:
                    took.append(time.perf_counter() - began)
                cache.rewind(stays)
            if _near(torch.cat(found, 1), wanted, model.dtype):
                seconds[kind] = min(*took, seconds.get(kind, took[0]))
    if CopiesAlone not in seconds:
        return None
    if Copies not in seconds:
        return Choice(CopiesAlone, make, alone="wrong")
    if seconds[Copies] < CLEARLY * seconds[CopiesAlone]:  # far more than a measurement's noise
        return Choice(Copies, make)
    return Choice(CopiesAlone, make, alone="no faster")


def _try_ahead(model: Any, why: str) -> Choice | None:
    """A cache that only grows, of transformers or of the model's own kind, if it can be used.

    Not if a model keeps its state elsewhere: then one text would change another.
    """
    one = model.trial_ids
    texts = [one, one.flip(1)]
    for make in (partial(DynamicCache, config=model.model.config), lambda: None):
        with suppress(OmnidraftError), one_line("its cache does not grow"):
            alone = [_in_turns(model, [text], make)[0] for text in texts]
            together = _in_turns(model, texts, make)
            near = [_near(*both, model.dtype) for both in zip(alone, together, strict=True)]
            if all(near):
                whole = model.run(one, one.shape[1])[0].cpu()
                if _near(alone[0], whole, model.dtype):
                    return Choice(Ahead, make, why)
                return Choice(AheadWhole, make, why + DIFFERS)
    return None


def _in_turns(model: Any, texts: Sequence[Tensor], make: Callable[[], Any]) -> list[Tensor]:
    """The logits (1, m, V) of texts (1, m): the prompts, then a token of each in turn."""
    caches = [Ahead(make, model.device) for _ in texts]
    found: list[list[Tensor]] = [[] for _ in texts]
    end = texts[0].shape[1]
    steps = [(0, PROMPT), *((place, place + 1) for place in range(PROMPT, end))]
    for begin, end in steps:
        for text, cache, logits in zip(texts, caches, found, strict=True):
            cache.prompt = PROMPT
            logits.append(cache.read(model.run, text[:, begin:end], end - begin)[0].cpu())
            if cache.cache is None:
                raise OmnidraftError("it returns no cache")
    return [torch.cat(logits, 1) for logits in found]


def _near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Are these the same logits, up to rounding?"""
    within = 1e-4 if dtype in (torch.float32, torch.float64) else 0.1
    return bool((found - wanted).abs().max() < within * wanted.std())
