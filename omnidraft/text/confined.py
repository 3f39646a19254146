"""Programs written by others run in a separate process, with limits of time and memory.

A chat template is such a program, and so is a regular expression of a tokenizer: neither can be
interrupted in this process. `run` starts the other process: this file as a script, which imports
no other of the package. A job is a module of the package with a function `main(job)`, given by its
file, since importing it would import NumPy.
"""

import json
import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS, MEMORY = 4, 2**29  # of CPU time; bytes of address space


def run(module: str | Path, **job: Any) -> dict[str, Any]:
    """What `main(job)` in the file `module` returns, or {"error": why it failed}.

    Both job and result must be JSON. An exception becomes an error with its name and text.
    """
    job = {"path": sys.path, "limits": [SECONDS, MEMORY], "module": str(module), "job": job}
    try:  # -I: do not import from this folder; the timeout is long, as a template cannot sleep
        done = subprocess.run([sys.executable, "-I", __file__], input=json.dumps(job).encode(),
                              capture_output=True, timeout=100 * SECONDS)
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {"error": f"it takes over {SECONDS} s, or too much memory"}


def main() -> None:
    """Do the job that stdin describes; the result of `run` goes to stdout."""
    order = json.load(sys.stdin)
    seconds, memory = order["limits"]
    with suppress(ImportError, ValueError, OSError):  # not on every system
        import resource
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.path[:] = order["path"]
    try:
        found = runpy.run_path(order["module"])["main"](order["job"])
    except BaseException as error:  # subtle: a panic of a library in Rust is not an Exception
        found = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
