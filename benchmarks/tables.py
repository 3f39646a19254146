"""The tables of docs/results.md: one function for each file in benchmarks/results."""

from __future__ import annotations

from statistics import fmean, median

from benchmarks.common import sparkline

NAMES = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M", "qwen05": "Qwen2.5-Coder-0.5B-Instruct",
         "qwen15": "Qwen2.5-Coder-1.5B-Instruct"}
DATA = {"gsm8k": "GSM8K", "code": "MBPP + HumanEval", "alpaca": "Alpaca", "xsum": "XSum"}
METHODS = {"tli": "`tli`, no learning", "before": "`lifted`, no learning", "k = 4": "`lifted`, always four tokens",
           "omnidraft": "`omnidraft`, no learning", "head": "`lifted`, only the head learned",
           "adapter": "`lifted`, with the package's adapter", "recipe": "`lifted`, with an adapter that the recipe made"}
ENGINES = {"omnidraft plain": "omnidraft plain, PyTorch", "omnidraft": "omnidraft, both in PyTorch",
           "omnidraft, NumPy drafter": "omnidraft, drafter in NumPy", "omnidraft, NumPy": "omnidraft, both in NumPy"}
ANSWERS = {("math", "right"): "word problems: correct", ("typed", "right"): "word problems by other authors: correct",
           ("sums", "right"): "bare arithmetic: correct", ("code", "parses"): "functions: parse",
           ("code", "passes"): "functions: pass their asserts",
           ("plain", "passes"): "functions asked for in plain words: pass",
           ("text", "all"): "stories: no fault that a program can detect",
           ("other", "honest"): "anything else: the honest answer"}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def arrow(pair: str) -> str:
    """draft:target as draft → target, with the names of published models.

    >>> arrow("draft-tasks:qwen-like"), arrow("a -> gemma3, math")
    ('draft-tasks → qwen-like', 'a → Gemma 3 270M, math')
    """
    for name, shown in NAMES.items():
        pair = pair.replace(name, shown)
    return pair.replace(":", " → ").replace("->", "→")


def with_error(found: dict) -> str:
    """Tokens per target pass with their error."""
    return f"{found['block_efficiency']:.2f} ± {found['error']:.2f}"


def gain(found: dict) -> str:
    """A speedup with its error."""
    return f"{found['speedup']:.2f} ± {found['speedup_error']:.2f}×"


def share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.0f} %"


def machine(m: dict) -> str:
    """A machine in words."""
    kernels = "AVX2"
    if m["avx512"]:
        kernels = "AVX-512"
        if m.get("blas_kernels") in ("Haswell", "Zen"):
            kernels += f" but AVX2 kernels (OPENBLAS_CORETYPE={m['blas_kernels']})"
    if "blas_l2_size" in m:
        kernels += f", OPENBLAS_L2_SIZE={m['blas_l2_size']}"
    return f"{m['cpu']}, {m['cores']} cores, {kernels}, NumPy {m['numpy']} ({m['blas']}), one BLAS thread"


def machine_line(figures: dict) -> str:
    """The machine on which a result was measured."""
    return f"Measured on {machine(figures['machine'])}"


def speed(figures: dict) -> str:
    """Wall-clock speed compared with plain decoding: by default, and drafting in every round."""
    rows = []
    for pair, tasks in figures["pairs"].items():
        for task, r in tasks.items():
            kinds = " / ".join(f"{one:.2f}" for _, one in sorted(r["apart"].items()))
            same = f"{r['same_text']}/{r['prompts']}" + f" (+{r['ties']} ties)" * bool(r["ties"])
            always = f"{r['always_drafting']:.2f}×" if "always_drafting" in r else ""
            rows.append([arrow(pair), task, f"{r['plain_tokens_per_second']:.0f}",
                         f"{r['speculative_tokens_per_second']:.0f}", f"**{r['speedup']:.2f}×**", always, kinds,
                         f"{r['block_efficiency']:.2f}", share(r["acceptance_draft"]), same])
        always = f"{figures['always'][pair]:.2f}×" if "always" in figures else ""
        rows.append([arrow(pair), "all tasks", "", "", f"**{figures['together'][pair]:.2f}×**", always, "", "", "", ""])
    how = "The speedup is that of drafting in every round."
    if "always" in figures:
        how = "By default a pair stops drafting while that does not pay; beside it, drafting in every round."
    return (f"{machine_line(figures)}; greedy, wall clock, medians of {figures['settings']['repeats']} repeats over held-out "
            f"prompts, some of kinds not seen in training (`benchmarks/speed.py`). {how}\n\n"
            + table(["pair", "task", "plain tok/s", "speculative tok/s", "speedup", "always drafting", "seen / unseen kinds",
                     "block efficiency", "draft tokens kept", "same text"], rows))


