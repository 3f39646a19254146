"""Commands that look: `align` and `check` at two vocabularies, `models` and `info` at what is here.

`check exactness` proves the rules, and `tutorial` steps through the lessons.
"""

import os
import platform
import re
import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

from .. import OmnidraftError, Options, __version__
from ..engine.cpu import has_avx512
from ..engine.llama import layout_of
from ..engine.load import EMBEDDED, PUBLISHED, config_of, folder, install, load, place, tokenizer_of
from ..engine.model import flat_ids, printable
from ..exactness import TOLERANCE, Finding
from ..exactness import check as enumerated
from ..pairs import template
from ..pairs.fit import WAYS, expected, fit
from ..pairs.pair import Pair, load_two
from ..verification import RULES
from ..vocabulary import aligned_spans
from . import options
from .app import command
from .printing import busy, columns, console, emit, note, progress, say, show_bytes
from .prompts import TASKS, read_prompts

LESSONS = Path(__file__).parents[2] / "tutorials"  # in the repository; a wheel has none
SAMPLE = " Snowflakes fell on 128 cafés; she said: \"I'll be back.\"\n    return problem_solver(x)"
# block by numbers of draft and target tokens (2: several)
BLOCKS = {(1, 1): "same token", (2, 1): "several draft tokens, one target token",
          (1, 2): "one draft token, several target tokens", (2, 2): "crossing boundaries"}


# ------------------------------------------------------------------------------- two vocabularies

@command("omnidraft align draft-tasks qwen-like", "omnidraft align ./llama2-32k ./qwen2-151k",
         "omnidraft align draft-tasks llama3-like 'The windows were broken.'")
def align(
    draft: options.Side, target: options.Side,
    text: Annotated[str, typer.Argument(
        help="Text to tokenize.", show_default="a sample")] = SAMPLE,
) -> None:
    """Show a text in the tokens of both vocabularies, each line one of the smallest common blocks.

    `omnidraft check` compares the whole vocabularies.
    """
    tokenizers = map(tokenizer_of, (draft, target))
    above, below = (one.pieces(one.encode_continuation(text)) for one in tokenizers)
    rows: list[Sequence[str]] = [("draft", "target", "")]
    end = last = 0
    for (start, end), (first, last) in aligned_spans(above, below):
        blocks = above[start:end], below[first:last]
        if any(map(b"".join, blocks)):  # else a character that neither vocabulary has
            kind = BLOCKS[min(2, len(blocks[0])), min(2, len(blocks[1]))]
            rows.append((*map(shown, blocks), kind))
    for name, rest in (("draft", above[end:]), ("target", below[last:])):
        if any(rest):
            rows.append(["one side cannot spell this text; from here on, the "
                         f"{name} side has {show_bytes(b''.join(rest))}"])
    say(columns(rows))


def shown(pieces: Sequence[bytes]) -> str:
    """The bytes of some tokens, with | between two of them."""
    return "|".join(map(show_bytes, pieces))


@command("omnidraft check draft-tasks qwen-like", "omnidraft check ./a/tokenizer.json ./b",
         "omnidraft check --rank smollm2",
         "omnidraft check exactness", "omnidraft check exactness --rule lifted --worlds 2000")
