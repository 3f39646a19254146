"""What the benchmarks share: arguments, prompts, result files, comparison with another checkout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import omnidraft
from omnidraft.cli.inspect import machine
from omnidraft.text.files import make_folder_of, write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", "OMNIDRAFT_REAL_DATA"))  # published models and data
TASKS, TARGETS = ["math", "code", "text"], ["qwen-like", "llama3-like"]


def arguments(doc: str | None, name: str, **defaults: Any) -> Namespace:
    """The command line of a script: one option for each default, and --json FILE (results/`name`.json).

    A default is a value, a list of them, a type, a pair (default, help), or keyword arguments of
    `add_argument`.

    >>> arguments("What this is.", "speed", prompts=12, k=(4, "drafted tokens"))  # doctest: +SKIP
    Namespace(json=None, prompts=12, k=4)
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, nargs="?", metavar="FILE",
                        const=RESULTS / f"{name}.json",
                        help=f"write the figures; without FILE to results/{name}.json")
    for option, default in defaults.items():
        default, text = default if isinstance(default, tuple) else (default, None)
        how: dict[str, Any] = {"default": default, "type": type(default)}
        if isinstance(default, bool):
            how = {"action": "store_true"}
        elif isinstance(default, list):
            how = {"nargs": "*", "default": default, "type": type(default[0])}
        elif isinstance(default, type):
            how = {"type": default}
        elif isinstance(default, dict):
            how = default
        flag = f"-{option}" if len(option) == 1 else f"--{option.replace('_', '-')}"
        parser.add_argument(flag, **{"help": text, **how})
    return parser.parse_args()


def chosen(args: Namespace, *names: str) -> dict[str, Any]:
    """Some of the arguments, to write with the results."""
    return {name: vars(args)[name] for name in names}


def skip(name: str, why: str) -> None:
    """Exit without an error, so that `make bench` continues with the next script."""
    print(f"{name} is not measured: {why}", file=sys.stderr)
    sys.exit()


def prompts(task: str, count: int) -> list[dict]:
    """The first `count` held-out examples of `math`, `code` or `text`."""
    path = Path(omnidraft.__file__).parent / "data" / f"{task}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:count]]


def texts_of(task: str, count: int) -> list[str]:
    """Only the prompts."""
    return [example["prompt"] for example in prompts(task, count)]


def compare_checkouts(module: str, before: Path, turns: int) -> Iterator[tuple[dict, dict]]:
    """Results of a script in another checkout and in this one, each run in its own process.

    They take turns, and the order changes every turn. Both get the arguments of this call.
    """
    given = sys.argv[1:]
    for option in ("--before", "--turns"):
        given = [word for i, word in enumerate(given) if option not in given[max(0, i - 1):i + 1]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        for turn in range(turns):
            made: dict[Path, dict] = {}
            for checkout in (before, ROOT) if turn % 2 else (ROOT, before):
                subprocess.run([sys.executable, "-m", module, *given, "--json", path], cwd=checkout,
                               check=True, stdout=subprocess.DEVNULL)
                made[checkout] = json.loads(path.read_text(encoding="utf-8"))
            yield made[before], made[ROOT]


def versions() -> dict[str, str | int]:
    """What a figure measured with torch depends on, to write with the machine."""
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "torch_threads": torch.get_num_threads()}


def models() -> dict[str, str]:
    """The start of a checksum of each embedded model's weights, to write with figures."""
    found = sorted((Path(omnidraft.__file__).parent / "engine" / "embedded").glob("*/*.safetensors"))
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in found}


def earlier(figures: dict) -> bool:
    """Whether figures name an embedded model that had other weights when they were measured."""
    if "models" not in figures:  # no embedded model decides them
        return False
    stored, text = figures["models"], json.dumps({**figures, "models": None})
    return any(name in text and stored.get(name) != checksum for name, checksum in models().items())


def start(path: Path | None, settings: dict | None = None, **parts: Any) -> dict[str, Any]:
    """Results to add to: those of the file, or `parts` if there is no file."""
    stored = path and path.exists()
    found = parts | (json.loads(path.read_text(encoding="utf-8")) if stored else {})
    return found | {"machine": machine(), "models": models()} | ({"settings": settings} if settings is not None else {})


def run_all(path: Path | None, results: dict, jobs: dict[tuple, Callable[[], dict]]) -> None:
    """Run the jobs that have no result yet, and write the file after each.

    Existing results must have been measured with the same models and settings.
    """
    stored = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    changed = {"models": earlier(stored), "settings": "settings" in stored and stored["settings"] != results.get("settings")}
    if any(changed.values()):
        names = " and ".join(name for name, other in changed.items() if other)
        raise SystemExit(f"{path} was measured with other {names}: delete it to measure everything again")
    for (*way, name), job in jobs.items():
        place = results
        for part in way:
            place = place.setdefault(part, {})
        if name in place:
            continue
        place[name] = job()
        print(*way, f"{name}: {json.dumps(place[name])}", flush=True)
        save(path, results)


def save(path: Path | None, results: dict) -> None:
    """Write results as JSON, if a file was given: completely or not at all."""
    if path is not None:
        make_folder_of(path)
        write_text(path, as_lines(results) + "\n")


def as_lines(value: Any, indent: str = "") -> str:
    """JSON with one record a line; a record holds no other dictionary. Differences in git are then readable.

    >>> print(as_lines({"speed": {"plain": {"tokens": 3, "each": [1, 2]}}, "machine": {"cores": 2}}))
    {
     "speed": {
      "plain": {"tokens": 3, "each": [1, 2]}
     },
     "machine": {"cores": 2}
    }
    """
    if not holds_dictionary(value):
        return json.dumps(value)
    inside = indent + " "
    if isinstance(value, dict):
        parts = [f"{inside}{json.dumps(name)}: {as_lines(part, inside)}" for name, part in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    parts = [inside + as_lines(part, inside) for part in value]
    return "[\n" + ",\n".join(parts) + f"\n{indent}]"


def holds_dictionary(value: Any) -> bool:
    """Whether a dictionary is inside a dictionary or list, at any depth."""
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    else:
        return False
    return any(isinstance(part, dict) or holds_dictionary(part) for part in inside)


def result(name: str) -> dict | None:
    """A benchmark's figures, or None if it has not been run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def sparkline(values: Sequence[float], scale: Sequence[float] = ()) -> str:
    """A curve in one line; for curves to compare, give all their values as the `scale`.

    >>> sparkline([1.0, 2.0, 3.0]), sparkline([1.0, 2.0], scale=[1.0, 2.0, 3.0])
    ('▁▅█  min 1.00, max 3.00', '▁▅  min 1.00, max 2.00')
    """
    low, high = min([*values, *scale]), max([*values, *scale])
    bars = "".join("▁▂▃▄▅▆▇█"[round(7 * (v - low) / ((high - low) or 1))] for v in values)
    return f"{bars}  min {min(values):.2f}, max {max(values):.2f}"