def efficiency(figures: dict) -> str:
    """Block efficiency of the four rules."""
    rules = ["tli", "slem", "omnidraft", "lifted"]
    rows = [[arrow(pair), task, at, *(with_error(found[rule]) for rule in rules)]
            for pair, tasks in figures["pairs"].items() for task, temps in tasks.items() for at, found in temps.items()]
    return (f"Target tokens per target pass of the four rules, k = {figures['settings']['k']} "
            "(`benchmarks/efficiency.py`). `omnidraft` is biased at T = 1.\n\n"
            + table(["pair", "task", "", *(f"`{rule}`" for rule in rules)], rows))


def exactness(figures: dict) -> str:
    """Total variation and conditions per rule; how many greedy texts equal plain decoding's."""
    def number(value: float) -> str:
        return f"{value:.1e}" if value < 1e-6 else f"{value:.3f}"

    worlds = f"{figures['settings']['worlds']:,}"
    rows = [[f"`{rule}`", worlds, f"{f['runs']:,}", number(f["mean"]), number(f["worst"])]
            for rule, f in figures["rules"].items()]
    conditions = ", ".join(f"{name} ({n:,})" for name, n in figures["rules"]["lifted"]["conditions"].items())
    greedy = []
    for backend, found in figures["greedy"].items():
        same, of = (sum(pair[key] for pair in found["pairs"].values()) for key in ("same", "of"))
        where = {"numpy": "in NumPy", "torch": "with both models in PyTorch"}[backend]
        greedy.append(f"{same:,} of {of:,} {where} ({found['tokens']} tokens each, k from 1 to {found['k'][1]})")
    return (table(["rule", "worlds", "runs", "mean", "worst"], rows)
            + f"\n\nConditions met under `lifted`, with the number of worlds: {conditions}.\n\nAt temperature 0 the text is "
            "the target's own, token for token. Greedy texts identical to plain decoding, four rules, float64, embedded and "
            f"both published pairs: {'; '.join(greedy)} (`benchmarks/exactness.py`).")


def quality(figures: dict) -> str:
    """How often the embedded targets are right."""
    rows = []
    for target, tasks in figures["targets"].items():
        for (task, key), label in ANSWERS.items():
            if row := tasks.get(task, {}).get(key):
                rows.append([target, label, *(share(row[part]) if part in row else "" for part in ("seen", "unseen"))])
    return ("What the embedded targets can do: greedy answers to up to "
            f"{figures['prompts']} held-out prompts per task, separately for the kinds seen in training and for others "
            "(`benchmarks/quality.py`).\n\n" + table(["target", "task", "trained kinds", "others"], rows))


def learning(figures: dict) -> str:
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

    rows = []
    for where, named in runs.items():
        low, high = (middle(named[name], "lossless T=1") for name in ("before", "yardstick"))
        for name, some in named.items():
            closed = (middle(some, "lossless T=1") - low) / (high - low)
            rows.append([where, name, str(len(some)), shown(some, "lossless T=0.01"), shown(some, "lossless T=1"),
                         share(closed) if name not in ("before", "yardstick") else "",
                         f"{middle(some, 'omnidraft T=0.01', 'acceptance_proposed'):.3f}"])
    s = figures["settings"]
    return (f"{machine_line(figures)}. One pass over {s['texts']} texts of the target per task, an update every {s['every']} "
            "texts (`benchmarks/learning.py`; of several seeds the median; held-out prompts; k = 6). *Gap*: from the "
            "un-adapted drafter to a yardstick that was trained offline.\n\n"
            + table(["pair, task", "trained with", "seeds", "block efficiency T=0.01", "T=1", "gap closed",
                     "proposals accepted, `omnidraft` T=0.01"], rows) + "\n\n" + clock(figures))


