"""The tables on learning while serving: wall-clock time, stop rules, shifts, published models."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, median, median_high

from benchmarks.common import sparkline


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def arrow(pair: str) -> str:
    """draft:target as draft → target.

    >>> arrow("draft-tasks:qwen-like"), arrow("a -> b, math")
    ('draft-tasks → qwen-like', 'a → b, math')
    """
    return pair.replace(":", " → ").replace("->", "→")


def with_error(found: dict) -> str:
    """Tokens per target pass with their error."""
    return f"{found['block_efficiency']:.2f} ± {found['error']:.2f}"


def machine_line(figures: dict) -> str:
    """The machine on which a result was measured."""
    return f"Measured on {machine(figures['machine'])}"


def machine(m: dict) -> str:
    """A machine in words."""
    wide = m["avx512"] and m.get("blas_kernels") not in ("Haswell", "Zen")
    return (f"{m['cpu']}, {m['cores']} cores, "
            f"{'AVX-512' if wide else 'AVX2'}, NumPy {m['numpy']} ({m['blas']}), one BLAS thread")


def wall_clock(figures: dict, all_of_it: bool = True) -> str:
    """Tokens per second before and after learning, or the few figures of docs/learning.md."""
    s, groups = figures["settings"], {}
    for key, run in figures["runs"].items():
        groups.setdefault(key.rpartition(", seed ")[0], []).append(run)

    def over(runs: list[dict], value: Callable[[dict], float]) -> str:
        """The median of the runs, with minimum and maximum."""
        values = [value(run) for run in runs]
        return f"{median(values):.2f}× ({min(values):.2f} to {max(values):.2f})"

    def speed(runs: list[dict], name: str) -> str:
        return f"{median(run[name]['tokens_per_second'] for run in runs):.0f}"

    def pays(runs: list[dict], name: str) -> str:
        """The median of the runs; a run in which drafting is not faster never pays off."""
        tokens = median_high(run[f"pays_against_{name}_after"] or math.inf for run in runs)
        return f"{tokens:,}".replace("inf", "never")

    ratios = {key: {
        "adapted over plain": over(runs, lambda run: run["to_plain"]),
        "on kinds in the stream": over(runs, lambda run: run["seen_to_plain"]),
        "over un-adapted": over(runs, lambda run: run["to_before"]),
        "trained offline over plain": over(runs, lambda run: run["yardstick"]["tokens_per_second"]
                                           / run["plain"]["tokens_per_second"]),
        "time spent learning": f"{100 * median(run['learning_share'] for run in runs):.0f} %"}
              for key, runs in groups.items()}
    names = [*next(iter(ratios.values()))]
    if not all_of_it:
        return ("By wall clock, greedy; some held-out prompts are of kinds that were not in the "
                "stream (medians and ranges over the streams; "
                "[more](results.md#learning-by-the-wall-clock)):\n\n"
                + table(["pair, task, learned from", *names],
                        [[key.replace("->", "→"), *found.values()]
                         for key, found in ratios.items()]))
    ways = ("plain", "before", "after", "yardstick")
    rows = [[key, str(len(runs)), *(speed(runs, name) for name in ways), *ratios[key].values(),
             pays(runs, "before"), pays(runs, "plain")] for key, runs in groups.items()]
    return (f"{machine_line(figures)}. Speed after serving a stream: greedy, confidence stop, "
            f"{s['prompts']} held-out prompts, some of kinds that were not in the stream, "
            f"medians of {s['repeats']} repeats (`benchmarks/learning_wall_clock.py`), then median, "
            "minimum and maximum over the streams. They vary with the state of the machine and "
            "with the texts. The last columns: after how many tokens learning has paid for its own "
            "time, against the un-adapted pair and against plain decoding.\n\n"
            + table(["pair, task, learned from", "streams", "plain tok/s", "un-adapted", "adapted",
                     "trained offline", *names, "pays off after, against un-adapted",
                     "against plain"], rows))


def adaptive(figures: dict) -> str:
    """Stop rules compared with the best fixed length, how well heads predict, the paper's comparison."""
    s = figures["settings"]
    runs = {f"{arrow(pair)}, {task}": row
            for pair, tasks in figures["sweep"].items() for task, row in tasks.items()}
    first = next(iter(runs.values()))
    names = [name for name in first["rules"]  # "throughput" is in old results only: it gave no gain
             if not name.startswith("k = ") and name != "plain" and "throughput" not in name]
    means = ", ".join(f"{name} {fmean(row['rules'][name]['to_best_fixed'] for row in runs.values()):.3f}" for name in names)
    rules, qualities = [], []
    for where, row in runs.items():
        plain, best = (row["rules"][name]["tokens_per_second"]
                       for name in ("plain", row["best_fixed"]))
        rules.append([where, str(row["repeats"]), f"{plain:.0f}",
                      f"{best:.0f} ({row['best_fixed']})", *(
            f"{row['rules'][name]['to_best_fixed']:.2f}×" for name in names)])
        qualities.append([where, str(row["labels"]), *(
            f"{q['auc']:.3f}, {q['calibration_error']:.3f}, {q['cross_entropy']:.3f}"
            for q in row["quality"].values())])
    methods = [[f"{arrow(pair)}, {task}", name, f"{f['block_efficiency']:.2f}",
                f"{100 * f['acceptance_draft']:.0f} %", f"{f['tokens_per_second']:.0f}",
                f"{f['speedup']:.2f}×"]
               for pair, tasks in figures["comparison"].items() for task, row in tasks.items()
               for name, f in row.items()]
    return (f"{machine_line(figures)}{s['note']}; greedy, medians of repeats over {s['prompts']} held-out "
            "prompts on which all rules take turns (`benchmarks/paper/adaptive.py`). Tokens/s of "
            "the best fixed length in hindsight, and the speed of each rule relative to it; the "
            f"threshold is {s['threshold']:g}. Mean relative speeds: {means}."
            + "\n\n" + table(["pair, task", "repeats", "plain", "best fixed k", *names], rules)
            + "\n\nHow well acceptance is predicted on held-out prompts, by the drafter's own "
            f"confidence and by heads trained on {s['stream']} others: AUC, calibration error, "
            "cross-entropy.\n\n"
            + table(["pair, task", "labels", *first["quality"]], qualities)
            + "\n\nThe comparison of arXiv 2507.02659: held-out prompts after a stream of "
            f"{s['stream']} (LoRA rank 32, `lifted`; k = {s['fixed']} where there is no head). All methods "
            "take turns; *over plain* is the median of the turns' ratios, so not the quotient of the medians.\n\n"
            + table(["pair, task", "method", "block efficiency", "draft tokens kept", "tok/s",
                     "over plain"], methods))


