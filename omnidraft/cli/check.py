"""`omnidraft check`: is what a rule writes exactly the target's? Enumerated in random worlds."""

from typing import Annotated

import typer

from .. import OmnidraftError, Options
from ..exactness import TOLERANCE, Finding
from ..exactness import check as enumerated
from ..verification import RULES
from . import options
from .common import command
from .printing import columns, note, say

BIASED = ("omnidraft",)  # above temperature 0, as its paper says


@command("omnidraft check exactness", "omnidraft check exactness --rule lifted --worlds 2000")
def check(
    what: Annotated[str, typer.Argument(help="`exactness`.", metavar="exactness")],
    rule: Annotated[str, options.speculation(help=f"{', '.join(RULES)}, or all.")] = "all",
    worlds: Annotated[int, options.speculation(help="Random worlds for each rule.")] = 300,
    seed: Annotated[int, options.speculation(help="Of the first world.")] = 0,
) -> None:
    """Run the loop through every outcome of its draws: how far is the text from the target's?

    A world is a pair of random tokenizers and models with random options.
    """
    if what != "exactness":
        raise OmnidraftError(f"cannot check {what!r}: the one thing to check is `exactness`")
    if worlds < 1 or seed < 0:
        raise OmnidraftError(f"worlds is {worlds} and seed {seed}: give 1 or more, and 0 or more")
    found = []
    for one in RULES if rule == "all" else (Options(verify=rule).verify,):
        note(f"{one}: {worlds} worlds ...")
        found.append(enumerated(one, worlds, seed))
    say(report(found))
    if wrong := [one.rule for one in found if one.rule not in BIASED and one.worst > TOLERANCE]:
        raise OmnidraftError(f"not exact: {', '.join(wrong)}")


def report(found: list[Finding]) -> str:
    """Two tables: the distances of each rule, and in how many worlds each condition occurred.

    The distance is the total variation of the first tokens' distribution.
    """
    rows = [("rule", "worlds", "runs", "mean distance", "largest", "")]
    for one in found:
        exact = "exact" if one.worst <= TOLERANCE else "NOT EXACT"
        rows.append((one.rule, f"{len(one.distances):,}", f"{one.runs:,}", f"{one.mean:.1e}",
                     f"{one.worst:.1e}", "biased" if one.rule in BIASED else exact))
    counted = [("worlds with", *(one.rule for one in found))]
    for name in sorted({name for one in found for name in one.conditions}):
        counted.append((name, *(str(one.conditions[name]) for one in found)))
    return f"{columns(rows)}\n\n{columns(counted)}"
