"""Every figure of README.md and docs/results.md, each made by a script: python -m benchmarks.NAME."""

import omnidraft  # noqa: F401 - before NumPy: it sets variables that OpenBLAS reads when it is loaded
