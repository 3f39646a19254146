"""Speed, block efficiency and acceptance of a run (arXiv 2507.02659, section 4)."""

from collections.abc import Iterable
from dataclasses import dataclass

from .decoding import Round


@dataclass(frozen=True)
class Summary:
    """Figures for one or several texts; times are wall-clock."""

    tokens: int  # target tokens that entered the text
    rounds: int  # target passes
    seconds: float  # decoding time: drafter, target and everything else except the prefill
    draft_seconds: float
    target_seconds: float
    drafted: int  # draft tokens drawn
    draft_kept: int  # draft tokens whose bytes all entered the text
    proposed: int  # target tokens proposed
    accepted: int  # proposals kept
    merges: int  # kept proposals that stand for several draft tokens
    acceptance_draft: float  # draft_kept / drafted
    acceptance_proposed: float  # accepted / proposed, averaged over rounds: the paper's metric
    drafted_per_round: float
    overhead: float  # share of `seconds` spent in neither model
    tokens_per_second: float
    block_efficiency: float  # tokens per target pass (tau), recovered and bonus included


def summarize(rounds: Iterable[Round]) -> Summary:
    """Sum up the rounds of one or several texts.

    >>> seconds = {"draft": 1.0, "target": 2.0, "other": 1.0}
    >>> one = Round([5, 6], [7], [2], 1, [7, 8], ["merged", "bonus"], 2, seconds)
    >>> summarize([one]).block_efficiency, summarize([one]).tokens_per_second
    (2.0, 0.5)
    """
    rounds = list(rounds)
    count = len(rounds)
    tokens = sum(len(r.emitted) for r in rounds)
    drafted = sum(len(r.draft_tokens) for r in rounds)
    draft_kept = sum(r.draft_kept for r in rounds)
    draft_seconds = _seconds(rounds, "draft")
    target_seconds = _seconds(rounds, "target")
    other = _seconds(rounds, "other")
    seconds = draft_seconds + target_seconds + other
    shares = [r.accepted / len(r.proposals) for r in rounds if r.proposals]
    return Summary(
        tokens=tokens, rounds=count, seconds=seconds,
        draft_seconds=draft_seconds, target_seconds=target_seconds,
        drafted=drafted, draft_kept=draft_kept,
        proposed=sum(len(r.proposals) for r in rounds),
        accepted=sum(r.accepted for r in rounds),
        merges=sum(r.kinds.count("merged") for r in rounds),
        acceptance_draft=_ratio(draft_kept, drafted),
        acceptance_proposed=_ratio(sum(shares), len(shares)),
        drafted_per_round=_ratio(drafted, count),
        overhead=_ratio(other, seconds),
        tokens_per_second=_ratio(tokens, seconds),
        block_efficiency=_ratio(tokens, count))


def speedup(speculative: Summary, plain: Summary) -> float:
    """Tokens per second of speculative decoding divided by those of plain decoding (wall clock)."""
    return _ratio(speculative.tokens_per_second, plain.tokens_per_second)


def computed_speedup(speculative: Summary, plain: Summary) -> float:
    """The paper's speedup, tau / (round latency / step latency), from the models' time alone."""
    seconds = speculative.draft_seconds + speculative.target_seconds
    latency = _ratio(seconds, speculative.rounds)
    step = _ratio(plain.target_seconds, plain.rounds)
    return _ratio(speculative.block_efficiency, _ratio(latency, step))


def _seconds(rounds: list[Round], part: str) -> float:
    return sum(r.seconds.get(part, 0.0) for r in rounds)


def _ratio(above: float, below: float) -> float:
    """above / below, or 0 if `below` is 0."""
    if below == 0:
        return 0.0
    return above / below