def by_stream(figures: dict) -> dict[str, list[dict]]:
    """The runs by the clock: pair, task and stream, and a run for each seed."""
    groups: dict[str, list[dict]] = {}
    for key, run in figures["clock"].items():
        groups.setdefault(arrow(key.rpartition(", seed ")[0]), []).append(run)
    return groups


def clock(figures: dict) -> str:
    """Tokens per second before and after learning."""
    def over(values: list[float]) -> str:
        return f"{median(values):.2f}× ({min(values):.2f} to {max(values):.2f})"

    rows = []
    for where, runs in by_stream(figures).items():
        rates = {name: [run[name]["tokens_per_second"] for run in runs] for name in ("plain", "yardstick")}
        best = [one / other for one, other in zip(rates["yardstick"], rates["plain"], strict=True)]
        rows.append([where, f"{median(rates['plain']):.0f}", over([run["to_plain"] for run in runs]),
                     over([run["seen_to_plain"] for run in runs]), over([run["to_before"] for run in runs]), over(best),
                     share(median(run["learning_share"] for run in runs)),
                     f"{median(run['pays_against_plain_after'] for run in runs):,.0f}"])
    return ("By the clock, greedy, after serving a stream (medians, minimum and maximum over the streams); some held-out "
            "prompts are of kinds that were not in it. The last column: after how many tokens learning has paid for its time, "
            "against plain decoding.\n\n"
            + table(["pair, task, learned from", "plain tok/s", "adapted over plain", "on kinds in the stream",
                     "over un-adapted", "trained offline over plain", "time spent learning", "pays off after"], rows))


def adaptive(figures: dict) -> str:
    """The paper's comparison."""
    s = figures["settings"]
    rows = [[f"{arrow(pair)}, {task}", name, f"{f['block_efficiency']:.2f}", share(f["acceptance_draft"]),
             f"{f['tokens_per_second']:.0f}", f"{f['speedup']:.2f}×"]
            for pair, tasks in figures["comparison"].items() for task, row in tasks.items() for name, f in row.items()]
    return (f"{machine_line(figures)}{s['note']}. The comparison of arXiv 2507.02659 (`benchmarks/paper/adaptive.py`): "
            f"{s['prompts']} held-out prompts after a stream of {s['stream']}, greedy (LoRA rank 32, `lifted`; k = "
            f"{s['fixed']} where there is no head, else the threshold {s['threshold']:g}). All methods take turns; *over "
            "plain* is the median of the turns' ratios, so not the quotient of the medians.\n\n"
            + table(["pair, task", "method", "block efficiency", "draft tokens kept", "tok/s", "over plain"], rows))


