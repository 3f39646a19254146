"""How well two vocabularies fit, and the block efficiency from which drafting pays off."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import Any

from ..decoding import plain, speculative
from ..options import Options
from ..pairing import Pairing
from ..sampling import Sampler, Uniforms
from ..text.errors import OmnidraftError
from ..translation import merge
from .pace import Pace

WAYS = {"direct": "the same token", "merge": "merged with others into one",
        "expansion": "several tokens", "none": "not at all"}
LENGTHS = (2, 4, 6, 12)  # draft tokens per round


def fit(draft: Any, target: Any, texts: list[str]) -> dict[str, Any]:
    """Coverage in both directions, how the texts' draft tokens translate, costs of both models.

    Of two models also what to expect of drafts: see `expected`.
    OmnidraftError for vocabularies with nothing in common, and for texts without tokens.
    """
    pair, ours = Pairing(draft, target), draft.tokenizer
    same, size = pair.alignment, target.tokenizer.size
    parts = [part for text in texts for part in ways(pair, ours.encode_continuation(text))]
    if not parts:
        raise OmnidraftError("the texts have no token to translate: give other texts")
    spelled = sum(to >= 0 or i in pair.spellings for i, to in enumerate(same.draft_to_target))
    found: dict[str, Any] = {
        "tokens": sum(len(ids) for _, ids in parts),
        "draft": dict(name=draft.name, entries=ours.size, same=same.shared_draft, spelled=spelled),
        "target": {"name": target.name, "entries": size, "same": same.shared_target,
                   "spelled": sum(pair.span(token) > 0 for token in range(size))}}
    for name, size in (("of_tokens", len), ("of_bytes", lambda ids: len(ours.decode_bytes(ids)))):
        counts = {way: sum(size(ids) for is_, ids in parts if is_ == way) for way in WAYS}
        found[name] = {way: count / (sum(counts.values()) or 1) for way, count in counts.items()}
    if all(hasattr(one, "forward") for one in (draft, target)):
        found["costs"] = costs(draft, target, max(texts, key=len))
        with suppress(OmnidraftError):  # no text can be continued
            found["expected"] = expected(pair, texts)
    return found


def ways(pair: Pairing, ids: list[int]) -> list[tuple[str, list[int]]]:
    """The drafter's ids (V_q), split as `translation.merge` translates them, each with its way."""
    made, place = [], 0
    while place < len(ids):
        spans = merge(ids[place:], (), pair.direct, pair.cache.longest_match, pair.spellings).spans
        for span, after in zip(spans, [*spans[1:], 1], strict=True):
            if span:  # 0: further target tokens of an expansion
                way = "merge" if span > 1 else "direct" if after else "expansion"
                made.append((way, ids[place:place + span]))
                place += span
        made += [("none", [token]) for token in ids[place:place + 1]]
        place += 1
    return made


def costs(draft: Any, target: Any, text: str, repeats: int = 9) -> dict[str, Any]:
    """The time of passes in milliseconds, and for each k the block efficiency that breaks even.

    This is (k c_q + c_p(k + 1)) / c_p(1), from the fastest time of each pass; models only.
    """
    times: dict[tuple[Any, int], list[float]] = {}
    for model, widths in ((draft, [1]), (target, [1, *(k + 1 for k in LENGTHS)])):
        sampler = getattr(model, "sampler", Sampler)(Uniforms([]))
        cache, room = sampler.new_cache(model), model.context_size - max(widths)
        ids = model.tokenizer.encode(text, bos=True)[:min(64, room)]
        model.forward(ids, cache)
        for _, width in product(range(repeats), widths):
            began = perf_counter()
            sampler.finished(model.forward((ids * width)[:width], cache, width))
            times.setdefault((model, width), []).append(1e3 * (perf_counter() - began))
            cache.rewind(len(ids))
    ms = {key: min(each) for key, each in times.items()}
    return {"step_ms": ms[target, 1], "lengths": {str(k): {
        "draft_ms": k * ms[draft, 1], "target_ms": ms[target, k + 1],
        "break_even": (k * ms[draft, 1] + ms[target, k + 1]) / ms[target, 1]} for k in LENGTHS}}


def expected(pair: Pairing, texts: list[str], length: int = 16) -> dict[str, Any]:
    """Greedy tokens per pass and the time of a round in plain ones, from the start of three texts.

    Raises OmnidraftError as `decoding.check_prompt` does.
    """
    pace, rounds, options = Pace(), [], Options(max_new_tokens=length)
    for text in texts[::-(-len(texts) // 3)]:
        for record in plain(pair.target, text, replace(options, max_new_tokens=4), Uniforms([])):
            pace.measure(record, False)
        for record in speculative(pair, text, options, Uniforms([])):
            pace.measure(record, True)
            rounds.append(record)
    tokens = sum(len(record.emitted) for record in rounds) / len(rounds)
    needed = sum(map(pace.cost, rounds)) / len(rounds)
    return {"tokens_per_pass": tokens, "needed": needed, "pays": tokens > needed}
