"""Adapters on disk: what a drafter has learned for each target, safe against a crash.

An adapter belongs to two models and is found by their fingerprint; its folder, by default
`draft--target/`, may have any name. `versions` says which files in it are current.
"""

import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.llama import Llama
from ..engine.weights import read_safetensors, save_tensors
from ..pairing import Pairing
from ..stopping import AcceptanceHead
from ..text.errors import OmnidraftError, expect
from ..text.files import default_folder, make_folder_of
from .lora import WEIGHTS, LoRA
from .online import Learner, Schedule
from .optimizer import fill
from .training import Recipe, under
from .versions import (
    ROLES,
    announce,
    check,
    damaged,
    identity,
    locked,
    manifest_of,
    write_manifest,
)

# files of arrays; the last is needed only to continue learning, so an adapter may lack it
FILES = MODEL, HEAD, OPTIMIZER = [f"{one}.safetensors" for one in ("model", "head", "optimizer")]
SHIPPED = Path(__file__).parents[1] / "engine" / "embedded" / "adapters"  # read-only


@dataclass
class Adapter:
    """What was learned for one pair."""

    lora: LoRA | None = None  # None if all weights were trained: then they are in `weights`
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    head: AcceptanceHead | None = None
    states: dict[str, np.ndarray] = field(default_factory=dict)  # the optimizers'
    statistics: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None  # where it was read from or saved
    version: int = 0  # the version in this folder
    place: str = ""  # the name of its own folder in there

    def drafter(self, base: Any) -> Any:
        """The base drafter (either backend) with what was learned; the base is not changed."""
        base = getattr(base, "untouched", base)
        return training_of(base).adapted(base, self.lora, self.weights)

    def head_for(self, base: Any) -> AcceptanceHead | None:
        """The acceptance head, if there is one, where the drafter's hidden states are."""
        return self.head and training_of(base).Trainer.head_beside(base, self.head)


