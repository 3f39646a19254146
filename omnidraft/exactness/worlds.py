"""Random worlds: two tokenizers, two models that look up their rows, and options for the loop.

The vocabularies share most pieces of the target's longer tokens, and both models tend to continue
one stream of such tokens, so that merges are not only proposed but also accepted.
"""

from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np

from ..decoding import Text, speculative
from ..ngram_cache import NGramCache
from ..options import Options
from ..pairing import Pairing
from ..sampling import mask, process
from ..stopping import AcceptanceHead, Confidence, FixedLength
from .enumerate import Draws
from .tables import OFTEN, TableModel, random_tokenizer

RARELY = 0.2  # probability that a world has a rare feature
STOPS = ("acceptance head", "confidence", "fixed length")


class World:
    """A pair and its options. `run` is the shipped loop, `truth` the target's own distribution.

    `seen` collects the conditions that occurred in rounds with a positive probability.
    """

    def __init__(self, seed: int, rule: str = "lifted") -> None:
        rng, self.runs = np.random.default_rng(seed), 0

        def some(share: float = OFTEN) -> bool:
            return bool(rng.random() < share)

        draft, target = (random_tokenizer(rng, most) for most in ((2, 9) if some(0.8) else (5, 3)))
        text = "abba ab a" + " " * some()
        self.prompt = target.encode(text, bos=True), draft.encode(text, bos=True)
        k, new = int(rng.choice(4, p=[0.1, 0.3, 0.4, 0.2])) + 1, int(rng.integers(3, 6))
        contexts = 8 if some(RARELY) else 64, len(self.prompt[0]) + (3 if some(RARELY) else 40)
        self.pair = Pairing(*(TableModel(side, seed, context)
                              for side, context in zip((draft, target), contexts, strict=True)))
        covered = self.pair.lifting.splits.items()
        pool = [*range(target.size), *(t for t, split in covered for _ in 3 * split[1:])]
        stream = text.encode() + target.decode_bytes(rng.choice(pool, 30))
        self.pair.draft.stream = self.pair.target.stream = stream

        kind, head = rng.integers(3), AcceptanceHead(2)
        head.parameters = {name: rng.normal(0, 0.3, array.shape)
                           for name, array in head.parameters.items()}
        least = float(rng.choice([0.0, 0.1, 0.2]))
        self.options = Options(
            rule, (Confidence(k, least, head), Confidence(k, least), FixedLength(k))[kind],
            temperature=float(rng.choice([1.0, 0.6, 1.7, 0.0], p=[.5, .2, .2, .1])),
            top_k=int(rng.choice([0, 0, 2] if k < 3 else [2, 6 - k])),
            top_p=float(rng.choice([1.0, 0.7], p=[0.6, 0.4])),
            learn=some(), heal=not some(RARELY), max_new_tokens=new)
        temperature, top_k, top_p, _ = self.options.sampling
        self.count = 2 if temperature else new  # number of tokens that are compared
        if self.options.learn:  # start with only the n-grams of one text
            self.pair.cache = NGramCache()
            greedy = Options(learn=True, max_new_tokens=20)
            list(speculative(self.pair, self.prompt, greedy, Draws([])))
        self.cache, every = self.pair.cache, target.token_bytes
        self.seen = Counter({
            f"stop rule: {STOPS[kind]}": True, "learning on": self.options.learn,
            "T = 0": temperature == 0, "T other than 0 and 1": temperature not in (0, 1),
            "top-k": top_k > 0, "top-p": top_p < 1})
        self._kinds = [{
            "uncovered token": token not in self.pair.lifting.order,
            "duplicated bytes": bool(data) and every.count(data) > 1, "empty token": data == b"",
            "not UTF-8": "\ufffd" in (data or b"").decode(errors="replace"),
            f"end token {token}": token in target.roles["eos"]} for token, data in enumerate(every)]

    def run(self, draws: Draws) -> tuple[int, ...]:
        """The first tokens that the loop writes; it starts from the cache as it was at first."""
        self.runs += 1
        text, written = Text(self.pair), []
        self.pair.cache = deepcopy(self.cache) if self.options.learn else self.cache
        for record in speculative(self.pair, self.prompt, self.options, draws, self, text):
            written += record.emitted
            kept = record.draft_tokens[:record.draft_kept]
            self.seen.update({
                "merge accepted": "merged" in record.kinds,
                "expansion kept": not self.pair.spellings.keys().isdisjoint(kept),
                "nothing drafted": not record.draft_tokens,
                "context cut": len(text.drafter.ids) < len(self.prompt[1])
                or len(text.ids) == self.pair.target.context_size})
            for token in record.emitted:
                self.seen.update(self._kinds[token])
            held = []
            for reader in (text.target, text.drafter.reader):  # the caches hold the right ids
                cached = reader.ids[:reader.held] + reader.ahead
                assert reader.cache.ids[:len(cached)] == cached
                held += [reader.ids, reader.held, reader.ahead]
            if len(written) >= self.count or record.done:
                break
            learned = list(self.pair.cache.items()) if self.options.learn else []
            if draws.pause([written, held, learned]):
                break
        return tuple(written[:self.count])

    def observe(self, draft: Any, *_: Any) -> None:
        """Note a healed boundary: the loop calls this after every round, as for a learner."""
        self.seen["healing"] += draft.taken_back is not None

    def conditions(self) -> set[str]:
        """The conditions that occurred in the runs so far."""
        ends = {name for name in +self.seen if name.startswith("end token")}
        return {*+self.seen} - ends | ({"several end tokens"} if len(ends) > 1 else set())

    def truth(self, written: tuple[int, ...] = (),
              probability: float = 1.0) -> dict[tuple[int, ...], float]:
        """The target's own distribution of the first tokens after `written`, from its rows only."""
        model, ids, found = self.pair.target, (*self.prompt[0], *written), {}
        room = min(model.context_size, len(self.prompt[0]) + self.options.max_new_tokens) - len(ids)
        if not room or len(written) == self.count or written and written[-1] in model.eos_ids:
            return {written: probability}
        row = process(mask(model.row(ids).copy(), model.tokenizer.size), *self.options.sampling)
        for token in np.flatnonzero(row).tolist():
            found |= self.truth((*written, token), probability * row[token])
        return found
