"""Write the table of docs/reliability.md from docs/reliability.json, the counts of `python tests/soak.py --record`.

    python docs/reliability.py [--check]        (only says whether it is out of date)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().with_suffix(".md")
BEGIN, END = "<!-- runs:begin -->\n", "<!-- runs:end -->"
PARTS = {"mutations": "broken files", "kills": "`kill -9` of a process while it saves", "losses": "simulated power losses",
         "writers": "pairs of two writers", "interrupts": "Ctrl-C at different lines of a save",
         "adapt": "tokens that the command `adapt` writes in one run", "tokens": "tokens decoded with learning on",
         "worlds": "random worlds, for each exact rule"}


def table(runs: dict[str, dict]) -> str:
    """One row for each part of the soak test."""
    lines = ["| part | what | full run | last run | date | failures |", "|---|---|---|---|---|---|"]
    for part, what in PARTS.items():
        one = runs[part]
        counts = f" ({one['counts']})" * bool(one["counts"])
        lines.append(f"| `{part}` | {what} | {one['full']:,} | {one['run']:,}{counts} | {one['date']} | {one['failures']} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with its table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    runs = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    return before + BEGIN + table(runs) + END + rest.partition(END)[2]


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        stale = PAGE.read_text(encoding="utf-8") != text
        sys.exit(f"{PAGE} is stale: run `python docs/reliability.py`" if stale else 0)
    PAGE.write_text(text, encoding="utf-8")
