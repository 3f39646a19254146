"""Where each test runs that may be skipped: a new reason to skip must be added here, and what no run of CI covers is named."""

from __future__ import annotations

import functools
import re
from pathlib import Path

HERE = Path(__file__).parent
RUNS = {  # why a test may be skipped (or the package that it needs), by where it runs: `.ci/run` does all but the last
    "make test": {
        "jinja2", "mypy", "resource", "setuptools", "jinja2 is missing", "links need rights there", "no FIFOs here",
        "no /dev/full here", "no /dev/full", "the shell is another there", "pipes differ there", "no such signals",
        "no such signal", "no terminals of this kind", "no pseudo-terminals there", "this is no repository",
        "guard pages are made as Linux makes them", "NumPy's BLAS has no AVX2 kernel of OpenBLAS 0.3 here",
        "the embedded models are not made yet: run `make models`", "an older typer words its help otherwise",
        "slem proposes the text as the target's tokenizer spells it"},
    "make test-torch": {"torch", "transformers", "peft", "accelerate", "safetensors.torch", "package"},
    "OMNIDRAFT_REAL_DATA": {
        "the real models are not here", "no real models here", "no published models here", "the real data sets are not here",
        "{name} is not here", "{REAL / name} is not here (set OMNIDRAFT_REAL_DATA)",
        "{REAL / 'data'} is not here (set OMNIDRAFT_REAL_DATA)"},
    "apt-get install --yes chromium": {"no Chromium here"},
    "make smollm2": {"{path} is not here (run `make smollm2`, or set OMNIDRAFT_MODELS)"},
    "make notebooks": {"needed"}}
NOT_IN_CI = {"test_notebooks.py test_one_is_built_with_its_output": "make notebooks", "vllm_requests.py": "make test-vllm"}


PLACE = re.compile(r'''^def (?P<name>\w+)|importorskip\((?P<package>"[\w.]+"|\w+)|\.skip\(f?(?P<why>".+")\)$'''
                   r'''|\breason=(?P<mark>".+?")\)''', re.MULTILINE)


@functools.cache
def skips() -> list[tuple[str, str]]:
    """Every place of a skip (its file and function) with its reason, or the package that is needed."""
    found = []
    for path in sorted(HERE.glob("*.py")):
        name = ""
        for place in PLACE.finditer(path.read_text(encoding="utf-8")):
            name = place["name"] or name
            reason = place["package"] or place["why"] or place["mark"]
            if reason:
                found.append((f"{path.name} {'' if place['mark'] else name}".strip(), reason.strip('"')))
    return found


def test_every_reason_to_skip_says_where_the_test_runs():
    assert {reason for _, reason in skips()} == set().union(*RUNS.values())
    assert len(skips()) > 100


def test_what_no_run_of_ci_covers_is_named():
    commands = (HERE.parent / ".ci" / "run").read_text(encoding="utf-8")
    makefile = (HERE.parent / "Makefile").read_text(encoding="utf-8")
    elsewhere = {place: where for place, reason in skips() for where, reasons in RUNS.items()
                 if reason in reasons and where != "OMNIDRAFT_REAL_DATA" and where not in commands}
    elsewhere["vllm_requests.py"] = "make test-vllm"  # no test of pytest
    assert elsewhere == NOT_IN_CI
    assert all(f"\n{where.split()[1]}:" in makefile for where in elsewhere.values())
    assert all(f"\n{name} :=" in makefile for name in re.findall(r"\$\((\w*VENV)\)", makefile))
