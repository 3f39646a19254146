"""How good the embedded targets are: greedy answers to the held-out prompts, checked.

    python -m benchmarks.quality --json

math: the number after "####" equals the answer. code: the function parses, and passes the asserts
of its prompt (run in a process of its own with a time limit). text: distinct words and loops are
counted; whether it reads well is for readers. Prompts of trained kinds and hand-written ones are
reported separately.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np

from benchmarks.common import TARGETS, TASKS, arguments, prompts, save, start
from benchmarks.writing import emitted, write_plainly
from omnidraft import Options
from omnidraft.engine.loading import load
from recipes.evaluate import passes


def answer(model: Any, prompt: str, limit: int) -> str:
    """Greedy continuation of `prompt` by plain decoding, as far as the context has room."""
    options = Options(max_new_tokens=limit)
    written = emitted(write_plainly(model, prompt, options))
    return model.tokenizer.decode_bytes(written).decode("utf-8", "replace")


def check(task: str, example: dict, text: str) -> dict[str, bool]:
    """What holds of one answer."""
    if task == "math":
        _, mark, number = text.rpartition("####")
        right = bool(mark) and number.strip() == str(example["answer"])
        return {"marked": bool(mark), "right": right}
    if task == "code":
        return dict(zip(("parses", "passes"), passes(example["prompt"], text, example["tests"]),
                        strict=True))
    words = text.split()
    runs = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    return {"ends": text.rstrip().endswith((".", "!", '"')),
            "no_loop": len(set(runs)) > 0.9 * max(1, len(runs))}


def main() -> None:
    """Answer, check, print and write."""
    args = arguments(__doc__, "quality", targets=TARGETS, prompts=200,
                     show=(0, "print this many answers per task"))
    results = start(None, prompts=args.prompts, targets={})
    for name, task in product(args.targets, TASKS):
        model, rows = load(name), {"all": [], "seen": [], "unseen": []}
        for i, example in enumerate(prompts(task, args.prompts)):
            text = answer(model, example["prompt"], 256)
            for part in ("all", "seen" if example["seen_template"] else "unseen"):
                rows[part].append(check(task, example, text))
            if i < args.show:
                print(f"--- {name} {task}: {example['prompt']!r}\n{text}\n")
        figures = {key: {part: round(float(np.mean([row[key] for row in some])), 3)
                         for part, some in rows.items() if some} for key in rows["all"][0]}
        results["targets"].setdefault(name, {})[task] = figures
        print(f"{name:12} {task:5} {json.dumps(figures)}", flush=True)
    save(args.json, results)


if __name__ == "__main__":
    main()
