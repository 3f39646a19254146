"""Drafts for an engine that runs the target itself: vLLM, llama.cpp, or another.

The engine gives the ids of its texts and gets the next proposals for each. It verifies them with
its own rule for proposals without probabilities (each proposal counts as certain): accepted with
the target's probability p(t), so every text keeps the target's own distribution.
"""

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from ..drafting import Draft, Drafter
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..stopping import Confidence
from ..text.errors import OmnidraftError, shown
from ..text.tokenizer import Tokenizer
from ..translation import common_prefix, respelled

PATIENCE = 64  # calls until a text that the engine no longer asks for is forgotten
FEW = 16  # ids of a text that are read in one pass with those of other texts; more are read before
STEPS = 64  # of the engine, from which the price of a proposal is estimated


@dataclass
class Vocabulary:
    """What a pairing needs of a target that runs elsewhere: its tokenizer, but no weights."""

    tokenizer: Tokenizer
    vocab_size: int  # entries of its logits
    context_size: int
    name: str = "the target"

    @property
    def eos_ids(self) -> Sequence[int]:
        """The ids that end a text."""
        return self.tokenizer.roles["eos"]


@dataclass
class Known:
    """A text that was drafted for: its ids when it was last seen, and the drafter's side of it."""

    ids: list[int]
    drafter: Drafter
    seen: int  # the call in which it was last asked for
    draft: Draft = field(default_factory=Draft)
    sure: float = 1.0  # the probability of the whole draft, as the drafter sees it
    most: int = 0  # how many tokens may be drafted
    unread: list[int] = field(default_factory=list)  # ids that the drafter's next pass reads
    proposals: list[int] = field(default_factory=list)


class Price:
    """What a proposal costs an engine, in tokens that it would otherwise write.

    A step over n positions takes a + b n seconds (fitted to the last steps), and a drafted token d
    seconds. In b + d seconds the engine writes some fraction of a token, at its present rate: a
    proposal pays if it is accepted with a higher probability than that.
    """

    def __init__(self) -> None:
        self.steps: deque[tuple[int, float, int]] = deque(maxlen=STEPS)  # n, seconds, tokens
        self.drafts: deque[tuple[int, float]] = deque(maxlen=STEPS)  # draft tokens, seconds

    def least(self, threshold: float) -> float:
        """Below which probability of a draft it is not proposed; `threshold` if that is unknown."""
        if len(self.steps) < STEPS // 8:
            return threshold
        positions, seconds, written = np.array(self.steps).T
        if np.ptp(positions) == 0:  # nothing was proposed for so long: try again
            return threshold
        drafted, spent = np.array(self.drafts).sum(0)
        slope = max(0.0, np.polyfit(positions, seconds, 1)[0])
        rate = written.sum() / (seconds.sum() + spent)
        return (slope + spent / max(drafted, 1)) * rate