def check(
    draft: Annotated[str | None, typer.Argument(
        help="A model, a folder, a tokenizer.json, or `exactness`, to check the rules.")] = None,
    target: Annotated[str | None, typer.Argument(help="The same, for the target.")] = None,
    rank: Annotated[str | None, options.models(
        metavar="TARGET",
        help="Try all drafters that are here, and the one given, and list the fastest first.",
    )] = None,
    text: Annotated[str | None, options.models(
        help="math, code, text, a file, or - (stdin).", show_default="all three")] = None,
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
    if draft == "exactness" and not target:
        if text or backend != "numpy":
            raise OmnidraftError("--text and --backend are for two models, not for `exactness`")
        check_exactness(rule, worlds, seed, figures)
        return
    if (rule, worlds, seed) != ("all", 300, 0):
        raise OmnidraftError("--rule, --worlds and --seed are for `check exactness` only")
    if rank:
        found = ranking(rank, [*filter(None, (draft, target))], text, backend)
        report = ranking_report
    elif target and draft != "exactness":
        found = check_pair(draft, target, text, backend)
        report = pair_report
    else:
        raise OmnidraftError("give two models or tokenizers, or only `exactness`, or --rank")
    if figures:
        emit(found)
    else:
        say(report(found))


def texts_of(text: str | None) -> list[str]:
    """Prompts of a source, or of all tasks."""
    texts: list[str] = []
    for source in [text] if text else TASKS:
        texts += islice(read_prompts(source)[0], 40)
    return texts


def ranking(target: str, given: list[str], text: str | None, backend: str) -> dict[str, dict]:
    """What to `expect` of each drafter, fastest first; those that cannot draft are left out."""
    texts = texts_of(text)
    here = [*EMBEDDED, *(name for name in PUBLISHED if place(name).exists())]
    with busy("loading"):
        large = load(target, backend=backend)
    found = {}
    with progress(transient=True) as bar:
        for name in bar.track([*given, *here], description="trying drafters"):
            if name == target:
                continue
            try:
                found[name] = expected(Pair(*load_two(name, large, backend=backend)), texts)
            except OmnidraftError as error:
                note(f"{name} is left out: {error}")
    speedups = {name: hope["tokens_per_pass"] / hope["needed"] for name, hope in found.items()}
    return {name: found[name] for name in sorted(speedups, key=speedups.get, reverse=True)}


def ranking_report(found: dict[str, dict]) -> str:
    """The drafters as a table."""
    rows = [("drafter", "tokens per pass", "to pay off", "expected speedup")]
    for name, hope in found.items():
        tokens, needed = hope["tokens_per_pass"], hope["needed"]
        rows.append((name, f"{tokens:.2f}", f"{needed:.2f}", f"{tokens / needed:.2f}x"))
    return columns(rows)


def check_pair(draft: str, target: str, text: str | None, backend: str) -> dict[str, Any]:
    """How two models fit, or only their tokenizers if one of the models does not load."""
    texts = texts_of(text)
    names = [name.removesuffix("tokenizer.json") or "." for name in (draft, target)]
    try:
        with busy("loading"):
            sides = load_two(names[0], names[1], backend=backend)
    except OmnidraftError as error:
        found = [tokenizer_of(name) for name in names]
        note(f"only tokenizers are compared, costs are not measured: {error}")
        sides = tuple(SimpleNamespace(tokenizer=one, vocab_size=one.size, name=one.name)
                      for one in found)
    with busy("comparing and trying them"):
        return fit(sides[0], sides[1], texts)


def pair_report(found: dict[str, Any]) -> str:
    """The result of `fit` in tables: entries, a text, and what to expect of drafts."""
    report = f"{columns(entries_table(found))}\n\n{columns(translation_table(found))}"
    if "expected" in found:
        report += f"\n\n{expectation(found['expected'])}"
    return report


def entries_table(found: dict[str, Any]) -> list[tuple]:
    """How much of each vocabulary the other one has."""
    rows = [("", "entries", "in both", "spelled by the other")]
    for name in ("draft", "target"):
        side = found[name]
        size = side["entries"]
        same, spelled = (f"{side[key]:,} ({side[key] / size:.1%})" for key in ("same", "spelled"))
        rows.append((f"{name} {side['name']}", f"{size:,}", same, spelled))
    return rows


def translation_table(found: dict[str, Any]) -> list[tuple]:
    """What becomes of the draft tokens of the texts."""
    rows = [(f"{found['tokens']:,} draft tokens become", "of the tokens", "of the bytes")]
    for way, meaning in WAYS.items():
        shares = found["of_tokens"][way], found["of_bytes"][way]
        rows.append((meaning, f"{shares[0]:.1%}", f"{shares[1]:.1%}"))
    return rows


def expectation(hope: dict[str, Any]) -> str:
    """Is drafting expected to pay?"""
    tokens, needed = hope["tokens_per_pass"], hope["needed"]
    means = "drafting is not expected to pay; it will be tried only now and then"
    if hope["pays"]:
        means = f"drafting is expected to pay, {tokens / needed:.1f} times as fast"
    return (f"plain decoding takes {hope['step_ms']:.2f} ms per token\n"
            f"{tokens:.2f} tokens per pass in a trial, and more than {needed:.2f} pay off: {means}")


# -------------------------------------------------------------------------------------- the rules

def check_exactness(rule: str, worlds: int, seed: int, figures: bool) -> None:
    """Print how far the rules are from the target; OmnidraftError if a lossless one differs."""
    if worlds < 1 or seed < 0:
        raise OmnidraftError(f"--worlds is {worlds}, --seed {seed}: give at least 1 and at least 0")
    rules = RULES if rule == "all" else [Options(verify=rule).verify]
    with progress() as bar:
        found = [enumerated(one, worlds, seed, partial(bar.track, description=one))
                 for one in rules]
    if figures:
        emit({one.rule: vars(one) for one in found})
    else:
        say(exactness_report(found))
    wrong = [one.rule for one in found if RULES[one.rule].exact and one.worst > TOLERANCE]
    if wrong:
        raise OmnidraftError(f"not exact: {', '.join(wrong)}")


def exactness_report(found: list[Finding]) -> str:
    """Two tables: the distances of each rule, and in how many worlds each condition occurred.

    The distance is the total variation of the first tokens' distribution.
    """
    rows = [("rule", "worlds", "runs", "mean distance", "largest", "")]
    for one in found:
        verdict = "exact" if one.worst <= TOLERANCE else "NOT EXACT"
        if not RULES[one.rule].exact:
            verdict = "biased"
        rows.append((one.rule, f"{len(one.distances):,}", f"{one.runs:,}",
                     f"{one.mean:.1e}", f"{one.worst:.1e}", verdict))
    counted: list[list[Any]] = [["worlds with"] + [one.rule for one in found]]
    for name in sorted({name for one in found for name in one.conditions}):
        counted.append([name] + [one.conditions[name] for one in found])
    return f"{columns(rows)}\n\n{columns(counted)}"


# ----------------------------------------------------------------------------------- what is here

@command("omnidraft models", "omnidraft models --get smollm2")
def models(get: Annotated[str | None, options.models(
    metavar="NAME",
    help=f"Download a published model: {', '.join(PUBLISHED)}.")] = None,
) -> None:
    """Describe the embedded models, and the published ones that can be downloaded."""
    if get is not None:
        if get in PUBLISHED and not place(get).exists():
            note(f"downloading {PUBLISHED[get].about} ...")
        say(str(install(get)))
        if not template.is_usable():
            note(template.NEEDED)
        return
    readme = folder(EMBEDDED[0]).parent / "README.md"
    say(readme.read_text(encoding="utf-8").split("---\n")[-1])
    for name, one in PUBLISHED.items():
        here = place(name) if place(name).exists() else f"omnidraft models --get {name}"
        say(f"{name}: {one.about}, {one.size / 1e6:.0f} MB: {here}")


@command("omnidraft info", "omnidraft info ./my-model --backend torch")
def info(
    model: Annotated[str | None, typer.Argument(
        help=f"{options.MODEL}.", show_default=False)] = None,
    backend: options.Backend = "numpy",
) -> None:
    """Show this machine and, of a model, its sizes and how it runs here: kernels, cache, why."""
    rows: list[tuple[str, Any]] = [("omnidraft", __version__)]
    if model is not None:
        if backend == "numpy":  # without its weights
            path = folder(model)
            name = printable(path.stem if path.is_file() else path.name)
            made = config_of(model)
            runs = layout_of(made)
            end_ids = flat_ids(made.eos_ids, tokenizer_of(model).roles["eos"])
        else:
            made = load(model, backend=backend)
            name = made.name
            runs = made.kernel
            end_ids = made.eos_ids
        rows += [("model", name),
                 ("parameters", f"{made.parameters:,}"),
                 ("vocabulary", f"{made.vocab_size:,}"),
                 ("context", f"{made.context_size:,}"),
                 ("end tokens", " ".join(map(str, end_ids)) or "none"),
                 ("runs", runs)]
    rows += machine().items()
    say(columns(rows))


def machine() -> dict[str, Any]:
    """CPU, cores, system, Python, NumPy, its BLAS with settings, and PyTorch if it is used."""
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    found = {
        "cpu": cpu(),
        "avx512": has_avx512(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "blas_kernels": os.environ.get("OPENBLAS_CORETYPE", "chosen by the library"),
        "blas_threads": threads or "all cores",
    }
    if "OPENBLAS_L2_SIZE" in os.environ:
        found["blas_l2_size"] = os.environ["OPENBLAS_L2_SIZE"]
    for library in ("torch", "transformers"):
        if library in sys.modules:
            found[library] = sys.modules[library].__version__
    return found


def cpu() -> str:
    """The name of the processor."""
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        text = listed.read_text(encoding="utf-8", errors="replace")
        name = re.search(r"^model name\s*: *(.*\S)", text, re.M)
        if name:
            return name[1]
    return platform.processor() or platform.machine()


@command("omnidraft tutorial", "omnidraft tutorial 1", "omnidraft tutorial 1 --check")
def tutorial(
    lesson: Annotated[str | None, typer.Argument(
        help="Number of the lesson; omit it to list all.", show_default=False)] = None,
    check: Annotated[bool, options.output(
        "--check", help="Test the functions you wrote for the lesson.")] = False,
) -> None:
    """Step through a lesson: prose, code and output. On a terminal, Enter continues and q quits."""
    if not (LESSONS / "runner.py").is_file():
        raise OmnidraftError("the installed package has no lessons: clone the repository")
    sys.path.append(str(LESSONS))  # the lessons import from there too
    import runner

    wait = sys.stdin.isatty() and sys.stdout.isatty()
    failed = runner.teach(lesson, console()[0], wait, check)
    if failed:
        raise typer.Exit(failed)
