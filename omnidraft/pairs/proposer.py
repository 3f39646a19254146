"""Drafts for an engine that runs the target itself: vLLM, llama.cpp, or another.

The engine gives the ids of its texts and gets the next proposals for each. It verifies them with
its own rule for proposals without probabilities (each proposal counts as certain): accepted with
the target's probability p(t), so every text keeps the target's own distribution.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    proposals: list[int] = field(default_factory=list)


class Proposer:
    """Proposes the next tokens of any number of texts, which it knows by their ids.

    A text may move to another row, pause, be cut back or be repeated: what a drafter has read of
    the longest common start is used again. At most `most_texts` are kept. What cannot be read or
    spelled gets no proposals, and the first error is said once on stderr: an engine never stops.

    >>> proposer = Proposer(omnidraft.load("draft-tasks"), Vocabulary(tokenizer, 4096, 1024))
    >>> proposer.propose([ids, other_ids], most=6)  # for each text at most 6 ids of the target
    """

    def __init__(self, draft: Any, target: Any, draft_length: int = 6, threshold: float = 0.4,
                 most_texts: int = 64) -> None:
        self.pair = Pairing(draft, target)
        self.options = Options(verify="slem", stop=Confidence(draft_length, threshold))
        self.sampler = self.pair.sampler(Uniforms(np.random.default_rng(0)))  # greedy: no draws
        self.sampler.temperature = 0.0
        self.most_texts = most_texts
        self.texts: list[Known] = []
        self.calls = 0
        self.proposed = 0
        self.kept = 0
        self.error = ""

    def propose(self, texts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        """For each text, ids of the target (V_p), at most `most` proposals that may follow it."""
        self.calls += 1
        found = [self._propose_safely(list(ids), most) for ids in texts]
        self.texts.sort(key=lambda text: text.seen)
        self.texts = [text for text in self.texts[-self.most_texts:]
                      if self.calls - text.seen < PATIENCE]
        return found

    def _propose_safely(self, ids: list[int], most: int) -> list[int]:
        try:
            return self._propose(ids, most)
        except OmnidraftError as error:
            if not self.error:
                self.error = str(error)
                sys.stderr.write(f"omnidraft proposes nothing for a text: {error}\n")
            return []

    def _propose(self, ids: list[int], most: int) -> list[int]:
        if not ids or min(ids) < 0 or max(ids) >= self.pair.target.vocab_size:
            target = self.pair.target
            raise OmnidraftError(f"a text has the ids {shown(ids)}, but {target.name} has the ids "
                                 f"0 to {target.vocab_size - 1}")
        text = self._continued(ids)
        if text is None:
            text = self._started(ids)
        text.seen = self.calls
        text.draft = text.drafter.draft(None, most)
        proposals = respelled(self.pair, text.draft, ids, keep=self.pair.one_vocabulary)
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
