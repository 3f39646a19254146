"""Random worlds: two tokenizers, two models that look their rows up, and options for the loop.

Vocabularies share most of what the target's longer tokens are made of, and both models like to
continue one stream of such tokens: merges are not only proposed, but accepted.
"""

from copy import copy, deepcopy
from typing import Any

import numpy as np

from ..decoding import Warm, speculative
from ..ngram_cache import NGramCache
from ..options import Options
from ..pairing import Pairing
from ..sampling import mask, process
from ..stopping import AcceptanceHead, Confidence, FixedLength
from .enumerate import Draws
from .tables import OFTEN, TableModel, random_tokenizer

RARELY = 0.2  # how often a world has what most worlds lack
STOPS = ("acceptance head", "confidence", "fixed length")


class World:
    """A pair and its options. `run` writes with the shipped loop, `truth` is the target's own.

    `seen` collects the conditions that occurred in rounds that can happen.
    """

    def __init__(self, seed: int, rule: str = "lifted") -> None:
        rng, self.runs = np.random.default_rng(seed), 0

        def some(share: float = OFTEN) -> bool:
            return bool(rng.random() < share)

        most = (2, 9) if some(0.8) else (5, 3)  # merges
        draft, target = random_tokenizer(rng, most[0]), random_tokenizer(rng, most[1])
        text = "abba ab a" + " " * some()
        self.prompt = target.encode(text, bos=True), draft.encode(text, bos=True)
        k, self.new = int(rng.choice(4, p=[0.1, 0.3, 0.4, 0.2])) + 1, int(rng.integers(3, 6))
        contexts = 8 if some(RARELY) else 64, len(self.prompt[0]) + (3 if some(RARELY) else 40)
        self.pair = Pairing(*(TableModel(side, seed, context)
                              for side, context in zip((draft, target), contexts, strict=True)))
        covered = self.pair.lifting.splits.items()
        pool = [*range(target.size), *(t for t, split in covered for _ in 3 * split[1:])]
        stream = text.encode() + target.decode_bytes(rng.choice(pool, 30))
        self.pair.draft.stream = self.pair.target.stream = stream

        head, stop = AcceptanceHead(2), STOPS[rng.integers(3)]
        head.parameters = {name: rng.normal(0, 0.3, array.shape)
                           for name, array in head.parameters.items()}
        self.stop = stop_rule(stop, k, float(rng.choice([0.0, 0.1, 0.2])), head)
        self.sampling = {"temperature": float(rng.choice([1.0, 0.6, 1.7, 0.0], p=[.5, .2, .2, .1])),
                         "top_k": int(rng.choice([0, 0, 2] if k < 3 else [2, 6 - k])),
                         "top_p": float(rng.choice([1.0, 0.7], p=[0.6, 0.4]))}
        self.settings = self.sampling | {"verify": rule, "max_new_tokens": self.new,
                                         "learn": some(), "heal": not some(RARELY)}
        self.count = 2 if self.sampling["temperature"] else self.new  # tokens that are compared
        if self.settings["learn"]:  # no n-grams but those of one text
            self.pair.cache = NGramCache()
            greedy = Options(learn=True, max_new_tokens=20)
            for _ in speculative(self.pair, self.prompt, greedy, Draws([])):
                pass
        self.seen = names_of({
            f"stop rule: {stop}": True, "learning on": self.settings["learn"],
            "T = 0": self.sampling["temperature"] == 0, "top-k": self.sampling["top_k"] > 0,
            "T other than 0 and 1": self.sampling["temperature"] not in (0, 1),
            "top-p": self.sampling["top_p"] < 1})
        self._kinds = [self._kinds_of(token) for token in range(target.size)]

    def run(self, draws: Draws) -> tuple[int, ...]:
        """The first tokens that the loop writes; what it changes is restored."""
        self.runs += 1
        cache, warm, written = self.pair.cache, Warm(), []
        self.pair.cache = deepcopy(cache) if self.settings["learn"] else cache
        options = Options(stop=copy(self.stop), **self.settings)
        for record in speculative(self.pair, self.prompt, options, draws, self, warm):
            written += record.emitted
            kept = record.draft_tokens[:record.draft_kept]
            self.seen |= names_of({
                "merge accepted": "merged" in record.kinds,
                "expansion kept": not self.pair.spellings.keys().isdisjoint(kept),
                "nothing drafted": not record.draft_tokens,
                "context cut": len(warm.drafter.ids) < len(self.prompt[1])
                or len(warm.ids) == self.pair.target.context_size})
            self.seen.update(*(self._kinds[token] for token in record.emitted))
            assert warm.cache.ids == warm.ids[:warm.cache.length]  # they hold what they should
            assert warm.drafter.cache.ids == warm.drafter.fed
            if len(written) >= self.count or record.done:
                break
        self.pair.cache = cache
        return tuple(written[:self.count])

    def observe(self, draft: Any, *_: Any) -> None:
        """Note a healed boundary: the loop calls this with every round, as it calls a learner."""
        self.seen |= names_of({"healing": draft.taken_back is not None})

    def conditions(self) -> set[str]:
        """Those of the runs so far."""
        ends = {name for name in self.seen if name.startswith("end token")}
        return self.seen - ends | names_of({"several end tokens": len(ends) > 1})

    def truth(self, written: tuple[int, ...] = (),
              probability: float = 1.0) -> dict[tuple[int, ...], float]:
        """The target's own distribution of the first tokens after `written`, by its rows alone."""
        model, ids, found = self.pair.target, (*self.prompt[0], *written), {}
        full = len(ids) >= min(model.context_size, len(self.prompt[0]) + self.new)
        if full or len(written) == self.count or written and written[-1] in model.eos_ids:
            return {written: probability}
        row = process(mask(model.row(ids).copy(), model.tokenizer.size), **self.sampling)
        for token in np.flatnonzero(row).tolist():
            found |= self.truth((*written, token), probability * row[token])
        return found

    def _kinds_of(self, token: int) -> set[str]:
        """What a target token is, as far as that is a condition."""
        every = self.pair.target.tokenizer.token_bytes
        data = every[token]
        return names_of({
            "uncovered token": token not in self.pair.lifting.order,
            "duplicated bytes": bool(data) and every.count(data) > 1, "empty token": data == b"",
            "not UTF-8": "\ufffd" in (data or b"").decode(errors="replace"),
            f"end token {token}": token in self.pair.target.eos_ids})


def stop_rule(kind: str, k: int, threshold: float, head: AcceptanceHead) -> FixedLength:
    """One of `STOPS`."""
    if kind == "fixed length":
        return FixedLength(k)
    return Confidence(k, threshold, head if kind == "acceptance head" else None)


def names_of(facts: dict[str, bool]) -> set[str]:
    """The names of what is true."""
    return {name for name, holds in facts.items() if holds}
