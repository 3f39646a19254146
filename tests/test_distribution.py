"""The package's page on a registry: its links are absolute, so that they work there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_has_absolute_links_to_files_that_are_there(monkeypatch):
    pytest.importorskip("setuptools")
    monkeypatch.syspath_prepend(ROOT)
    import setup

    readme, text = (ROOT / "README.md").read_text(encoding="utf-8"), setup.page()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("#")]
    assert links and all(link.startswith("https://") for link in links)
    own = [link.removeprefix(setup.HOME) for link in links if link.startswith(setup.HOME + "/")]
    assert "/raw/main/docs/play.png" in own
    for link in own:
        assert (ROOT / re.sub(r"^/(raw|blob|tree)/main/", "", link).partition("#")[0]).exists(), link
    assert len(links) == len([link for link in re.findall(r"\]\(([^)\s]+)\)", readme) if not link.startswith("#")])


def test_what_runs_in_ci_is_fixed_and_may_only_read():
    """A tag of an action can be moved by its owner, a commit cannot; an extra index can offer any package's name."""
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        used = [line.split("uses:")[1].strip() for line in lines if "uses:" in line]
        assert used and all(re.match(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v", one) for one in used), used
        assert "permissions:" in lines and lines[lines.index("permissions:") + 1] == "  contents: read"
        assert not [line for line in lines if "EXTRA_INDEX" in line.upper() or "--extra-index-url" in line]
