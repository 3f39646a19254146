"""Drafting only while it pays: an account of what drafts cost and bring, and the text it decides.

A pair may lose by drafting: the drafter is weak, or as slow as the target. So a round drafts only
while drafting has brought more tokens than the time it took would have written plainly; otherwise
the target writes alone, and drafting is tried again now and then. Any such choice leaves the
distribution as it is, because it is made before a round's first draw and from the past alone. But
it follows measured times, so above temperature 0 a seed would not always write the same text:
there, drafting never pauses unless `Options.adaptive` is True.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from statistics import median_low
from threading import Lock
from time import thread_time
from typing import Any

from ..decoding import Round, Text, clock_of, speculative
from ..options import Options
from ..sampling import Uniforms
from ..stopping import FixedLength

TRIAL = 0.3  # plain rounds' time that the first trial of drafting may lose, for each token of its
# longest draft after the first: a drafter that is sure of much may fail once
LATER = 2.5  # the same, for later trials: each may lose twice as much as the one before, up to this
MEASURED = 2  # plain rounds at the first doubt, to know what one takes
CREDIT = 16.0  # the same, for drafts that have saved so much before
SHARE = 0.025  # of what was written: the time that lost trials may take
LONGEST = 2048  # plain rounds until the next trial, at most
FEW = 4  # rounds whose times are no certain measurement yet
RECENT = 9  # measured times of a kind that count
PROBES = 2  # passes that measure a drafter before it reads the text
SMALL = 0.25  # a drafter with at most this share of the target's weights needs no probe
TOO_SLOW = 0.8  # a drafted token that takes this share of a plain round never pays
SURE = 1.5  # drafts that are so much faster need no comparison with plain rounds


class Pace:
    """The account of one pair: `drafts` says whether the next round drafts, `observe` books one.

    Its unit is the time of a plain round. A round that drafts costs what its parts usually take:
    medians of the latest times of a drafted token, of a pass of about this width, and of the rest.
    It earns 1 per token. Drafting begins at once. If its rounds do not clearly pay, a plain round
    is measured, and again after 8, 64 and then every 128 more. Drafting goes on until it has lost
    what a trial may lose, and at most `CREDIT` more if it has saved that before. After a lost trial
    the target writes alone until the loss is at most `SHARE` of that, and at least twice as long as
    after the lost trial before. Several threads may use one account.

    `doubtful`: the drafter may be slow, so plain rounds come first, and then `try_out`.
    """

    def __init__(self, clock: Any = thread_time, doubtful: bool = False) -> None:
        self.clock = clock
        self.balance = 0.0
        self._least = TRIAL  # what a trial may lose at least,
        self._trust = TRIAL  # and the present one
        self._wait = MEASURED * doubtful  # plain rounds until the next that drafts
        self._waited = 0  # after the latest lost trial; 0: drafts have paid since
        self._late = 0.0  # what it took the drafter to read what it had missed, in plain rounds
        self._latest: deque[Round] = deque(maxlen=RECENT)  # those that drafted
        self._unchecked = 0  # rounds that drafted since a plain one was measured,
        self._trusted = 1  # and for how many of them that measurement counts
        # Seconds of the target's passes by width, and of other parts of a round.
        self._passes: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._times: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._lock = Lock()

    @classmethod
    def of(cls, draft: Any, target: Any) -> "Pace":
        """A new account for a drafter and a target."""
        most = SMALL * getattr(target, "parameters", 0)
        is_small = type(draft) is type(target) and getattr(draft, "parameters", inf) <= most
        return cls(clock_of(draft, target), doubtful=not is_small)

    def drafts(self, text: Any = None) -> bool:
        """Does the next round (of this text) draft?"""
        if self._wait == 0 and text is not None:
            self.try_out(text.pair.draft, text.sampler)
        return self._wait == 0

    def why_plain(self) -> str | None:
        """Why the next round does not draft, if it does not because drafts do not pay."""
        if not self._wait or not self._times["plain"]:
            return None
        share = min(self._times["draft"], default=0.0) / self.step()
        if share >= TOO_SLOW:
            return f"a drafted token takes {share:.0%} of the time of a plain one"
        return f"the latest drafts cost more time than they saved; the next in {self._wait} tokens"

    def step(self) -> float:
        """Seconds of a plain round: as measured, and at most what the cheapest others tell."""
        narrowest = min(map(median_low, self._passes.values()))  # no wider pass is faster
        rest = [self._times[part] for part in ("plain", "other") if self._times[part]]
        return narrowest + min(map(median_low, rest))

    def cost(self, record: Round) -> float:
        """The usual cost of a round that drafted like this one."""
        tokens, width = sizes(record)
        usual = tokens * median_low(self._times["draft"]) + median_low(self._times["other"])
        return (usual + median_low(self._passes[width])) / self.step()

    def measure(self, record: Round, drafted: bool) -> None:
        """Keep the times of a round's parts."""
        tokens, width = sizes(record)
        self._passes[width].append(record.costs["target"])
        if drafted:
            self._times["draft"].append(record.costs["draft"] / tokens)
        self._times["other" if drafted else "plain"].append(record.costs["other"])

    def observe(self, record: Round, drafted: bool) -> None:
        """Book a round."""
        with self._lock:
            guessed = not self._times["plain"]
            self.measure(record, drafted)
            if drafted:
                self._book(record)
            else:
                self._unchecked = 0
                self._wait = max(0, self._wait - 1)
                if guessed:  # only now it is known what the rounds before have cost
                    self.balance = self._gain(self._latest)
            if self.balance <= -self._trust:
                self._lose()
            elif drafted:
                self._check()

    def try_out(self, model: Any, sampler: Any) -> None:
        """Before a trial: measure a drafter that may be too slow, without reading the text."""
        with self._lock:
            if not self._times["plain"]:  # the drafter is small
                return
            slow = TOO_SLOW * self.step()
            if self._times["draft"] and median_low(self._times["draft"]) < slow:
                return
            cache = sampler.new_cache(model)
            for _ in range(PROBES):
                began = self.clock()
                sampler.finished(model.forward([0], cache))
                self._times["draft"].append(self.clock() - began)
            if min(self._times["draft"]) >= slow:
                self._wait = LONGEST

    def _book(self, record: Round) -> None:
        """Add what a round that drafted has saved."""
        self._latest.append(record)
        self._trust = max(self._trust, TRIAL * (len(record.draft_tokens) - 1))
        self.balance = min(self.balance + self._gain([record]), CREDIT)
        if "prefill" not in record.costs:  # the first reading is not late
            self._late += record.costs["late"] / self.step()
        self._unchecked += 1

    def _gain(self, rounds: Iterable[Round]) -> float:
        """The tokens of rounds that drafted, less what these cost."""
        return sum(len(record.emitted) - self.cost(record) for record in rounds)

    def _lose(self) -> None:
        """End a trial that has lost all that it may."""
        loss = self._trust
        if len(self._times["other"]) >= FEW:  # subtle: before, a large loss may be one slow pass
            loss = -self.balance
        wait = max(2 * self._waited, (loss + self._late) / SHARE)
        self._waited = self._wait = int(min(wait, LONGEST))
        self._least = self._trust = min(2 * self._least, LATER)
        self.balance = self._late = 0.0
        self._latest.clear()

    def _check(self) -> None:
        """Forget lost trials once drafts have saved enough; ask for a plain round if in doubt."""
        if self.balance == CREDIT:
            self._waited = 0
            self._late = 0.0
        if self._unchecked < self._trusted:
            return
        cost = sum(map(self.cost, self._latest))
        if self._gain(self._latest) < (SURE - 1) * cost:
            self._trusted = min(8 * self._trusted, 128)
            self._wait = 1 if self._times["plain"] else MEASURED