def stop_rules(figures: dict) -> str:
    """Confidence and head in the cost model and in wall-clock time, and the best possible rule."""
    s, cells, rows = figures["settings"], _cells(figures), []
    for where, one in cells.items():
        for at in ("T=0", "T=1"):
            plain, head, best = one[at]["confidence"], one[at]["head"], one[at]["best"]
            ratios = [f"{one['clock'][name]:.2f}×" for name in ("confidence", "head")] if best else ["", ""]
            rows.append([where, at, f"{plain['auc']:.3f} / {head['auc']:.3f}", f"{plain['default']:.2f}×",
                         *(f"{rule['tuned']:.2f}× ({rule['threshold']:g})" for rule in (plain, head)),
                         f"{head['expected value']:.2f}× ({head['worth']:.2f})",
                         f"{head['without its time']:.2f}×", f"{best:.2f}×" if best else "", *ratios])
    costs = [one["costs"] for one in cells.values()]
    parts = [f"{text} {min(cost[name] for cost in costs):.3f} to {max(cost[name] for cost in costs):.3f}" for name, text in (
        ("step", "a draft step"), ("row", "one more row in a pass"), ("prediction", "a prediction of the head"),
        ("rest", "the rest of a round"))]
    return ("**Why the head does not pay off** (`benchmarks/paper/stop_rules.py`, a cost model without noise: passes and "
            "draft tokens are counted and multiplied by the processor time of each, measured once per pair and task). In units "
            f"of a pass over one token: {', '.join(parts)}. Speedup over plain decoding on {s['prompts']} held-out prompts, at "
            f"most 12 draft tokens. Heads were trained on {s['stream']} other texts, and thresholds (in brackets) tuned on the "
            "same. *Expected value*: the threshold at which one more token is worth its cost. *Best*: an oracle that knows "
            "what will be kept. At T = 1 passes and labels are those of block verification. Wall clock: relative to the "
            f"confidence rule at {s['threshold']:g}, taking turns with it on {s['timed']} prompts, {s['repeats']} repeats. "
            f"{machine_line(figures)}{s['note']}. Means over {len(cells)} pairs and tasks: {stop_rules_line(figures)}\n\n"
            + table(["pair, task", "", "AUC, confidence / head", f"confidence at {s['threshold']:g}",
                     "confidence, tuned", "head, tuned", "head, expected value", "tuned head, its time not counted", "best",
                     "wall clock: confidence, tuned", "head, tuned"], rows))


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
    s, rows = figures["settings"], []
    titles = {"task": s["tasks"], "target": [*s["targets"][:2], s["targets"][0]]}
    for part, title in titles.items():
        scale = [value for run in figures[part].values() for value in run["acceptance"]]
        for name, run in figures[part].items():
            ends = [f"{run[key]['acceptance']:.3f}" if key in run else "" for key in ("after", "leaving", "returning")]
            alone = ""
            if "alone" in run:
                alone = f"{run['alone']['after']['acceptance']:.3f} ({share(run['recovered']['acceptance'])})"
            rows.append([" → ".join(title), f"{run['stream']} prompts {name}",
                         f"`{sparkline(run['acceptance'], scale)}`", ends[0], alone, *ends[1:]])
    [three] = figures["three"].values()
    together = [[name, f"{f['together']:.3f}", f"{f['alone']:.3f}", "yes" if f["same_tokens"] else "no",
                 *(f"{f['bytes'][part] / 1000:,.0f}" for part in ("lora", "head", "cache")), share(f["share"])]
                for name, f in three.items()]
    size = next(iter(three.values()))["drafter_bytes"]
    return (f"{s['draft']} drafts, with equally many prompts before and after each change, temperature 1, k = 6 "
            "(`benchmarks/paper/shift.py`). The curves show the share of draft tokens kept: eight points per stretch, one "
            "scale per change. The numbers are for held-out prompts: after the second task, after learning that task alone, "
            "and for the first target before leaving it and on return.\n\n"
            + table(["change", "", "curve", "after", "learned alone (share reached)", "leaving", "return"], rows)
            + "\n\nAll targets in one process, with prompts in turn, against one target per process; and what each target "
            f"adds to a drafter that takes {size / 1000:,.0f} kB of memory (without the optimizer):\n\n"
            + table(["target", "kept", "alone", "same text", "LoRA, kB", "head", "cache", "of the drafter"], together))


def cell_name(name: str) -> tuple[str, str, str, str]:
    """Pair, data, method and seed of a cell.

    >>> cell_name("draft-general -> smollm2, gsm8k, lifted, seed 0")
    ('draft-general → SmolLM2-135M-Instruct', 'GSM8K', 'lifted', '0')
    """
    pair, data, method, seed = name.split(", ")
    return arrow(pair), DATA[data], method, seed.removeprefix("seed ")


def real_llm(figures: dict) -> str:
    """All cells, and the rules between two published models."""
    rows = []
    for name, one in figures["cells"].items():
        pair, data, method, seed = cell_name(name)
        learned, zero, warm = one.get("learned"), one["T=0"], one.get("T=1")
        rows.append([pair, data, METHODS.get(method, f"`{method}` learned"), seed,
                     f"{learned['prompts']} in {learned['learning_seconds']:.0f} s" if learned else "–",
                     with_error(zero), gain(zero), *([with_error(warm), gain(warm)] if warm else ["–", "–"]),
                     f"{share(zero['acceptance_draft'])[:-2]} ± {share(zero['acceptance_error'])}",
                     f"{one['cache']['n-grams']:,}, {one['cache']['bytes'] / 1e6:.1f} MB"])
    rules = [[published(name), *map(with_error, found.values())] for name, found in figures["rules"].items()]
    return (f"Published target models on public data (`benchmarks/real_llm.py`): 12 to 48 held-out prompts, texts of at most "
            f"{figures['settings']['tokens']} tokens (± standard error, jackknife over prompts), for 6 to 12 of them the "
            "speedup over plain decoding by the wall clock, both in turns. The drafter learned online, greedy, from other "
            "prompts. The surer a drafter is of itself, the longer it drafts (`Confidence`): read the tokens per pass with "
            "the share of draft tokens that were kept.\n\n"
            + table(["pair", "data", "method", "seed", "learned from", "tokens per pass, T = 0", "speedup, T = 0",
                     "tokens per pass, T = 1", "speedup, T = 1", "draft tokens kept, T = 0", "n-grams"], rows)
            + "\n\nTokens per pass of the four rules between two published models, drafts of four tokens:\n\n"
            + table(["drafter → target, data", *next(iter(figures["rules"].values()))], rules)
            + f"\n\n{machine_line(figures)}.")


