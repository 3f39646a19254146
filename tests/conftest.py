"""Which test files are left out: those that draw training texts, in a source distribution without them; with `--torch-only`,
those that run alike without PyTorch.
"""

from pathlib import Path

TEXTS = Path(__file__).resolve().parent.parent / "recipes" / "schemas_more.txt.xz"
NEED_TEXTS = ["test_examples.py", "test_recipes.py", "test_recipes_batch.py"]
collect_ignore = [] if TEXTS.exists() else NEED_TEXTS


def pytest_report_header() -> str:
    return f"left out, because {TEXTS.name} is not here: {', '.join(NEED_TEXTS)}" if collect_ignore else ""


def pytest_addoption(parser) -> None:
    parser.addoption("--torch-only", action="store_true", help="leave out test files that name neither torch nor transformers")


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """A file that names neither makes the same checks in both environments: `.ci/run` runs it in one (but types differ)."""
    path = collection_path
    if not config.getoption("--torch-only") or not path.match("test_*.py") or path.name == "test_types.py":
        return None
    source = path.read_text(encoding="utf-8")
    return None if "torch" in source or "transformers" in source else True
