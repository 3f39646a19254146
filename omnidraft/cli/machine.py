"""The machine that a figure was measured on: recorded with every benchmark."""

import os
import platform
import re
from pathlib import Path

import numpy as np

from ..engine.cpu import has_avx512


def machine() -> dict[str, str | int | bool]:
    """CPU, cores, system, Python, NumPy and its BLAS, and the settings of the BLAS."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    name = re.search(r"^model name\s*: *(.*\S)", text, re.M)
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return {
        "cpu": name[1] if name else platform.processor() or platform.machine(),
        "avx512": has_avx512(), "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(), "numpy": np.__version__,
        "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "blas_kernels": os.environ.get("OPENBLAS_CORETYPE", "chosen by the library"),
        "blas_threads": threads or "all cores"}
