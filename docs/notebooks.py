"""Build the lessons as Jupyter notebooks with their output, in notebooks/. An existing file is never overwritten.

    python docs/notebooks.py [--repository https://github.com/you/omnidraft] [lesson ...]
    python docs/notebooks.py --plain      without output, which needs nothing but this repository; also real_pair.ipynb

The first cell finds the repository, or clones and installs it: so a notebook also runs where it is uploaded (in Colab, for
example; a CPU runtime is enough).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from omnidraft.text.files import write_text  # noqa: E402
from tutorials import runner  # noqa: E402

SETUP = """# Where the lessons are; in Colab they are fetched and installed first.
import sys
from functools import partial
from pathlib import Path

here = Path.cwd()
home = next((path for path in (here, *here.parents, Path("omnidraft")) if (path / "tutorials" / "helpers.py").is_file()), None)
if home is None:
    import subprocess

    home = Path("omnidraft")
    for command in (["git", "clone", "--quiet", "--depth", "1", "REPOSITORY", "omnidraft"],
                    [sys.executable, "-m", "pip", "install", "--quiet", "-e", "omnidraft"]):
        subprocess.run(command, check=True)
sys.path[:0] = [str(home), str(home / "tutorials")]"""
HOMEPAGE = re.search(r'^Homepage = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)[1]


def source(path: Path, repository: str) -> str:
    """A lesson as a py:percent script that finds its repository, or clones it."""
    repository = repository.removesuffix("/").removesuffix(".git")
    return f'# %%\n{SETUP.replace("REPOSITORY", repository)}\n\n{path.read_text(encoding="utf-8")}'


def real_pair() -> str:
    """docs/real_pair.py as a notebook for a GPU runtime."""
    return without_output((ROOT / "docs" / "real_pair.py").read_text(encoding="utf-8"), accelerator="GPU")


def without_output(script: str, **metadata: str) -> str:
    """A py:percent script as a notebook; building it needs only this repository."""
    made = []
    for number, cell in enumerate(runner.cells(script)):
        kind = {"cell_type": "markdown"} if cell.prose else {"cell_type": "code", "execution_count": None, "outputs": []}
        made.append(kind | {"id": f"cell-{number}", "metadata": {}, "source": cell.text.splitlines(keepends=True)})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps({"cells": made, "metadata": metadata | {"kernelspec": kernel}, "nbformat": 4,
                       "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


def executed(path: Path, out: Path, repository: str) -> str:
    """A lesson as a notebook with its output. An error in a cell is raised."""
    import jupytext
    import nbclient
    import nbformat

    notebook = jupytext.reads(source(path, repository), "py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(out)}}).execute()
    return nbformat.writes(notebook)


def main() -> None:
    """Build the notebooks of all lessons, or of the given ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lesson", type=int, nargs="*", help="numbers of lessons; all if none is given")
    parser.add_argument("--out", type=Path, default=ROOT / "notebooks")
    parser.add_argument("--repository", default=HOMEPAGE, help="the address that Colab installs from")
    parser.add_argument("--plain", action="store_true", help="without output, and also real_pair.ipynb")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    makers = {}
    for number, path in runner.lessons().items():
        if args.lesson and number not in args.lesson:
            continue
        makers[path.stem] = partial(executed, path, args.out, args.repository)
        if args.plain:
            makers[path.stem] = partial(without_output, source(path, args.repository))
    if args.plain:
        makers["real_pair"] = real_pair
    for name, make in makers.items():
        made = args.out / f"{name}.ipynb"
        if made.exists():
            print(made, "is kept as it is: delete it for a new one")
            continue
        write_text(made, make())
        print(made)


if __name__ == "__main__":
    main()
