"""Files are checked before they are read, and are written completely or not at all."""

import gc
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import OmnidraftError

LARGEST = 2**25  # maximum bytes of a JSON file; as Python objects it can take 20 times as much


def default_folder() -> Path:
    """Where caches and adapters are kept: $OMNIDRAFT_HOME, else ~/.cache/omnidraft."""
    try:
        return Path(os.environ.get("OMNIDRAFT_HOME") or Path.home() / ".cache" / "omnidraft")
    except RuntimeError:  # no home folder: a path where nothing is found or can be written
        return Path(os.devnull, "set-OMNIDRAFT_HOME")


def check_readable(path: Path, most: int = LARGEST) -> None:
    """Raise OmnidraftError unless `path` is an ordinary file (no pipe) of 1 to `most` bytes.

    Subtle: /proc has files of size 0 that are waited for, or have no end.
    """
    size = path.stat().st_size if path.is_file() else 0
    if not (size and os.access(path, os.R_OK)):
        raise OmnidraftError(f"{path} is missing, empty, not an ordinary file or not readable: "
                             "replace it")
    if size > most:
        raise OmnidraftError(f"{path} has {size:,} bytes, over {most:,}: is it the right file?")


def read_json(path: Path, kind: type = dict) -> Any:
    """The dictionary (`kind`: or list) in a JSON file, {} if there is no file.

    Raises OmnidraftError for any other content.
    """
    if not os.path.lexists(path):  # a link that leads nowhere is no missing file
        return {}
    check_readable(path)
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, kind):
            return content
    raise OmnidraftError(f"{path} is not readable JSON: copy it from its source again")


def check_writable(*paths: Path | None) -> None:
    """Raise OmnidraftError for the first path (None: skipped) that could not be written later."""
    for path in filter(None, paths):
        with _writing(path):
            if path.is_dir():
                raise OmnidraftError(f"cannot write {path}: it is a folder; name a file in it")
            if path.is_file():
                path.open("ab").close()  # fails without permission
            if path.is_file() or not path.exists():  # devices and pipes are written directly
                tempfile.TemporaryFile(dir=path.resolve().parent).close()


def make_folder_of(path: Path) -> None:
    """Create the folder of `path`; raises OmnidraftError if it cannot be written to."""
    with _writing(path):
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in made:
            _sync(folder.parent)  # otherwise a power loss could lose the folder and its contents
    check_writable(path)


def write_text(path: Path, text: str | bytes) -> None:
    """Write a file; a crash leaves the old file or the new one. OmnidraftError on failure."""
    content = text if isinstance(text, bytes) else text.encode()
    with _writing(path):
        if path.exists() and not path.is_file():  # devices and pipes are written directly
            # subtle: this fails for a pipe that nobody reads, where a plain open would wait
            with open(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)), "wb"):
                path.write_bytes(content)
            return
        path = path.resolve()  # write through a link, do not replace it
        _remove_left_parts(path)
        part = path.with_name(f"{path.name[:50]}.{os.getpid()}.part")  # not too long a name
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # subtle: otherwise the rename may reach the disk first
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        _sync(path.parent)


def _remove_left_parts(path: Path) -> None:
    """Remove the parts of `path` that killed processes have left."""
    for part in path.parent.glob("*.part"):
        name, _, process = part.stem.rpartition(".")
        if name != path.name[:50] or not process.isdecimal() or os.name != "posix":
            continue  # subtle: on Windows, the next line would end the process
        try:
            os.kill(int(process), 0)  # sends nothing
        except ProcessLookupError:
            part.unlink(missing_ok=True)
        except (OSError, OverflowError):
            pass  # it runs, but belongs to somebody else; or no process has such a number


def _sync(folder: Path) -> None:
    """Flush a folder's entries to the disk; some systems cannot."""
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(place)
        finally:
            os.close(place)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one line why a path cannot be written."""
    try:
        with suppress(FileNotFoundError):
            path.stat()  # raises for circular links; `resolve` does so only before Python 3.13
        yield
    except OSError as error:
        raise OmnidraftError(f"cannot write {path}: {error.strerror or error}; choose another "
                             "place") from None


@contextmanager
def paused() -> Iterator[None]:
    """Pause the garbage collector: its search for cycles would visit all objects again and again.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
