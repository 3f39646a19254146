"""Write the tables of README.md and docs/ from benchmarks/results and the source files.

    python -m benchmarks.report [--check]     (--check only says whether they are out of date)
"""

from __future__ import annotations

import ast
import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from io import StringIO
from statistics import median

from rich.console import Console

from benchmarks import report_note, report_overlap, report_real
from benchmarks.common import RESULTS, ROOT, WAY, as_lines, earlier, parts_of, result
from benchmarks.report_learning import (
    adaptive,
    arrow,
    machine,
    machine_line,
    real,
    shift,
    stop_rules,
    stop_rules_line,
    table,
    wall_clock,
    wall_clock_line,
    with_error,
)
from omnidraft.cli.render import headline, speed_table
from omnidraft.text.files import write_text

ORDER = ["verification", "vocabulary", "ngram_cache", "translation", "lifting", "drafting",
         "decoding", "losses", "stopping"]
USED = ["sampling", "pairing", "options", "metrics"]
APPENDIX = ["tokenizer", "tokenizer_checks", "special_tokens", "trial", "confined", "files", "errors"]
REAL_PAIRS = ("babyllama-tok361:stories260K", "stories260K:babyllama-tok361")
LEARNED = {"before": "un-adapted", "dm, rank 32": "`dm`", "hybrid, rank 32": "`hybrid`",
           "lifted, forward, rank 32": "`lifted`",
           "lifted, forward, all weights": "`lifted`, all weights",
           "yardstick": "yardstick, trained offline"}


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
    console = Console(width=80, file=StringIO(), force_terminal=False, no_color=True)
    shown = speed_table(figures["tasks"])
    shown.caption = None  # the picture shows it
    console.print(shown, headline(figures["tasks"]), soft_wrap=True)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]
    return "\n".join([f"{machine_line(figures)}; `make demo`:\n\n```text", *lines, "```"])


def exactness(figures: dict) -> str:
    """Total variation and conditions per rule; how many greedy texts equal plain decoding's."""
    def number(value: float) -> str:
        return f"{value:.1e}" if value < 1e-6 else f"{value:.3f}"

    rows = [[f"`{rule}`", f"{figures['worlds']:,}", f"{f['runs']:,}", number(f["mean"]),
             number(f["worst"])] for rule, f in figures["rules"].items()]
    text, greedy = table(["rule", "worlds", "runs", "mean", "worst"], rows), []
    counted = figures["rules"]["lifted"]["conditions"].items()
    text += ("\n\nConditions met under `lifted`, with the number of worlds: "
             + ", ".join(f"{name} ({count:,})" for name, count in counted) + ".")
    titles = {"same_text": "in NumPy", "same_text_torch": "with both models in PyTorch"}
    for name, title in titles.items():
        if same := result(name):
            runs = same["pairs"].values()
            equal, of = (sum(run[key] for run in runs) for key in ("same", "of"))
            real = " and both published" * any("stories260K" in pair for pair in same["pairs"])
            greedy.append(f"{equal:,} of {of:,} {title} ({same['tokens']} tokens each, "
                          f"embedded{real} pairs, k from 1 to {same['k'][1]})")
    if greedy:
        text += ("\n\nAt temperature 0 the text is the target's own, token for token. Greedy "
                 "texts identical to plain decoding, four rules, float64: "
                 f"{'; '.join(greedy)} (`benchmarks/same_text.py`).")
    return text


def speed(figures: dict, shown: tuple[str, ...] | None = None) -> str:
    """Wall-clock speed compared with plain decoding, for the given pairs or for all."""
    rows = [[arrow(pair), task, f"{r['plain_tokens_per_second']:.0f}",
             f"{r['speculative_tokens_per_second']:.0f}", f"**{r['speedup']:.2f}×**",
             " / ".join(f"{one:.2f}" for _, one in sorted(r.get("apart", {}).items())),
             f"{r['block_efficiency']:.2f}", f"{100 * r['acceptance_draft']:.0f} %",
             f"{r['same_text']}/{r['prompts']}" + (f" (+{r['ties']} ties)" if r["ties"] else "")]
            for pair, tasks in figures["pairs"].items() if shown is None or pair in shown
            for task, r in tasks.items()]
    rows += [[arrow(pair), "all tasks", "", "", f"**{ratio:.2f}×**", "", "", "", ""]
             for pair, ratio in figures.get("together", {}).items()
             if shown is None or pair in shown]
    m, s, how = figures["machine"], figures["settings"], ""
    if s.get("backend") == "torch":
        how = (f", the target in PyTorch with {m['torch_threads']} thread{'s' * (m['torch_threads'] > 1)}, the drafter "
               f"{'too' if s.get('draft_backend') == 'torch' else 'in NumPy'}")
    return (f"{machine_line(figures)}{how}; greedy, wall clock, medians of {s['repeats']} repeats "
            "over held-out prompts, some of kinds not seen in training "
            "(`benchmarks/speed.py`).\n\n"
            + table(["pair", "task", "plain tok/s", "speculative tok/s", "speedup",
                     "seen / unseen kinds", "block efficiency",
                     "draft tokens kept", "same text"], rows))


