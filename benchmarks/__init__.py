"""Every figure of README.md and docs/results.md, each from a script: python -m benchmarks.NAME."""

import omnidraft  # noqa: F401 - before NumPy, because it sets what OpenBLAS reads when it is loaded
