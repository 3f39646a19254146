"""A cache from which tokens cannot be taken back: it goes back to a copy of itself (our own).

Linear attention and state spaces keep one state, not an entry per token, so rejected tokens cannot
be cut off. Before each round such layers are copied (their size does not grow with the text), and
after a rejection the copies are put back and the few accepted tokens are read again. If a copy is
not the state that it was, the cache only grows (`Ahead`): then a rejection costs the whole text.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

CAN_CUT = ("DynamicLayer", "DummyLayer")  # layers of a hybrid model that are cut, not copied
LONGEST = 16  # accepted tokens that are read again together with new ones; more get their own pass
KEPT = 2  # copies: of this round and the one before, as a drafter may take back a token of the text


class Copies:
    """transformers' `cache` for one text; `read` adds tokens, `back_to` takes the last ones back.

    `at_once`: does the model read several tokens correctly after others? Else each is one pass.
    """

    def __init__(self, cache: Any, at_once: bool) -> None:
        self.cache, self.at_once = cache, at_once
        self.ids = torch.empty((1, 0), dtype=torch.long)  # (1, n) the whole text
        self.held = 0  # how many of them the cache holds; the others are read with the next ones
        self.copies: list[tuple[int, list[Any]]] = []  # (tokens, layers), None for one that is cut
        self.ended = True  # is it time for a copy: at first, and once a round or a prompt ended?
        self.fresh = 0  # tokens of the present round

    def read(self, run: Callable[..., tuple[Tensor, Tensor | None]], ids: Tensor,
             rows: int) -> tuple[Tensor, Tensor | None]:
        """Logits and states of the last `rows` of ids (1, m), by run(ids, cache, rows, held)."""
        late = self.ids[:, self.held:]
        if self.ended and late.shape[1] > LONGEST:
            self._feed(run, late, 1)
            late = late[:, :0]
        if self.ended and not late.shape[1]:
            self._copy()
        self.ids = torch.cat([self.ids, ids.to(self.ids.device)], 1)
        new = self.ids[:, self.held:]
        self.ended = new.shape[1] > LONGEST
        self.fresh += ids.shape[1]
        return self._feed(run, new, rows)

    def back_to(self, length: int) -> bool:
        """Keep the first `length` tokens; False if that is further back than any copy."""
        # subtle: a round of one token that stays, as in plain decoding, needs no copy after it
        alone = self.fresh <= 1 and length == self.held
        near = bool(self.copies) and length - self.copies[-1][0] < LONGEST
        self.ended, self.fresh = self.ended or not (alone and near), 0
        if length < self.held:
            while self.copies and self.copies[-1][0] > length:
                self.copies.pop()
            if not self.copies:
                return False
            self._restore(*self.copies[-1])
        self.ids = self.ids[:, :length]
        return True

    def _feed(self, run: Any, ids: Tensor, rows: int) -> tuple[Tensor, Tensor | None]:
        alone = self.held > 0 and not self.at_once
        made = []
        for piece in ids.split(1, 1) if alone else [ids]:
            count = piece.shape[1]
            made.append(run(piece, self.cache, min(rows, count), held=self.held))
            self.held += count
        logits = torch.cat([one for one, _ in made], 1)[:, -rows:]
        states = [one for _, one in made if one is not None]
        return logits, torch.cat(states)[-rows:] if states else None

    def _copy(self) -> None:
        layers = [None if type(layer).__name__ in CAN_CUT else deepcopy(layer)
                  for layer in self.cache.layers]
        self.copies = [*self.copies, (self.held, layers)][-KEPT:]

    def _restore(self, length: int, layers: list[Any]) -> None:
        for place, layer in enumerate(layers):
            if layer is not None:
                self.cache.layers[place] = deepcopy(layer)
            elif self.held > length:
                self.cache.layers[place].crop(length - self.held)
        self.held = length


class Ahead:
    """A cache that only grows, of any kind, read as transformers' `generate` reads: `cache` or,
    if that is None, one that the model makes. After a rejection the text is read again.

    First the prompt in one pass, then one token at a time, also when the text is read again: some
    models have other logits for several tokens than for one after another. `whole`: also its last
    token, which the loop reads later; then the prompt is read again, with that token.
    """

    def __init__(self, make: Callable[[], Any], whole: bool = False) -> None:
        self.make, self.cache, self.whole = make, make(), whole
        self.ids = torch.empty((1, 0), dtype=torch.long)  # (1, n) the whole text
        self.held = 0  # how many of them the cache holds
        self.prompt: int | None = None  # how many tokens are read in the first pass

    def read(self, run: Callable[..., tuple[Tensor, Tensor | None]], ids: Tensor,
             rows: int) -> tuple[Tensor, Tensor | None]:
        """Logits and states of the last `rows` of ids (1, m), by run(ids, self, rows, held)."""
        self.ids = torch.cat([self.ids, ids.to(self.ids.device)], 1)
        before_proposals = self.ids.shape[1] - rows + 1
        if self.prompt is None:
            self.prompt = before_proposals
            self.whole &= self.prompt > 1  # subtle: of one token, nobody knows whether it is all
        elif self.whole:  # the prompt without its last token was read
            self.whole, self.prompt = False, before_proposals
            self.cache, self.held = self.make(), 0
        first, late = self.ids[:, self.held:self.prompt], self.ids[:, max(self.held, self.prompt):]
        pieces = [piece for piece in (first, *late.split(1, 1)) if piece.shape[1]]
        made = []
        for piece in pieces:
            count = piece.shape[1]
            made.append(run(piece, self, min(rows, count), held=self.held))
            self.held += count
        logits = torch.cat([one for one, _ in made[-rows:]], 1)[:, -rows:]
        states = [one for _, one in made[-rows:] if one is not None]
        return logits, torch.cat(states)[-rows:] if states else None

    def back_to(self, length: int) -> bool:
        """Keep the first `length` tokens; the next pass reads them again, if there were more."""
        if length < self.held:
            self.cache, self.held = self.make(), 0
            self.prompt = min(self.prompt or 0, length)
        self.ids = self.ids[:, :length]
        return True