def efficiency(figures: dict, shown: tuple[str, ...] | None = None) -> str:
    """Block efficiency of the four rules."""
    rules = ["tli", "slem", "omnidraft", "lifted"]
    rows = [[arrow(pair), task, at,
             *(with_error(f[rule]) for rule in rules)]
            for pair, tasks in figures["pairs"].items() if shown is None or pair in shown
            for task, temps in tasks.items() for at, f in temps.items()]
    return ("Block efficiency (target tokens per target pass) of the four rules, k = "
            f"{figures['settings']['k']} (`benchmarks/efficiency.py`). `omnidraft` is biased at T = 1.\n\n"
            + table(["pair", "task", "", *(f"`{rule}`" for rule in rules)], rows))


def quality(figures: dict) -> str:
    """How often the embedded targets are right."""
    shown = {("math", "right"): "word problems: correct",
             ("typed", "right"): "word problems by other authors: correct",
             ("sums", "right"): "bare arithmetic: correct", ("code", "parses"): "functions: parse",
             ("code", "passes"): "functions: pass their asserts",
             ("plain", "passes"): "functions asked for in plain words: pass",
             ("text", "all"): "stories: no fault that a program can detect",
             ("other", "honest"): "anything else: the honest answer"}
    rows = [[target, label, *(f"{100 * row[part]:.0f} %" if part in row else ""
                              for part in ("seen", "unseen"))]
            for target, tasks in figures["targets"].items() for (task, key), label in shown.items()
            if (row := tasks.get(task, {}).get(key))]
    return ("What the embedded targets can do: greedy answers to up to "
            f"{figures['prompts']} held-out prompts per task, separately for the kinds seen in "
            "training and for others (`benchmarks/quality.py`).\n\n"
            + table(["target", "task", "trained kinds", "others"], rows))


def learning(figures: dict, all_of_it: bool = False) -> str:
    """Block efficiency before and after learning, and the share of the gap that learning closes."""
    runs: dict[str, dict[str, list[dict]]] = {}
    for key, run in figures["runs"].items():
        where, name = key.split(": ", 1)
        runs.setdefault(arrow(where.rsplit(", seed", 1)[0]), {}).setdefault(name, []).append(run)

    def middle(some: list[dict], at: str, key: str = "block_efficiency") -> float:
        return median(run[at][key] for run in some)

    def shown(some: list[dict], at: str) -> str:
        """A run's mean and its error, or the median of several seeds."""
        return with_error(some[0][at]) if len(some) == 1 else f"{middle(some, at):.2f}"

    rows, short = [], []
    for where, named in runs.items():
        low, high = (middle(named[name], "lossless T=1") for name in ("before", "yardstick"))
        cells = {}
        for name, some in named.items():
            value, closed = middle(some, "lossless T=1"), ""
            cold, warm = (shown(some, f"lossless {at}") for at in ("T=0.01", "T=1"))
            if name not in ("before", "yardstick"):
                closed = f"{100 * (value - low) / (high - low):.0f} %"
            rows.append([where, name, str(len(some)), cold, warm, closed,
                         f"{middle(some, 'omnidraft T=0.01', 'acceptance_proposed'):.3f}"])
            cells[name] = f"{cold} / {warm}" + f" ({closed})" * bool(closed)
        short.append([where, *(cells.get(name, "") for name in LEARNED)])
    s, counts = figures["settings"], sorted({int(row[2]) for row in rows})
    seeds = "one seed" if counts == [1] else f"medians over {' or '.join(map(str, counts))} seeds"
    intro = (f"{machine_line(figures)}. One pass over {s['texts']} texts of the target per task, "
             f"an update every {s['every']} texts (`benchmarks/learning.py`; {seeds}; held-out prompts; k = 6")
    if all_of_it:
        return f"{intro}).\n\n" + table(
            ["pair, task", "trained with", "seeds", "block efficiency T=0.01", "T=1", "gap closed",
             "proposals accepted, `omnidraft` T=0.01"], rows)
    return (f"{intro}; for acceptance see the [results](results.md#learning)). Block efficiency at T = 0.01 / 1, and in "
            "brackets the share of the gap to the yardstick closed at T = 1. LoRA rank 32 "
            "unless marked as all weights.\n\n"
            + table(["pair, task", *LEARNED.values()], short))


