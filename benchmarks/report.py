"""Write the README's tables from benchmarks/results/*.json and the source files; `--check` only says whether they are stale.

    python -m benchmarks.report [--check]
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path

from omnidraft.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ORDER = ["tokenizer", "vocabulary", "ngram_cache", "translation", "sampling", "lifting", "verification", "stopping",
         "pairing", "decoding", "metrics", "models/llama", "models/kernels", "render"]


def result(name: str) -> dict | None:
    """A benchmark's figures, or None where it has not been run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def files() -> str:
    """The modules in reading order, with the first sentence of each docstring and its lines."""
    rows = []
    for name in ORDER:
        path = ROOT / "omnidraft" / f"{name}.py"
        source = path.read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].rstrip(".:")
        first = re.sub(r" \(arXiv[^)]*\)", "", first).replace("|", "\\|").replace("<->", "↔")
        rows.append([f"[`{name}.py`](omnidraft/{name}.py)", first, str(source.count("\n"))])
    return table(["file", "what it is", "lines"], rows)


def exactness() -> str:
    """Total variation per rule."""
    figures = result("exactness")
    if figures is None:
        return "Not measured yet."
    rows = [[f"`{rule}`", str(f["cases"]), f"{f['mean']:.1e}" if f["mean"] < 1e-6 else f"{f['mean']:.3f}",
             f"{f['worst']:.1e}" if f["worst"] < 1e-6 else f"{f['worst']:.3f}"]
            for rule, f in figures["total_variation"].items()]
    parts = [table(["rule", "cases", "mean", "worst"], rows)]
    same = result("same_text")
    if same:
        equal, of = (sum(pair[key] for pair in same["pairs"].values()) for key in ("same", "of"))
        parts.append(f"At temperature 0 the text is the target's own, token for token: {equal:,} of {of:,} greedy texts of the "
                     "embedded pairs (four rules, k from 1 to 12, float64; `benchmarks/same_text.py`) equal plain decoding.")
    return "\n\n".join(parts)


def results() -> str:
    """Speed, block efficiency and quality."""
    parts = []
    speed = result("speed")
    if speed:
        machine = speed["machine"]
        parts.append(f"Measured on {machine['cpu']}, {machine['cores']} cores, {'AVX-512' if machine['avx512'] else 'AVX2'}, "
                     f"NumPy {machine['numpy']} ({machine['blas']}), one BLAS thread; greedy, wall clock, "
                     f"medians of {speed['settings']['repeats']} repeats over held-out prompts (`benchmarks/speed.py`).")
        rows = [[pair.replace(":", " → "), task, f"{r['plain_tokens_per_second']:.0f}",
                 f"{r['speculative_tokens_per_second']:.0f}", f"**{r['speedup']:.2f}×**", f"{r['block_efficiency']:.2f}",
                 f"{100 * r['acceptance_draft']:.0f} %",
                 f"{r['same_text']}/{r['prompts']}" + (f" (+{r['ties']} ties)" if r["ties"] else "")]
                for pair, tasks in speed["pairs"].items() for task, r in tasks.items()]
        parts.append(table(["pair", "task", "plain tok/s", "speculative tok/s", "speedup", "block efficiency",
                            "draft tokens kept", "same text"], rows))
    efficiency = result("efficiency")
    if efficiency:
        rules = ["tli", "slem", "omnidraft", "lossless"]
        parts.append(f"Block efficiency (target tokens per target pass) of the four rules, k = {efficiency['k']} "
                     "(`benchmarks/efficiency.py`; `omnidraft` is biased at T = 1):")
        rows = [[pair.replace(":", " → "), task, at, *(f"{f[rule]['block_efficiency']:.2f} ± {f[rule]['error']:.2f}"
                                                     for rule in rules)]
                for pair, tasks in efficiency["pairs"].items() for task, temps in tasks.items() for at, f in temps.items()]
        parts.append(table(["pair", "task", "", *(f"`{rule}`" for rule in rules)], rows))
    quality = result("quality")
    if quality:
        parts.append(f"What the embedded targets can do: greedy answers to {quality['prompts']} held-out prompts per task, "
                     "half of them from templates never seen in training (`benchmarks/quality.py`):")
        rows = []
        for target, tasks in quality["targets"].items():
            rows.append([target, *(f"{100 * tasks[task][key][part]:.0f} %" for task, key in (
                ("math", "right"), ("code", "parses"), ("code", "passes")) for part in ("seen", "unseen"))])
        parts.append(table(["target", "math right, seen templates", "unseen", "code parses, seen", "unseen",
                            "code passes, seen", "unseen"], rows))
    return "\n\n".join(parts) or "Not measured yet."


def main() -> None:
    """Fill the marked places of README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = ROOT / "README.md"
    before = text = path.read_text(encoding="utf-8")
    for name, made in (("files", files()), ("exactness", exactness()), ("results", results())):
        text = re.sub(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", lambda m, made=made: m[1] + made + "\n" + m[2],
                      text, flags=re.S)
    if args.check:
        sys.exit("README.md is stale: run `python -m benchmarks.report`" if text != before else 0)
    write_text(path, text)


if __name__ == "__main__":
    main()