def sizes(record: Round) -> tuple[int, int]:
    """How many drafted tokens a round paid for, and the width of its pass: up to 1, 2, 4, 8, ..."""
    return max(1, len(record.draft_tokens)), 2 ** len(record.proposals).bit_length()


def paced(pair: Any, prompt: str | tuple[Sequence[int], Sequence[int]], options: Options,
          uniforms: Uniforms, text: Text | None = None) -> Iterator[Round]:
    """The rounds of `speculative`, with plain ones while drafting does not pay (`Pair.pace`)."""
    options = usual(options, pair.target)
    pace = getattr(pair, "pace", lambda _: None)(options)
    return speculative(pair, prompt, options, uniforms, text=text, pace=pace)


def why_plain(pair: Any, options: Options) -> str:
    """Why a text was written without drafts, in one line."""
    why = None
    pace = pair.pace(options)
    if not getattr(pair.target, "drafting_pays", True):
        why = f"{pair.target.name} reads each proposal in a pass of its own"
    elif options.stop.limit == 0:
        why = "they are switched off"
    elif pace is not None:
        why = pace.why_plain()
    return f"no drafts: {why or 'the drafter was not sure of any token'}"


def usual(options: Options, target: Any) -> Options:
    """The options, without drafts if drafting cannot pay and `stop` is the default.

    A target whose `drafting_pays` is false reads each proposal in a pass of its own.
    """
    if getattr(target, "drafting_pays", True) or options.stop != Options.stop:
        return options
    return replace(options, stop=FixedLength(0))