# names for the rows of `against_transformers`, by what runs the models
ENGINES = {"omnidraft plain": "omnidraft plain, PyTorch", "omnidraft": "omnidraft, both in PyTorch",
           "omnidraft, NumPy drafter": "omnidraft, drafter in NumPy (mixed)",
           "omnidraft, NumPy": "omnidraft, both in NumPy"}


def equal_modules(pairs: dict) -> str:
    """The headline: the methods that run the same PyTorch modules, from the pairs' rows at T = 0."""
    def span(method: str) -> str:
        found = [runs[method]["ratio"] for by in pairs.values() for at, runs in by.items()
                 if at.endswith("T = 0") and "ratio" in runs.get(method, {})]
        return f"{min(found):.2f}× to {max(found):.2f}×" if found else "—"

    return (f"**With the same modules (both models in PyTorch) at T = 0: omnidraft {span('omnidraft')}, transformers' assisted "
            f"generation {span('transformers assisted')}, omnidraft without a drafter {span('omnidraft plain')}.**")


def inside(figures: dict) -> str:
    """Drafting inside transformers' own `generate`: speed, and the test of the first two tokens."""
    names = {"transformers assisted": "its assisted generation", "omnidraft, custom_generate": "`pair.decoder()`",
             "omnidraft, folder": "[the folder](../integrations/custom_generate/README.md)"}
    rows, s = [], figures["settings"]
    for pair, at, found in ((pair, at, found) for pair, runs in figures["pairs"].items() for at, found in runs.items()):
        cells = [found.get(name, {}) for name in names]
        rows.append([arrow(pair), at, *(f"{one['ratio']:.2f}× ({one['block_efficiency']:.2f})" if "ratio" in one else "fails"
                                        for one in cells)])
    tests = [f"{arrow(pair)} {names[method]}{seeds} p = {test['p']:.2f} ({test['draws']:,} texts)"
             for pair, tests in figures.get("first_two_tokens", {}).items() for name, test in tests.items()
             for method, seeds in [re.fullmatch(r"(.*?)(, seeds from \d+)?", name).groups("")]]
    chi_squared = ("\n\nChi-squared test of the first two tokens at T = 1 against the target's exact distribution: "
                   + "; ".join(tests) + ".")
    return ("Inside transformers' `generate`, with `custom_generate`: speedup of whole calls over its plain generation, and in "
            f"brackets target tokens per target pass. {s['prompts']} prompts × {s['tokens']} tokens, medians of "
            f"{s['repeats']}, PyTorch threads: {figures['machine']['torch_threads']} "
            "(`benchmarks/against_transformers.py --inside`). The folder drafts with transformers' own forward pass.\n\n"
            + table(["pair", "", *names.values()], rows) + chi_squared * bool(tests))


def against(figures: dict) -> str:
    """Ratios to transformers' plain generation, per method."""
    pairs = figures["pairs"]
    methods = list(next(iter(next(iter(pairs.values())).values())))[1:]

    def cell(row: dict | None) -> str:
        if row is None or "ratio" not in row:
            return "—" if row is None else "fails"
        far = row.get("first_token_distance") or 0.0
        wrong = f", TV {far:.2f}, excess {row['log_p_excess']:+.2f} ± {row['log_p_excess_error']:.2f}" if far > 1e-3 else ""
        return f"{row['ratio']:.2f}× ({row['block_efficiency']:.2f}{wrong})"

    rows = [[arrow(pair), at, *(cell(found.get(method)) for method in methods)]
            for pair, runs in pairs.items() for at, found in runs.items()]
    m, s = figures["machine"], figures["settings"]
    return (f"Same loaded models, prompts and process; torch {m['torch']}, transformers "
            f"{m['transformers']}, {m['torch_threads']} threads, {s['prompts']} prompts × "
            f"{s['tokens']} tokens, medians of {s['repeats']} "
            "(`benchmarks/against_transformers.py`). Speedup over transformers' plain generation, "
            "and in brackets target tokens per target pass.\n\n"
            + equal_modules(pairs) + "\n\n"
            + table(["pair", "", *(ENGINES.get(method, method) for method in methods)], rows)
            + "\n\nAt T = 1 transformers' assisted generation does not sample from the target's "
            "distribution, so those ratios are for different text. Its token-level intersection "
            "pairs probabilities with the wrong tokens ([report](upstream/report.md)). "
            "*TV*: total variation between the first token's distribution and the target's, mean "
            "over the prompts. *Excess*: how much likelier its tokens are than the target's own "
            "samples (mean log p).")


