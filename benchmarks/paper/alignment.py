"""How long real vocabularies take to align, and how many tokens are shared by bytes and by strings.

    python -m benchmarks.paper.alignment --json     (or --draft FOLDER --targets FOLDER ...)

By strings as in the paper (arXiv 2507.02659, Table 8). Seconds are medians over repeats: reading
both tokenizers, and aligning. A warm start is the least processor time of the repeats, in which how
the two spell each other is read from the disk: what the tokenizers library takes to read both
files, and what comes on top of it until the first text could be drafted.
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
    """Processor seconds of the library, and those of ours on top, to read two vocabularies."""

    def library() -> list[tokenizers.Tokenizer]:
        return [tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in folders]

    def ours() -> tuple[Pair, object]:
        sides = map(Tokenizer.load, folders)
        pair = Pair(*(SimpleNamespace(tokenizer=side, name=side.name, vocab_size=side.size) for side in sides))
        return pair, pair.lifting

    ours()  # cold
    least = [min(processor_seconds(way) for _ in range(repeats)) for way in (library, ours)]
    return {"library": round(least[0], 3), "ours": round(least[1] - least[0], 3)}


def processor_seconds(make: Callable[[], object]) -> float:
    """Processor seconds of `make`, without those that free what it made."""
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
