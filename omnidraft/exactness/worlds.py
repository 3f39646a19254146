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
FIXED = ("model", "options", "sampler", "allowed", "reader")  # of a drafter: no run changes them
STOPS = ("acceptance head", "confidence", "fixed length")


class World:
    """A pair and its options. `run` is the shipped loop, `truth` the target's own distribution.

    `seen` collects the conditions that occurred in rounds with a positive probability.
    """

    def __init__(self, seed: int, rule: str = "lifted") -> None:
        self.rng = np.random.default_rng(seed)
        self.runs = 0
        self.pair, self.prompt, length, self.most = self._random_pair(seed)
        self.options = self._random_options(rule, length)
        self.count = 2  # number of tokens that are compared
        if self.options.temperature == 0:
            self.count = self.most
        if self.options.learn:  # start with only the n-grams of one text
            self.pair.cache = NGramCache()
            greedy = Options(learn=True, max_new_tokens=20)
            list(speculative(self.pair, self.prompt, greedy, Draws([])))
        self.cache = self.pair.cache
        self.seen.update(self._conditions_of_options())
        tokens = enumerate(self.pair.target.tokenizer.token_bytes)
        self._kinds = [self._conditions_of(token, data) for token, data in tokens]

    def _some(self, share: float = OFTEN) -> bool:
        return bool(self.rng.random() < share)

    def _random_pair(self, seed: int) -> tuple[Pairing, tuple[list[int], list[int]], int, int]:
        """The pair, its prompt, the draft length and the number of new tokens."""
        rng = self.rng
        sizes = (5, 3)  # most merges of drafter and target
        if self._some(0.8):
            sizes = (2, 9)
        draft = random_tokenizer(rng, sizes[0])
        target = random_tokenizer(rng, sizes[1])
        text = "abba ab a" + " " * self._some()
        prompt = target.encode(text, bos=True), draft.encode(text, bos=True)
        length = int(rng.choice(4, p=[0.1, 0.3, 0.4, 0.2])) + 1
        new = int(rng.integers(3, 6))
        draft_context = 8 if self._some(RARELY) else 64
        target_context = len(prompt[0]) + (3 if self._some(RARELY) else 40)
        pair = Pairing(TableModel(draft, seed, draft_context),
                       TableModel(target, seed, target_context))
        pool = list(range(target.size))
        for token, split in pair.lifting.splits.items():  # tokens of several atoms are likelier
            pool += [token] * 3 * (len(split) - 1)
        stream = text.encode() + target.decode_bytes(rng.choice(pool, 30))
        pair.draft.stream = stream
        pair.target.stream = stream
        return pair, prompt, length, new

    def _random_options(self, rule: str, length: int) -> Options:
        rng = self.rng
        kind = int(rng.integers(3))
        head = AcceptanceHead(2)
        head.parameters = {name: rng.normal(0, 0.3, array.shape)
                           for name, array in head.parameters.items()}
        least = float(rng.choice([0.0, 0.1, 0.2]))
        stops = (Confidence(length, least, head), Confidence(length, least), FixedLength(length))
        self.seen = Counter({f"stop rule: {STOPS[kind]}": True})
        filters = [0, 0, 2]  # top-k; longer drafts have more outcomes to run
        if length >= 3:
            filters = [2, 6 - length]
        return Options(
            rule, stops[kind],
            temperature=float(rng.choice([1.0, 0.6, 1.7, 0.0], p=[0.5, 0.2, 0.2, 0.1])),
            top_k=int(rng.choice(filters)),
            top_p=float(rng.choice([1.0, 0.7], p=[0.6, 0.4])),
            learn=self._some(), heal=not self._some(RARELY), max_new_tokens=self.most)

    def _conditions_of_options(self) -> dict[str, bool]:
        temperature = self.options.temperature
        return {"learning on": self.options.learn, "T = 0": temperature == 0,
                "T other than 0 and 1": temperature not in (0, 1),
                "top-k": self.options.top_k > 0, "top-p": self.options.top_p < 1}

    def _conditions_of(self, token: int, data: bytes | None) -> dict[str, bool]:
        """What it shows when this target token is written."""
        target = self.pair.target.tokenizer
        return {"uncovered token": token not in self.pair.lifting.order,
                "duplicated bytes": bool(data) and target.token_bytes.count(data) > 1,
                "empty token": data == b"",
                "not UTF-8": "\ufffd" in (data or b"").decode(errors="replace"),
                f"end token {token}": token in target.roles["eos"]}

    def run(self, draws: Draws) -> tuple[int, ...]:
        """The first tokens that the loop writes; it starts from the cache as it was at first."""
        self.runs += 1
        text = Text(self.pair)
        written: list[int] = []
        self.pair.cache = self.cache
        if self.options.learn:
            self.pair.cache = deepcopy(self.cache)
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
            for reader in (text.target, text.drafter.reader):  # the caches hold the right ids
                cached = reader.ids[:reader.held] + reader.ahead
                assert reader.cache.ids[:len(cached)] == cached
            held = [text.ids, vars(text.drafter.reader) | {"model": None, "cache": None}]
            held += [value for name, value in vars(text.drafter).items() if name not in FIXED]
            if len(written) >= self.count or record.done:
                break
            learned = []
            if self.options.learn:
                learned = list(self.pair.cache.items())
            if draws.pause([written, held, learned]):
                break
        return tuple(written[:self.count])

    def observe(self, draft: Any, *_: Any) -> None:
        """Note a healed boundary: the loop calls this after every round, as for a learner."""
        self.seen["healing"] += draft.taken_back is not None

    def conditions(self) -> set[str]:
        """The conditions that occurred in the runs so far."""
        found = {name for name, count in self.seen.items() if count > 0}
        ends = {name for name in found if name.startswith("end token")}
        found -= ends
        if len(ends) > 1:
            found.add("several end tokens")
        return found

    def truth(self, written: tuple[int, ...] = (),
              probability: float = 1.0) -> dict[tuple[int, ...], float]:
        """The target's own distribution of the first tokens after `written`, from its rows only."""
        model = self.pair.target
        ids = tuple(self.prompt[0]) + written
        end = min(model.context_size, len(self.prompt[0]) + self.options.max_new_tokens)
        ended = bool(written) and written[-1] in model.eos_ids
        if ended or len(ids) == end or len(written) == self.count:
            return {written: probability}
        row = process(mask(model.row(ids).copy(), model.tokenizer.size), *self.options.sampling)
        found = {}
        for token in np.flatnonzero(row).tolist():
            found |= self.truth(written + (token,), probability * row[token])
        return found
