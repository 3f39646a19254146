"""Adapters on disk: what a drafter has learned for each target, safe against a crash.

`draft--target/current.json` names the folder of the current version (v3-7ace2857/), and has the
checksums of its files and of both models. A save writes a new folder and then replaces
current.json: after a crash or a power loss, either the old version is there or the new one.

A version's folder ends with the beginning of the pair's fingerprint. Only such folders are deleted:
whatever else lies in an adapter's folder belongs to somebody else. Files from others are checked.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.llama import Llama
from ..engine.weights import save_tensors, weight_files
from ..pairing import Pairing
from ..stopping import AcceptanceHead
from ..text.errors import OmnidraftError, expect
from ..text.files import default_folder, make_folder_of, read_json, write_text
from .lora import WEIGHTS, LoRA, read_arrays
from .online import Learner, Schedule, Statistics
from .training import Recipe, fill, under

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = "omnidraft adapter 1"
FIELDS = dict(version=int, folder=str, draft=dict, target=dict, files=dict, statistics=dict)
ROLES = ("draft", "target")
VERSION = re.compile(r"v\d+-([0-9a-f]{8})")  # the name of a version's folder
MODEL = "model.safetensors"  # if all weights were trained
HEAD = "head.safetensors"
OPTIMIZER = "optimizer.safetensors"  # only to continue learning: an adapter may lack it
SHIPPED = Path(__file__).parents[1] / "engine" / "embedded" / "adapters"  # read-only


@dataclass
class Adapter:
    """What was learned for one pair."""

    lora: LoRA  # of rank 0 if all weights were trained
    head: AcceptanceHead | None = None
    states: dict[str, np.ndarray] = field(default_factory=dict)  # the optimizers'
    statistics: Statistics = field(default_factory=Statistics)
    folder: Path | None = None  # where it was read from or saved
    version: int = 0  # the version in this folder
    checksum: str = ""  # of its current.json

    def drafter(self, base: Any) -> Any:
        """The base drafter (either backend) with what was learned; the base is not changed."""
        base = getattr(base, "untouched", base)
        return training_of(base).adapted(base, self.lora)


class Adapters:
    """The adapters of all pairs under one folder, by default $OMNIDRAFT_HOME/adapters."""

    def __init__(self, root: str | Path | None = None) -> None:
        expect("the folder of adapters", root, (None, str, PathLike), "a path")
        self.root = default_folder() / "adapters"
        if root:
            self.root = Path(os.path.expanduser(root))  # subtle: Path's fails without such a user
        if self.root.exists() and not self.root.is_dir():
            raise OmnidraftError(f"{self.root} is no folder: adapters are kept in one")
        self._held: Path | None = None  # the folder whose lock this store holds

    def __repr__(self) -> str:
        return f"Adapters({str(self.root)!r})"

    def all(self) -> dict[str, dict[str, Any]]:
        """What is known about every adapter here, by folder name: {"error": ...} if damaged."""
        found = {}
        for path in sorted(self.root.glob("*/current.json")):
            try:
                found[path.parent.name] = manifest_of(path.parent) or {}
            except OmnidraftError as error:
                found[path.parent.name] = {"error": str(error)}
        return found

    def folder(self, pair: Pairing) -> Path:
        """Folder of the pair's adapter, whether it exists or not; OmnidraftError if damaged."""
        own = identity(pair)
        names = [re.sub(r"[^\w.-]+", "_", own[role]["name"]) for role in ROLES]
        usual = self.root / "--".join(names)
        fitting = self.marked(own["fingerprint"])  # perhaps under a model's older name
        if fitting:
            return usual if usual in fitting else fitting[0]
        taken = manifest_of(usual)  # by other models of these names
        return self.root / "--".join([*names, own["fingerprint"][:8]]) if taken else usual

    def marked(self, start: str) -> list[Path]:
        """The folders of adapters whose fingerprint begins so."""
        return [self.root / name for name, one in self.all().items()
                if one.get("fingerprint", "").startswith(start)]

    def named(self, word: str) -> Path:
        """An adapter's folder, given its name, the start of its fingerprint, or the folder itself.

        This store comes before the shipped adapters. OmnidraftError for no match or several.
        """
        for root in (self.root, SHIPPED, Path()):
            if (root / word / "current.json").exists():
                return root / word
        for store in (self, Adapters(SHIPPED)):
            found = store.marked(word)
            if len(found) == 1 and len(word) > 3:
                return found[0]
        raise OmnidraftError(f"no adapter {word!r}, or several: give a name or fingerprint that "
                             "`omnidraft adapters list` shows, or a folder with a current.json")

    @contextmanager
    def writing(self, pair: Pairing) -> Iterator[Path]:
        """Be the only writer of the pair's adapter; OmnidraftError for a second one."""
        folder = self.folder(pair)
        if folder == self._held:
            yield folder
            return
        outer = self._held
        with locked(folder):
            self._held = folder
            try:
                yield folder
            finally:
                self._held = outer

    def save(self, pair: Pairing, adapter: Adapter, after: str | None = None,
             writer: str = "") -> Path:
        """Write a new version, make it current, and remove older ones; returns the folder.

        pair: with the drafter as it was before learning. after: the `checksum` of the version that
        this one may follow ("": none; None: any); versions of the same `writer` too. OmnidraftError
        for any other.
        """
        with self.writing(pair) as folder:
            own = identity(pair)
            current = manifest_of(folder) or {"version": 0, "folder": "", "checksum": ""}
            if after not in (None, current["checksum"]) and current.get("writer") != writer:
                raise OmnidraftError(f"another process has saved to {folder} since it was read")
            older = versions_in(folder, current | own)
            version = current["version"] + 1
            mark = own["fingerprint"][:8]
            while os.path.lexists(folder / f"v{version}-{mark}"):
                version += 1  # it was left by a save that was broken off
            place = folder / f"v{version}-{mark}"
            try:
                write_arrays(place, adapter, pair.draft.name)
                files = {path.name: checksum(path) for path in sorted(place.iterdir())}
                manifest = {"format": FORMAT, "version": version, "folder": place.name, **own,
                            "files": files, "statistics": adapter.statistics.to_json(),
                            "writer": writer}
                adapter.checksum = write_manifest(folder, manifest)
            except OmnidraftError:
                shutil.rmtree(place, ignore_errors=True)  # free the space of a failed save
                raise
            for path in older:
                shutil.rmtree(path, ignore_errors=True)
        return folder

    def load(self, pair: Pairing, which: str | None = None, shipped: bool = False
             ) -> Adapter | None:
        """The pair's adapter, else with `shipped` the package's, else None (nothing was learned).

        which: load this one instead, found by `named`. Raises OmnidraftError if it belongs to other
        models or a file has a wrong checksum.
        """
        folder = self.folder(pair) if which is None else self.named(which)
        manifest = manifest_of(folder)
        if manifest is None:
            return Adapters(SHIPPED).load(pair) if shipped else None
        try:
            return read(folder, manifest, draft=pair.draft, target=pair.target)
        except (OmnidraftError, OSError):
            if manifest_of(folder) != manifest:  # another process has saved a newer version
                return self.load(pair, which, shipped)
            raise

    def resume(self, pair: Pairing, recipe: Recipe, schedule: Schedule, rng: np.random.Generator,
               shipped: bool = False) -> Learner:
        """A learner that continues from the pair's adapter, or begins a new one.

        shipped: also from the package's (see `load`), and with the saved rank. The learner replaces
        `pair.draft`, the base. OmnidraftError if the adapter does not fit, e.g. by its rank.
        """
        base = pair.draft = getattr(pair.draft, "untouched", pair.draft)
        adapter = self.load(pair, shipped=shipped)
        if adapter and adapter.lora.rank != recipe.rank:
            rank = adapter.lora.rank
            if not shipped:
                raise OmnidraftError(f"{adapter.folder} has rank {rank}, not {recipe.rank}: give "
                                     f"rank {rank} to continue it, or choose another folder")
            recipe = replace(recipe, rank=rank)
        trainer = training_of(base).Trainer(base, recipe, rng)
        learner = Learner(pair, trainer, rng, schedule, adapter and adapter.head)
        learner.follows = ""
        if adapter:
            restore(learner, adapter)
            if adapter.folder.parent == self.root:
                learner.follows = adapter.checksum
        return learner

    def keep(self, learner: Learner) -> Path:
        """Save what a learner has learned, with the state of its optimizer; returns the folder.

        If it cannot be saved here (a damaged adapter, another process was faster), it is saved next
        to this store, and the OmnidraftError says where.
        """
        pair = copy(learner.pair)
        pair.draft = learner.trainer.base  # the adapter belongs to the base
        adapter = state_of(learner)
        try:
            folder = self.save(pair, adapter, learner.follows, learner.writer)
        except OmnidraftError as error:
            root = self.root.with_name(f"{self.root.name}-rescued-{secrets.token_hex(4)}")
            try:
                Adapters(root).save(pair, adapter)
            except OmnidraftError:
                shutil.rmtree(root, ignore_errors=True)
                raise error from None
            raise OmnidraftError(f"{error}; what was learned is in {root}: continue with "
                                 f"--adapters {root}") from None
        learner.follows = adapter.checksum
        return folder


