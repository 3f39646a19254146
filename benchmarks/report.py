"""Write the tables of README.md and docs/ from benchmarks/results and the source files.

    python -m benchmarks.report [--check | --older]

--check only says whether they are out of date; --older lists the figures that were measured before the code last changed.
A script measures what its result file lacks: delete the file, or some of its entries, to measure them again.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

from benchmarks import tables
from benchmarks.common import RESULTS, ROOT, WAY, as_lines, earlier, parts_of, result
from benchmarks.tables import arrow, machine, machine_line, table, with_error
from omnidraft.cli.render import headline, speed_table
from omnidraft.text.files import write_text

ORDER = ["verification", "vocabulary", "ngram_cache", "translation", "lifting", "drafting",
         "decoding", "losses", "stopping"]
USED = ["reading", "sampling", "pairing", "options", "metrics", "vllm", "llamacpp"]
APPENDIX = ["tokenizer", "tokenizer_checks", "special_tokens", "trial", "confined", "files", "errors"]
# What the figures depend on: models and loops; for some files also learning, for others only the files that are named here;
# never where models and adapters are found.
WITH_ENGINES = ("omnidraft", ":!*.md", ":!omnidraft/cli", ":!omnidraft/exactness", ":!omnidraft/data",
                ":!omnidraft/learning/adapters.py", ":!omnidraft/engine/transformers_loading.py",
                ":!omnidraft/engine/embedded/adapters/draft-smol--*")
WITH_LEARNING = (*WITH_ENGINES, ":!omnidraft/vllm.py", ":!omnidraft/llamacpp.py")
WITH_TORCH = (*WITH_LEARNING, ":!omnidraft/learning")
MEASURED = (*WITH_TORCH, ":!omnidraft/engine/transformers_*.py")
DEPENDS = {"alignment": ("omnidraft/vocabulary.py", "omnidraft/ngram_cache.py", "omnidraft/text/tokenizer.py"),
           "overhead": tuple(f"omnidraft/{name}*.py" for name in ("verification", "lifting", "sampling", "translation")),
           **dict.fromkeys(("against_transformers", "latency"), WITH_TORCH),
           "vllm": (*WITH_ENGINES, ":!omnidraft/learning"),
           **dict.fromkeys(("learning", "real_llm", "shift", "adaptive", "device"), WITH_LEARNING)}
OLDER = {  # result files with figures that are older than the code (a test allows no others), and why
    "device": "needs a GPU",
    "learning": "other seeds, all weights, llama3-like: hours",
    "pace": "the rows of SmolLM2: an hour each",
    "real_llm": "days of learning; GSM8K, code and Alpaca for Qwen are new",
    "vllm": "the rows of SmolLM2: an hour"}
REAL_PAIRS = ("babyllama-tok361:stories260K", "stories260K:babyllama-tok361")
PARTS = {  # the sections of docs/results.md: a result file, and how it is shown
    "Speed": [("speed", tables.speed)],
    "Real language models": [("real_llm", tables.real_at_a_glance), ("real_llm", tables.real_llm)],
    "In vLLM": [("vllm", tables.vllm)],
    "Exactness": [("exactness", tables.exactness)],
    "Block efficiency": [("efficiency", tables.efficiency)],
    "Next to transformers": [("against_transformers", tables.against)],
    "Learning": [("learning", tables.learning)],
    "Drafting only where it pays": [("pace", tables.pace)],
    "Overhead": [("overhead", tables.overhead)],
    "On a GPU": [("device", tables.device)],
    "Quality": [("quality", tables.quality)],
    "Adaptive drafting": [("stop_rules", tables.stop_rules), ("adaptive", tables.adaptive)],
    "Shift": [("shift", tables.shift)],
    "Alignment": [("alignment", tables.alignment)],
    "Latency": [("latency", tables.latency)]}

ONCE = """By benchmarks that are no longer here; the commits have them.

- *Block verification* (f46d144): gain in expected tokens per target pass, T = 1, k = 6, over judging each comparison alone,
  on the same rounds: babyllama-tok361 → stories260K +2.8 ± 0.4 %, stories260K → babyllama-tok361 +6.7 ± 1.0 %; embedded
  pairs +0.04 to +0.89 %, since these nearly always agree.
- *Overlap* (f46d144): draft-tasks → llama3-like with other vocabularies, by the share of a text's tokens that both share, T
  = 1, `tli` / `slem` / `lifted`: 21 % shared 1.25 ± 0.08 / 2.26 ± 0.34 / 2.25 ± 0.30 tokens per pass, 80 % shared 2.89 ±
  0.13 / 3.70 ± 0.26 / 4.31 ± 0.21.
