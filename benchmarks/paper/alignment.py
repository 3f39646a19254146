"""How long real vocabularies take to align, and how many tokens are shared by bytes and by strings.

    python -m benchmarks.paper.alignment --json     (or --draft FOLDER --targets FOLDER ...)

By strings as in the paper (arXiv 2507.02659, Table 8). Seconds are medians over repeats: reading
both tokenizers, and aligning.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.common import REAL, arguments, save, skip, start
from omnidraft import Tokenizer
from omnidraft.vocabulary import align

DRAFT, *REST = (REAL / "tokenizers" / name for name in ("llama2-32k", "llama3-128k", "qwen2-151k"))


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
        print(Path(folder).name, row, flush=True)
    save(args.json, results)


if __name__ == "__main__":
    main()