def training_of(drafter: Any) -> Any:
    """The module that trains this kind of drafter."""
    name = "training" if isinstance(drafter, Llama) else "training_torch"
    return import_module(f".{name}", __package__)


def state_of(learner: Learner) -> Adapter:
    """What a learner has learned, with the states of its optimizers (but no texts to replay)."""
    trainer = learner.trainer
    state = trainer.state()
    weights = under("served.", learner.guard.best or state)  # the weights that draft
    arrays = {name: array for name, array in state.items() if not name.startswith("served.")}
    if learner.head_optimizer:
        moments = learner.head_optimizer.state()
        arrays |= {f"head.{name}": array for name, array in moments.items()}
    lora = replace(trainer.lora, parameters=weights)
    return Adapter(lora, learner.head, arrays, learner.statistics)


def restore(learner: Learner, adapter: Adapter) -> None:
    """Continue a new learner from what was saved."""
    trainer = learner.trainer
    own = {k: v for k, v in adapter.states.items() if not k.startswith("head.")}
    state = {} if own else trainer.state()  # without a saved optimizer, use a fresh one
    for kind in ("served", "parameters"):
        weights = adapter.lora.parameters
        state |= {f"{kind}.{name}": array for name, array in weights.items()}
    trainer.restore(state | own)
    trainer.lora.alpha = adapter.lora.alpha
    moments = under("head.", adapter.states)
    if learner.head_optimizer and moments:
        fill(learner.head_optimizer.state(), moments)
    learner.pair.draft = trainer.model()
    learner.statistics = adapter.statistics
    if trainer.recipe.rate is not None:
        learner.statistics.rate_share = 1.0
    trainer.optimizer.rate *= learner.statistics.rate_share  # found with the guard