def stop_rules(figures: dict) -> str:
    """Confidence and head in the cost model and in wall-clock time, and the best possible rule."""
    s, cells, rows = figures["settings"], _cells(figures), []
    for where, one in cells.items():
        for at in ("T=0", "T=1"):
            plain, head, best = one[at]["confidence"], one[at]["head"], one[at]["best"]
            clock = [f"{one['clock'][name]:.2f}×" for name in ("confidence", "head")] if best else ["", ""]
            rows.append([where, at, f"{plain['auc']:.3f} / {head['auc']:.3f}", f"{plain['default']:.2f}×",
                         *(f"{rule['tuned']:.2f}× ({rule['threshold']:g})" for rule in (plain, head)),
                         f"{head['expected value']:.2f}× ({head['worth']:.2f})",
                         f"{head['without its time']:.2f}×", f"{best:.2f}×" if best else "", *clock])
    costs = [one["costs"] for one in cells.values()]
    clock = [f"{fmean(one['clock'][who] for one in cells.values()):.2f}" for who in ("confidence", "head")]
    low, high = ({name: how(cost[name] for cost in costs) for name in costs[0]} for how in (min, max))
    parts = [f"{text} {low[name]:.3f} to {high[name]:.3f}" for name, text in (
        ("step", "a draft step"), ("row", "one more row in a pass"), ("prediction", "a prediction of the head"),
        ("rest", "the rest of a round"))]
    swept = {at: {t: fmean(one[at]["sweep"][t] / one[at]["sweep"][f"{s['threshold']:g}"] for one in cells.values())
                  for t in next(iter(cells.values()))[at]["sweep"]} for at in ("T=0", "T=1")}
    tuned = [f"{max(curve, key=curve.get)} at {at} ({max(curve.values()):.3f} times the speed with {s['threshold']:g})"
             for at, curve in swept.items()]
    return (f"**Why the head does not pay off** (`benchmarks/paper/stop_rules.py`, a cost model without noise: passes and "
            "draft tokens are counted and multiplied by the processor time of each, measured once per pair and task). In units "
            f"of a pass over one token: {', '.join(parts)}. Speedup over plain decoding on {s['prompts']} held-out prompts, at "
            f"most 12 draft tokens. Heads were trained on {s['stream']} other texts, and thresholds (in brackets) tuned on the "
            "same. *Expected value*: the threshold at which one more token is worth its cost. *Best*: an oracle that knows "
            "what will be kept. At T = 1 passes and labels are those of block verification. Wall clock: relative to the "
            f"confidence rule at {s['threshold']:g}, taking turns with it on {s['timed']} prompts, {s['repeats']} repeats. "
            f"{machine_line(figures)}{s['note']}.\n\n"
            + table(["pair, task", "", "AUC, confidence / head", f"confidence at {s['threshold']:g}",
                     "confidence, tuned", "head, tuned", "head, expected value", "tuned head, its time not counted", "best",
                     "wall clock: confidence, tuned", "head, tuned"], rows)
            + f"\n\nMeans over {len(cells)} pairs and tasks: {stop_rules_line(figures)} By wall clock: tuned threshold "
            f"{clock[0]}, head {clock[1]}. The best single threshold of the confidence rule for all of them is "
            f"{' and '.join(tuned)} (means of the ratios).")


