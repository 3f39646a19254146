"""The machine that a figure was measured on: without it the figure says nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..engine.cpu import has_avx512


def cpu_name() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def machine() -> dict[str, str | int | bool]:
    """CPU, cores, system, Python, NumPy and its BLAS, with what steers the BLAS.

    >>> sorted(machine())[:3]
    ['avx512', 'blas', 'blas_kernels']
    """
    import numpy as np

    built = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return {
        "cpu": cpu_name(),
        "avx512": has_avx512(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{built.get('name', 'unknown')} {built.get('version', '')}".strip(),
        "blas_kernels": os.environ.get("OPENBLAS_CORETYPE", "chosen by the library"),
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "all cores"),
    }