- *llama.cpp as the target* (7e6268e, SmolLM2): 0.72 ± 0.05 times its plain speed with the published Q4_1 file, 1.40 ± 0.04
  times in float32.
- *Published data* (f3801a4, draft-general → qwen-like, rank 32, 100 prompts): target passes saved on held-out prompts, ±
  two standard errors: GSM8K +32.7 ± 15.0 %, MBPP +21.1 ± 26.8 %, Alpaca +70.8 ± 19.7 %, TinyStories +27.5 ± 15.5 %.
- *Stop rules* (a3494d2, six embedded pairs and tasks): speed relative to the best fixed length in hindsight, on average:
  confidence 0.998, entropy bound of arXiv 2410.18351 0.961, acceptance head 0.967 (joint) and 0.975 (interleaved)."""


def files() -> str:
    """The modules of the lesson in reading order, each with its docstring's first sentence."""
    parts = [("", ORDER), ("What these use:", USED),
             ("An appendix, [`text/`](../omnidraft/text/):", [f"text/{name}" for name in APPENDIX])]
    shown = []
    for title, names in parts:
        rows = []
        for name in names:
            source = (ROOT / "omnidraft" / f"{name}.py").read_text(encoding="utf-8")
            first = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].rstrip(".:")
            first = re.sub(r" \(arXiv[^)]*\)", "", first).replace("|", "\\|").replace("<->", "↔")
            rows.append([f"[`{name}.py`](../omnidraft/{name}.py)", first])
        shown += [title, table(["file", "what it is"], rows)]
    return "\n\n".join(shown).lstrip()


def demo(figures: dict) -> str:
    """What `make demo` prints last."""
    rows = figures["tasks"]
    caption = "`make demo` (plain, drafts: tokens per second; kept: of draft tokens; accepted: of proposals):"
    return "\n".join([f"{machine_line(figures)}; {caption}\n\n```text", speed_table(rows), headline(rows).plain, "```"])


def written(name: str, how: Callable[[dict], str]) -> str:
    """A benchmark's figures as shown by `how`, if there are any."""
    figures = result(name)
    if figures is None:
        return "Not measured yet."
    old = "*Measured with earlier embedded models.*\n\n" * earlier(figures)
    return old + how(figures)


def section(name: str, how: Callable[[dict], str]) -> str:
    """The same with where the figures come from, for docs/results.md."""
    figures = result(name)
    return "\n\n".join(filter(None, [written(name, how), figures and origin(figures)]))


def origin(figures: dict) -> str:
    """The commit, and which entries were measured otherwise than the rest of their file.

    >>> print(origin({"commit": "12ab", "settings": {"k": 4}, "speed": {"a": {}, "b": {}},
    ...               "measured": {"speed / b": {"commit": "34cd", "settings": {"k": 6}}}}))
    Commit 12ab. Measured otherwise: b (commit 34cd; k = 6).
    """
    others: dict[str, list[str]] = {}
    *parts, (_, rest, head) = parts_of(figures)
    for name, _, found in parts:
        changes = [f"commit {found['commit']}"] if found.get("commit") != head.get("commit") else []
        if "machine" in head and found["machine"] != head["machine"]:
            changes.append(machine(found["machine"]))
        changes += [f"{key} = {value}" for key, value in found.get("settings", {}).items()
                    if head.get("settings", {}).get(key, "") != value]
        changes += [f"other weights of {model}" for model, checksum in found.get("models", {}).items()
                    if head.get("models", {}).get(model, checksum) != checksum]
        if changes:
            others.setdefault("; ".join(changes), []).append(arrow(name.partition(WAY)[2]))
    lines = [f"Commit {head['commit']}."] if "commit" in head and any(rest.values()) else []
    if others:
        groups = [f"{', '.join(names)} ({how})" for how, names in others.items()]
        lines.append(f"Measured otherwise: {'; '.join(groups)}.")
    return " ".join(lines)


# ---- one line for each result ----------------------------------------------------------------------------------------
def speed_line(figures: dict) -> str:
    """All pairs, all tasks."""
    parts = ", ".join(f"{arrow(pair)} {ratio:.2f}×" for pair, ratio in figures["together"].items())
    return f"speedup over plain decoding by wall clock, three tasks together: {parts}. {machine_line(figures)}."


def greedy_speedups(figures: dict, wanted: str) -> dict[str, list[float]]:
    """Speedups of the real pairs over all data, by a method ("before": nothing was learned)."""
    found: dict[str, list[float]] = {}
    for name, cell in figures["cells"].items():
        pair, _, method, _ = tables.cell_name(name)
        if method == wanted:
            found.setdefault(pair, []).append(cell["T=0"]["speedup"])
    return found


