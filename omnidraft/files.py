"""Result files: tested before the work begins, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import OmnidraftError


def check_writable(*paths: Path | None) -> None:
    """Raise OmnidraftError for the first path that cannot be written; None is skipped and nothing is left behind."""
    for path in paths:
        if path is None:
            continue
        try:
            if path.is_dir():
                raise OmnidraftError(f"cannot write {path}: it is a folder; name a file in it")
            if path.exists():
                if not os.access(path, os.W_OK):
                    raise OmnidraftError(f"cannot write {path}: no permission; choose another file")
                if not path.is_file():  # /dev/null and the like
                    continue
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            reason = getattr(error, "strerror", None) or error
            raise OmnidraftError(f"cannot write {path}: {reason}; choose another file") from None


def make_folder_of(path: Path) -> None:
    """Make the folder that `path` is to be written to; raises OmnidraftError where that, or writing there, fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OmnidraftError(f"cannot write {path}: {error.strerror or error}; choose another folder") from None
    check_writable(path)


def write_text(path: Path, text: str) -> None:
    """Write to a temporary file beside it, then rename; raises OmnidraftError where that fails."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()  # through a link, not over it
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OmnidraftError(f"cannot write {path}: {error.strerror or error}; choose another file") from None