def stop_rules_line(figures: dict) -> str:
    """What tuning and a head gain over the confidence rule, and what an oracle would gain."""
    cells, at = [*_cells(figures).values()], ("T=0", "T=1")

    def mean(who: str, name: str) -> str:
        """The gain over the confidence rule at its default threshold, at both temperatures."""
        return " / ".join(f"{fmean(one[t][who][name] / one[t]['confidence']['default'] for one in cells):.2f}" for t in at)

    aucs = " and ".join(" against ".join(f"{fmean(one[t][who]['auc'] for one in cells):.3f}"
                                         for who in ("head", "confidence")) for t in at)
    best = fmean(one["T=0"]["best"] / one["T=0"]["confidence"]["default"] for one in cells)
    return (f"speed relative to the confidence rule with its default threshold, T = 0 / T = 1: threshold tuned "
            f"{mean('confidence', 'tuned')}, learned head tuned {mean('head', 'tuned')} ({mean('head', 'without its time')} if "
            f"it took no time), an oracle that knows what will be kept {best:.2f} / –. The head ranks tokens better (AUC "
            f"{aucs}), but a tuned threshold does as well.")


def _cells(figures: dict) -> dict[str, dict]:
    return {f"{arrow(pair)}, {task}": one for pair, tasks in figures["pairs"].items() for task, one in tasks.items()}


