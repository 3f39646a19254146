"""The tables of the real language models, and of a GPU: docs/results.md, and the first screen of the README."""

from __future__ import annotations

from benchmarks.report_learning import machine_line, table, with_error

NAMES = {"smollm2": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M"}
DATA = {"gsm8k": "GSM8K", "code": "MBPP + HumanEval", "alpaca": "Alpaca", "xsum": "XSum"}
METHODS = {"tli": "`tli`, no learning", "before": "`lifted`, no learning", "k = 4": "`lifted`, always four tokens",
           "omnidraft": "`omnidraft`, no learning", "head": "`lifted`, only the head learned"}


def parts(name: str) -> tuple[str, str, str, str, str]:
    """Drafter, target, data, method and seed of a cell.

    >>> parts("draft-general -> smollm2, gsm8k, lifted, seed 0")
    ('draft-general', 'smollm2', 'gsm8k', 'lifted', '0')
    """
    pair, data, method, seed = name.split(", ")
    draft, target = pair.split(" -> ")
    return draft, target, data, method, seed.removeprefix("seed ")


def speed(found: dict) -> str:
    """A speedup with its error."""
    return f"{found['speedup']:.2f} ± {found['speedup_error']:.2f}×"


def published(name: str) -> str:
    """The names of two published models, and the data.

    >>> published("smollm2 -> gemma3, gsm8k")
    'SmolLM2-135M-Instruct → Gemma 3 270M, GSM8K'
    """
    pair, data = name.split(", ")
    return " → ".join(NAMES[one] for one in pair.split(" -> ")) + f", {DATA[data]}"


def by_rule(rules: dict) -> str:
    """Tokens per pass at T = 1 of three rules."""
    return ", ".join(f"`{rule}` {with_error(rules[f'{rule}, T=1'])}" for rule in ("tli", "omnidraft", "lifted"))


def either(numbers: set[int]) -> str:
    """Numbers in words.

    >>> either({24, 16})
    '16 or 24'
    """
    return " or ".join(map(str, sorted(numbers)))


def real_llm(figures: dict) -> str:
    """All cells."""
    rows, asked, timed = [], set(), set()
    for name, one in figures["cells"].items():
        draft, target, data, method, seed = parts(name)
        learned, at_zero, at_one = one.get("learned", {}), one["T=0"], one["T=1"]
        asked.add(at_zero["prompts"])
        timed.add(at_zero["timed"])
        rows.append([
            f"{draft} → {NAMES.get(target, target)}", DATA[data], METHODS.get(method, f"`{method}` learned"), seed,
            f"{learned['prompts']} in {learned['learning_seconds']:.0f} s" if learned else "–",
            with_error(at_zero), speed(at_zero), with_error(at_one), speed(at_one),
            f"{100 * at_zero['acceptance_draft']:.0f} ± {100 * at_zero['acceptance_error']:.0f} %",
            f"{one['cache']['n-grams']:,}, {one['cache']['bytes'] / 1e6:.1f} MB"])
    text = (f"Published target models on public data (`benchmarks/real_llm.py`): {either(asked)} held-out prompts, texts of at "
            f"most {figures['settings']['tokens']} tokens (± standard error, jackknife over prompts), for {either(timed)} of "
            "them the speedup over plain decoding by the wall clock, both in turns. The drafter learned online, greedy, from "
            "other prompts. The surer a drafter is of itself, the longer it drafts (`Confidence`): read the tokens per pass "
            "with the share of draft tokens that were kept.\n\n![Speedup over plain decoding of each pair and data set, before "
            "and after learning](real_llm.svg)\n\n"
            + table(["pair", "data", "method", "seed", "learned from", "tokens per pass, T = 0", "speedup, T = 0",
                     "tokens per pass, T = 1", "speedup, T = 1", "draft tokens kept, T = 0", "n-grams"], rows))
    text += "\n\n" + means(figures) + "\n\n" + equal_lengths(figures) + "\n\n" + what_helps(figures)
    if figures["rules"]:
        text += "\n\nTokens per pass of the four rules between two published models, drafts of four tokens:\n\n" + table(
            ["drafter → target, data", *next(iter(figures["rules"].values()))],
            [[published(name), *map(with_error, rules.values())] for name, rules in figures["rules"].items()])
    for name, one in figures.get("first tokens", {}).items():
        text += (f"\n\n{name.replace('->', '→')}: {one['draws']:,} first tokens of one prompt at T = 1, a drafted token kept "
                 f"in {100 * one['drafted token kept']:.0f} % of them, against the target's own distribution ({one['bins']} "
                 f"bins, chi-squared test): p = {one['p']:.2f}.")
    return f"{text}\n\n{machine_line(figures)}."


def means(figures: dict) -> str:
    """Tokens per pass of each method and of `lifted` without learning, both on average over the method's data sets."""
    cells: dict[str, dict[str, dict[str, list[dict]]]] = {}  # pair, method, data
    for name, one in figures["cells"].items():
        draft, target, data, method, _ = parts(name)
        pair = f"{draft} → {NAMES.get(target, target)}"
        cells.setdefault(pair, {}).setdefault(method, {}).setdefault(data, []).append(one)
    rows = []
    for pair, methods in cells.items():
        for method, found in methods.items():
            if method == "before" or not set(found) <= set(methods.get("before", {})):
                continue
            row = [pair, METHODS.get(method, f"`{method}` learned"), ", ".join(DATA[data] for data in found)]
            plain = {data: methods["before"][data] for data in found}
            for temperature in ("T=0", "T=1"):
                row += [mean(found, temperature), mean(plain, temperature)]
            rows.append(row)
    return table(["pair", "method", "mean over", "tokens per pass, T = 0", "`lifted`, no learning, there", "T = 1",
                  "`lifted`, no learning, there"], rows)


def equal_lengths(figures: dict) -> str:
    """The same drafters with drafts of four tokens, whatever they are sure of."""
    rows = []
    for name, one in figures["cells"].items():
        if "k = 4, T=0" in one:
            draft, target, data, method, seed = parts(name)
            rows.append([f"{draft} → {NAMES.get(target, target)}", DATA[data], f"`{method}` learned", seed,
                         with_error(one["k = 4, T=0"]), with_error(one["k = 4, T=1"])])
    return ("After learning, always four draft tokens, to compare the losses:\n\n"
            + table(["pair", "data", "method", "seed", "tokens per pass, T = 0", "tokens per pass, T = 1"], rows))


QUESTIONS = {"the n-gram cache (`tli` → `omnidraft`)": ("tli", "omnidraft"),
             "the n-gram cache, judged by atoms (`tli` → `lifted`)": ("tli", "before"),
             "online learning": ("before", "lifted"), "the acceptance head": ("before", "head")}


def what_helps(figures: dict) -> str:
    """Open conversation: what each part of the method adds, for the targets that have both cells."""
    rows = []
    for name, one in figures["cells"].items():
        draft, target, data, method, seed = parts(name)
        for question, (without, added) in QUESTIONS.items():
            other = figures["cells"].get(f"{draft} -> {target}, {data}, {without}, seed {seed}")
            if data != "alpaca" or method != added or other is None:
                continue
            row = [f"{draft} → {NAMES.get(target, target)}", question]
            for temperature in ("T=0", "T=1"):
                row.append(f"{with_error(other[temperature])} → {with_error(one[temperature])}")
                row.append(f"{speed(other[temperature])} → {speed(one[temperature])}")
            rows.append(row)
    return ("Does it help on open conversation (Alpaca)? Without it → with it:\n\n"
            + table(["pair", "does it help?", "tokens per pass, T = 0", "speedup, T = 0", "tokens per pass, T = 1",
                     "speedup, T = 1"], rows))


def mean(cells: dict[str, list[dict]], temperature: str) -> str:
    """Tokens per pass, mean over seeds and then over data sets."""
    each = [[seed[temperature] for seed in seeds] for seeds in cells.values()]
    value = sum(sum(s["block_efficiency"] for s in some) / len(some) for some in each) / len(each)
    # seeds share their held-out prompts: their errors are not independent
    variance = sum(max(s["error"] for s in some) ** 2 for some in each)
    return f"{value:.2f} ± {variance ** 0.5 / len(each):.2f}"


def first_screen(figures: dict) -> str:
    """One line for each data set: before learning at both temperatures, and after learning, greedy."""
    cells: dict[tuple[str, str, str], dict[str, dict]] = {}
    for name, one in figures["cells"].items():
        draft, target, data, method, seed = parts(name)
        if seed == "0" and method in ("before", "lifted"):
            note = figures.get("measured", {}).get(f"cells / {name}", {}).get("settings", {}).get("note", "")
            cells.setdefault((draft, target, data), {})[method] = one | {"mark": " *" * ("busy" in note)}
    rows = []
    for (draft, target, data), one in cells.items():
        if "before" not in one:
            continue
        before, drawn, mark = one["before"]["T=0"], one["before"]["T=1"], one["before"]["mark"]
        row = [f"{draft} → {NAMES.get(target, target)}", DATA[data], with_error(before), speed(before) + mark,
               speed(drawn) + mark]
        if "lifted" in one:
            after = one["lifted"]["T=0"]
            row += [f"{one['lifted']['learned']['prompts']} prompts", with_error(after), speed(after) + one["lifted"]["mark"]]
        rows.append(row + ["–"] * (8 - len(row)))
    head = ["pair", "data", "tokens per pass", "speedup", "speedup, T = 1", "after learning from", "tokens per pass", "speedup"]
    rules = "; ".join(f"{published(name)}: {by_rule(one)}" for name, one in figures["rules"].items())
    return table(head, rows) + (
        "\n\nHeld-out prompts, temperature 0 (but for one column), the same greedy texts as plain decoding; Gemma in "
        "PyTorch. * timed while other programs ran. "
        "Between the two published models, tokens per pass at temperature 1 by verification rule (vocabulary intersection, "
        f"the paper's, which is not exact, and ours): {rules}. "
        f"{machine_line(figures)}; more in [docs/results.md](docs/results.md#real-language-models).")


def device(figures: dict) -> str:
    """What `benchmarks.device` measured: parity, a round, an update, a text."""
    rows = []
    for part, found in figures["parts"].items():
        kind, _, sizes = part.partition(", ")
        if kind == "parity":
            worst = max(value for name, value in found.items() if name.startswith(("loss", "acceptance", "distributions")))
            rows.append([f"parity with NumPy, {sizes} entries", f"largest difference {worst:.0e}, "
                         f"{found['verdicts that differ']} of 40 verdicts differ"])
        elif kind == "round":
            times = ", ".join(f"{way.removeprefix('ms, ')} {ms:.1f}" for way, ms in found.items() if way.startswith("ms"))
            rows.append([f"a round without its models, {sizes}, k = 4, T = 1: ms", times])
        elif kind == "update":
            times = ", ".join(f"{way.removeprefix('step ms, ')} {ms / 1000:.1f}" for way, ms in found.items()
                              if way.startswith("step"))
            rows.append([f"an update on {found['texts']} texts, {found['draft tokens']} draft tokens, {sizes}, a drafter of "
                         f"{found['parameters'] / 1e6:.0f} M parameters: s", times])
        else:
            speeds = ", ".join(f"{way.replace(' tokens/s,', '')} {speed:.0f}" for way, speed in found.items()
                               if "tokens/s" in way)
            rows.append(["draft-tasks → qwen-like, greedy, tokens per second (the same text each time)", speeds])
    m = figures["machine"]
    return (table(["`python -m benchmarks.device`", m["device"]], rows)
            + f"\n\nPython {m['python']}, PyTorch {m['torch']}, NumPy {m['numpy']}, {m['threads']} CPU threads for PyTorch. "
            "The models of the first row are so small that each of their passes waits for the launch of its kernels.")


def pace(figures: dict) -> str:
    """Whether drafting is ever slower than plain decoding."""
    s, rows = figures["settings"], []
    for name, tasks in figures["pairs"].items():
        draft, target = name.split(":")
        for task, one in tasks.items():
            always, adaptive, first = (f"{one[f'wall_{way}']:.2f}×" for way in ("always", "adaptive", "first text"))
            rows.append([f"{draft} → {NAMES.get(target, target)}", task, f"{one['tokens_per_pass']:.2f}", always,
                         f"{adaptive} ({one['cpu_adaptive']:.2f}×)", first, f"{100 * one['drafted_share']:.0f} %",
                         "yes" if one["same_text"] else "no"])
    return (f"Speed over plain decoding with everything in it, prompts too (`benchmarks/pace.py`): {s['prompts']} prompts, "
            f"at most {s['tokens']} tokens each, in turns, greedy. Adaptive is the default of `generate`: it drafts "
            "only while that saves time. First text: by a pair about which nothing is known yet. The math and "
            "code texts are short, 20 to 30 tokens: trials weigh most there.\n\n"
            + table(["pair", "task", "tokens per pass", "always drafting", "adaptive (CPU time)", "first text",
                     "rounds drafted", "same text"], rows) + f"\n\n{machine_line(figures)}.")


def llamacpp(figures: dict) -> str:
    """llama.cpp as the target: passes, break-even and speed in each format."""
    s, rows, same, timed = figures["settings"], [], 0, 0
    for name, one in figures["formats"].items():
        target, form = name.split(", ")
        costs, always = one["milliseconds"], one["drafts of up to 4"]
        rows.append([f"{form}, {one['megabytes']} MB", *(f"{costs[count]:.0f}" for count in costs),
                     f"{costs['3'] / costs['1']:.1f}, {costs['5'] / costs['1']:.1f}", with_error(always), speed(always),
                     always["same_text"], f"{100 * one['difference']:.2g} %"])
        same += int(always["same_text"].split(" of ")[0])
        timed += always["timed"]
    counts = next(iter(figures["formats"].values()))["milliseconds"]
    words = (
        f"`--backend llamacpp`, {s['draft']} → {NAMES[target]} on {s['timed']} held-out GSM8K requests "
        "(`benchmarks/llamacpp.py`): the published file (Q4_1) and the same weights in other formats, passes of m tokens after "
        "64 others, in milliseconds, and the speed over llama.cpp's own plain decoding, in turns, by the wall clock. A round "
        "with k drafts is a pass over k + 1 tokens: drafting gains only where the tokens per pass are more than such a pass "
        "costs in passes over one token (the column break-even; a drafted token costs about 2 ms). With quantized weights, "
        "computing limits llama.cpp here rather than memory, so that a pass over several tokens costs almost as much as as "
        "many passes, and drafting loses; `generate` finds that out and soon writes without. llama.cpp also rounds what "
        "quantized weights are multiplied with: the last column is how far its logits are from those of the same weights in "
        "float32. They depend on the length of a pass, so that "
        f"near ties fall differently: {same} of {timed} greedy texts equal its own plain decoding.")
    head = ["format", *(f"m = {count}" for count in counts), "break-even, 2 and 4 drafts", "tokens per pass", "speedup",
            "same text", "logits differ by"]
    return f"{words}\n\n{table(head, rows)}\n\nllama-cpp-python {s['llama-cpp-python']}. {machine_line(figures)}."


SHOWN = {("before", "T=0"): ("#1a5fb4", "no learning, T = 0"), ("lifted", "T=0"): ("#2e7d32", "after learning, T = 0"),
         ("before", "T=1"): ("#c26a00", "no learning, T = 1"), ("lifted", "T=1"): ("#8e4585", "after learning, T = 1")}
LEFT, WIDE, TOP, ROW = 330, 360, 44, 26  # pixels: names, 0 to `MOST` times, above the first row, each row
MOST = 3.0  # the largest speedup shown


def figure(figures: dict) -> str:
    """The figure in SVG: a row for each pair and data set, the speedup over plain decoding with its standard error."""
    cells: dict[str, dict[tuple[str, str], dict]] = {}
    for name, one in figures["cells"].items():
        draft, target, data, method, seed = parts(name)
        for way in SHOWN:
            if (method, seed) == (way[0], "0"):
                row = f"{draft} → {NAMES.get(target, target)}, {DATA[data]}"
                cells.setdefault(row, {})[way] = one[way[1]]
    width, height = LEFT + WIDE + 20, TOP + ROW * len(cells) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, (colour, words) in enumerate(SHOWN.values()):
        x = 20 + 170 * i
        out.append(f'<circle cx="{x}" cy="14" r="4" fill="{colour}"/><text x="{x + 9}" y="18">{words}</text>')
    below = TOP + ROW * len(cells)
    for half in range(int(2 * MOST) + 1):
        x = at_speed(half / 2)
        colour = "#444" if half == 2 else "#ddd"  # plain decoding: 1
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{below}" stroke="{colour}"/>'
                   f'<text x="{x:.1f}" y="{below + 16}" text-anchor="middle">{half / 2:g}×</text>')
    for number, (row, found) in enumerate(cells.items()):
        middle = TOP + ROW * number + ROW / 2
        out.append(f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{row}</text>')
        for place, (way, one) in enumerate(found.items()):
            y = middle + 4 * (place - (len(found) - 1) / 2)  # one below the other, where they would hide each other
            low, high = (at_speed(one["speedup"] + sign * one["speedup_error"]) for sign in (-1, 1))
            out.append(f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="{SHOWN[way][0]}"/>'
                       f'<circle cx="{at_speed(one["speedup"]):.1f}" cy="{y}" r="3.5" fill="{SHOWN[way][0]}"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def at_speed(times: float) -> float:
    """Where a speedup is in the figure.

    >>> at_speed(0), at_speed(MOST)
    (330.0, 690.0)
    """
    return LEFT + WIDE * min(times, MOST) / MOST
