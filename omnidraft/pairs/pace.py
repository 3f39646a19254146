"""Drafting only while it pays: an account of what drafts cost and bring, and the text it decides.

A pair may lose by drafting: the drafter is weak, or as slow as the target. So a round drafts only
while drafting has brought more tokens than the time it took would have written plainly; otherwise
the target writes alone, and drafting is tried again now and then. Any such choice leaves the
distribution as it is, because it is made before a round's first draw and from the past alone. But
it follows measured times, so above temperature 0 a seed would not always write the same text:
there, drafting never pauses unless `Options.adaptive` is True.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median_low
from threading import Lock
from time import perf_counter
from typing import Any

from ..decoding import Round, Text, speculative
from ..options import Options
from ..sampling import Uniforms
from ..stopping import FixedLength

MEASURED = 2  # plain rounds at first, to know what one takes
TRIAL = 2.5  # plain rounds' time that a trial of drafting may lose
CREDIT = 16.0  # the same, for drafts that have saved so much before
SHARE = 0.015  # of what was written: the time that lost trials may take
LONGEST = 2048  # plain rounds until the next trial, at most
FEW = 4  # rounds whose times are no certain measurement yet
RECENT = 9  # measured times of a kind that count
TOO_SLOW = 0.8  # a drafted token that takes this share of a plain round never pays
SURE = 1.5  # drafts that are so much faster need no new comparison with plain rounds


class Pace:
    """The account of one pair: `drafts` says whether the next round drafts, `observe` books one.

    Its unit is the time of a plain round. A round that drafts costs what its parts usually take:
    medians of the latest times of a drafted token, of a pass of about this width, and of the rest,
    so that other work on the machine has little effect. It earns 1 per token. Drafting goes on
    while the balance is above 0. It begins with `TRIAL`; savings add up to at most `CREDIT`. After
    a lost trial the target writes alone until the loss is at most `SHARE` of that, and at least
    twice as long as after the lost trial before. Several threads may use one account.
    """

    def __init__(self) -> None:
        self.balance = TRIAL
        self._wait = MEASURED  # plain rounds until the next that drafts
        self._waited = 0  # after the latest lost trial; 0: drafts have paid since
        self._late = 0.0  # what it took the drafter to read what it had missed, in plain rounds
        self._latest: deque[tuple[float, float]] = deque(maxlen=RECENT)  # (earned, cost) of rounds
        self._unchecked = 0  # rounds that drafted since a plain one was measured,
        self._trusted = 8  # and for how many of them that measurement counts
        # Seconds by part of a round; the target's by the width of its pass.
        self._times: dict[str | int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._lock = Lock()

    def drafts(self, text: Any = None) -> bool:
        """Does the next round (of this text) draft?"""
        if self._wait == 0 and text is not None:
            self.try_out(text.pair.draft, text.sampler)
        return self._wait == 0

    def step(self) -> float:
        """Seconds of a plain round."""
        return self._usual(1) + self._usual("plain")

    def cost(self, record: Round) -> float:
        """The usual cost of a round that drafted like this one."""
        tokens, width = sizes(record)
        usual = tokens * self._usual("draft") + self._usual(width) + self._usual("other")
        return usual / self.step()

    def measure(self, record: Round, drafted: bool) -> None:
        """Keep the times of a round's parts."""
        tokens, width = sizes(record)
        self._times[width].append(record.seconds["target"])
        if drafted:
            self._times["draft"].append(record.seconds["draft"] / tokens)
        self._times["other" if drafted else "plain"].append(record.seconds["other"])

    def observe(self, record: Round, drafted: bool, late: float = 0.0) -> None:
        """Book a round; `late`: seconds that the drafter took to read what it had missed."""
        with self._lock:
            self.measure(record, drafted)
            if drafted:
                self._book(len(record.emitted), self.cost(record), late / self.step())
            else:
                self._unchecked = 0
                self._wait = max(0, self._wait - 1)

    def try_out(self, model: Any, sampler: Any) -> None:
        """Before a trial: measure a drafter that may be too slow, without reading the text."""
        with self._lock:
            if self._times["draft"] and self._usual("draft") < TOO_SLOW * self.step():
                return
            cache = sampler.new_cache(model)
            for _ in range(MEASURED):
                began = perf_counter()
                sampler.finished(model.forward([0], cache))
                self._times["draft"].append(perf_counter() - began)
            if min(self._times["draft"]) >= TOO_SLOW * self.step():
                self._wait = LONGEST

    def _book(self, earned: int, cost: float, late: float) -> None:
        self.balance = min(self.balance + earned - cost, CREDIT)
        self._late += late
        self._latest.append((earned, cost))
        self._unchecked += 1
        if self.balance <= 0:
            # subtle: after a few rounds a large loss may be one slow pass
            known = len(self._times["other"]) >= FEW
            loss = TRIAL - self.balance * known + self._late
            self._waited = self._wait = int(min(max(2 * self._waited, loss / SHARE), LONGEST))
            self.balance, self._late = TRIAL, 0.0
        elif self.balance == CREDIT:
            self._waited, self._late = 0, 0.0
        if self._unchecked >= self._trusted and not self._wait:
            earned, cost = map(sum, zip(*self._latest, strict=True))
            if earned < SURE * cost:
                self._trusted = min(2 * self._trusted, 128)
                self._wait = 1

    def _usual(self, part: str | int) -> float:
        """The usual seconds of a part of a round."""
        return median_low(self._times[part])


def sizes(record: Round) -> tuple[int, int]:
    """How many drafted tokens a round paid for, and the width of its pass: up to 1, 2, 4, 8, ..."""
    return max(1, len(record.draft_tokens)), 2 ** len(record.proposals).bit_length()


def paced(pair: Any, prompt: str | tuple[Sequence[int], Sequence[int]], options: Options,
          uniforms: Uniforms, text: Text | None = None) -> Iterator[Round]:
    """The rounds of `speculative`, with plain ones while drafting does not pay (`Pair.pace`)."""
    options = usual(options, pair.target)
    pace = getattr(pair, "pace", lambda _: None)(options)
    return speculative(pair, prompt, options, uniforms, text=text, pace=pace)


def usual(options: Options, target: Any) -> Options:
    """The options, without drafts if drafting cannot pay and `stop` is the default.

    A target whose `drafting_pays` is false reads each proposal in a pass of its own.
    """
    if getattr(target, "drafting_pays", True) or options.stop != Options.stop:
        return options
    return replace(options, stop=FixedLength(0))
