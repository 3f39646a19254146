"""Target tokens per target pass by the overlap of the two vocabularies, for the four rules.

    python -m benchmarks.overlap --json

An embedded drafter writes in smaller and smaller vocabularies (`revocabulary.Split`), down to bytes
and characters, on the same prompts for all rules. k grows with the pieces per token, so that drafts
cover the same amount of text. `cut` is the drafter that only lost the tokens' rows. Overlap: the
share of the target's entries, and of the tokens that it writes, that the drafter has as one token.
With $OMNIDRAFT_REAL_DATA also for published tokenizers, where the two published models draft for
each other. Results already in FILE are not measured again.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.common import REAL, TASKS, arguments, chosen, prompts, run_all, start, texts_of
from benchmarks.revocabulary import Split, cut, merges_of, with_merges
from benchmarks.same_text import REAL_PAIRS
from benchmarks.writing import write
from omnidraft import Options, Pair, Tokenizer
from omnidraft.engine.load import load
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES
from omnidraft.vocabulary import align

PAIRS = ["draft-tasks:llama3-like", "draft-tasks:qwen-like"]
PUBLISHED = ["gpt2-50k:qwen2-151k", "llama3-128k:qwen2-151k", "llama2-32k:llama3-128k",
             "llama2-32k:qwen2-151k", "tok512:llama2-32k"]


def overlap(draft: Tokenizer, target: Tokenizer, texts: list[str]) -> dict[str, float]:
    """Which shares of the target's entries, and of its tokens in the texts, the drafter has too.

    `pieces`: how many tokens the drafter writes for one target token.
    """
    same = align(draft, target)
    ids = [token for text in texts for token in target.encode_continuation(text)]
    pieces = sum(len(draft.encode_continuation(text)) for text in texts)
    return {"entries": round(same.shared_target / target.size, 3),
            "text": round(float((same.target_to_draft[ids] >= 0).mean()), 3),
            "pieces": round(pieces / len(ids), 2)}


def measure(pair: Pair, texts: list[str], options: Options) -> dict[str, Any]:
    """Target tokens and passes of each prompt, and the share of the drafted bytes that were kept."""
    spell, made = pair.draft.tokenizer.decode_bytes, []
    for place, text in enumerate(texts):
        rounds = write(pair, text, options, [0, place])
        made.append([sum(len(one.emitted) for one in rounds), len(rounds),
                     sum(len(spell(one.draft_tokens[:one.draft_kept])) for one in rounds),
                     sum(len(spell(one.draft_tokens)) for one in rounds)])
    tokens, passes, kept, drafted = np.array(made).T
    return {"tokens": tokens.tolist(), "passes": passes.tolist(),
            "bytes_kept": round(float(kept.sum() / max(1, drafted.sum())), 3)}


def counts_of(size: int, levels: int) -> list[int]:
    """Numbers of merges from all to none, each about a third of the previous one."""
    return [*(round(size / 3 ** i) for i in range(levels - 1)), 0]


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "overlap", pairs=PAIRS, rules=[*RULES], levels=5, k=6, tokens=40,
                     prompts=(4, "prompts of each task"), temperatures=[0.0, 1.0])
    settings = chosen(args, "k", "tokens", "prompts")
    results = start(args.json, settings, pairs={}, real={}, published={})

    def job(pair: Pair, texts: list[str], rule: str, at: float, k: int) -> Any:
        options = Options(verify=rule, stop=FixedLength(k), temperature=at,
                          max_new_tokens=args.tokens)
        return partial(measure, pair, texts, options)

    asked = [text for task in TASKS for text in texts_of(task, args.prompts)]
    texts = [one["prompt"] + one.get("response", "") for task in TASKS for one in prompts(task, 30)]
    stories, jobs = texts_of("text", 3 * args.prompts), {}
    for name in args.pairs:
        draft, target = map(load, name.split(":"))
        whole = overlap(draft.tokenizer, target.tokenizer, texts)["pieces"]
        for count in counts_of(merges_of(draft.tokenizer), args.levels):
            found = overlap(with_merges(draft.tokenizer, count)[0], target.tokenizer, texts)
            k = round(args.k * found["pieces"] / whole)
            place = results["pairs"].setdefault(name, {}).setdefault(str(count), {})
            place |= {"overlap": found, "k": k}
            for way, rules in ((Split, args.rules), (cut, args.rules[:1])):
                pair, what = Pair(way(draft, count), target), ", cut" * (way is cut)
                for rule, at in product(rules, args.temperatures):
                    key = "pairs", name, str(count), f"T={at:g}", rule + what
                    jobs[key] = job(pair, asked, rule, at, k)
    for name in REAL_PAIRS:
        pair = Pair(*map(load, name.split(":")))
        found = overlap(pair.draft.tokenizer, pair.target.tokenizer, stories)
        name = f"{pair.draft.name}:{pair.target.name}"
        results["real"].setdefault(name, {}).update({"overlap": found, "k": args.k})
        for rule, at in product(args.rules, args.temperatures):
            jobs["real", name, f"T={at:g}", rule] = job(pair, stories, rule, at, args.k)
    for name in PUBLISHED:
        paths = [REAL / "tokenizers" / part for part in name.split(":")]
        if all(path.is_dir() for path in paths):
            one, other = map(Tokenizer.load, paths)
            jobs["published", name] = partial(overlap, one, other, texts)
    run_all(args.json, results, jobs, settings)


if __name__ == "__main__":
    main()
