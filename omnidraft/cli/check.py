"""`omnidraft check`: how well do two vocabularies fit, and are the rules exact?"""

from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from .. import OmnidraftError, Options
from ..exactness import TOLERANCE, Finding
from ..exactness import check as enumerated
from ..pairs.fit import WAYS, fit
from ..pairs.pair import load_two
from ..verification import RULES
from . import options
from .common import command
from .inspect import tokenizers
from .printing import columns, emit, note, say


@command("omnidraft check draft-tasks qwen-like", "omnidraft check ./a/tokenizer.json ./b",
         "omnidraft check exactness", "omnidraft check exactness --rule lifted --worlds 2000")
def check(
    draft: Annotated[str, typer.Argument(help="A model, a folder, a tokenizer.json, "
                                              "or `exactness`, to check the rules.")],
    target: Annotated[str | None, typer.Argument(help="The same, for the target.")] = None,
    text: Annotated[str | None, options.models(help="math, code, text, a file, or - (stdin).",
                                               show_default="all three")] = None,
    backend: options.Backend = "numpy",
    rule: Annotated[str, options.speculation(help=f"{', '.join(RULES)}, or all.")] = "all",
    worlds: Annotated[int, options.speculation(help="Random worlds per rule.")] = 300,
    seed: Annotated[int, options.speculation(help="Seed of the first world.")] = 0,
    figures: options.AsJson = False,
) -> None:
    """Show how two vocabularies fit and when drafting pays off, or check the rules exactly.

    `exactness` enumerates every outcome of the decoding loop in random worlds: pairs of random
    tokenizers and models, with random options.
    """
    if target and draft != "exactness":
        if (rule, worlds, seed) != ("all", 300, 0):
            raise OmnidraftError("--rule, --worlds and --seed are for `check exactness` only")
        texts = [line for source in ([text] if text else options.TASKS)
                 for line in islice(options.read_prompts(source)[0], 40)]
        (emit if figures else show_pair)(fit(*sides(draft, target, backend), texts))
    elif not target and draft == "exactness":
        if text or backend != "numpy":
            raise OmnidraftError("--text and --backend are for two models, not for `exactness`")
        check_exactness(rule, worlds, seed, figures)
    else:
        raise OmnidraftError("give two models or tokenizers, or only `exactness`")


def sides(draft: str, target: str, backend: str) -> list[Any]:
    """Two models, or only their tokenizers if one of the models does not load."""
    names = [name.removesuffix("tokenizer.json") or "." for name in (draft, target)]
    try:
        return [*load_two(*names, backend=backend)]
    except OmnidraftError as error:
        found = tokenizers(*names)
        note(f"only tokenizers are compared, costs are not measured: {error}")
    return [SimpleNamespace(tokenizer=one, vocab_size=one.size, name=one.name) for one in found]


def show_pair(found: dict[str, Any]) -> None:
    """Print the result of `fit`."""
    rows = [("", "entries", "in both", "spelled by the other")]
    for side in ("draft", "target"):
        one, size = found[side], found[side]["entries"]
        counts = (f"{one[key]:,} ({one[key] / size:.1%})" for key in ("same", "spelled"))
        rows.append((f"{side} {one['name']}", f"{size:,}", *counts))
    text = [(f"{found['tokens']:,} draft tokens become", "of the tokens", "of the bytes")]
    text += [(mean, *(f"{found[of][way]:.1%}" for of in ("of_tokens", "of_bytes")))
             for way, mean in WAYS.items()]
    say(f"{columns(rows)}\n\n{columns(text)}")
    if cost := found.get("costs"):
        rows = [("draft tokens", "draft, ms", "target, ms", "pays off above (tokens per pass)")]
        rows += [(k, *map("{:.2f}".format, one.values())) for k, one in cost["lengths"].items()]
        say(f"\n{columns(rows)}\nplain decoding takes {cost['step_ms']:.2f} ms per token")
    if hope := found.get("expected"):
        tokens, needed = hope["tokens_per_pass"], hope["needed"]
        means = (f"drafting is expected to pay, {tokens / needed:.1f} times as fast" if hope["pays"]
                 else "drafting is not expected to pay; it will be tried only now and then")
        say(f"{tokens:.2f} tokens per pass in a trial, and more than {needed:.2f} pay off: {means}")


def check_exactness(rule: str, worlds: int, seed: int, figures: bool) -> None:
    """Print how far the rules are from the target; OmnidraftError if a lossless one differs."""
    if worlds < 1 or seed < 0:
        raise OmnidraftError(f"--worlds is {worlds}, --seed {seed}: give at least 1 and at least 0")
    found = []
    for one in RULES if rule == "all" else (Options(verify=rule).verify,):
        note(f"{one}: {worlds} worlds ...")
        found.append(enumerated(one, worlds, seed))
    if figures:
        emit({one.rule: vars(one) for one in found})
    else:
        say(report(found))
    if wrong := [one.rule for one in found if RULES[one.rule].exact and one.worst > TOLERANCE]:
        raise OmnidraftError(f"not exact: {', '.join(wrong)}")


def report(found: list[Finding]) -> str:
    """Two tables: the distances of each rule, and in how many worlds each condition occurred.

    The distance is the total variation of the first tokens' distribution.
    """
    rows = [("rule", "worlds", "runs", "mean distance", "largest", "")]
    for one in found:
        exact = "exact" if one.worst <= TOLERANCE else "NOT EXACT"
        rows.append((one.rule, f"{len(one.distances):,}", f"{one.runs:,}", f"{one.mean:.1e}",
                     f"{one.worst:.1e}", exact if RULES[one.rule].exact else "biased"))
    counted = [("worlds with", *(one.rule for one in found))]
    for name in sorted({name for one in found for name in one.conditions}):
        counted.append((name, *(one.conditions[name] for one in found)))
    return f"{columns(rows)}\n\n{columns(counted)}"
