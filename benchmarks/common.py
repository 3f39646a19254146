"""What the benchmarks share: arguments, prompts, result files, comparison with another checkout."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import omnidraft
from omnidraft.cli.inspect import machine
from omnidraft.text.files import make_folder_of, write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", "OMNIDRAFT_REAL_DATA"))  # published models and data
HEAD, WAY = ("commit", "machine", "models", "settings"), " / "  # of a result file; between the parts of an entry's name
TASKS, TARGETS = ["math", "code", "text"], ["qwen-like", "llama3-like"]
REAL_PAIRS = ["real:babyllama-tok361:stories260K", "real:stories260K:babyllama-tok361"]


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


def versions() -> dict[str, str | int]:
    """What a figure measured with torch depends on, to write with the machine."""
    import torch
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "torch_threads": torch.get_num_threads()}


def folders_of(name: str) -> list[str]:
    """Names or folders of the models of draft:target; real:draft:target are folders in $OMNIDRAFT_REAL_DATA.

    Without that data it says so on stderr, and the list is empty.
    """
    if not name.startswith("real:"):
        return name.split(":")
    folders = [REAL / "models" / part for part in name.split(":")[1:]]
    if all(folder.is_dir() for folder in (*folders, REAL / "data")):
        return [*map(str, folders)]
    print(f"{name} is not measured: set OMNIDRAFT_REAL_DATA to a folder with the models and data", file=sys.stderr)
    return []


def stories(count: int) -> list[str]:
    """The first prompts of the published stories in $OMNIDRAFT_REAL_DATA."""
    lines = (REAL / "data" / "tinystories1000.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:count]]


@lru_cache
def models(*folders: str) -> dict[str, str]:
    """The start of a checksum of each embedded model's weights, and of models in folders, to write with figures."""
    found = sorted((Path(omnidraft.__file__).parent / "engine" / "embedded").glob("*/*.safetensors"))
    found += [path for folder in folders for path in sorted(Path(folder).glob("*.safetensors"))]
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in found}


def commit() -> str:
    """The last commit that changed the package, and whether it was changed since; "unknown" outside a repository."""
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words, "--", "omnidraft"], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        found, changes = git("log", "-1", "--format=%H")[:12], git("status", "--porcelain")
    except OSError:  # git is not installed
        return "unknown"
    return (found + " with changes" * bool(changes)) or "unknown"


def present(settings: dict | None = None, folders: Sequence[str] = ()) -> dict[str, Any]:
    """How a figure is measured here and now: the head of a result file. `folders`: those of models not in the package."""
    return {"commit": commit(), "machine": machine(), "models": models(*folders), "settings": settings or {}}


def start(path: Path | None, settings: dict | None = None, **parts: Any) -> dict[str, Any]:
    """Results to add to: those of the file, or `parts` with the head of a new file.

    The head (commit, machine, models, settings) says how entries were measured about which `measured` says
    nothing else. A file keeps its head, so what is added later does not relabel it.
    """
    stored = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else present(settings)
    return parts | stored


def add(results: dict, way: Sequence[str], entry: dict, settings: dict | None = None, folders: Sequence[str] = ()) -> None:
    """Put an entry measured just now at `way`, and under `measured` what differs from the file's head.

    >>> found = {"commit": "1234", "speed": {}} | {name: present()[name] for name in ("machine", "models", "settings")}
    >>> add(found, ("speed", "plain"), {"tokens": 3}, {"repeats": 2})
    >>> found["speed"], sorted(found["measured"]["speed / plain"])
    ({'plain': {'tokens': 3}}, ['commit', 'settings'])
    """
    place = results
    for part in way[:-1]:
        place = place.setdefault(part, {})
    place[way[-1]] = entry
    other = {name: value for name, value in present(settings, folders).items() if results.get(name) != value}
    if other:
        results.setdefault("measured", {})[WAY.join(way)] = other
    elif "measured" in results:
        results["measured"].pop(WAY.join(way), None)


def parts_of(figures: dict) -> list[tuple[str, Any, dict]]:
    """Name, content and origin of each entry of `measured`; last, named "", of the rest of the file.

    An origin has the keys of the head, as far as the file knows them.
    """
    head = {name: figures[name] for name in HEAD if name in figures}
    rest, found = copy.deepcopy({name: part for name, part in figures.items() if name not in (*HEAD, "measured")}), []
    for name, other in figures.get("measured", {}).items():
        *way, last = name.split(WAY)
        place: Any = rest
        for part in way:
            place = place.get(part, {})
        if last in place:
            found.append((name, place.pop(last), head | other))
    return [*found, ("", without_empty(rest), head)]


def without_empty(part: Any) -> Any:
    """A part without the groups from which every entry was taken.

    >>> without_empty({"pairs": {"a": {"T=0": {}}, "b": {"T=0": 1}}})
    {'pairs': {'b': {'T=0': 1}}}
    """
    if not isinstance(part, dict):
        return part
    kept = {name: without_empty(one) for name, one in part.items()}
    return {name: one for name, one in kept.items() if one != {}}


def earlier(figures: dict) -> bool:
    """Whether figures name an embedded model that had other weights when they were measured."""
    return any(other_weights(name, *part) for name, *part in parts_of(figures))


def other_weights(name: str, entry: Any, origin: dict) -> bool:
    """Whether an entry, or its name, names an embedded model that had other weights when it was measured."""
    if "models" not in origin:  # no embedded model decides it
        return False
    text = name + json.dumps([entry, origin.get("settings")])
    return any(model in text and origin["models"].get(model) != checksum for model, checksum in models().items())


def run_all(path: Path | None, results: dict, jobs: dict[tuple, Callable[[], dict]], settings: dict | None = None) -> None:
    """Run the jobs that have no result yet, and write the file after each.

    Results that a job would give must have been measured with the same models and settings.
    """
    known = {name: (entry, origin) for name, entry, origin in parts_of(results)}
    waiting = {}
    for way, job in jobs.items():
        place: Any = results
        for part in way:
            place = place.get(part, {})
        if not place:
            waiting[way] = job
            continue
        name = WAY.join(way)
        entry, origin = known.get(name, (place, known[""][1]))
        old = origin.get("settings", {})
        changed = [f"{key} {old[key]}" for key, value in (settings or {}).items()
                   if key != "note" and old.get(key, value) != value]
        changed += ["other models"] * other_weights(name, entry, origin)
        if changed:
            raise SystemExit(f"{path}: {name} was measured with {', '.join(changed)}: delete this entry, or give the same")
    for way, job in waiting.items():
        entry = job()
        add(results, way, entry, settings)
        print(*way[:-1], f"{way[-1]}: {json.dumps(entry)}", flush=True)
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
