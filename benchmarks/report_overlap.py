"""The table and the figure of `benchmarks/overlap.py`."""

from __future__ import annotations

from html import escape
from math import ceil

import numpy as np

from benchmarks.report_learning import arrow, table

# rule: colour, marker as a path around (0, 0), dashes; the others are compared with the first
STYLES = {"lifted": ("#0072b2", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", ""),
          "omnidraft": ("#d55e00", "M-4,-4h8v8h-8z", ""),
          "slem": ("#009e73", "M0,-5L5,4H-5z", ""),
          "tli": ("#cc79a7", "M0,-5L5,0L0,5L-5,0z", ""),
          "lifted, cut": ("#666666", "M-4,-4L4,4M-4,4L4,-4", "4 3")}
WIDE, HIGH, LEFT, TOP = 300, 210, 46, 56  # size of a panel, and its margins


def efficiency(run: dict) -> tuple[float, float]:
    """Tokens per pass, and its standard error with prompts as the independent units."""
    value, parts = _linear(run)
    return value, _error(parts)


def difference(run: dict, other: dict) -> tuple[float, float]:
    """How many more tokens per pass than another run on the same prompts, and the paired error."""
    (value, parts), (base, others) = _linear(run), _linear(other)
    return value - base, _error(parts - others)


def _linear(run: dict) -> tuple[float, np.ndarray]:
    """A ratio of sums, and each prompt's part in its deviation (n,)."""
    tokens, passes = (np.array(run[key], float) for key in ("tokens", "passes"))
    value = tokens.sum() / passes.sum()
    return float(value), (tokens - value * passes) / passes.sum()


def _error(parts: np.ndarray) -> float:
    return float((len(parts) / max(1, len(parts) - 1) * (parts ** 2).sum()) ** 0.5)


def levels(runs: dict) -> list[dict]:
    """The vocabularies measured at both temperatures with every rule, in order of overlap."""
    whole = [one for one in runs.values() if all(
        STYLES.keys() - {"lifted, cut"} <= one.get(at, {}).keys() for at in ("T=0", "T=1"))]
    return sorted(whole, key=lambda one: one["overlap"]["text"])


def report(figures: dict) -> str:
    """The figure and the tables, with an explanation."""
    rows: list[list[str]] = []
    for pair, runs in figures["pairs"].items():
        for one in levels(runs):
            rows += [row(arrow(pair), one, at) for at in ("T=0", "T=1")]
    for pair, one in figures["real"].items():
        rows += [row(arrow(pair), one, at) for at in levels({pair: one}) and ("T=0", "T=1")]
    real = [[str(number), arrow(pair), f"{100 * one['entries']:.1f} %",
             f"{100 * one['text']:.1f} %", f"{one['pieces']:.2f}"] for number, (pair, one) in
            enumerate(figures["published"].items(), 1)]
    s = figures["settings"]
    return (
        "![Target tokens per target pass of the four rules, by the overlap of the vocabularies]"
        f"(overlap.svg)\n\nThe drafter with ever smaller vocabularies ({3 * s['prompts']} prompts, "
        f"{s['tokens']} tokens each; `benchmarks/overlap.py`): only its tokenizer's first merges "
        "remain, and a removed token is drafted as the pieces that spell it, so that what the "
        f"drafter knows stays the same. k = {s['k']} with the whole vocabulary, and as many pieces "
        "as make the same length of text. Overlap: the share of the target's entries, and of the "
        "tokens in the texts, that the drafter has as one token. Cells: target tokens per target "
        "pass, ± standard error over prompts; in brackets the difference from `lifted` with its "
        "paired error. `omnidraft` is biased at T = 1. *cut* only removes the tokens' rows: it "
        "meets sequences that it was never trained on, so its loss is not due to the rules. The "
        "last column is the share of the drafted bytes that `lifted` keeps.\n\n"
        + table(["pair", "of entries", "of text", "", "k", *(f"`{rule}`" for rule in STYLES),
                 "bytes kept"], rows)
        + ("\n\nWhere pairs of published tokenizers fall on that axis (grey in the figure):\n\n"
           + table(["", "drafter → target", "of entries", "of text",
                    "draft tokens per target token"], real)
           if real else ""))


def row(name: str, one: dict, at: str) -> list[str]:
    """One line of the table."""
    runs, share = one[at], one["overlap"]
    cells = []
    for rule in STYLES:
        if rule not in runs:
            cells.append("")
            continue
        value, error = efficiency(runs[rule])
        less, paired = difference(runs[rule], runs["lifted"])
        cells.append(f"{value:.2f} ± {error:.2f}"
                     + f" ({less:+.2f} ± {paired:.2f})" * (rule != "lifted"))
    return [name, f"{100 * share['entries']:.1f} %", f"{100 * share['text']:.1f} %", at,
            str(one["k"]), *cells, f"{100 * runs['lifted']['bytes_kept']:.0f} %"]


def figure(figures: dict) -> str:
    """The figure in SVG: a row for each temperature, a column for each pair."""
    shown = [pair for pair, runs in figures["pairs"].items() if levels(runs)]
    width, height = LEFT + WIDE * len(shown), TOP + 2 * HIGH
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, (rule, (colour, path, _)) in enumerate(STYLES.items()):
        x = LEFT + 110 * i
        out.append(f'<g transform="translate({x},14)"><path d="{path}" fill="{colour}" '
                   f'stroke="{colour}"/><text x="10" y="4">{escape(rule)}</text></g>')
    for column, pair in enumerate(shown):
        for line, at in enumerate(("T=0", "T=1")):
            out.append(f'<g transform="translate({LEFT + WIDE * column},{TOP + HIGH * line})">')
            out += panel(levels(figures["pairs"][pair]), f"{arrow(pair)}, {at}", at,
                         [one["text"] for one in figures["published"].values()]) + ["</g>"]
    return "\n".join([*out, "</svg>"]) + "\n"


def panel(runs: list[dict], title: str, at: str, marks: list[float]) -> list[str]:
    """Tokens per pass by the share of the target's written tokens; bars are standard errors.

    `marks`: the shares of published pairs, by their numbers.
    """
    wide, high = WIDE - 54, HIGH - 66
    most = ceil(max(sum(efficiency(run)) for one in runs for run in one[at].values()))
    out = [f'<text x="{wide / 2}" y="-8" text-anchor="middle">{escape(title)}</text>',
           f'<path d="M0,0V{high}H{wide}" fill="none" stroke="black"/>',
           f'<text x="{wide / 2}" y="{high + 30}" text-anchor="middle">tokens of the text that the '
           "drafter has, %</text>",
           f'<text transform="translate(-26,{high / 2}) rotate(-90)" text-anchor="middle">'
           "tokens per pass</text>"]
    for tick in range(1, most + 1):
        y = high * (1 - tick / most)
        out.append(f'<path d="M0,{y:.1f}H{wide}" stroke="#ddd"/><text x="-6" y="{y + 4:.1f}" '
                   f'text-anchor="end">{tick}</text>')
    for number, share in enumerate(marks, 1):
        x = f"{wide * share:.1f}"
        out.append(f'<path d="M{x},10V{high}" stroke="#aaa" stroke-dasharray="1 3"/>'
                   f'<text x="{x}" y="8" fill="#777" text-anchor="middle">{number}</text>')
    out += [f'<text x="{wide * tick / 100:.1f}" y="{high + 14}" text-anchor="middle">{tick}</text>'
            for tick in range(0, 101, 20)]
    for rule, (colour, path, dashes) in STYLES.items():
        points = [(wide * one["overlap"]["text"], *efficiency(one[at][rule]))
                  for one in runs if rule in one[at]]
        places = " ".join(f"{x:.1f},{high * (1 - y / most):.1f}" for x, y, _ in points)
        out.append(f'<polyline points="{places}" fill="none" stroke="{colour}" '
                   f'stroke-dasharray="{dashes}"/>')
        for x, y, error in points:
            low, top = (high * (1 - (y + sign * error) / most) for sign in (-1, 1))
            out.append(f'<path d="M{x:.1f},{low:.1f}V{top:.1f}" stroke="{colour}"/>'
                       f'<path transform="translate({x:.1f},{high * (1 - y / most):.1f})" '
                       f'd="{path}" fill="{colour}" stroke="{colour}"/>')
    return out
