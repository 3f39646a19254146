"""Type checkers understand what users write, and find their mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tests" / "typed_user.py"


def test_a_users_script_is_understood_and_its_mistakes_are_errors(tmp_path):
    pytest.importorskip("mypy")
    options = ["--no-error-summary", "--cache-dir", str(tmp_path), "--follow-imports", "silent", "--no-site-packages"]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, str(SCRIPT)], cwd=tmp_path,
                          env={"MYPYPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True)
    found = {int(line) for line in re.findall(r"typed_user\.py:(\d+): error", done.stdout)}
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    imports = {number for number, line in enumerate(lines, 1) if "numpy" in line or "typing_extensions" in line}
    assert found - imports == wanted, done.stdout + done.stderr


def test_an_editable_install_is_a_path_that_type_checkers_follow():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'package-dir = { "" = "." }' in settings  # otherwise setuptools installs a finder, which only Python runs
    assert (ROOT / "omnidraft" / "py.typed").is_file()
