"""What `make demo` prints last (README.md), with the commit.

    python -m benchmarks.demo --json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, arguments, commit, save


def main() -> None:
    """Run the demo and keep its figures."""
    args = arguments(__doc__, "demo")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "demo.json"
        subprocess.run([sys.executable, "cli.py", "demo", "--json", str(made)], cwd=ROOT, check=True)
        save(args.json, {"commit": commit()} | json.loads(made.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