def latency(figures: dict) -> str:
    """Times at the paper's shapes, and the speedups that follow from its acceptance rates."""
    m, s, targets = figures["machine"], figures["settings"], figures["targets"]
    on, counts = m["cpu"] if m["device"] == "cpu" else m["device"], (1, 2, 4, 5, 8)
    times = [[target, "{:,} → {:,}".format(*f["vocabularies"]),
              *(f"{f['pass_ms'][str(n)]:.1f}" for n in counts),
              *(f"{ms:.2f}" for ms in f["overhead_ms"].values())] for target, f in targets.items()]
    head = ["target like", "vocabularies", *(f"pass of {n}, ms" for n in counts),
            "overhead at T = 0, ms", "at T = 1"]
    rows = [[target, method, task, f"{p['acceptance']:.2f}",
             f"{p['chance']:.2f}× to {p['share']:.2f}×", f"{p['paper']:.2f}×"]
            for target, f in targets.items()
            for method, tasks in f["predicted"].items() for task, p in tasks.items()]
    return (f"Random weights in the `{s['shape']}` shapes (`small` keeps only the paper's "
            f"vocabularies), {m['dtype']} on {on}, torch {m['torch']}, after {s['context']} "
            f"tokens, medians of {s['repeats']} (`benchmarks/paper/latency.py`). A drafted token "
            f"takes {figures['draft_ms']:.2f} ms. *Overhead* is a whole `lifted` round with k = "
            f"{s['k']}, without the models.\n\n{table(head, times)}\n\nSpeedups predicted from "
            "the acceptance rates of arXiv 2507.02659 (Llama-68M drafts), next to the paper's own "
            "(A100). The ranges cover two readings of that rate: the chance that a token is kept "
            "once all before it were, and the share of drafted tokens that are kept.\n\n"
            + table(["target like", "method", "task", "acceptance", "predicted", "paper"], rows))


def overhead(figures: dict) -> str:
    """What a round costs without its models, compared with the softmax or argmax of its rows."""
    m, s = figures["machine"], figures["settings"]
    forms = {"T=0": "{beyond_ms:+.2f} ms",
             "T=1": "**{ratio:.2f}×** ({ratios[0]:.2f}–{ratios[2]:.2f})"}
    rows = [[backend, f"`{rule}`", *(cell for at, form in forms.items() for cell in (
        f"{f[at]['own_ms']:.2f}", f"{f[at]['alone_ms']:.2f}", form.format(**f[at])))]
            for backend, rules in figures["backends"].items() for rule, f in rules.items()]
    return (f"Milliseconds of a round without its models (they return stored logits), k = {s['k']}, "
            "with Llama-2's 32,000 entries drafting for Qwen2's 151,646; next to it the argmax or "
            f"softmax of the round's rows, in the same run. {m['cpu']}, {m['torch_threads']} "
            f"thread, torch {m['torch']}, medians of {s['repeats']} rounds, the median of "
            f"{s['turns']} turns and the range of their ratios (`benchmarks/overhead.py`).\n\n"
            + table(["backend", "rule", "T = 0: round", "argmax", "difference", "T = 1: round",
                     "softmax", "ratio"], rows))