def published(name: str) -> str:
    """Two models and the data: smollm2 -> gemma3, gsm8k."""
    pair, data = name.split(", ")
    return f"{arrow(pair)}, {DATA[data]}"


def real_at_a_glance(figures: dict) -> str:
    """The short table: before learning at both temperatures, and after learning, greedy."""
    cells: dict[tuple[str, str], dict[str, dict]] = {}
    for name, one in figures["cells"].items():
        pair, data, method, seed = cell_name(name)
        if seed == "0" and method in ("before", "lifted", "adapter", "recipe"):
            note = figures["measured"].get(f"cells / {name}", {}).get("settings", {}).get("note", "")
            cells.setdefault((pair, data), {})[method] = one | {"mark": " *" * ("busy" in note)}
    rows = []
    for (pair, data), one in cells.items():
        before, mark = one["before"], one["before"]["mark"]
        row = [pair, data, with_error(before["T=0"]), gain(before["T=0"]) + mark,
               gain(before["T=1"]) + mark if "T=1" in before else "–"]
        if method := next((name for name in ("adapter", "recipe", "lifted") if name in one), None):
            after = one[method]
            taught = {"adapter": "the package's adapter", "recipe": "texts, by the recipe"}.get(method)
            taught = taught or f"{after['learned']['prompts']} prompts"
            row += [taught, with_error(after["T=0"]), gain(after["T=0"]) + after["mark"]]
        rows.append(row + ["–"] * (8 - len(row)))
    rules = "; ".join(f"{published(name)}: " + ", ".join(
        f"`{rule}` {with_error(one[f'{rule}, T=1'])}" for rule in ("tli", "omnidraft", "lifted"))
        for name, one in figures["rules"].items())
    head = ["pair", "data", "tokens per pass", "speedup", "speedup, T = 1", "after learning from", "tokens per pass", "speedup"]
    return table(head, rows) + (
        "\n\nHeld-out prompts, temperature 0 (but for one column), the same greedy texts as plain decoding; Gemma on Alpaca in "
        "PyTorch. * timed while other programs ran. "
        "Between the two published models, tokens per pass at temperature 1 by verification rule (vocabulary intersection, "
        f"the paper's, which is not exact, and ours): {rules}. "
        f"{machine_line(figures)}.")


def against(figures: dict) -> str:
    """Ratios to transformers' plain generation, per method."""
    pairs = figures["pairs"]
    methods = [*next(iter(next(iter(pairs.values())).values()))][1:]

    def cell(row: dict) -> str:
        if "ratio" not in row:
            return "fails"
        far = row.get("first_token_distance") or 0.0
        return f"{row['ratio']:.2f}× ({row['block_efficiency']:.2f}{f', TV {far:.2f}' * (far > 1e-3)})"

    rows = [[arrow(pair), at, *(cell(found[method]) for method in methods)]
            for pair, runs in pairs.items() for at, found in runs.items()]
    m, s = figures["machine"], figures["settings"]
    spans = {name: span(figures, name) for name in ("omnidraft", "transformers assisted", "omnidraft plain")}
    return (f"Same loaded models, prompts and process; torch {m['torch']}, transformers {m['transformers']}, "
            f"PyTorch threads: {m['torch_threads']}, {s['prompts']} prompts × {s['tokens']} tokens, medians of {s['repeats']} "
            "(`benchmarks/against_transformers.py`). Speedup over transformers' plain generation, and in brackets target "
            "tokens per target pass.\n\n"
            f"**With the same modules (both models in PyTorch) at T = 0: omnidraft {spans['omnidraft']}, transformers' "
            f"assisted generation {spans['transformers assisted']}, omnidraft without a drafter "
            f"{spans['omnidraft plain']}.**\n\n"
            + table(["pair", "", *(ENGINES.get(method, method) for method in methods)], rows)
            + "\n\nAt T = 1 transformers' assisted generation does not sample from the target's distribution, so those ratios "
            "are for different text. Its token-level intersection pairs probabilities with the wrong tokens "
            "([report](upstream/report.md)). *TV*: total variation between the first token's distribution and the target's, "
            "mean over the prompts.")


