"""An adapter's folder: which version counts, whether it is whole, whose it is, who may write.

`draft--target/current.json` names the folder of the version that counts (v3-1f0c96aa/), and has the
checksums of its files and of both models. A save replaces it last: the old version is there, or the
new one, also after a power loss. What others wrote is checked here before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OmnidraftError
from ..files import make_folder_of, read_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = "omnidraft adapter 1"
FIELDS = {"version": int, "folder": str, "draft": dict, "target": dict, "files": dict,
          "statistics": dict}
OWNER = ("name", "tokenizer", "weights")  # what is known of each of the two models


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the folder's only writer; OmnidraftError at once where another one is.

    The system opens the lock when the process ends, however it ends.
    """
    make_folder_of(folder / "lock")
    with open(folder / "lock", "a+b", 0) as file:  # subtle: a pipe would be waited for by "ab"
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OmnidraftError(f"another process is learning into {folder}: wait for its end, or "
                                 "use --no-save or another folder (--adapters)") from None
        except OSError:  # a file system without locks; a save still finds out what came between
            pass
        yield


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """What current.json says, None where there is none; OmnidraftError where it is not whole."""
    path = folder / "current.json"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # and OmnidraftError
        if not path.exists():
            return None
        manifest = read_json(path)
        if manifest.pop("checksum") == seal(manifest) and manifest["format"] == FORMAT:
            manifest.setdefault("folder", f"v{manifest['version']}")
            if _is_valid(manifest):
                return manifest
    raise damaged(path)


def damaged(path: Path) -> OmnidraftError:
    """The error for a file of an adapter that cannot be used."""
    return OmnidraftError(f"{path} is damaged or missing: delete the adapter's folder to learn "
                          "again (other adapters are not affected)")


def seal(manifest: dict[str, Any]) -> str:
    """A checksum of the manifest itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def identity(draft: Any, target: Any) -> dict[str, dict[str, str]]:
    """What an adapter belongs to: names, tokenizers and checksums of weights of both models.

    Of a drafter made in memory its numbers count, of the target's files 64 kB each.
    """
    whole, sample = hashlib.sha256(), hashlib.sha256()
    files = _files(draft, "safetensors") or _files(draft, "bin")
    for path in files:
        whole.update(checksum(path).encode())
    for parameter in () if files else draft.model.parameters():
        whole.update(parameter.detach().cpu().double().numpy().tobytes())
    files = _files(target, "safetensors")
    for path in files:
        size = path.stat().st_size
        sample.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            file.seek(size // 2)
            sample.update(file.read(1 << 16))
    both = {"draft": (draft, whole.hexdigest()),
            "target": (target, sample.hexdigest() if files else "")}
    return {role: {"name": model.name, "tokenizer": model.tokenizer.fingerprint, "weights": weights}
            for role, (model, weights) in both.items()}


def _files(model: Any, kind: str) -> list[Path]:
    """The model's weight files of one kind, in order; none where it was made in memory."""
    folder = getattr(model, "folder", None)
    return sorted(Path(folder).glob(f"*.{kind}")) if folder else []


def _is_valid(manifest: dict[str, Any]) -> bool:
    """Whether all fields are there, of their kinds, and name nothing outside the folder."""
    statistics = {"places": {}, "rate_share": 1.0} | manifest["statistics"]
    places = statistics.pop("places")
    names = [manifest["folder"], *manifest["files"]]
    sums = [manifest[role][key] for role in ("draft", "target") for key in OWNER]
    numbers = [*places.values(), *statistics.values()]
    return (all(type(manifest[name]) is kind for name, kind in FIELDS.items())
            and all(re.fullmatch(r"\w[\w.-]*", name) for name in names)
            and all(type(one) is str for one in (*sums, *manifest["files"].values()))
            and all(type(one) in (int, float) and 0 <= one < 2**60 for one in numbers)
            and all(type(one) is int for one in places.values())
            and 0 < statistics["rate_share"] <= 1 and "error" not in statistics)
