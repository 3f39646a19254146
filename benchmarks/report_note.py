"""The figures of docs/note.md."""

from __future__ import annotations

from statistics import fmean

from benchmarks import report_overlap
from benchmarks.common import earlier, result
from benchmarks.report_learning import arrow, machine_line, stop_rules_line, with_error


def note() -> str:
    """What was measured: one line per result file."""
    makers = {"exactness": exactness, "same_text": same_text, "block": block, "efficiency": efficiency,
              "overlap": overlap, "overhead": overhead, "speed": speed, "stop_rules": stop_rules}
    lines = []
    for name, make in makers.items():
        ways = [*filter(None, (result(name), result(f"{name}_avx2")))]  # the first with the present models, else the first
        if figures := next((one for one in ways if not earlier(one)), ways[0] if ways else None):
            old = " *(Earlier embedded models.)*" * earlier(figures)
            lines.append(f"- {make(figures)}{old}")
    return "\n".join(lines)


def exactness(figures: dict) -> str:
    """The enumeration."""
    exact, biased = figures["rules"]["lifted"], figures["rules"]["omnidraft"]
    seen = ", ".join(f"{what} in {exact['conditions'][what]:,}" for what in ("merge accepted", "expansion kept", "healing"))
    return (f"*Exactness* (`benchmarks/exactness.py`): the loop run on every outcome of its draws in {figures['worlds']:,} "
            f"worlds of random tokenizers, models and options ({exact['runs']:,} runs; {seen} of the worlds, "
            "[and more](exactness.md)). Largest total variation of the first tokens' distribution from the target's: "
            f"`lifted` {exact['worst']:.1e}; OmniDraft's rule {biased['worst']:.2f}, on average {biased['mean']:.3f}.")


def same_text(figures: dict) -> str:
    """Greedy texts."""
    same, of = (sum(run[key] for run in figures["pairs"].values()) for key in ("same", "of"))
    return f"*T = 0* (`benchmarks/same_text.py`): {same:,} of {of:,} greedy texts are identical to plain decoding, in float64."


def block(figures: dict) -> str:
    """What block verification gains, and the time it takes."""
    every = [(pair, one) for pair, tasks in figures["pairs"].items() for one in tasks.values()]
    shown = [f"{arrow(pair)} {one['gain']:+.1f} ± {one['gain_error']:.1f} %" for pair, one in every if "260K" in pair]
    own = [one["gain"] for pair, one in every if "260K" not in pair]
    times = [one["microseconds"] for _, one in every]
    return (f"*Block verification* (`benchmarks/block.py`): gain in expected tokens per target pass at T = 1, k = "
            f"{figures['settings']['k']}, over judging each comparison alone, on the same rounds: {', '.join(shown)}; embedded "
            f"pairs {min(own):+.2f} to {max(own):+.2f} %, since these nearly always agree. Verification takes "
            f"{min(times):.0f} to {max(times):.0f} µs of processor time per round, including the softmax of the target's rows.")


def efficiency(figures: dict) -> str:
    """The rules on published models."""
    parts = []
    for pair, tasks in figures["pairs"].items():
        if "stories260K" in pair:
            found = next(iter(tasks.values()))["T=1"]
            values = " / ".join(with_error(found[rule]) for rule in ("tli", "slem", "omnidraft", "lifted"))
            parts.append(f"{arrow(pair)} {values}")
    k = figures["settings"]["k"]
    return (f"*Two published models* (`benchmarks/efficiency.py`), tokens per target pass at T = 1, k = {k}, `tli` / `slem` "
            f"/ `omnidraft` (biased) / `lifted`: {', '.join(parts)}.")


def overlap(figures: dict) -> str:
    """The smallest and the largest overlap."""
    pair, runs = next(iter(figures["pairs"].items()))
    parts = []
    for one in (report_overlap.levels(runs)[i] for i in (0, -1)):
        values = " / ".join("{:.2f} ± {:.2f}".format(*report_overlap.efficiency(one["T=1"][rule]))
                            for rule in ("tli", "slem", "lifted"))
        parts.append(f"{100 * one['overlap']['text']:.0f} % shared {values}")
    return (f"*Overlap* (`benchmarks/overlap.py`), {arrow(pair)} with other vocabularies, by the share of a text's tokens that "
            f"both share, T = 1, `tli` / `slem` / `lifted`: {', '.join(parts)} ([figure](results.md#acceptance-by-overlap)).")


def overhead(figures: dict) -> str:
    """Large vocabularies."""
    one = figures["backends"]["numpy"]["lifted"]["T=1"]
    return (f"*Overhead* (`benchmarks/overhead.py`): a round without the models, 32,000 → 151,646 entries, T = 1, takes "
            f"{one['own_ms']:.2f} ms; the softmax of its rows alone takes {one['alone_ms']:.2f} ms.")


def speed(figures: dict) -> str:
    """Wall-clock speed."""
    parts = [f"{arrow(pair)} {ratio:.2f}×" for pair, ratio in figures["together"].items()]
    return (f"*Speed* (`benchmarks/speed.py`) over plain decoding at T = 0, three tasks together: {', '.join(parts)}. "
            f"{machine_line(figures)}.")


def stop_rules(figures: dict) -> str:
    """The acceptance head."""
    share = fmean(one["costs"]["prediction"] / (one["costs"]["step"] + one["costs"]["row"])
                  for tasks in figures["pairs"].values() for one in tasks.values())
    return (f"*Stopping* (`benchmarks/paper/stop_rules.py`): {stop_rules_line(figures)} A prediction costs "
            f"{100 * share:.0f} % of a draft token.")