# -------------------------------------------------------------------------- an adapter's folder

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


def write_arrays(place: Path, adapter: Adapter, base: str) -> None:
    """Write a version's folder; `base` is the drafter's name."""
    make_folder_of(place / "any")
    if adapter.lora.rank:
        adapter.lora.save(place, base=base)
    else:
        save_tensors(place / MODEL, adapter.lora.parameters)
    if adapter.head:
        save_tensors(place / HEAD, adapter.head.parameters)
    if adapter.states:
        save_tensors(place / OPTIMIZER, adapter.states)


def write_manifest(folder: Path, manifest: dict[str, Any]) -> str:
    """Replace current.json: the version that it names is now the current one. Its checksum."""
    checksum = seal(manifest)
    content = manifest | {"checksum": checksum}
    write_text(folder / "current.json", json.dumps(content, indent=1) + "\n")
    return checksum


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The content of current.json, None if there is none; OmnidraftError if it is damaged."""
    path = folder / "current.json"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # and OmnidraftError
        if not path.exists():
            return None
        manifest = read_json(path)
        if manifest["checksum"] == seal(manifest) and is_valid(manifest):
            return manifest | {"fingerprint": fingerprint(manifest)}
    raise damaged(path)


def is_valid(manifest: dict[str, Any]) -> bool:
    """Are all fields there, of the right types, and do they name nothing outside the folder?"""
    statistics = {"rate_share": 1.0} | manifest["statistics"]
    names = [manifest["folder"], *manifest["files"]]
    sums = [manifest[role][key] for role in ROLES for key in ("name", "tokenizer", "weights")]
    sums += manifest["files"].values()
    numbers = statistics.values()
    return (manifest["format"] == FORMAT
            and all(type(manifest[name]) is kind for name, kind in FIELDS.items())
            and all(re.fullmatch(r"\w[\w.-]*", name) for name in names)
            and all(type(one) is str for one in sums)
            and all(type(one) in (int, float) and 0 <= one < 2**60 for one in numbers)
            and 0 < statistics["rate_share"] <= 1 and "error" not in statistics)


def seal(manifest: dict[str, Any]) -> str:
    """The checksum of the manifest itself."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def damaged(path: Path) -> OmnidraftError:
    """The error for an adapter's file that cannot be used."""
    return OmnidraftError(f"{path} is damaged or missing: `omnidraft adapters delete` makes room "
                          "for learning again (other adapters are not affected)")


