"""Write the tables of README.md and docs/results.md from benchmarks/results/*.json and the source files.

`--check` only says whether they are stale.

    python -m benchmarks.report [--check]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from io import StringIO
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.common import machine_line, result, table
from benchmarks.report_learning import adaptive, real, shift, wall_clock
from omnidraft.cli.render import speed_table
from omnidraft.files import write_text

ROOT = Path(__file__).resolve().parent.parent
ORDER = ["tokenizer", "vocabulary", "ngram_cache", "translation", "sampling", "lifting", "verification", "drafting",
         "decoding", "pairing", "stopping", "losses", "engine/backward", "learning/lora",
         "learning/training", "learning/online", "learning/guard", "learning/adapters",
         "metrics", "engine/llama", "engine/kernels", "engine/packed", "cli/render"]
SHOWN = ("draft-tasks:qwen-like", "babyllama-tok361:stories260K", "stories260K:babyllama-tok361")  # in the README itself
LEARNED = {"before": "un-adapted", "dm, rank 32": "`dm`", "hybrid, rank 32": "`hybrid`", "lifted, forward, rank 32": "`lifted`",
           "lifted, forward, all weights": "`lifted`, all weights", "yardstick": "yardstick, trained offline"}


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


def demo() -> str:
    """What `make demo` prints last."""
    figures = result("demo")
    if figures is None:
        return "Not run yet."
    console = Console(width=80, file=StringIO(), force_terminal=False, no_color=True)
    shown = speed_table(figures["tasks"])
    shown.caption = None  # the picture has it
    console.print(shown)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return f"{machine_line(figures)}; `make demo`:\n\n```text\n" + "\n".join(filter(None, lines)) + "\n```"


def exactness() -> str:
    """Total variation per rule."""
    figures = result("exactness")
    if figures is None:
        return "Not measured yet."
    rows = [[f"`{rule}`", str(f["cases"]), f"{f['mean']:.1e}" if f["mean"] < 1e-6 else f"{f['mean']:.3f}",
             f"{f['worst']:.1e}" if f["worst"] < 1e-6 else f"{f['worst']:.3f}"]
            for rule, f in figures["total_variation"].items()]
    parts = [table(["rule", "cases", "mean", "worst"], rows)]
    greedy = []
    for name, title in (("same_text", "in NumPy"), ("same_text_torch", "with both models in Torch")):
        if same := result(name):
            equal, of = (sum(pair[key] for pair in same["pairs"].values()) for key in ("same", "of"))
            real = " and both real pairs" * any("stories260K" in pair for pair in same["pairs"])
            greedy.append(f"{equal:,} of {of:,} {title} ({same['tokens']} tokens each, the embedded{real}, "
                          f"k from 1 to {same['k'][1]})")
    if greedy:
        parts.append("At temperature 0 the text is the target's own, token for token. Greedy texts that equal plain decoding, "
                     f"four rules, float64: {'; '.join(greedy)} (`benchmarks/same_text.py`).")
    return "\n\n".join(parts)


def speed(shown: tuple[str, ...] | None = None, name: str = "speed") -> str:
    """Wall clock against plain decoding, of the pairs named or of all."""
    figures = result(name)
    if figures is None:
        return "Not measured yet."
    rows = [[pair.replace(":", " → "), task, f"{r['plain_tokens_per_second']:.0f}",
             f"{r['speculative_tokens_per_second']:.0f}", f"**{r['speedup']:.2f}×**",
             " / ".join(f"{one:.2f}" for _, one in sorted(r.get("apart", {}).items())),  # seen, unseen
             f"{r['block_efficiency']:.2f}", f"{100 * r['acceptance_draft']:.0f} %",
             f"{r['same_text']}/{r['prompts']}" + (f" (+{r['ties']} ties)" if r["ties"] else "")]
            for pair, tasks in figures["pairs"].items() if shown is None or pair in shown for task, r in tasks.items()]
    rows += [[pair.replace(":", " → "), "together", "", "", f"**{ratio:.2f}×**", "", "", "", ""]
             for pair, ratio in figures.get("together", {}).items() if shown is None or pair in shown]
    m, drafter = figures["machine"], "too" if figures["settings"].get("draft_backend") == "torch" else "in NumPy"
    how = (f", the target in PyTorch (our own pass) with {m['torch_threads']} thread{'s' * (m['torch_threads'] > 1)}, "
           f"the drafter {drafter}" if figures["settings"].get("backend") == "torch" else "")
    return (f"{machine_line(figures)}{how}; greedy, wall clock, medians of {figures['settings']['repeats']} repeats over "
            "held-out prompts, half of them of kinds that training never showed (`benchmarks/speed.py`).\n\n" + table(
                ["pair", "task", "plain tok/s", "speculative tok/s", "speedup", "on kinds seen / unseen", "block efficiency",
                 "draft tokens kept", "same text"], rows))


def efficiency(shown: tuple[str, ...] | None = None) -> str:
    """Block efficiency of the four rules."""
    figures = result("efficiency")
    if figures is None:
        return "Not measured yet."
    rules = ["tli", "slem", "omnidraft", "lossless"]
    rows = [[pair.replace(":", " → "), task, at, *(f"{f[rule]['block_efficiency']:.2f} ± {f[rule]['error']:.2f}"
                                                 for rule in rules)]
            for pair, tasks in figures["pairs"].items() if shown is None or pair in shown
            for task, temps in tasks.items() for at, f in temps.items()]
    return (f"Block efficiency (target tokens per target pass) of the four rules, k = {figures['k']} "
            "(`benchmarks/efficiency.py`; `omnidraft` is biased at T = 1):\n\n"
            + table(["pair", "task", "", *(f"`{rule}`" for rule in rules)], rows))


def quality() -> str:
    """What the embedded targets get right."""
    figures = result("quality")
    if figures is None:
        return "Not measured yet."
    rows = []
    for target, tasks in figures["targets"].items():
        rows.append([target, *(f"{100 * tasks[task][key][part]:.0f} %" for task, key in (
            ("math", "right"), ("code", "parses"), ("code", "passes")) for part in ("seen", "unseen"))])
    return (f"What the embedded targets can do: greedy answers to {figures['prompts']} held-out prompts per task, "
            "half of them from templates never seen in training (`benchmarks/quality.py`):\n\n" + table(
                ["target", "math right, seen templates", "unseen", "code parses, seen", "unseen", "code passes, seen",
                 "unseen"], rows))


def learning(all_of_it: bool = False) -> str:
    """Block efficiency before and after learning, and how much of the gap to the drafter trained offline is closed."""
    figures = result("learning")
    if figures is None:
        return "Not measured yet."
    runs: dict[str, dict[str, list[dict]]] = {}
    for key, run in figures["runs"].items():
        where, name = key.split(": ", 1)
        runs.setdefault(where.rsplit(", seed", 1)[0], {}).setdefault(name, []).append(run)

    def middle(some: list[dict], at: str, key: str) -> float:
        return median(run[at][key] for run in some)

    rows, short = [], []
    for where, named in runs.items():
        low, high = (middle(named[name], "lossless T=1", "block_efficiency") for name in ("before", "yardstick"))
        cells = {}
        for name, some in named.items():
            cold, value = (middle(some, f"lossless {at}", "block_efficiency") for at in ("T=0.01", "T=1"))
            closed = "" if name in ("before", "yardstick") else f"{100 * (value - low) / (high - low):.0f} %"
            rows.append([where.replace('->', '→'), name, str(len(some)), f"{cold:.2f}", f"{value:.2f}", closed,
                         f"{middle(some, 'omnidraft T=0.01', 'acceptance_proposed'):.3f}"])
            cells[name] = f"{cold:.2f} / {value:.2f}" + f" ({closed})" * bool(closed)
        short.append([where.replace('->', '→'), *(cells.get(name, "") for name in LEARNED)])
    s = figures["settings"]
    made = f"{figures.get('texts', '')}).\n\n" + table(
        ["pair, task", "learned by", "seeds", "block efficiency T=0.01", "T=1", "gap closed",
         "acceptance of proposals, `omnidraft` T=0.01"], rows) if all_of_it else (
        "; acceptance, and which texts were written outside the script: [docs/results.md](docs/results.md#learning)). "
        "Block efficiency at T = 0.01 / 1; in brackets the share of the gap to the yardstick that is closed at T = 1; "
        "LoRA rank 32 but where it says all weights:\n\n" + table(["pair, task", *LEARNED.values()], short))
    return (f"{machine_line(figures)}. One pass over {s['texts']} texts of the target per task, an update every {s['every']} "
            f"texts (`benchmarks/learning.py`; medians over {min(int(row[2]) for row in rows)} seeds; held-out prompts, k = 6"
            + made)


def against() -> str:
    """Ratios to transformers' plain generation, per method."""
    figures = result("against_transformers")
    if figures is None:
        return "Not measured yet."
    pairs = figures["pairs"]
    methods = list(next(iter(next(iter(pairs.values())).values())))

    def cell(row: dict | None) -> str:
        if row is None or "ratio" not in row:
            return "—" if row is None else "fails"
        excess = row.get("log_p_excess") or 0.0
        wrong = f", excess {excess:+.1f}" if abs(excess) > 1 else ""
        return f"{row['ratio']:.2f}× ({row['block_efficiency']:.2f}{wrong})"

    rows = [[pair.replace(":", " → "), at, *(cell(found.get(method)) for method in methods[1:])]
            for pair, runs in pairs.items() for at, found in runs.items()]
    m, s = figures["machine"], figures["settings"]
    return (f"Same loaded models, prompts and process; torch {m['torch']}, transformers {m['transformers']}, "
            f"{m['torch_threads']} threads, {s['prompts']} prompts × {s['tokens']} tokens, medians of {s['repeats']} "
            "(`benchmarks/against_transformers.py`). Speed over transformers' plain generation, and in brackets target tokens "
            "per target pass. An *excess* of log p is told where the text is not the target's own: transformers' token-level "
            "intersection (its assisted generation at T = 1) pairs scrambled rows, so much of what it accepts is wrong.\n\n"
            + table(["pair", "", *methods[1:]], rows))