class Proposer:
    """Proposes the next tokens of any number of texts, which it knows by their ids.

    A text may move to another row, pause, be cut back or be repeated: what a drafter has read of
    the longest common start is used again. At most `most_texts` are kept. What cannot be read or
    spelled gets no proposals, and the first error is said once on stderr: an engine never stops.
    Every pass of the drafter reads the next tokens of all texts. A draft ends where one more
    proposal would cost more than it gains (`Price`), at the latest after `draft_length` tokens.

    >>> proposer = Proposer(omnidraft.load("draft-tasks"), Vocabulary(tokenizer, 4096, 1024))
    >>> proposer.propose([ids, other_ids], most=6)  # for each text at most 6 ids of the target
    """

    def __init__(self, draft: Any, target: Any, draft_length: int = 6, threshold: float = 0.4,
                 most_texts: int = 64, pace: bool = True) -> None:
        self.pair = Pairing(draft, target)
        self.options = Options(verify="slem", stop=Confidence(draft_length, threshold))
        self.sampler = self.pair.sampler(Uniforms(np.random.default_rng(0)))  # greedy: no draws
        self.sampler.temperature = 0.0
        self.most_texts = most_texts
        self.pace = pace  # False: drafts depend on the texts only, not on what they cost
        self.texts: list[Known] = []
        self.prices: dict[int, Price] = {}  # by how many texts the engine writes at once
        self.last: tuple[list[list[int]], int, float] | None = None  # texts, positions, when
        self.calls = 0
        self.proposed = 0
        self.kept = 0
        self.error = ""

    def propose(self, texts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        """For each text, ids of the target (V_p), at most `most` proposals that may follow it."""
        began = perf_counter()
        texts = [list(ids) for ids in texts]
        price = self.prices.setdefault(len(texts), Price())
        self._observe(price, texts, began)
        found: list[list[int]] = [[] for _ in texts]
        least = self.options.stop.threshold
        if self.pace:
            least = price.least(least)
        known: list[Known] = []
        if least < 1:  # else even a proposal that is certain does not pay
            found, known = self._propose(texts, most, least)
        ended = perf_counter()
        drafted = sum(len(text.draft.tokens) for text in known)
        price.drafts.append((drafted, ended - began))
        self.last = texts, len(texts) + sum(map(len, found)), ended
        return found

    def _observe(self, price: Price, texts: list[list[int]], now: float) -> None:
        """Learn the price from the engine's last step, if it continued these very texts."""
        if self.last is None:
            return
        before, positions, left = self.last
        if len(before) == len(texts) and all(map(_continues, texts, before)):
            written = sum(map(len, texts)) - sum(map(len, before))
            price.steps.append((positions, now - left, written))

    def _propose(self, texts: list[list[int]], most: int,
                 least: float) -> tuple[list[list[int]], list[Known]]:
        """The proposals for each text, and the texts that were drafted for."""
        self.calls += 1
        known = [self._safely(self._known, ids) for ids in texts]
        there = [text for text in known if text is not None]
        self._safely(self._draft, there, most, least)
        found = [self._safely(self._spell, text, most) or [] for text in known]
        self.texts.sort(key=lambda text: text.seen)
        self.texts = [text for text in self.texts[-self.most_texts:]
                      if self.calls - text.seen < PATIENCE]
        return found, there

    def _safely(self, do: Any, first: Any, *more: Any) -> Any:
        """What `do` returns, or None if it raises; the first error is said."""
        try:
            return None if first is None else do(first, *more)
        except OmnidraftError as error:
            if not self.error:
                self.error = str(error)
                sys.stderr.write(f"omnidraft proposes nothing for a text: {error}\n")
            return None

    def _known(self, ids: list[int]) -> Known:
        """A text by its ids, brought up to date; OmnidraftError for ids that the target lacks."""
        if not ids or min(ids) < 0 or max(ids) >= self.pair.target.vocab_size:
            target = self.pair.target
            raise OmnidraftError(f"a text has the ids {shown(ids)}, but {target.name} has the ids "
                                 f"0 to {target.vocab_size - 1}")
        text = self._continued(ids) or self._started(ids)
        text.seen = self.calls
        text.draft = Draft()
        text.sure = 1.0
        return text

    def _draft(self, texts: list[Known], most: int, least: float) -> None:
        """Greedy drafts for all texts, each as long as its probability is at least `least`."""
        going = []
        for text in texts:
            reader = text.drafter.reader
            text.most = text.drafter.most(most)
            if reader.ids and text.most > 0:
                text.unread = reader.lacking()
                going.append(text)
        for text in going:
            if len(text.unread) > FEW:
                self.pair.draft.forward(text.unread[:-1], text.drafter.reader.cache)
                del text.unread[:-1]
        read = list(going)
        while going:
            logits = self._next([(text.unread, text.drafter.reader.cache) for text in going])
            going = [text for text, row in zip(going, logits, strict=True)
                     if self._extend(text, row, least)]
        for text in read:
            text.drafter.reader.held = len(text.drafter.ids)
            text.drafter.reader.ahead = text.draft.tokens[:-1]

    def _next(self, texts: list[tuple[list[int], Any]]) -> Any:
        """The drafter's logits (B, V_q) after the ids of each text, in one pass if it can."""
        model = self.pair.draft
        if hasattr(model, "forward_each"):
            return model.forward_each(texts)
        return np.concatenate([model.forward(ids, cache) for ids, cache in texts])

    def _extend(self, text: Known, logits: np.ndarray, least: float) -> bool:
        """Add the likeliest token to the draft, if that pays; does the draft go on after it?"""
        model = self.pair.draft
        logits = logits[:model.tokenizer.size]  # (V_q,)
        token = int(logits.argmax())
        text.sure /= float(np.exp(logits - logits[token]).sum())
        if text.sure < least:
            return False
        text.draft.tokens.append(token)
        text.unread = [token]
        return token not in model.eos_ids and len(text.draft.tokens) < text.most

    def _spell(self, text: Known, most: int) -> list[int]:
        """The draft in the target's tokens."""
        proposals = respelled(self.pair, text.draft, text.ids, keep=self.pair.one_vocabulary)
        text.proposals = proposals.tokens[:most]
        self.proposed += len(text.proposals)
        return text.proposals

    def _continued(self, ids: list[int]) -> Known | None:
        """The longest known text that these ids begin with, brought up to date; None for none."""
        fits = [text for text in self.texts if text.seen < self.calls
                and len(text.ids) < len(ids) and ids[:len(text.ids)] == text.ids]
        if not fits:
            return None
        text = max(fits, key=lambda one: len(one.ids))
        emitted = ids[len(text.ids):]
        text.ids = ids
        self.kept += common_prefix(text.proposals, emitted)
        written = self.pair.target.tokenizer.pieces(emitted)
        same_ids = emitted if self.pair.one_vocabulary else None
        text.drafter.follow(text.draft, b"".join(written), written.count(b""), same_ids)
        return text

    def _started(self, ids: list[int]) -> Known:
        """A new text; it takes over what an idle one has read, if that begins in the same way."""
        idle = [text for text in self.texts if text.seen < self.calls - 1]
        common = [common_prefix(text.ids, ids) for text in idle]
        reader = None
        if common and max(common) > len(ids) // 2:
            before = idle[common.index(max(common))]
            self.texts.remove(before)
            reader = before.drafter.reader
        prompt: Any = ids
        if not self.pair.one_vocabulary:
            prompt = self.pair.target.tokenizer.decode(ids)
        drafter = Drafter(self.pair, prompt, self.options, self.sampler, reader)
        text = Known(ids, drafter, self.calls)
        self.texts.append(text)
        return text


def _continues(text: list[int], before: list[int]) -> bool:
    return len(text) > len(before) and text[:len(before)] == before
