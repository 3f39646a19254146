"""How long real vocabularies take to align, and how many tokens they share by bytes and by strings.

    python -m benchmarks.paper.alignment --json     (or --draft FOLDER --targets FOLDER ...)

The paper compares strings (arXiv 2507.02659, Table 8). Seconds are medians over repeats: reading
both tokenizers, and aligning them. A warm start reads from disk how the two tokenizers spell each
other; its figures are the least CPU time of the repeats: the time that the tokenizers library takes
to read both files, and the further time until the first text could be drafted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from types import SimpleNamespace

import tokenizers

from benchmarks.common import REAL, arguments, save, skip, start
from omnidraft import Pair, Tokenizer
from omnidraft.vocabulary import align

DRAFT, *REST = (REAL / "tokenizers" / name for name in ("llama2-32k", "llama3-128k", "qwen2-151k"))


def warm_start(folders: list[Path], repeats: int) -> dict[str, float]:
    """CPU seconds to read two vocabularies: of the library, and of our code in addition."""

    def library() -> list[tokenizers.Tokenizer]:
        return [tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in folders]

    def ours() -> tuple[Pair, object]:
        pair = Pair(*(without_weights(Tokenizer.load(folder)) for folder in folders))
        return pair, pair.lifting

    ours()  # a cold start, not counted
    least = [min(processor_seconds(way) for _ in range(repeats)) for way in (library, ours)]
    return {"library": round(least[0], 3), "ours": round(least[1] - least[0], 3)}


def without_weights(tokenizer: Tokenizer) -> SimpleNamespace:
    """A model of which only the vocabulary is used."""
    return SimpleNamespace(tokenizer=tokenizer, name=tokenizer.name, vocab_size=tokenizer.size, context_size=0, eos_ids=(),
                           new_cache=list, forward=list)


def processor_seconds(make: Callable[[], object]) -> float:
    """CPU seconds of `make`, without freeing its result."""
    began = process_time()
    made = make()
    return process_time() - began if made else 0.0


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "alignment", draft=str(DRAFT), targets=[*map(str, REST)], repeats=5)
    if not all(Path(name).is_dir() for name in (args.draft, *args.targets)):
        skip("alignment", "set OMNIDRAFT_REAL_DATA to a folder with the tokenizers, or name them")
    results = start(None, draft=Path(args.draft).name, targets={})
    for folder in args.targets:
        seconds: dict[str, list[float]] = {"load both": [], "align": []}
        for _ in range(args.repeats):
            times = [perf_counter()]
            draft, target = Tokenizer.load(args.draft), Tokenizer.load(folder)
            times.append(perf_counter())
            by_bytes = align(draft, target)
            times.append(perf_counter())
            for taken, began, ended in zip(seconds.values(), times, times[1:], strict=False):
                taken.append(ended - began)
        row = results["targets"][Path(folder).name] = {
            "by_bytes": by_bytes.shared_draft,
            "by_strings": align(draft, target, strings=True).shared_draft,
            "seconds": {part: round(median(some), 4) for part, some in seconds.items()}}
        with TemporaryDirectory() as home:
            os.environ["OMNIDRAFT_HOME"] = home
            row["warm start"] = warm_start([Path(args.draft), Path(folder)], args.repeats)
        print(Path(folder).name, row, flush=True)
    save(args.json, results)


if __name__ == "__main__":
    main()
