"""docs/notebooks.py: a reader's notebook is never overwritten, and the first cell finds or clones the lessons."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vocabularies import REAL

ROOT = Path(__file__).resolve().parent.parent
LESSON = ROOT / "tutorials" / "02_two_tokenizers.py"


@pytest.fixture(scope="module")
def notebooks():
    spec = importlib.util.spec_from_file_location("notebook_builder", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_notebook_that_exists_is_kept(notebooks, tmp_path, monkeypatch, capsys):
    (tmp_path / "02_two_tokenizers.ipynb").write_text("my answers")
    monkeypatch.setattr(sys, "argv", ["notebooks.py", "2", "--out", str(tmp_path)])
    notebooks.main()
    assert (tmp_path / "02_two_tokenizers.ipynb").read_text() == "my answers" and len([*tmp_path.iterdir()]) == 1
    assert "is kept as it is" in capsys.readouterr().out
    assert "/notebooks/\n" in (ROOT / ".gitignore").read_text()
    clean = (ROOT / "Makefile").read_text().split("\nclean:")[1].split("\n\n")[0]
    assert ".ipynb" not in clean and "notebooks/" not in clean


def test_it_finds_the_lessons(notebooks):
    made = notebooks.source(LESSON, "https://github.com/some/one.git")
    setup, *rest = notebooks.runner.cells(made)
    assert '"https://github.com/some/one"' in setup.text
    assert rest == notebooks.runner.cells(LESSON.read_text(encoding="utf-8"))
    code = setup.text + "\nimport helpers, omnidraft\nprint(helpers.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True)
    assert Path(done.stdout.strip()).resolve() == ROOT / "tutorials" / "helpers.py", done.stderr


def test_elsewhere_it_fetches_and_installs_the_repository_first(notebooks, tmp_path, monkeypatch):
    commands, before = [], [*sys.path]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(sys, "path", before)
    exec(notebooks.SETUP.replace("REPOSITORY", notebooks.HOMEPAGE), {})
    assert commands[0][:2] == ["git", "clone"] and commands[0][-2:] == [notebooks.HOMEPAGE, "omnidraft"]
    assert commands[1][1:3] == ["-m", "pip"] and sys.path[:2] == ["omnidraft", str(Path("omnidraft", "tutorials"))]


@pytest.mark.parametrize("number", [2, 4])
def test_one_runs_where_only_the_package_and_a_clone_are(notebooks, tmp_path, monkeypatch, number):
    monkeypatch.setattr(sys, "argv", ["notebooks.py", str(number), "--plain", "--out", str(tmp_path / "made")])
    notebooks.main()
    [made] = (tmp_path / "made").glob(f"{number:02}_*.ipynb")
    cells = json.loads(made.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    (tmp_path / "omnidraft").symlink_to(ROOT)  # in place of the first cell's clone
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and len(done.stdout) > 500, done.stderr


def test_one_is_built_with_its_output(notebooks, tmp_path):
    for needed in ("jupytext", "nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(needed)
    lesson = tmp_path / "09_short.py"
    lesson.write_text('# %%\nfrom helpers import bar, figure\nprint(bar(0.5, 4))\nfigure("a", {"b": [1, 2]})\n')
    out = ROOT / "build"  # from this folder the lessons are in ..
    out.mkdir(exist_ok=True)
    text = notebooks.executed(lesson, out, notebooks.HOMEPAGE)
    assert "\\u001b[36m" in text and "image/png" in text  # a coloured bar, a figure


def test_the_notebook_of_a_real_pair_is_the_script_and_has_its_parameters_on_top(notebooks):
    made = json.loads(notebooks.real_pair())
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    script = (ROOT / "docs" / "real_pair.py").read_text(encoding="utf-8")
    assert all(compile(one, "cell", "exec") and one in script for one in code)
    assert "DRAFT = " in code[1] and "TARGET = " in code[1] and not any(cell.get("outputs") for cell in made["cells"])


def test_all_its_cells_run_on_local_folders(notebooks, tmp_path):
    """As on Colab: the cells in order, in one namespace, in an empty folder; with small settings, on the CPU."""
    pytest.importorskip("transformers")
    folders = {side: REAL / "models" / name for side, name in (("DRAFT", "babyllama-tok361"), ("TARGET", "stories260K"))}
    if not all(folder.is_dir() for folder in folders.values()):
        pytest.skip("no published models here")
    (tmp_path / "prompts").write_text("".join(f"Once upon a time there was a {one}\n" for one in "abcdefghij"))
    wanted = folders | {"PROMPTS": "prompts", "COUNT": 2, "LEARN": 5, "TOKENS": 8, "OUT": "figures.json"}
    made = json.loads(notebooks.real_pair())
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    whole = f"for code in {code!r}:\n    exec(compile(code, 'cell', 'exec'), globals())"
    env = os.environ | {f"REAL_PAIR_{name}": str(value) for name, value in wanted.items()} | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", whole], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["learning"]["prompts"] > 0 and found["settings"]["prompts"] == 2
    for at, methods in found["runs"].items():
        assert len(methods) == 5 and not [name for name, one in methods.items() if "omnidraft" in name and "fails" in one], at
    greedy = found["runs"]["T = 0"]
    assert {one["same_text"] for one in greedy.values()} == {2}
    for one in ("omnidraft in generate", "omnidraft, adapted", "T = 1"):
        assert one in done.stdout
