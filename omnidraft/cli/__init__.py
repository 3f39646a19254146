"""The command line, `omnidraft COMMAND`: each command is a thin layer over one function.

Results go to stdout, everything else to stderr. Rich, slow to import, is imported where needed.
"""

from . import adapt, adapters, bench, demo, generate, inspect, play  # noqa: F401 (they register)
from .app import app

__all__ = ["app"]
