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