def real_line(figures: dict) -> str:
    """All pairs, the range over the data sets, without and with the package's adapters."""
    def ranges(method: str) -> str:
        return ", ".join(f"{pair} {' to '.join(f'{speed:.2f}×' for speed in sorted({min(some), max(some)}))}"
                         for pair, some in greedy_speedups(figures, method).items())

    return (f"speedup over plain decoding by wall clock, greedy, held-out prompts, nothing learned: {ranges('before')}; "
            f"with the package's adapter: {ranges('adapter')}.")


def efficiency_line(figures: dict) -> str:
    """The rules on published models."""
    parts = []
    for pair in REAL_PAIRS:
        found = next(iter(figures["pairs"][pair].values()))["T=1"]
        parts.append(f"{arrow(pair)} " + " / ".join(with_error(found[rule]) for rule in ("tli", "omnidraft", "lifted")))
    return ("tokens per target pass at T = 1 with two published models, `tli` / `omnidraft` / `lifted`: "
            f"{', '.join(parts)}.")


def vllm_line(figures: dict) -> str:
    """All pairs, by the number of streams."""
    parts = [f"{arrow(pair)} " + " / ".join(f"{one['wall']:.2f}×" for one in cells.values())
             for pair, cells in figures["pairs"].items()]
    streams = " / ".join(next(iter(figures["pairs"].values())))
    return f"tokens per second over plain vLLM, {streams} streams: {', '.join(parts)}. {machine_line(figures)}."


def exactness_line(figures: dict) -> str:
    """The largest distances."""
    worst = {rule: found["worst"] for rule, found in figures["rules"].items()}
    biased = worst.pop("omnidraft")
    return (f"largest distance from the target's distribution, by enumeration in {figures['settings']['worlds']:,} worlds: "
            f"{max(worst.values()):.1e}; with the paper's rule {biased:.2f}.")


def against_line(figures: dict) -> str:
    """Both libraries, on the same modules."""
    ours, theirs = (tables.span(figures, name) for name in ("omnidraft", "transformers assisted"))
    return f"speedup over its plain generation at T = 0: its assisted generation {theirs}, omnidraft {ours}."


def learning_line(figures: dict) -> str:
    """Speedup after learning, by the clock."""
    parts = [f"{median(run['to_plain'] for run in runs):.2f}× ({where})" for where, runs in tables.by_stream(figures).items()]
    return f"speedup over plain decoding after online learning: {'; '.join(parts)}."


def overhead_line(figures: dict) -> str:
    """Large vocabularies."""
    parts = [f"{backend} {rules['lifted']['T=1']['own_ms']:.2f} ms" for backend, rules in figures["backends"].items()]
    return f"a round without its models, 32,000 → 151,646 entries, T = 1: {', '.join(parts)}."


def quality_line(figures: dict) -> str:
    """Right answers."""
    parts = [f"{target} {100 * tasks['math']['right']['seen']:.0f} % of word problems and "
             f"{100 * tasks['code']['passes']['seen']:.0f} % of functions" for target, tasks in figures["targets"].items()]
    return f"correct on kinds seen in training: {', '.join(parts)}."


LINES = {"Speed": ("speed", speed_line), "Real language models": ("real_llm", real_line), "In vLLM": ("vllm", vllm_line),
         "Block efficiency": ("efficiency", efficiency_line), "Exactness": ("exactness", exactness_line),
         "Learning": ("learning", learning_line), "Next to transformers": ("against_transformers", against_line),
         "Adaptive drafting": ("stop_rules", tables.stop_rules_line), "Overhead": ("overhead", overhead_line),
         "Quality": ("quality", quality_line)}


def summary(place: str) -> str:
    """The results, each with a link to its table on the page `place`."""
    lines = []
    for title, (name, how) in LINES.items():
        if figures := result(name):
            old = " (Earlier embedded models.)" * earlier(figures)
            lines.append(f"- [{title}]({place}#{title.lower().replace(' ', '-')}): {how(figures)}{old}")
    return "\n".join(lines)


