"""How good the embedded targets are: greedy answers to the held-out prompts, checked.

    python benchmarks/quality.py --json benchmarks/results/quality.json

math: the number after "####" equals the answer. code: the function parses, and passes the asserts of its prompt (run in a
process of its own with a time limit). text: distinct words and loops are counted; whether it reads well is for readers.
Templates that training saw and those it never saw are reported apart.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.common import prompts, write_json
from omnidraft.cli.machine import machine
from omnidraft.decoding import plain
from omnidraft.options import Options
from omnidraft.engine.loading import load
from omnidraft.sampling import Uniforms

TARGETS = ("qwen-like", "llama3-like", "sibling")


def answer(model, prompt: str, limit: int) -> str:
    """Greedy continuation of `prompt` by plain decoding."""
    ids = model.tokenizer.encode(prompt, bos=True)
    options = Options(max_new_tokens=min(limit, model.context_size - len(ids)))
    written = [token for record in plain(model, ids, options, Uniforms([])) for token in record.emitted]
    return model.tokenizer.decode_bytes(written).decode("utf-8", "replace")


def check(task: str, example: dict, text: str) -> dict[str, bool]:
    """What holds of one answer."""
    if task == "math":
        marked = text.rsplit("####", 1)
        return {"marked": len(marked) == 2, "right": len(marked) == 2 and marked[1].strip() == str(example["answer"])}
    if task == "code":
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            return {"parses": False, "passes": False}
        program = text + "\n" + "\n".join(example["tests"])
        try:
            done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, timeout=5)
        except subprocess.TimeoutExpired:
            return {"parses": True, "passes": False}
        return {"parses": True, "passes": done.returncode == 0}
    words = text.split()
    triples = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    return {"ends": text.rstrip().endswith((".", "!", '"')), "no_loop": len(set(triples)) > 0.9 * max(1, len(triples))}


def main() -> None:
    """Answer, check, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=int, default=0, help="print this many answers per task")
    args = parser.parse_args()
    results: dict = {"machine": machine(), "prompts": args.prompts, "targets": {}}
    for name in args.targets:
        model = load(name)
        for task in ("math", "code", "text"):
            rows: dict[str, list[dict[str, bool]]] = {"seen": [], "unseen": []}
            for i, example in enumerate(prompts(task, args.prompts)):
                text = answer(model, example["prompt"], 256)
                rows["seen" if example["seen_template"] else "unseen"].append(check(task, example, text))
                if i < args.show:
                    print(f"--- {name} {task}: {example['prompt']!r}\n{text}\n")
            keys = (rows["seen"] + rows["unseen"])[0]
            figures = {key: {part: round(float(np.mean([r[key] for r in some])), 3)
                             for part, some in (("all", rows["seen"] + rows["unseen"]), *rows.items()) if some}
                       for key in keys}
            results["targets"].setdefault(name, {})[task] = figures
            print(f"{name:12} {task:5} {json.dumps(figures)}", flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
