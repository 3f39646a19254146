"""In a source distribution, which has no recipes/schemas_more.txt.xz, the tests that draw training texts are left out."""

from pathlib import Path

TEXTS = Path(__file__).resolve().parent.parent / "recipes" / "schemas_more.txt.xz"
NEED_TEXTS = ["test_examples.py", "test_recipes.py", "test_recipes_batch.py"]
collect_ignore = [] if TEXTS.exists() else NEED_TEXTS


def pytest_report_header() -> str:
    return f"left out, because {TEXTS.name} is not here: {', '.join(NEED_TEXTS)}" if collect_ignore else ""
