"""Block efficiency of the four rules: target tokens per target pass, same drafts' length, every pair and task.

    python benchmarks/efficiency.py --json benchmarks/results/efficiency.json

Each figure is a mean over at least `--rounds` rounds with its standard error (rounds taken as independent).
Folders of real models may be added: --pairs DRAFT:TARGET, with --prompts-file for a JSONL of {"prompt"}.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from benchmarks.common import prompts, write_json
from omnidraft.cli.machine import machine
from omnidraft.decoding import speculative
from omnidraft.options import Options
from omnidraft.engine.loading import load
from omnidraft.generation import Pair
from omnidraft.sampling import Uniforms
from omnidraft.stopping import FixedLength

PAIRS = [f"{draft}:{target}" for draft in ("draft-tasks", "draft-general")
         for target in ("qwen-like", "llama3-like", "sibling")]
TASKS = ("math", "code", "text")


def measure(pair: Pair, texts: list[str], rule: str, temperature: float, length: int, least: int, heal: bool,
            tokens: int) -> dict:
    """Emitted tokens per round over at least `least` rounds."""
    emitted, kept, drafted = [], 0, 0
    for seed in range(100):
        for i, text in enumerate(texts):
            options = Options(verify=rule, temperature=temperature, stop=FixedLength(length), max_new_tokens=tokens, heal=heal)
            for record in speculative(pair, text, options, Uniforms(np.random.default_rng([seed, i]))):
                emitted.append(len(record.emitted))
                kept += record.draft_kept
                drafted += len(record.draft_tokens)
            if len(emitted) >= least and (i + 1) % 10 == 0:  # whole tens of prompts, the same for every rule
                break
        if len(emitted) >= least or temperature == 0:
            break
    return {"block_efficiency": round(float(np.mean(emitted)), 3),
            "error": round(float(np.std(emitted) / np.sqrt(len(emitted))), 3),
            "rounds": len(emitted), "acceptance": round(kept / max(1, drafted), 3)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=PAIRS)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--rules", nargs="*", default=["tli", "slem", "omnidraft", "lossless", "lossless-unhealed"])
    parser.add_argument("--temperatures", nargs="*", type=float, default=[0.0, 1.0])
    parser.add_argument("-k", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompts-file", type=Path, help="JSONL of real prompts, instead of the embedded tasks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict = {"machine": machine(), "k": args.k, "pairs": {}}
    if args.json and args.json.exists():
        results["pairs"] = json.loads(args.json.read_text())["pairs"]
    for name in args.pairs:
        pair = Pair(*map(load, name.split(":")))
        label = ":".join(Path(part).name for part in name.split(":"))
        sets = {task: [e["prompt"] for e in prompts(task, 200)] for task in args.tasks}
        if args.prompts_file:
            lines = args.prompts_file.read_text(encoding="utf-8").splitlines()
            sets = {args.prompts_file.stem: [json.loads(line)["prompt"] for line in lines[:200]]}
        for task, texts in sets.items():
            for temperature in args.temperatures:
                figures = {}
                for rule in args.rules:
                    base, heal = rule.removesuffix("-unhealed"), not rule.endswith("-unhealed")
                    figures[rule] = measure(pair, texts, base, temperature, args.k, args.rounds, heal, args.tokens)
                results["pairs"].setdefault(label, {}).setdefault(task, {})[f"T={temperature:g}"] = figures
                print(f"{label} {task} T={temperature:g}: " + "  ".join(
                    f"{rule} {f['block_efficiency']:.2f}±{f['error']:.2f}" for rule, f in figures.items()), flush=True)
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