def shift(figures: dict) -> str:
    """Curves over changes of task and target, and several targets at once."""
    s, rows, shares = figures["settings"], [], {}
    titles = {"task": s["tasks"], "target": [*s["targets"][:2], s["targets"][0]]}
    for part, title in titles.items():
        scale = [share for run in figures[part].values() for share in run["acceptance"]]
        for name, run in figures[part].items():
            ends = [f"{run[key]['acceptance']:.3f}" if key in run else ""
                    for key in ("after", "leaving", "returning")]
            alone = ""
            if "alone" in run:
                share = run["recovered"]["acceptance"]
                alone = f"{run['alone']['after']['acceptance']:.3f} ({100 * share:.0f} %)"
                shares.setdefault(name.rpartition(", ")[0], []).append(share)
            rows.append([" → ".join(title), f"{run['stream']} prompts {name}",
                         f"`{sparkline(run['acceptance'], scale)}`", ends[0], alone, *ends[1:]])
    [three] = figures["three"].values()
    together = [[name, f"{f['together']:.3f}", f"{f['alone']:.3f}",
                 "yes" if f["same_tokens"] else "no",
                 *(f"{f['bytes'][part] / 1000:,.0f}" for part in ("lora", "head", "cache")),
                 f"{100 * f['share']:.0f} %"] for name, f in three.items()]
    size = next(iter(three.values()))["drafter_bytes"]
    reached = ", ".join(f"{100 * median(found):.0f} % {name} "
                        f"({len(found)} seed{'s' * (len(found) > 1)})"
                        for name, found in shares.items())
    return (f"{s['draft']} drafts, with equally many prompts before and after each change, "
            "temperature 1, k = 6 (`benchmarks/paper/shift.py`). The curves show the share of "
            "draft tokens kept: eight points per stretch, one scale per change. The numbers are "
            "for held-out prompts: after the second task, after learning that task alone, and for "
            "the first target before leaving it and on return.\n\n"
            + table(["change", "", "curve", "after", "learned alone (share reached)", "leaving",
                     "return"], rows)
            + f"\n\nMedian share reached: {reached}.\n\nAll targets in one process, with prompts "
            "in turn, against one target per process; and what each target adds to a drafter that "
            f"takes {size / 1000:,.0f} kB of memory (without the optimizer):\n\n"
            + table(["target", "kept", "alone", "same text", "LoRA, kB", "head", "cache",
                     "of the drafter"], together))


def real(figures: dict) -> str:
    """Published models and data sets."""
    s = figures["settings"]

    def change(run: dict, at: str) -> str:
        untouched, *others = (one[at] for one in run["drafters"].values())
        return ", ".join([f"{untouched['block_efficiency']:.2f}"] + [
            f"{100 * one['change']:+.1f} ± {100 * one['error']:.1f} %" for one in others])

    def held_out(run: dict) -> str:
        if "saved" not in run:
            return "too few"
        gain, error = run["saved"], run["saved_error"]
        verdict = "gained" if gain > error else "lost" if gain < -error else "no gain beyond chance"
        return f"{100 * gain:+.1f} ± {100 * error:.1f} % ({run['held_out']} prompts): {verdict}"

    rows = [[name.replace("->", "→"), f"`{sparkline(run['curve'])}`", ", ".join([*run["drafters"]][1:]) or "none",
             *(change(run, at) for at in ("T=0", "T=1")), f"{run['rollbacks']} in {run['updates']} updates",
             f"{100 * run['learning_share']:.0f} %"] for name, run in figures["good"].items()]
    data = [[name, run["fails"], "", "", ""] if "fails" in run else
            [name, f"{run['prompts']}" + f", {run['passed_over']} too long" * bool(run["passed_over"]),
             f"{run['first']:.2f}", f"{run['last']:.2f}", held_out(run)] for name, run in figures["data"].items()]
    good = (f"Drafters that are already good serve {s['prompts_served']} prompts and learn (`benchmarks/learning_real.py`). "
            f"Block efficiency, k = 12, of the untouched drafter on {s['held_out']} other prompts, and the change with each "
            "drafter that the guard deployed instead (paired by prompt, ± standard error):\n\n"
            + table(["pair, served at, trained with", "while learning", "deployed after prompt", "T = 0", "T = 1",
                     "rolled back", "time spent learning"], rows) + "\n\n")
    return (good * bool(rows) + "`omnidraft adapt FILE --rank 32 -n 48`, draft-general → qwen-like, from the bare drafter "
            "(`benchmarks/learning_real.py`): block efficiency in the first and last quarter, and target passes saved on the "
            "held-out prompts, which were served both ways (± two standard errors):\n\n"
            + table(["data", "prompts", "first", "last", "passes saved"], data))


def wall_clock_line(figures: dict) -> str:
    """Speedup over plain decoding after learning, in one line."""
    groups: dict[str, list[float]] = {}
    for key, run in figures["runs"].items():
        groups.setdefault(key.rpartition(", seed ")[0], []).append(run["to_plain"])
    return "speedup over plain decoding after online learning: " + "; ".join(
        f"{median(ratios):.2f}× ({key.replace('->', '→')})" for key, ratios in groups.items()) + "."