def first_result() -> str:
    """The README's sentence: the embedded models, published ones, vLLM."""
    embedded = result("speed")["together"]["draft-tasks:qwen-like"]
    smol = greedy_speedups(result("real_llm"), "before")["draft-smol → SmolLM2-135M-Instruct"]
    qwen = [speed for speeds in greedy_speedups(result("real_llm"), "adapter").values() for speed in speeds]
    found = [f"{embedded:.1f} times with the embedded models", f"{min(smol):.1f} to {max(smol):.1f} times with SmolLM2",
             f"{min(qwen):.1f} to {max(qwen):.1f} times with Qwen2.5-Coder"]
    if served := result("vllm"):
        found.append(f"{served['pairs']['draft-smol -> smollm2, float32']['1']['wall']:.1f} times in vLLM")
    return f"By the clock, over plain decoding, same texts: {', '.join(found)} ([figures](docs/results.md))."


def online(figures: dict) -> str:
    """What a published target gains from online learning, for docs/learning.md."""
    before, after = (figures["cells"][f"draft-smol -> qwen05, gsm8k, {method}, seed 0"]
                     for method in ("before", "lifted + LoRA"))
    learned = after["learned"]
    return (f"draft-smol served {learned['prompts']} prompts of GSM8K with {tables.NAMES['qwen05']} and learned for "
            f"{learned['learning_seconds'] / 60:.0f} minutes on one core: {with_error(after['T=0'])} tokens per target pass on "
            f"other prompts, {with_error(before['T=0'])} before, greedy ([table](results.md#real-language-models)).")


def older(name: str, figures: dict) -> str:
    """Which figures of a file were measured before the code of models, loops and learning last changed; "" if none were."""
    found: dict[str, list[str]] = {}
    for entry, content, where in parts_of(figures):
        if content:
            found.setdefault(where.get("commit", "unknown"), []).append(entry or "the file")
    lines = []
    head = (git("rev-parse", "HEAD") or b"").decode().strip()
    for commit, entries in found.items():
        since = changed(commit.partition(" ")[0], head, DEPENDS.get(name, MEASURED))
        if since:
            lines.append(f"{name}: {', '.join(entries)} at commit {commit}, changed since: {', '.join(since)}")
    return "\n".join(lines)


@cache
def changed(before: str, after: str, paths: tuple[str, ...]) -> list[str]:
    """The files at `paths` (of git) whose code differs between two commits; ["unknown"] if there is no such commit."""
    found = git("diff", "--name-only", "--no-renames", before, after, "--", *paths)
    if found is None:
        return ["unknown"]
    return [path for path in found.decode().splitlines() if code_of(path, before) != code_of(path, after)]


@cache
def code_of(path: str, commit: str) -> Any:
    """A file at a commit, without comments and docstrings, on which no figure depends; None if it was not there."""
    source = git("show", f"{commit}:{path}")
    if source is None or not path.endswith(".py"):
        return source
    tree = ast.parse(source)
    for part in ast.walk(tree):
        if isinstance(part, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(part) is not None:
            del part.body[0]
    return ast.dump(tree)


def git(*words: str) -> bytes | None:
    """What a command of git prints; None if it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
    return done.stdout if done.returncode == 0 else None


def main() -> None:
    """Fill in the marked places of README.md and docs/, and write docs/results.md."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--older", action="store_true")
    args, docs = parser.parse_args(), ROOT / "docs"
    if args.older:
        everything = [older(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob("*.json"))]
        print("\n".join(filter(None, everything)) or "all figures were measured with this code")
        return
    pages = {}
    for path, name, made in (
        (ROOT / "README.md", "demo", written("demo", demo)),
        (ROOT / "README.md", "result", first_result()),
        (docs / "reading.md", "files", files()),
        (docs / "exactness.md", "exactness", written("exactness", tables.exactness)),
        (docs / "learning.md", "online", written("real_llm", online)),
        (docs / "note.md", "note", summary("results.md")),
    ):
        text = pages.get(path) or path.read_text(encoding="utf-8")
        marks = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        pages[path] = re.sub(marks, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text, flags=re.S)
    everything = ("# Results\n\nWritten by `python -m benchmarks.report` from "
                  f"`benchmarks/results/*.json`. Summary:\n\n{summary('')}\n")
    for title, part in PARTS.items():
        everything += f"\n## {title}\n\n" + "\n\n".join(section(name, how) for name, how in part) + "\n"
    pages[docs / "results.md"] = f"{everything}\n## Measured once\n\n{ONCE}\n"
    for path in sorted(RESULTS.glob("*.json")):  # demo.json is written by the command line, with a value a line
        pages[path] = as_lines(json.loads(path.read_text(encoding="utf-8"))) + "\n"
    for place, made in pages.items():
        if not args.check:
            write_text(place, made)
        elif not place.exists() or place.read_text(encoding="utf-8") != made:
            sys.exit(f"{place.name} is stale: run `python -m benchmarks.report`")


if __name__ == "__main__":
    main()
