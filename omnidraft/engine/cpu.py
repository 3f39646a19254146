"""OpenBLAS' settings, which it reads once, when NumPy is imported; what the user has set is kept.

NumPy's wheels pick AVX2 kernels on processors they do not know, even where AVX-512 would halve the
cost of a pass over several tokens; and at this project's sizes a second thread only costs time.
"""

import os
import sys
from pathlib import Path

# what OpenBLAS' SkylakeX kernels execute; without these they die of an illegal instruction
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


def has_avx512(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether Linux lists the AVX-512 instructions of this processor (False on other systems)."""
    try:
        lines = Path(cpuinfo).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return AVX512 <= set(next((line for line in lines if line.startswith("flags")), "").split())


def prepare_blas() -> dict[str, str]:
    """Set OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS before NumPy is imported; what was set."""
    settings = {}
    if not {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
        settings["OPENBLAS_NUM_THREADS"] = "1"
    if "OPENBLAS_CORETYPE" not in os.environ and has_avx512():
        settings["OPENBLAS_CORETYPE"] = "SkylakeX"
    settings = {} if "numpy" in sys.modules else settings
    os.environ.update(settings)
    return settings
