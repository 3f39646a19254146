"""Every figure of README.md and docs/results.md, each made by a script: python -m benchmarks.NAME.

OpenBLAS gets the settings that the package chooses, whatever the environment says: kernels and
cache sizes set from outside can halve its speed. `BENCHMARK_KERNELS=Haswell` asks for others.
"""

import os

for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(variable, None)
if "BENCHMARK_KERNELS" in os.environ:
    os.environ["OPENBLAS_CORETYPE"] = os.environ["BENCHMARK_KERNELS"]

import omnidraft  # noqa: E402, F401 - before NumPy: it sets variables that OpenBLAS reads when it is loaded
