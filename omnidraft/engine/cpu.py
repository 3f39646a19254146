"""OpenBLAS settings, which it reads once, when NumPy is imported; the user's own settings are kept.

NumPy's wheels choose AVX2 kernels on processors they do not know, even where AVX-512 would halve
the cost of a pass over several tokens. At this project's sizes a second thread only costs time.
"""

import os
import sys
from pathlib import Path

# used by OpenBLAS's SkylakeX kernels; without these, they crash with an illegal instruction
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


def has_avx512(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Does Linux report that this processor has these AVX-512 instructions? Elsewhere False."""
    try:
        lines = Path(cpuinfo).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return AVX512 <= set(next((line for line in lines if line.startswith("flags")), "").split())


def prepare_blas() -> dict[str, str]:
    """Set OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS before NumPy is imported; returns them."""
    settings = {}
    if not {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
        settings["OPENBLAS_NUM_THREADS"] = "1"
    if "OPENBLAS_CORETYPE" not in os.environ and has_avx512():
        settings["OPENBLAS_CORETYPE"] = "SkylakeX"
    settings = {} if "numpy" in sys.modules else settings
    os.environ.update(settings)
    return settings
