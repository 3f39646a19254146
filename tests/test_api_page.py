"""docs/api.md: it has everything that the package exports, and its recipes run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from test_cli import embedded

import omnidraft

ROOT = Path(__file__).resolve().parent.parent
found = importlib.util.spec_from_file_location("api_page", ROOT / "docs" / "api.py")
api = importlib.util.module_from_spec(found)
found.loader.exec_module(api)
RECIPES = api.recipes()


def test_every_public_name_has_an_entry():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert {*omnidraft.__all__} == {*api.API["omnidraft"]} and len(RECIPES) == 12
    for module, names in api.API.items():
        for name, methods in names.items():
            assert all(f"\n{line}\n" in page for line in (f"## {module}", f"### {name}",
                                                          *(f"#### {name}.{method}" for method in methods.split())))


def test_what_readme_and_recipes_call_has_an_entry():
    text = "\n".join([(ROOT / "README.md").read_text(encoding="utf-8"), *RECIPES.values()])
    shown = {name for names in api.API.values() for methods in names.values() for name in methods.split()}
    for name in ("decode_bytes", "decode", "drafter", "resume", "keep", "load", "generate", "stream", "decoder"):
        assert f".{name}(" in text and name in shown, name


@embedded
@pytest.mark.parametrize("title", RECIPES)
def test_recipes_run(title, monkeypatch, tmp_path, capsys):
    if "import torch" in RECIPES[title]:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exec(compile(RECIPES[title], title, "exec"), {})
    assert capsys.readouterr().out.strip()
