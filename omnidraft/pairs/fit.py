"""How well two vocabularies fit, and a trial of whether drafting pays."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..decoding import plain, speculative
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import OmnidraftError
from ..translation import merge
from .pace import Pace

WAYS = {"direct": "the same token", "merge": "merged with others into one",
        "expansion": "several tokens", "none": "not at all"}


def fit(draft: Any, target: Any, texts: list[str]) -> dict[str, Any]:
    """Coverage in both directions, and how the texts' draft tokens translate.

    Of two models also what to expect of drafts: see `expected`.
    OmnidraftError for vocabularies with nothing in common, and for texts without tokens.
    """
    pair = Pairing(draft, target)
    tokenizer = draft.tokenizer
    size = target.tokenizer.size
    parts = []
    for text in texts:
        parts += ways(pair, tokenizer.encode_continuation(text))
    if not parts:
        raise OmnidraftError("the texts have no token to translate: give other texts")
    spelled = sum(to >= 0 or token in pair.spellings
                  for token, to in enumerate(pair.alignment.draft_to_target))
    tokens = dict.fromkeys(WAYS, 0)
    sizes = dict.fromkeys(WAYS, 0)
    for way, ids in parts:
        tokens[way] += len(ids)
        sizes[way] += len(tokenizer.decode_bytes(ids))
    found: dict[str, Any] = {
        "tokens": sum(tokens.values()),
        "draft": {"name": draft.name, "entries": tokenizer.size,
                  "same": pair.alignment.shared_draft, "spelled": spelled},
        "target": {"name": target.name, "entries": size, "same": pair.alignment.shared_target,
                   "spelled": sum(pair.span(token) > 0 for token in range(size))},
        "of_tokens": _shares(tokens), "of_bytes": _shares(sizes)}
    if hasattr(draft, "forward") and hasattr(target, "forward"):
        with suppress(OmnidraftError):  # no text can be continued
            found["expected"] = expected(pair, texts)
    return found


def _shares(counts: dict[str, int]) -> dict[str, float]:
    whole = sum(counts.values()) or 1
    return {way: count / whole for way, count in counts.items()}


def ways(pair: Pairing, ids: list[int]) -> list[tuple[str, list[int]]]:
    """The drafter's ids (V_q), split as `translation.merge` translates them, each with its way."""
    made = []
    place = 0
    while place < len(ids):
        spans = merge(ids[place:], (), pair.direct, pair.cache.longest_match, pair.spellings).spans
        for number, span in enumerate(spans):
            if span == 0:  # further target tokens of an expansion
                continue
            way = "direct"
            if span > 1:
                way = "merge"
            elif spans[number + 1:number + 2] == [0]:
                way = "expansion"
            made.append((way, ids[place:place + span]))
            place += span
        if place < len(ids):
            made.append(("none", [ids[place]]))
            place += 1
    return made


def expected(pair: Pairing, texts: list[str], length: int = 16) -> dict[str, Any]:
    """A trial, greedily from the start of three texts: does drafting pay?

    The time of a plain round in milliseconds, tokens per pass with drafts, and the time of such a
    round in plain ones: drafting pays if it brings more tokens. Raises OmnidraftError as
    `decoding.check_prompt` does.
    """
    pace = Pace()
    rounds = []
    options = Options(max_new_tokens=length)
    alone = replace(options, max_new_tokens=4)
    for text in texts[::-(-len(texts) // 3)]:
        for record in plain(pair.target, text, alone, Uniforms([])):
            pace.measure(record, False)
        for record in speculative(pair, text, options, Uniforms([])):
            pace.measure(record, True)
            rounds.append(record)
    tokens = sum(len(record.emitted) for record in rounds) / len(rounds)
    needed = sum(pace.cost(record) for record in rounds) / len(rounds)
    return {"step_ms": 1000 * pace.step(), "tokens_per_pass": tokens, "needed": needed,
            "pays": tokens > needed}
