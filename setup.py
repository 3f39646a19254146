"""The page of a distribution is the README, whose links and picture must be absolute there; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

HOME = "https://github.com/omnidraft/omnidraft"


def page() -> str:
    """The README with its relative links made absolute."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")

    def absolute(match: re.Match) -> str:
        kind = "raw" if match[1].endswith((".png", ".svg")) else "tree" if match[1].endswith("/") else "blob"
        return f"]({HOME}/{kind}/main/{match[1]})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", absolute, text)


if __name__ == "__main__":
    setup(long_description=page(), long_description_content_type="text/markdown")