def latency() -> str:
    """Times at the paper's shapes, and the speedups that follow from the paper's acceptance rates."""
    figures = result("latency")
    if figures is None:
        return "Not measured yet."
    m, s, targets = figures["machine"], figures["settings"], figures["targets"]
    on, counts = m["cpu"] if m["device"] == "cpu" else m["device"], (1, 2, 4, 5, 8)
    times = [[target, "{:,} → {:,}".format(*f["vocabularies"]), *(f"{f['pass_ms'][str(n)]:.1f}" for n in counts),
              *(f"{ms:.2f}" for ms in f["overhead_ms"].values())] for target, f in targets.items()]
    head = ["target like", "vocabularies", *(f"pass of {n}, ms" for n in counts), "own work at T = 0, ms", "at T = 1"]
    rows = [[target, method, task, f"{p['acceptance']:.2f}", f"{p['chance']:.2f}× to {p['share']:.2f}×", f"{p['paper']:.2f}×"]
            for target, f in targets.items() for method, tasks in f["predicted"].items() for task, p in tasks.items()]
    return (f"Random weights in the `{s['shape']}` shapes (small ones keep only its vocabularies), {m['dtype']} on {on}, "
            f"torch {m['torch']}, after {s['context']} tokens, medians of {s['repeats']} (`benchmarks/latency.py`). A drafted "
            f"token takes {figures['draft_ms']:.2f} ms; *own work* is all of a `lossless` round with k = {s['k']} but the "
            f"models.\n\n{table(head, times)}\n\nThe speedups that follow from the acceptance rates of arXiv 2507.02659 "
            "(Llama-68M drafts), and its own (A100). The range is between two readings of that rate: the chance that a "
            "token is kept after all before it, and the share of drafted tokens kept.\n\n"
            + table(["target like", "method", "task", "acceptance", "predicted", "paper"], rows))


