"""What the benchmarks share: the held-out prompts, results written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import omnidraft
from omnidraft.files import make_folder_of, write_text

PACKAGE = Path(omnidraft.__file__).parent


def prompts(task: str, count: int) -> list[dict]:
    """The first `count` held-out examples of `math`, `code` or `text`."""
    lines = (PACKAGE / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def write_json(path: Path, results: dict) -> None:
    """Write results as JSON, whole or not at all."""
    make_folder_of(path)
    write_text(path, json.dumps(results, indent=1) + "\n")
