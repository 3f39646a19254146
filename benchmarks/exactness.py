"""How far each rule's distribution of the first tokens is from the target's, by enumeration.

    python -m benchmarks.exactness --json

The figures of `omnidraft check exactness --worlds 2000`, as a file.
"""

from __future__ import annotations

from benchmarks.common import arguments, chosen, save, start
from omnidraft.cli.check import report
from omnidraft.exactness import check
from omnidraft.verification import RULES


def main() -> None:
    """Enumerate, print and write."""
    args = arguments(__doc__, "exactness", worlds=2000)
    found = [check(rule, args.worlds) for rule in RULES]
    print(report(found))
    rules = {one.rule: {"runs": one.runs, "mean": one.mean, "worst": one.worst,
                        "conditions": dict(sorted(one.conditions.items()))} for one in found}
    save(args.json, start(None, chosen(args, "worlds"), rules=rules))


if __name__ == "__main__":
    main()