def span(figures: dict, method: str) -> str:
    """The least and the greatest speedup of a method at T = 0."""
    found = [runs[method]["ratio"] for by in figures["pairs"].values() for at, runs in by.items()
             if at.endswith("T = 0") and "ratio" in runs.get(method, {})]
    return f"{min(found):.2f}× to {max(found):.2f}×"


def latency(figures: dict) -> str:
    """Times at the paper's shapes, and the speedups that follow from its acceptance rates."""
    m, s, targets = figures["machine"], figures["settings"], figures["targets"]
    on, counts = m["cpu"] if m["device"] == "cpu" else m["device"], ("1", "2", "4", "5", "8")
    times = [[target, "{:,} → {:,}".format(*f["vocabularies"]), *(f"{f['pass_ms'][n]:.1f}" for n in counts),
              *(f"{ms:.2f}" for ms in f["overhead_ms"].values())] for target, f in targets.items()]
    head = ["target like", "vocabularies", *(f"pass of {n}, ms" for n in counts), "overhead at T = 0, ms", "at T = 1"]
    rows = [[target, method, task, f"{p['acceptance']:.2f}", f"{p['chance']:.2f}× to {p['share']:.2f}×",
             f"{p['paper']:.2f}×"]
            for target, f in targets.items() for method, tasks in f["predicted"].items() for task, p in tasks.items()]
    return (f"Random weights in the `{s['shape']}` shapes (`small` keeps only the paper's vocabularies), {m['dtype']} on {on}, "
            f"torch {m['torch']}, after {s['context']} tokens, medians of {s['repeats']} (`benchmarks/paper/latency.py`). A "
            f"drafted token takes {figures['draft_ms']:.2f} ms. *Overhead* is a whole `lifted` round with k = {s['k']}, "
            f"without the models.\n\n{table(head, times)}\n\nSpeedups predicted from the acceptance rates of arXiv 2507.02659 "
            "(Llama-68M drafts), next to the paper's own (A100). The ranges cover two readings of that rate: the chance that a "
            "token is kept once all before it were, and the share of drafted tokens that are kept.\n\n"
            + table(["target like", "method", "task", "acceptance", "predicted", "paper"], rows))


def alignment(figures: dict) -> str:
    """How many tokens published vocabularies share, and how long that takes."""
    rows = [[f"{figures['draft']} → {target}", f"{f['by_bytes']:,}", f"{f['by_strings']:,}",
             *(f"{seconds:.2f}" for seconds in f["seconds"].values())] for target, f in figures["targets"].items()]
    return ("Draft tokens that the target has too, compared by bytes (here) and by strings (as in the paper), and seconds to "
            "read both tokenizers and to align them (`benchmarks/paper/alignment.py`).\n\n"
            + table(["drafter → target", "by bytes", "by strings", "reading, s", "aligning, s"], rows))


def overhead(figures: dict) -> str:
    """What a round costs without its models, compared with the softmax or argmax of its rows."""
    m, s, rows = figures["machine"], figures["settings"], []
    for backend, rules in figures["backends"].items():
        for rule, found in rules.items():
            cold, warm = found["T=0"], found["T=1"]
            low, _, high = warm["ratios"]
            rows.append([backend, f"`{rule}`", f"{cold['own_ms']:.2f}", f"{cold['alone_ms']:.2f}",
                         f"{cold['beyond_ms']:+.2f} ms", f"{warm['own_ms']:.2f}", f"{warm['alone_ms']:.2f}",
                         f"**{warm['ratio']:.2f}×** ({low:.2f}–{high:.2f})"])
    return (f"Milliseconds of a round without its models (they return stored logits), k = {s['k']}, with Llama-2's 32,000 "
            "entries drafting for Qwen2's 151,646; next to it the argmax or softmax of the round's rows, in the same run. "
            f"{m['cpu']}, {m['torch_threads']} thread, torch {m['torch']}, medians of {s['repeats']} rounds, the median of "
            f"{s['turns']} turns and the range of their ratios (`benchmarks/overhead.py`).\n\n"
            + table(["backend", "rule", "T = 0: round", "argmax", "difference", "T = 1: round", "softmax", "ratio"], rows))