class Adapters:
    """The adapters of all pairs under one folder, by default $OMNIDRAFT_HOME/adapters."""

    def __init__(self, root: str | Path | None = None) -> None:
        expect("the folder of adapters", root, (None, str, PathLike), "a path")
        self.root = Path(root).expanduser() if root else default_folder() / "adapters"
        self._held: Path | None = None  # the folder whose lock this store holds

    def __repr__(self) -> str:
        return f"Adapters({str(self.root)!r})"

    def folder(self, pair: Pairing) -> Path:
        """Folder of the pair's adapter, under any name (the latest of several), or for a new one.

        Raises OmnidraftError if it is damaged.
        """
        own = identity(pair)
        found = [(one["version"], name) for name, one in self.all().items()
                 if one.get("fingerprint") == own["fingerprint"]]
        usual = "--".join(re.sub(r"[^\w.-]+", "_", own[role]["name"]) for role in ROLES)
        if not found and manifest_of(self.root / usual):  # taken by other models with these names
            usual += f"--{own['fingerprint'][:8]}"
        return self.root / (max(found)[1] if found else usual)

    def named(self, word: str) -> Path:
        """An adapter's folder, given its name, the start of its fingerprint, or the folder itself.

        This store comes before the shipped adapters. OmnidraftError for no match or several.
        """
        for store in (self, Adapters(SHIPPED)):
            here = store.all()
            found = [word] if word in here else [name for name, one in here.items() if (
                len(word) > 3 and one.get("fingerprint", "").startswith(word))]
            if len(found) > 1:
                raise OmnidraftError(f"{word} matches each of {', '.join(found)}: give one name")
            if found:
                return store.root / found[0]
        if (Path(word) / "current.json").exists():
            return Path(word)
        raise OmnidraftError(f"no adapter {word!r}: give a name or fingerprint that `omnidraft "
                             "adapters list` shows, or a folder with a current.json")

    @contextmanager
    def writing(self, at: Pairing | Path) -> Iterator[Path]:
        """Be the only writer of the pair's adapter, or of a folder; OmnidraftError for a second."""
        folder = at if isinstance(at, Path) else self.folder(at)
        with nullcontext() if folder == self._held else locked(folder):
            outer, self._held = self._held, folder
            try:
                yield folder
            finally:
                self._held = outer

    def save(self, pair: Pairing, adapter: Adapter, after: set[str] | None = None) -> Path:
        """Write a new version, make it current, and remove older ones; returns the folder.

        pair: with the drafter as it was before learning. after: names of the versions' folders that
        this one may follow (empty: any), replaced by the new name. OmnidraftError for any other.
        """
        after = set() if after is None else after
        with self.writing(pair) as folder:
            current = manifest_of(folder) or {"version": 0, "folder": ""}
            if after and current["folder"] not in after:
                raise OmnidraftError(f"another process has saved to {folder} since it was read")
            version = current["version"] + 1
            place = folder / f"v{version}-{secrets.token_hex(4)}"  # a unique name
            # subtle: noted before it becomes current, wherever an interrupt comes
            after.update((current["folder"], place.name))
            after.intersection_update((current["folder"], place.name))
            try:
                make_folder_of(place)
                older = announce(place)
                make_folder_of(place / "any")
                if adapter.lora:
                    adapter.lora.save(place, base=pair.draft.name)
                head = adapter.head and adapter.head.parameters
                for name, part in zip(FILES, (adapter.weights, head, adapter.states), strict=True):
                    if part:
                        save_tensors(place / name, part)
                write_manifest(place, version, identity(pair), adapter.statistics)
                adapter.folder, adapter.version, adapter.place = folder, version, place.name
                after.intersection_update((place.name,))
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
        if (manifest := manifest_of(folder)) is None:
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
        adapter = self.load(pair, None, shipped) or Adapter()
        weights = adapter.lora.parameters if adapter.lora else adapter.weights
        if weights and (rank := adapter.lora.rank if adapter.lora else 0) != recipe.rank:
            if not shipped:
                raise OmnidraftError(f"{adapter.folder} has rank {rank}, not {recipe.rank}: give "
                                     f"rank {rank} to continue it, or choose another folder")
            recipe = replace(recipe, rank=rank)
        trainer = training_of(base).Trainer(base, recipe, rng)
        head = adapter.head and trainer.head_beside(base, adapter.head)
        learner = Learner(pair, trainer, rng, schedule, head)
        here = adapter.folder and adapter.folder.parent == self.root
        learner.version = adapter.version if here else 0
        learner.saved_as = {adapter.place if here else ""}
        if not weights:
            return learner
        own = {k: v for k, v in adapter.states.items() if not k.startswith("head.")}
        state = {} if own else trainer.state()  # without a saved optimizer, use a fresh one
        state |= {f"{kind}.{k}": v for k, v in weights.items() for kind in ("served", "parameters")}
        trainer.restore(state | own)
        if adapter.lora:
            trainer.lora.alpha = adapter.lora.alpha
        if learner.head_optimizer and (saved := under("head.", adapter.states)):
            like = {name: trainer._like(array) for name, array in saved.items()}
            fill(learner.head_optimizer.state(), like)
        pair.draft = trainer.model()
        learner.statistics = statistics = adapter.statistics
        if recipe.rate is not None:
            statistics.pop("rate_share", None)
        trainer.optimizer.rate *= statistics.get("rate_share", 1.0)  # found with the guard
        return learner

    def keep(self, learner: Learner) -> Path:
        """Save what a learner has learned, and everything it needs to continue; the folder.

        If it cannot be saved here (a damaged adapter, another process was faster), it is saved next
        to this store, and the OmnidraftError says where.
        """
        trainer, pair, state = learner.trainer, copy(learner.pair), learner.trainer.state()
        pair.draft = trainer.base  # the adapter belongs to the base
        weights = under("served.", learner.guard.best or state)  # the weights that draft
        arrays = {k: v for k, v in state.items() if not k.startswith("served.")}
        if learner.head_optimizer:
            moments = learner.head_optimizer.state()
            arrays |= {f"head.{k}": trainer._host(v) for k, v in moments.items()}
        lora = replace(trainer.lora, parameters=weights) if trainer.lora else None
        learner.statistics["rate"] = trainer.optimizer.rate
        head = learner.head
        if head and not head.on_host:
            head = head.to_host()
        adapter = Adapter(lora, {} if lora else weights, head, arrays, learner.statistics)
        try:
            folder = self.save(pair, adapter, after=learner.saved_as)
            learner.version = adapter.version
            return folder
        except OmnidraftError as error:
            root = self.root.with_name(f"{self.root.name}-rescued-{secrets.token_hex(4)}")
            try:
                Adapters(root).save(pair, copy(adapter))
            except OmnidraftError:
                shutil.rmtree(root, ignore_errors=True)
                raise error from None
            raise OmnidraftError(f"{error}; what was learned is in {root}: continue with "
                                 f"--adapters {root}") from None

    def all(self) -> dict[str, dict[str, Any]]:
        """What is known about every adapter here, by folder name: {"error": ...} if damaged."""
        found = {}
        for folder in sorted(path.parent for path in self.root.glob("*/current.json")):
            try:
                found[folder.name] = manifest_of(folder) or {}
            except OmnidraftError as error:
                found[folder.name] = {"error": str(error)}
        return found


def training_of(drafter: Any) -> Any:
    """The module that trains this kind of drafter."""
    name = "training" if isinstance(drafter, Llama) else "training_torch"
    return import_module(f".{name}", __package__)


def read(folder: Path, manifest: dict[str, Any], **models: Any) -> Adapter:
    """Read the adapter of a manifest, after checking its files and a `draft` and `target`."""
    place = folder / manifest["folder"]
    files = {name for name in manifest["files"] if name != OPTIMIZER or (place / name).exists()}
    check(folder, manifest, files, **models)
    arrays = {name: {k: array.astype(np.result_type(array, "f4"))  # float16 is only for storage
                     for k, array in read_safetensors(place / name).items()}
              for name in FILES if name in files}
    lora = None if MODEL in arrays else LoRA.load(place)
    parts = arrays | ({WEIGHTS: lora.parameters} if lora else {})
    for file, name, array in ((at, *one) for at in parts for one in parts[at].items()):
        counts = "square." in name or name.endswith("steps")  # an optimizer's: never negative
        if not np.isfinite(array).all() or counts and array.min(initial=0) < 0:
            raise damaged(place / file)
    head = HEAD in arrays and AcceptanceHead(models["draft"].embedding.shape[1], arrays[HEAD])
    return Adapter(lora, arrays.get(MODEL, {}), head or None, arrays.get(OPTIMIZER, {}),
                   manifest["statistics"], folder, manifest["version"], manifest["folder"])