def elsewhere() -> str:
    """The measurements of docs/real_pair.ipynb on other machines: one table per file."""
    parts = ["Pairs of published models on other machines, measured with "
             "[real_pair.ipynb](real_pair.ipynb). It writes real_pair.json, which can be "
             "contributed as `benchmarks/results/real_pair_*.json`."]
    for path in sorted(RESULTS.glob("real_pair_*.json")):
        figures = json.loads(path.read_text(encoding="utf-8"))
        m, s, learned = figures["machine"], figures["settings"], figures["learning"]
        rows = [[at, name, one["fails"], "", "", ""] if "fails" in one else
                [at, name, f"{one['tokens_per_second']:.1f}", f"{one['ratio']:.2f}×",
                 f"{one['block_efficiency']:.2f}" if one["block_efficiency"] else "",
                 "" if one["same_text"] is None else f"{one['same_text']}/{s['prompts']}"]
                for at, found in figures["runs"].items() for name, one in found.items()]
        parts += [f"**{s['draft']} → {s['target']}** ({s['dtype']}) on {m['gpu'] or m['cpu']}, "
                  f"torch {m['torch']}, transformers {m['transformers']}, omnidraft "
                  f"{m['omnidraft']}; {s['prompts']} prompts, {s['tokens']} tokens; adapted on "
                  f"{learned['prompts']} prompts in {learned['seconds']:.0f} s, block efficiency "
                  f"{learned['first_quarter']:.2f} in their first quarter, "
                  f"{learned['last_quarter']:.2f} in the last:",
                  table(["", "method", "tokens/s", "over plain", "tokens per pass", "same text"],
                        rows)]
    if len(parts) == 1:
        parts[0] += " None has been sent in yet."
    return "\n\n".join(parts)


def written(name: str, how: Callable[..., str], *more: object) -> str:
    """A benchmark's figures as shown by `how`, if there are any."""
    figures = result(name)
    if figures is None:
        return "Not measured yet."
    old = "*Measured with earlier embedded models.*\n\n" * earlier(figures)
    return old + how(figures, *more)


def section(name: str, how: Callable[..., str], *more: object) -> str:
    """The same with where the figures come from, for docs/results.md."""
    figures = result(name)
    return "\n\n".join(filter(None, [written(name, how, *more), figures and origin(figures)]))


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
        if found.get("machine") != head.get("machine"):
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


FIVE = ("Speed", "Block efficiency", "Exactness", "Learning by the wall clock", "Next to transformers")


def summary(places: str, sections: tuple[str, ...] = ()) -> str:
    """The results, each with a link to its table on the page `places`; all, or those of some sections on one machine."""
    found, lines = {name: result(name) for name in (
        "speed", "speed_avx2", "speed_torch", "efficiency", "exactness", "wall_clock",
        "against_transformers", "quality", "overhead", "stop_rules")}, []

    def line(section: str, text: str, figures: dict | None = None) -> None:
        if sections and section not in sections:
            return
        lines.append(f"- [{section}]({places}#{section.lower().replace(' ', '-')}): {text}"
                     f"{old(figures or {})}")

    def old(figures: dict) -> str:
        return " (Earlier embedded models.)" * earlier(figures)

    clocks = [*filter(None, (found["speed"], found["speed_avx2"]))]
    present = [one for one in clocks if not earlier(one)] or clocks  # earlier models only if none has present ones
    present = present[:1] if sections else present
    if each := [", ".join(f"{arrow(pair)} {ratio:.2f}×" for pair, ratio in one["together"].items())
                + f". {machine_line(one)}.{old(one)}" for one in present]:
        line("Speed", "speedup over plain decoding by wall clock, three tasks together: "
                      + " Measured elsewhere, or with other kernels: ".join(each))
    if speeds := found["speed_torch"]:
        parts = [f"{arrow(pair)} {ratio:.2f}×" for pair, ratio in speeds["together"].items()]
        line("Speed with PyTorch", f"with the target in PyTorch: {', '.join(parts)}.", speeds)
    if rules := found["efficiency"]:
        parts = [f"{arrow(pair)} " + " / ".join(with_error(f[rule]) for rule in ("tli", "omnidraft", "lifted"))
                 for pair in REAL_PAIRS if pair in rules["pairs"]
                 for f in [next(iter(rules["pairs"][pair].values()))["T=1"]]]
        line("Block efficiency", "tokens per target pass at T = 1 with two published models, `tli` "
                                 f"/ `omnidraft` / `lifted`: {', '.join(parts)}.")
    if exact := found["exactness"]:
        worst = {rule: f["worst"] for rule, f in exact["rules"].items()}
        good = max(value for rule, value in worst.items() if rule != "omnidraft")
        line("Exactness", "largest distance from the target's distribution, by enumeration: "
                          f"{good:.1e}; with the paper's rule {worst['omnidraft']:.2f}.")
    if clock := found["wall_clock"]:
        line("Learning by the wall clock", wall_clock_line(clock), clock)
    if others := found["against_transformers"]:
        names = {"transformers assisted": "its assisted generation", "omnidraft": "omnidraft"}
        ratios = {name: [row["ratio"] for runs in others["pairs"].values()
                         for at, found in runs.items() if "T = 0" in at
                         for row in [found.get(method, {})] if "ratio" in row]
                  for method, name in names.items()}
        parts = [f"{name} {min(some):.2f}× to {max(some):.2f}×" for name, some in ratios.items()]
        line("Next to transformers", f"speedup over its plain generation at T = 0: {', '.join(parts)}.",
             others)
    if head := found["stop_rules"]:
        line("Adaptive drafting", stop_rules_line(head), head)
    if cost := found["overhead"]:
        parts = [f"{backend} {rules[name]['T=1']['own_ms']:.2f} ms"
                 for backend, rules in cost["backends"].items()
                 for name in ("lifted", "lossless") if name in rules]
        line("Overhead", f"a round without its models, 32,000 → 151,646 entries, T = 1: "
                         f"{', '.join(parts)}.")
    if good := found["quality"]:
        parts = [f"{target} {100 * tasks['math']['right']['seen']:.0f} % of word problems and "
                 f"{100 * tasks['code']['passes']['seen']:.0f} % of functions"
                 for target, tasks in good["targets"].items()]
        line("Quality", f"correct on kinds seen in training: {', '.join(parts)}.")
    return "\n".join(lines)


