"""Random vocabularies of bare strings, whose rounds are verified without tokenizers or a loop.

They are more general than real tokenizers: any split may be missing, and a token may have any of its possible spellings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from omnidraft import verification
from omnidraft.exactness import Draws, distribution_of
from omnidraft.lifting import Comparison, Lifting, Split
from omnidraft.verification import Verdict

TEXTS = [text for n in (1, 2, 3) for text in map("".join, product("ab", repeat=n))]
SHARED = "keep", "comparisons", "p_and_q", "residual"
COMMON = np.repeat([6.0, 2.0, 1.0], [2, 4, 8])  # short tokens are frequent, because they spell the long ones


class Judged:
    """One draft for `lifted` of the module `rules`, which runs on it once for each outcome of its draws.

    The functions in `SHARED` depend only on the draft, so each of them runs only once.
    """

    def __init__(self, given: tuple[Any, ...], limit: int | None, rules: Any = verification) -> None:
        self.given, self.limit, self.rules, self.whole, self.left, self.kept = given, limit, rules, {}, {}, {}
        self.own = {name: getattr(rules, name) for name in SHARED}
        self.steps = [*self.own["comparisons"](*given, limit)]

    def verdict(self, draws: Draws) -> Verdict:
        """The verdict for one outcome."""
        for name in SHARED:
            setattr(self.rules, name, getattr(self, name))
        try:
            return self.rules.lifted(*self.given, draws, self.limit)
        finally:
            vars(self.rules).update(self.own)

    def comparisons(self, *_: Any) -> list[Comparison]:
        """The result of `verification.comparisons`."""
        return self.steps

    def p_and_q(self, step: Comparison, *_: Any) -> tuple[Any, Any]:
        """The result of `verification.p_and_q`."""
        if step not in self.whole:
            self.whole[step] = self.own["p_and_q"](step, *self.given[1:])
        return self.whole[step]

    def keep(self, *given: Any) -> tuple[Any, ...]:
        """The result of `verification.keep`, enumerated separately, so that equal ends count as one."""
        def run(draws: Draws) -> tuple[Any, ...]:
            kept, refused, left = made = self.own["keep"](*given[:-1], draws)
            end = *kept, refused, *(() if left is None else left.tolist())
            self.kept[end] = made
            return end

        if not self.kept:
            self.shares = distribution_of(run)
        ends = [*self.shares]
        return self.kept[ends[given[-1].choose([*self.shares.values()])]]

    def residual(self, p: Any, q: Any, scale: float = 1.0) -> Any:
        """The result of `verification.residual` for rows of `p_and_q`."""
        if (id(q), scale) not in self.left:
            self.left[id(q), scale] = self.own["residual"](p, q, scale)
        return self.left[id(q), scale]


class RoundWorld:
    """Two vocabularies over {a, b}, some n-grams and expansions; each row depends only on the tokens before it.

    `seen` collects the conditions that occurred in the rounds.
    """

    rules: Any = verification

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.k, self.seen = 1 + seed % 3, set()
        self.draft, self.target = ([TEXTS[i] for i in sorted(rng.choice(
            len(TEXTS), rng.integers(3, most), False, COMMON / COMMON.sum()))] for most in (6, 7))
        self.target.append("a")  # the same byte string may occur twice
        self.splits: dict[int, Split] = {}
        for token, text in enumerate(self.target):
            ways = [*self.cuts(text, self.draft)]
            ways = [(self.draft.index(text),)] if text in self.draft else ways
            if ways and (len(ways[0]) == 1 or rng.random() < 0.8):
                self.splits[token] = ways[rng.integers(len(ways))]
        self.draft_to_target = np.array([self.target.index(text) if text in self.target else -1
                                         for text in self.draft])
        self.spellings: dict[int, Split] = {}
        for token in np.flatnonzero(self.draft_to_target < 0).tolist():
            ways = [*self.cuts(self.draft[token], self.target)]
            if ways and rng.random() < 0.8:
                self.spellings[token] = ways[rng.integers(len(ways))]
        self.lifting = Lifting(self.splits, self.spellings, len(self.draft))
        self._rows: dict[Any, np.ndarray] = {}
        self._judged: dict[Any, Judged] = {}

    def cuts(self, text: str, vocabulary: list[str]) -> Iterator[Split]:
        """All ways to write a text with tokens of a vocabulary; of equal tokens only the first is used."""
        if not text:
            yield ()
        for token in sorted({vocabulary.index(s) for s in vocabulary if text.startswith(s)}):
            for rest in self.cuts(text[len(vocabulary[token]):], vocabulary):
                yield (token, *rest)

    def row(self, side: str, before: Split) -> np.ndarray:
        """The distribution of the drafter ("q") or target ("p") after some tokens, with a few zeros."""
        if (side, before) not in self._rows:
            size = len(self.draft if side == "q" else self.target)
            row = self.rng.dirichlet(np.full(size, 0.7)) * (self.rng.random(size) < 0.9)
            row = row if row.sum() > 0 else np.ones(size)
            self._rows[side, before] = row / row.sum()
        return self._rows[side, before]

    def target_rows(self, tokens: Split | list[int]) -> np.ndarray:
        """The target's rows (m + 1, V_p) along m tokens."""
        return np.array([self.row("p", tuple(tokens[:i])) for i in range(len(tokens) + 1)])

    def draw(self, draws: Draws, context: int | None = None) -> tuple[list[int], list[np.ndarray]]:
        """Up to k draft tokens and their rows; the draft ends after an unlikely token.

        With `context`, the last token of the text, the first draft token begins with it (healing).
        """
        tokens: list[int] = []
        rows: list[np.ndarray] = []
        while len(tokens) < self.k and not (tokens and rows[-1][tokens[-1]] < 0.2):
            row = self.row("q", tuple(tokens))
            if context is not None and not tokens:
                row = np.where(np.isin(np.arange(len(row)),
                                       [context, *self.lifting.longer(context)]), row, 0.0)
                row = row / row.sum() if row.sum() > 0 else np.eye(len(row))[context]
            tokens.append(draws.choose(row))
            rows.append(row)
        return tokens, rows

    def given(self, tokens: list[int], rows: list[np.ndarray], in_text: Split,
              limit: int | None) -> tuple[Any, ...]:
        """The arguments of `verification.lifted`: atoms, origins, lifting and the target's rows."""
        atoms, origins = self.lifting.reveal(tokens, rows, in_text)
        target_rows = self.target_rows(self.lifting.walk(atoms)[0][:limit])
        return atoms, origins, self.lifting, target_rows

    def verify(self, draws: Draws, tokens: list[int], rows: list[np.ndarray],
               limit: int | None = None, in_text: Split = ()) -> Verdict:
        """The verdict of `verification.lifted`; the rows follow from the tokens."""
        key = (*tokens,), in_text, limit
        if key not in self._judged:
            self._judged[key] = Judged(self.given(tokens, rows, in_text, limit), limit, self.rules)
        return self._judged[key].verdict(draws)

    def lossless(self, draws: Draws, limit: int | None = None,
                 context: int | None = None) -> tuple[int, ...]:
        """The tokens of one round, with room for `limit` proposals; the text ends in `context`."""
        tokens, rows = self.draw(draws, context)
        in_text = () if context is None else self.lifting.paths[context]
        verdict = self.verify(draws, tokens, rows, limit, in_text)
        kept = verdict.emitted[:verdict.accepted]
        self.seen.update(name for name, found in (
            ("merge accepted", any(len(self.splits[token]) > 1 for token in kept)),
            ("expansion", not self.spellings.keys().isdisjoint(tokens)),
            ("draft token without path", None in map(self.lifting.paths.__getitem__, tokens)),
            ("uncovered token", any(token not in self.lifting.order for token in verdict.emitted)),
            ("healing", context not in (None, tokens[0])),
            ("room for one proposal", limit == 1)) if found)
        return tuple(verdict.emitted)

    def truth(self) -> dict[Split, float]:
        """The target's own distribution of two tokens."""
        return {(a, b): first * second for a, first in enumerate(self.row("p", ()))
                for b, second in enumerate(self.row("p", (a,)))}

    def two_tokens(self, round_: Callable[[Draws], Split]) -> dict[Split, float]:
        """The distribution of the first two tokens; if a round wrote only one, p draws the other."""
        found: dict[Split, float] = defaultdict(float)
        for emitted, probability in distribution_of(round_).items():
            for second, p in enumerate(self.row("p", emitted) if len(emitted) == 1 else ()):
                found[emitted[0], second] += probability * p
            if len(emitted) > 1:
                found[emitted[:2]] += probability
        return found
