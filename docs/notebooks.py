"""Build the lessons as Jupyter notebooks with their output, in notebooks/. An existing file is never overwritten.

    python docs/notebooks.py [--repository https://github.com/you/omnidraft] [lesson ...]
    python docs/notebooks.py --stored [--check]          those in the repository, without output: docs/notebooks/*.ipynb
                                                         of the lessons, docs/real_pair.ipynb of docs/real_pair.py

Each begins with a badge that opens the stored notebook in Colab. There the first cell clones and installs the repository; a
CPU runtime is enough.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from omnidraft.text.files import write_text  # noqa: E402
from tutorials import runner  # noqa: E402

BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
SETUP = """# Where the lessons are; in Colab they are fetched and installed first.
import sys
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


def badge(repository: str, place: str) -> str:
    """The link that opens a notebook at `place` of the repository in Colab."""
    opened = repository.replace("https://github.com", "https://colab.research.google.com/github")
    return f"# %% [markdown]\n# [![Open in Colab]({BADGE})]({opened}/blob/{place}.ipynb)"


def source(path: Path, repository: str) -> str:
    """A lesson as a py:percent script that finds its repository, or clones it."""
    repository = repository.removesuffix("/").removesuffix(".git")
    head = badge(repository, f"main/docs/notebooks/{path.stem}")
    return f'{head}\n\n# %%\n{SETUP.replace("REPOSITORY", repository)}\n\n{path.read_text(encoding="utf-8")}'


def stored() -> dict[Path, str]:
    """The notebooks in the repository by their path."""
    script = (ROOT / "docs" / "real_pair.py").read_text(encoding="utf-8")
    pair = without_output(f"{badge(HOMEPAGE, 'main/docs/real_pair')}\n\n{script}", accelerator="GPU")
    return {ROOT / "docs" / "real_pair.ipynb": pair} | {
        ROOT / "docs" / "notebooks" / f"{path.stem}.ipynb": without_output(source(path, HOMEPAGE))
        for path in runner.lessons().values()}


def without_output(script: str, **metadata: str) -> str:
    """A py:percent script as a notebook; building it needs only this repository."""
    made = []
    for number, cell in enumerate(runner.cells(script)):
        kind = {"cell_type": "markdown"} if cell.prose else {"cell_type": "code", "execution_count": None, "outputs": []}
        made.append(kind | {"id": f"cell-{number}", "metadata": {}, "source": cell.text.splitlines(keepends=True)})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps({"cells": made, "metadata": metadata | {"kernelspec": kernel}, "nbformat": 4,
                       "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"


def build(path: Path, out: Path, repository: str) -> bool:
    """Write out/NAME.ipynb with its output; False if it exists already. An error in a cell is raised."""
    made = out / f"{path.stem}.ipynb"
    if made.exists():
        return False
    import jupytext
    import nbclient
    import nbformat

    notebook = jupytext.reads(source(path, repository), "py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(out)}}).execute()
    write_text(made, nbformat.writes(notebook))
    return True


def main() -> None:
    """Build the notebooks of all lessons, or of the given ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lesson", type=int, nargs="*", help="numbers of lessons; all if none is given")
    parser.add_argument("--out", type=Path, default=ROOT / "notebooks")
    parser.add_argument("--repository", default=HOMEPAGE, help="the address that Colab installs from")
    parser.add_argument("--stored", action="store_true", help="write the notebooks in the repository instead")
    parser.add_argument("--check", action="store_true", help="only say whether these are out of date")
    args = parser.parse_args()
    if args.stored:
        for path, text in stored().items():
            if not args.check:
                path.parent.mkdir(exist_ok=True)
                write_text(path, text)
            elif not path.exists() or path.read_text(encoding="utf-8") != text:
                sys.exit(f"{path} is stale: run `python docs/notebooks.py --stored`")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for number, path in runner.lessons().items():
        if not args.lesson or number in args.lesson:
            made = build(path, args.out, args.repository)
            print(args.out / f"{path.stem}.ipynb", "" if made else "is kept as it is: delete it for a new one")


if __name__ == "__main__":
    main()
