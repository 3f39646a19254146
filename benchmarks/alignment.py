"""How long real vocabularies take to align, and how much of them is shared by bytes and by the paper's strings.

    python -m benchmarks.alignment DRAFT_FOLDER TARGET_FOLDER [...] --json benchmarks/results/alignment.json

Seconds are medians over repeats: reading both tokenizers, aligning, and the alignment read back from disk.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.common import write_json
from omnidraft.cli.machine import machine
from omnidraft.tokenizer import Tokenizer
from omnidraft.vocabulary import align, load_or_build


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path)
    parser.add_argument("targets", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"machine": machine(), "draft": args.draft.name, "targets": {}}
    for folder in args.targets:
        seconds: dict[str, list[float]] = {"load both": [], "align": [], "from disk": []}
        for _ in range(args.repeats):
            began = perf_counter()
            draft, target = Tokenizer.load(args.draft), Tokenizer.load(folder)
            loaded = perf_counter()
            by_bytes = align(draft, target)
            aligned = perf_counter()
            with tempfile.TemporaryDirectory() as place:
                load_or_build(draft, target, folder=place)
                before = perf_counter()
                load_or_build(draft, target, folder=place)
                seconds["from disk"].append(perf_counter() - before)
            seconds["load both"].append(loaded - began)
            seconds["align"].append(aligned - loaded)
        results["targets"][folder.name] = {
            "by_bytes": by_bytes.shared_draft, "by_strings": align(draft, target, by="strings").shared_draft,
            "seconds": {part: round(median(some), 4) for part, some in seconds.items()}}
        print(folder.name, results["targets"][folder.name], flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