def main() -> None:
    """Fill in the marked places of README.md and docs/, and write docs/results.md."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check, docs = parser.parse_args().check, ROOT / "docs"
    exact = written("exactness", exactness)
    learn = "\n\n".join([written("learning", learning), written("wall_clock", wall_clock, False)])
    pages = {}
    for path, name, made in (
        (ROOT / "README.md", "demo", written("demo", demo)),
        (ROOT / "README.md", "real language model", written("real_llm", report_real.first_screen)),
        (ROOT / "README.md", "summary", summary("docs/results.md", FIVE)),
        (docs / "reading.md", "files", files()), (docs / "exactness.md", "exactness", exact),
        (docs / "learning.md", "learning", learn), (docs / "note.md", "note", report_note.note()),
    ):
        text = pages.get(path) or path.read_text(encoding="utf-8")
        marks = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        pages[path] = re.sub(marks, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text, flags=re.S)
    torch = [section(f"speed_{one}", speed) for one in ("torch", "both_torch")]
    numpy = [section(name, speed) for name in ("speed", "speed_avx2") if result(name)]
    parts = {"Speed": "\n\n".join(numpy), "Speed with PyTorch": "\n\n".join(torch),
             "Block efficiency": section("efficiency", efficiency),
             "Acceptance by overlap": section("overlap", report_overlap.report),
             "Learning": section("learning", learning, True),
             "Learning by the wall clock": section("wall_clock", wall_clock),
             "Adaptive drafting": "\n\n".join([section("stop_rules", stop_rules), section("adaptive", adaptive)]),
             "Shift": section("shift", shift),
             "Real language models": section("real_llm", report_real.real_llm),
             "Drafting only where it pays": section("pace", report_real.pace),
             "llama.cpp": section("llamacpp", report_real.llamacpp),
             "On a GPU": section("device", report_real.device),
             "Real models and data": section("real_adapt", real),
             "Next to transformers": "\n\n".join([section("against_transformers", against)] + [
                 section(name, inside) for name in ["inside_transformers"] if result(name)]),
             "Other machines": elsewhere(), "Latency": section("latency", latency), "Overhead": section("overhead", overhead),
             "Quality": section("quality", quality), "Exactness": section("exactness", exactness)}
    everything = ("# Results\n\nWritten by `python -m benchmarks.report` from "
                  f"`benchmarks/results/*.json`. Summary:\n\n{summary('')}\n")
    everything += "".join(f"\n## {title}\n\n{part}\n" for title, part in parts.items())
    pages |= {docs / "results.md": everything}
    if found := result("overlap"):
        pages[docs / "overlap.svg"] = report_overlap.figure(found)
    if found := result("real_llm"):
        pages[docs / "real_llm.svg"] = report_real.figure(found)
    for path in sorted(RESULTS.glob("*.json")):  # demo.json is written by the command line, with a value a line
        pages[path] = as_lines(json.loads(path.read_text(encoding="utf-8"))) + "\n"
    for place, made in pages.items():
        if not check:
            write_text(place, made)
        elif not place.exists() or place.read_text(encoding="utf-8") != made:
            sys.exit(f"{place.name} is stale: run `python -m benchmarks.report`")


if __name__ == "__main__":
    main()
