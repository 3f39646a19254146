"""Which test files are left out: those that draw training texts, in a source distribution without them; with `--torch-only`,
tests that run alike without PyTorch.
"""

import ast
import re
from functools import cache
from pathlib import Path

NAMES = re.compile("torch|transformers")
ONLY_LEFT_OUT = ("test_examples.py", "test_tutorials.py")  # these make sure that neither is needed
TEXTS = Path(__file__).resolve().parent.parent / "recipes" / "schemas_more.txt.xz"
NEED_TEXTS = ["test_examples.py", "test_recipes.py", "test_recipes_batch.py"]
collect_ignore = [] if TEXTS.exists() else NEED_TEXTS


def pytest_report_header() -> str:
    return f"left out, because {TEXTS.name} is not here: {', '.join(NEED_TEXTS)}" if collect_ignore else ""


def pytest_addoption(parser) -> None:
    parser.addoption("--torch-only", action="store_true", help="leave out tests that name neither torch nor transformers")


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """A file that names neither makes the same checks in both environments: `.ci/run` runs it in one (but types differ)."""
    path = collection_path
    if not config.getoption("--torch-only") or not path.match("test_*.py") or path.name == "test_types.py":
        return None
    source = path.read_text(encoding="utf-8")
    return None if NAMES.search(source) else True


def pytest_collection_modifyitems(config, items) -> None:
    """In a file that can run without them, the same holds for each test."""
    if not config.getoption("--torch-only"):
        return
    left_out = [item for item in items if item.path.name != "test_types.py" and not needs_torch(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@cache
def with_torch(path: Path) -> set[str]:
    """The names of a file's tests that mention PyTorch or transformers, or something of the file that does; all of them if an
    import of the file does."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source).body
    texts = {}
    for node in tree:
        names = [node.name] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else [
            one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
        decorators = [ast.get_source_segment(source, one) for one in getattr(node, "decorator_list", ())]
        text = "\n".join([ast.get_source_segment(source, node), *decorators])
        for_all = isinstance(node, (ast.Import, ast.ImportFrom)) or "importorskip" in text
        if for_all and not isinstance(node, ast.FunctionDef) and NAMES.search(text):
            return {name.name for name in tree if isinstance(name, ast.FunctionDef)}
        texts |= dict.fromkeys(names, text)
    found: set[str] = {name for name, text in texts.items() if NAMES.search(text)}
    while True:
        mention = re.compile(rf"\b({'|'.join(found) or 'nothing at all'})\b")
        more = {name for name, text in texts.items() if mention.search(text)} | found
        if more == found:
            return found
        found = more


def needs_torch(item) -> bool:
    if item.path.name in ONLY_LEFT_OUT:
        return False
    return item.function.__name__ in with_torch(item.path)