def versions_in(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """The folders that saves have made: the current one, and those named after the pair."""
    found = []
    for path in folder.glob("v*"):
        name = VERSION.fullmatch(path.name)
        if not name or path.is_symlink() or not path.is_dir():
            continue
        if path.name == manifest["folder"] or name[1] == manifest["fingerprint"][:8]:
            found.append(path)
    return found


def remove(folder: Path) -> list[str]:
    """Delete the adapter in a folder, then the folder; returns the names of what is not ours there.

    If there is anything else, the folder stays with it. Of a link, only the link is deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return []
    versions = []
    with suppress(OmnidraftError):  # if it is damaged, nothing says which folders are ours
        versions = versions_in(folder, manifest_of(folder))
    (folder / "current.json").unlink()  # from here on it is gone, whatever happens
    for path in versions:
        shutil.rmtree(path)
    for path in (folder / "lock", *folder.glob("current.json.*.part")):
        path.unlink(missing_ok=True)
    left = sorted(path.name for path in folder.iterdir())
    if not left:
        folder.rmdir()
    return left


def read(folder: Path, manifest: dict[str, Any], **models: Any) -> Adapter:
    """Read the adapter of a manifest, after checking its files and a `draft` and `target`."""
    check(folder, manifest, **models)
    place = folder / manifest["folder"]
    arrays = {name: read_arrays(place / name) for name in (MODEL, HEAD, OPTIMIZER)
              if name in manifest["files"] and (place / name).exists()}
    if MODEL in arrays:
        lora = LoRA(arrays[MODEL], 0, 0.0)
    else:
        lora = LoRA.load(place)
        arrays[WEIGHTS] = lora.parameters
    for file, content in arrays.items():
        for name, array in content.items():
            counts = "square." in name or name.endswith("steps")  # an optimizer's: never negative
            if not np.isfinite(array).all() or counts and array.min(initial=0) < 0:
                raise damaged(place / file)
    head = None
    if HEAD in arrays:
        head = AcceptanceHead(models["draft"].embedding.shape[1], arrays[HEAD])
    statistics = Statistics.from_json(manifest["statistics"])
    return Adapter(lora, head, arrays.get(OPTIMIZER, {}), statistics, folder, manifest["version"],
                   manifest["checksum"])


def with_adapter(draft: Any, word: str) -> Any:
    """The drafter with the adapter that `Adapters.named` finds, for a target of any weights."""
    folder = Adapters().named(word)
    return read(folder, manifest_of(folder) or {}, draft=draft).drafter(draft)


def check(folder: Path, manifest: dict[str, Any], **models: Any) -> None:
    """Raise OmnidraftError if an adapter belongs to other models, or a file is damaged."""
    for role, model in models.items():
        for key, own in owner(model, role).items():
            if key != "name" and manifest[role][key] != own:
                raise OmnidraftError(f"{folder} was learned with another {role} "
                                     f"({manifest[role]['name']}, other {key}): choose another")
    for name, known in manifest["files"].items():
        path = folder / manifest["folder"] / name
        if name == OPTIMIZER and not path.exists():
            continue
        if not path.is_file() or checksum(path) != known:
            raise damaged(path)


# -------------------------------------------------------------------- to whom an adapter belongs

def identity(pair: Any) -> dict[str, Any]:
    """What an adapter records about a pair: each `owner`, and their `fingerprint`."""
    owners = {role: owner(getattr(pair, role), role) for role in ROLES}
    return owners | {"fingerprint": fingerprint(owners)}


def fingerprint(owners: dict[str, Any]) -> str:
    """The hash (hex) that identifies a pair, wherever its models are, whatever their names."""
    sums = [owners[role][key] for role in ROLES for key in ("tokenizer", "weights")]
    return hashlib.sha256(" ".join(sums).encode()).hexdigest()


def owner(model: Any, role: str) -> dict[str, str]:
    """What an adapter records about a model ("draft", "target"): name, tokenizer and weights.

    The weights are hashed once per model object and role, which keeps the result.
    """
    known = vars(model).setdefault("weights_by_role", {})
    if role not in known:
        known[role] = hash_of_weights(model, sample=role == "target")
    return {"name": model.name, "tokenizer": model.tokenizer.fingerprint, "weights": known[role]}


def hash_of_weights(model: Any, sample: bool) -> str:
    """The sha256 (hex) of a model's weights; `sample`: of bytes from all over each file.

    Only the files that the model was loaded from are read. Of a model that was made in memory, the
    parameters are hashed (sample: the first of each).
    """
    folder = getattr(model, "folder", None)
    files = weight_files(folder) if folder else []
    digest = hashlib.sha256()
    for path in files:
        if not sample:
            digest.update(checksum(path).encode())
            continue
        content = bytes_of(path)
        # subtle: of a model that is one file the path is ".", since people rename it
        digest.update(f"{path.relative_to(folder)} {content.size} ".encode())
        digest.update(content[::content.size >> 12 | 1].tobytes())
    if files:
        return digest.hexdigest()
    parameters = getattr(getattr(model, "model", None), "parameters", tuple)  # of PyTorch models
    for tensor in parameters():
        if tensor.is_meta:  # offloaded
            continue
        numbers = tensor.detach().flatten()[:1 << 13 if sample else None]
        digest.update(numbers.cpu().double().numpy().tobytes())
    return digest.hexdigest()


def checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    return hashlib.sha256(bytes_of(path)).hexdigest()


def bytes_of(path: Path) -> np.ndarray:
    """A file's bytes, memory-mapped (an empty file cannot be mapped)."""
    return np.memmap(path, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