def overhead() -> str:
    """What a round costs beside its models, against what its rows cost alone."""
    figures = result("overhead")
    if figures is None:
        return "Not measured yet."
    m, s = figures["machine"], figures["settings"]
    forms = (("T=0", "{beyond_ms:+.2f} ms"), ("T=1", "**{ratio:.2f}×** ({ratios[0]:.2f}–{ratios[2]:.2f})"))
    rows = [[backend, f"`{rule}`", *(cell for at, form in forms
                                     for cell in (f"{f[at]['own_ms']:.2f}", f"{f[at]['alone_ms']:.2f}", form.format(**f[at])))]
            for backend, rules in figures["backends"].items() for rule, f in rules.items()]
    return (f"Llama-2's 32,000 entries draft for Qwen2's 151,646, k = {s['k']}: a round around models that answer with stored "
            f"logits costs, beside them, these milliseconds; its rows' argmax or softmax alone in the same run. {m['cpu']}, "
            f"{m['torch_threads']} thread, torch {m['torch']}, medians of {s['repeats']} rounds, the median of {s['turns']} "
            "turns and the range of their ratios (`benchmarks/overhead.py`).\n\n"
            + table(["backend", "rule", "T = 0: round", "argmax", "beyond it", "T = 1: round", "softmax", "ratio"], rows))


def main() -> None:
    """Fill the marked places of README.md and write docs/results.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    short = "\n\n".join([speed(("draft-tasks:qwen-like",)), efficiency(SHOWN), quality()])
    for name, made in (("demo", demo()), ("files", files()), ("exactness", exactness()), ("results", short),
                       ("learning", f"{learning()}\n\n{wall_clock(all_of_it=False)}")):
        text = re.sub(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", lambda m, made=made: m[1] + made + "\n" + m[2],
                      text, flags=re.S)
    parts = {"Speed": speed(), "Speed with PyTorch": speed(name="speed_torch") + "\n\n" + speed(name="speed_both_torch"),
             "Block efficiency": efficiency(), "Learning": learning(True),
             "Learning by the wall clock": wall_clock(), "Adaptive drafting": adaptive(), "Shift": shift(),
             "Real models and data": real(),
             "Beside transformers": against(), "Latency": latency(), "Overhead": overhead(), "Quality": quality(),
             "Exactness": exactness()}
    everything = "# Results\n\nWritten by `python -m benchmarks.report` from `benchmarks/results/*.json`.\n\n" + "\n\n".join(
        f"## {title}\n\n{part}" for title, part in parts.items()) + "\n"
    for place, made in ((path, text), (ROOT / "docs" / "results.md", everything)):
        if not args.check:
            place.parent.mkdir(exist_ok=True)
            write_text(place, made)
        elif not place.exists() or place.read_text(encoding="utf-8") != made:
            sys.exit(f"{place.name} is stale: run `python -m benchmarks.report`")


if __name__ == "__main__":
    main()
