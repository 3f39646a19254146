"""An adapter's folder: which version is current, whether it is intact, whose it is, who may write.

`draft--target/current.json` names the folder of the current version (v3-1f0c96aa/), and has the
checksums of its files and of both models. A save replaces it last, so that either the old version
or the new one exists, even after a power loss. Files from others are checked here before use.

`made.json` names the versions' folders before they are made. A save and `remove` delete only these:
whatever else lies in an adapter's folder belongs to somebody else.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.weights import weight_files
from ..text.errors import OmnidraftError
from ..text.files import make_folder_of, read_json, write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = "omnidraft adapter 1"
FIELDS = dict(version=int, folder=str, draft=dict, target=dict, files=dict, statistics=dict)
ROLES = ("draft", "target")
VERSION = re.compile(r"v\d+-[0-9a-f]{8}")  # name of a version's folder
OURS = re.compile(r"((current|made)\.json(\.\d+\.part)?)|lock")  # names of the files next to them


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the folder's only writer; OmnidraftError at once if there is another one.

    The system releases the lock when the process ends, however it ends.
    """
    make_folder_of(folder / "lock")
    with open(folder / "lock", "a+b", 0) as file:  # subtle: with "ab", opening a pipe would wait
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OmnidraftError(f"another process is learning into {folder}: wait until it ends, "
                                 "or use --no-save or another folder (--adapters)") from None
        except OSError:  # a file system without locks; a save still detects another writer
            pass
        yield


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The content of current.json, None if there is none; OmnidraftError if it is damaged."""
    path = folder / "current.json"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # and OmnidraftError
        if not path.exists():
            return None
        manifest = read_json(path)
        if manifest.pop("checksum") == seal(manifest) and manifest["format"] == FORMAT:
            if _is_valid(manifest):
                return with_fingerprint(manifest)
    raise damaged(path)


def damaged(path: Path) -> OmnidraftError:
    """The error for an adapter's file that cannot be used."""
    return OmnidraftError(f"{path} is damaged or missing: `omnidraft adapters delete` makes room "
                          "for learning again (other adapters are not affected)")


def seal(manifest: dict[str, Any]) -> str:
    """The checksum of the manifest itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def write_manifest(place: Path, version: int, owners: dict, statistics: dict[str, Any]) -> None:
    """Make the version in the folder `place` the current one of its parent."""
    manifest = {"format": FORMAT, "version": version, "folder": place.name, **owners,
                "files": {path.name: checksum(path) for path in sorted(place.iterdir())},
                "statistics": statistics}
    manifest["checksum"] = seal(manifest)
    write_text(place.parent / "current.json", json.dumps(manifest, indent=1) + "\n")


def announce(place: Path) -> list[Path]:
    """Record that `place` will be made, a version's folder; returns those that it will replace.

    These are the version in use, and what saves left that were broken off.
    """
    paths = [place.with_name(name) for name in sorted(recorded(place.parent))]
    older = [path for path in paths if path.is_dir()]
    folders = [path.name for path in (*older, place)]
    write_text(place.parent / "made.json", json.dumps({"folders": folders}) + "\n")
    return older


def recorded(folder: Path) -> set[str]:
    """The names of the versions' folders that saves have made, as far as the files here say."""
    names = []
    with suppress(OmnidraftError):  # if it is damaged, the other file names it too
        names.append((manifest_of(folder) or {}).get("folder"))
    with suppress(OmnidraftError, TypeError):  # if it is damaged, what it names stays
        names += read_json(folder / "made.json").get("folders", [])
    return {name for name in names if type(name) is str and VERSION.fullmatch(name)}


def remove(folder: Path) -> list[str]:
    """Delete the adapter in a folder, then the folder; returns the names of what is not ours there.

    If there is anything else, the folder stays with it. Of a link, only the link is deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return []
    ours = recorded(folder)
    (folder / "current.json").unlink()  # from here on it is gone, whatever happens
    inside = [*folder.iterdir()]
    for path in inside:
        if path.name in ours and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    for path in inside:  # subtle: after the versions, as the record says which to delete later
        if OURS.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    left = sorted(path.name for path in folder.iterdir())
    if not left:
        folder.rmdir()
    return left


def check(folder: Path, manifest: dict[str, Any], files: Iterable[str], **models: Any) -> None:
    """Raise OmnidraftError if an adapter belongs to other models, or a file is damaged."""
    for role, model in models.items():
        for key, own in owner(model, role).items():
            if key != "name" and manifest[role][key] != own:
                raise OmnidraftError(f"{folder} was learned with another {role} "
                                     f"({manifest[role]['name']}, other {key}): choose another")
    for path in (folder / manifest["folder"] / name for name in files):
        if not path.is_file() or checksum(path) != manifest["files"][path.name]:
            raise damaged(path)


def checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> np.ndarray:
    """A file's bytes, memory-mapped (an empty file cannot be mapped)."""
    return np.memmap(path, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)


def owner(model: Any, role: str) -> dict[str, str]:
    """What an adapter records about a model ("draft", "target"): name, tokenizer and weights.

    The weights are hashed once per model object and role, which keeps the result.
    """
    known = vars(model).setdefault("weights_by_role", {})
    if role not in known:
        known[role] = hash_of_weights(model, sample=role == "target")
    return dict(name=model.name, tokenizer=model.tokenizer.fingerprint, weights=known[role])


def hash_of_weights(model: Any, sample: bool) -> str:
    """The sha256 (hex) of a model's weights; `sample`: of bytes from all over each file.

    Only the files that the model was loaded from are read. Of a model that was made in memory, the
    parameters are hashed (sample: the first of each).
    """
    folder, digest = getattr(model, "folder", None), hashlib.sha256()
    files = weight_files(folder) if folder else []
    for path in files:
        if not sample:
            digest.update(checksum(path).encode())
            continue
        part = _content(path)
        digest.update(f"{path.name} {part.size} ".encode())
        digest.update(part[::part.size >> 12 | 1].tobytes())
    if files:
        return digest.hexdigest()
    parameters = getattr(getattr(model, "model", None), "parameters", tuple)  # of PyTorch models
    for one in filter(lambda one: not one.is_meta, parameters()):
        some = one.detach().flatten()[:1 << 13 if sample else None]
        digest.update(some.cpu().double().numpy().tobytes())
    return digest.hexdigest()


def identity(pair: Any) -> dict[str, Any]:
    """What an adapter records about a pair: each `owner`, and their `fingerprint`."""
    return with_fingerprint({role: owner(getattr(pair, role), role) for role in ROLES})


def with_fingerprint(found: dict[str, Any]) -> dict[str, Any]:
    """Add the hash (hex) that identifies a pair, wherever its models are, whatever their names."""
    sums = [found[role][key] for role in ROLES for key in ("tokenizer", "weights")]
    return found | {"fingerprint": hashlib.sha256(" ".join(sums).encode()).hexdigest()}


def _is_valid(manifest: dict[str, Any]) -> bool:
    """Are all fields there, of the right types, and do they name nothing outside the folder?"""
    statistics = {"rate_share": 1.0} | manifest["statistics"]
    sums = [manifest[role][key] for role in ROLES for key in ("name", "tokenizer", "weights")]
    return (all(type(manifest[name]) is kind for name, kind in FIELDS.items())
            and all(re.fullmatch(r"\w[\w.-]*", n) for n in [manifest["folder"], *manifest["files"]])
            and all(type(one) is str for one in (*sums, *manifest["files"].values()))
            and all(type(one) in (int, float) and 0 <= one < 2**60 for one in statistics.values())
            and 0 < statistics["rate_share"] <= 1 and "error" not in statistics)