def device(figures: dict) -> str:
    """What `benchmarks.device` measured: parity, a round, an update, a text."""
    def ways(found: dict, unit: str, scale: float, form: str) -> str:
        return ", ".join(f"{way.replace(unit, '')} {value / scale:{form}}" for way, value in found.items() if unit in way)

    rows = []
    for part, found in figures["parts"].items():
        kind, _, sizes = part.partition(", ")
        if kind == "parity":
            worst = max(value for name, value in found.items() if name.startswith(("loss", "acceptance", "distributions")))
            rows.append([f"parity with NumPy, {sizes} entries", f"largest difference {worst:.0e}, "
                         f"{found['verdicts that differ']} of 40 verdicts differ"])
        elif kind == "round":
            rows.append([f"a round without its models, {sizes}, k = 4, T = 1: ms", ways(found, "ms, ", 1, ".1f")])
        elif kind == "update":
            rows.append([f"an update on {found['texts']} texts, {found['draft tokens']} draft tokens, {sizes}, a drafter of "
                         f"{found['parameters'] / 1e6:.0f} M parameters: s", ways(found, "step ms, ", 1000, ".1f")])
        else:
            rows.append(["draft-tasks → qwen-like, greedy, tokens per second (the same text each time)",
                         ways(found, " tokens/s,", 1, ".0f")])
    m = figures["machine"]
    return (table(["`python -m benchmarks.device`", m["device"]], rows)
            + f"\n\nPython {m['python']}, PyTorch {m['torch']}, NumPy {m['numpy']}, {m['threads']} CPU threads for PyTorch. "
            "The models of the first row are so small that each of their passes waits for the launch of its kernels.")


def pace(figures: dict) -> str:
    """Whether drafting is ever slower than plain decoding."""
    s, rows = figures["settings"], []
    for pair, tasks in figures["pairs"].items():
        for task, one in tasks.items():
            always, adaptive, first = (f"{one[f'wall_{way}']:.2f}×" for way in ("always", "adaptive", "first text"))
            rows.append([arrow(pair), task, f"{one['tokens_per_pass']:.2f}", always,
                         f"{adaptive} ({one['cpu_adaptive']:.2f}×)", first, share(one["drafted_share"]),
                         "yes" if one["same_text"] else "no"])
    return (f"Speed over plain decoding with everything in it, prompts too (`benchmarks/pace.py`): {s['prompts']} prompts, "
            f"at most {s['tokens']} tokens each, in turns, greedy. Adaptive is the default of `generate`: it drafts "
            "only while that saves time. First text: by a pair about which nothing is known yet. The math and "
            "code texts are short, 20 to 30 tokens: trials weigh most there.\n\n"
            + table(["pair", "task", "tokens per pass", "always drafting", "adaptive (CPU time)", "first text",
                     "rounds drafted", "same text"], rows) + f"\n\n{machine_line(figures)}.")


def vllm(figures: dict) -> str:
    """vLLM with drafts next to plain vLLM, by the number of streams."""
    s, rows = figures["settings"], []
    streams = dict.fromkeys(n for cells in figures["pairs"].values() for n in cells)
    for pair, cells in figures["pairs"].items():
        same = sum(one["same_texts"] for one in cells.values())
        shown = ["" if n not in cells else "{plain:.1f} → {drafted:.1f} (**{wall:.2f}×**)".format(**cells[n]) for n in streams]
        rows.append([arrow(pair), *shown, f"{same} of {sum(one['texts'] for one in cells.values())}"])
    return (f"Tokens per second of plain vLLM {s['vllm']} → with omnidraft's drafts, greedy, one thread: {s['prompts']} chats "
            f"from GSM8K, {s['tokens']} tokens each, so many at once (`benchmarks/vllm_streams.py`; [how to](vllm.md)). Ratio: "
            f"the median of {s['repeats']} turns. Texts in bfloat16 can differ where two tokens have the same logit.\n\n"
            + table(["drafter → target, its weights", *(f"streams: {n}" for n in streams), "same texts"], rows)
            + f"\n\n{machine_line(figures)}.")
