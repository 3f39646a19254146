"""What the benchmarks share: the held-out prompts, fresh ones of the same kinds, results and tables."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import omnidraft
from omnidraft.files import make_folder_of, write_text

PACKAGE = Path(omnidraft.__file__).parent
RESULTS = Path(__file__).resolve().parent / "results"


def prompts(task: str, count: int) -> list[dict]:
    """The first `count` held-out examples of `math`, `code` or `text`."""
    lines = (PACKAGE / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def fresh_prompts(task: str, count: int, seed: int) -> list[str]:
    """Prompts that no held-out file has; of what math draws only the word problems that are asked as they are there."""
    from recipes import code_text, math_text, story_text

    module, rng = {"math": math_text, "code": code_text, "text": story_text}[task], random.Random(seed)

    def draw() -> Iterator[str]:
        while True:
            example = module.generate(rng)
            if example["template"] != "drill" and not example["prompt"].endswith("Equations:"):
                yield example["prompt"]

    return list(islice(draw(), count))


def write_json(path: Path, results: dict) -> None:
    """Write results as JSON, whole or not at all."""
    make_folder_of(path)
    write_text(path, json.dumps(results, indent=1) + "\n")


def result(name: str) -> dict | None:
    """A benchmark's figures, or None where it has not been run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def machine_line(figures: dict) -> str:
    """Where a result was measured."""
    machine = figures["machine"]
    return (f"Measured on {machine['cpu']}, {machine['cores']} cores, {'AVX-512' if machine['avx512'] else 'AVX2'}, "
            f"NumPy {machine['numpy']} ({machine['blas']}), one BLAS thread")
