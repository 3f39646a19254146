"""Record rounds into omnidraft/data/play.html, the page of `omnidraft play`, which shows them when it is opened from disk.

    python docs/play.py [--picture docs/play.png]

They are its line `const scenes = ...`; the page loads nothing else. The picture (drawn by Chromium) shows the round on which
the page opens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: as `omnidraft demo` runs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import omnidraft  # noqa: E402
from omnidraft import Adapters, Options, Pair, decoding  # noqa: E402
from omnidraft.cli.play import PAGE, filled  # noqa: E402
from omnidraft.cli.rounds import lines  # noqa: E402
from omnidraft.learning.adapters import SHIPPED  # noqa: E402
from omnidraft.text.files import write_text  # noqa: E402

QUESTION = "Ann has 3 boxes of 12 pens. How many pens does she have?"
REQUEST = "Write a Python function that adds two numbers."
SCENES = [  # drafter, target, prompt, temperature, seed of a text that shows much
    ("draft-smol", "qwen-like", REQUEST, 1.0, 16),  # a round with a merge, an expansion and a rejection
    ("draft-tasks", "qwen-like", QUESTION, 1.0, 1),
    ("draft-tasks", "llama3-like", REQUEST, 1.0, 1),
    ("draft-general, adapted", "qwen-like", "Write a story about a dog.", 0.7, 4),
]
REPEATS = 7  # of each recording: a round's time is the shortest of them, because other work can only add to it


def pair_of(draft: str, target: str) -> Pair:
    """The pair of a scene in SCENES."""
    name, _, adapted = draft.partition(", ")
    made = omnidraft.pair(name, target)
    return Pair(Adapters(SHIPPED).load(made).drafter(made.draft), made.target) if adapted else made


def record(pair: Pair, prompt: str, temperature: float, seed: int, repeats: int = 1) -> dict:
    """A pair's text, as the page keeps it: what `omnidraft play` sends line by line, with the shortest of several times."""
    how = Options.of(temperature=temperature, max_new_tokens=40, draft_length=8, threshold=0.2)
    with mock.patch.object(decoding, "perf_counter", process_time):  # of one thread: other work disturbs it less
        every = [[*lines(pair, prompt, prompt, how, seed)] for _ in range(repeats)]
    rounds = [[line["round"] for line in made if "round" in line] for made in every]
    alone = [[line["plain"] for line in made if "plain" in line] for made in every]
    for place, one in enumerate(rounds[0]):
        one["ms"] = min((again[place]["ms"] for again in rounds), key=sum)
    shortest = [[same[0][0], min(ms for _, ms in same)] for same in zip(*alone, strict=True)]
    return every[0][0] | {"rounds": rounds[0], "plain": shortest}


def recording() -> list[dict]:
    """All scenes."""
    return [record(pair_of(draft, target), prompt, temperature, seed, REPEATS) | {"draft": draft}
            for draft, target, prompt, temperature, seed in SCENES]


def stored() -> list[dict]:
    """The recording in the page."""
    return json.loads(re.search(r"^const scenes = (.*);$", PAGE.read_text(encoding="utf-8"), re.M)[1])


def picture(path: Path, size: str = "1000,985") -> None:
    """A picture of the page as it opens, made by Chromium without a window."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                        "--disable-component-update", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=0.85",
                        f"--user-data-dir={profile}", f"--window-size={size}", f"--screenshot={path.resolve()}",
                        PAGE.resolve().as_uri()], check=True, capture_output=True)


def main() -> None:
    """Record and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    write_text(PAGE, filled(scenes=recording()))
    if args.picture:
        picture(args.picture)
    print(PAGE)


if __name__ == "__main__":
    main()
