"""Adapters on disk: what a drafter has learned for each target, safe against a crash.

The files of one pair are in `draft--target/`; `versions` says which of them count.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.llama import Llama
from ..engine.weights import read_safetensors
from ..errors import OmnidraftError
from ..files import default_folder, make_folder_of, write_text
from ..ngram_cache import NGramCache
from ..pairing import Pairing
from ..stopping import AcceptanceHead
from .lora import LoRA, save_tensors
from .online import Learner, Schedule
from .training import Recipe, under
from .versions import FORMAT, checksum, damaged, identity, locked, manifest_of, seal

ARRAYS = ("model", "head", "optimizer")  # each in a file of this name
SHIPPED = Path(__file__).parents[1] / "engine" / "embedded" / "adapters"  # only read here


@dataclass
class Adapter:
    """What was learned for one pair."""

    lora: LoRA | None = None  # None where all weights were trained: then they are `weights`
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    head: AcceptanceHead | None = None
    cache: NGramCache | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # the optimizers' states
    statistics: dict[str, Any] = field(default_factory=dict)

    def drafter(self, base: Any) -> Any:
        """The base drafter, of either backend, with what was learned; the base is not changed."""
        return _training(base).adapted(base, self.lora, self.weights)


class Adapters:
    """The adapters of all pairs under one folder, by default $OMNIDRAFT_HOME/adapters."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root).expanduser() if root else default_folder() / "adapters"
        self._held: set[Path] = set()

    def folder(self, pair: Pairing) -> Path:
        """Where the pair's adapter is or would be."""
        names = (re.sub(r"[^\w.-]+", "_", model.name) for model in (pair.draft, pair.target))
        return self.root / "--".join(names)

    @contextmanager
    def writing(self, pair: Pairing) -> Iterator[None]:
        """Be the only one to write the pair's adapter; OmnidraftError where another one does."""
        if (folder := self.folder(pair)) in self._held:
            yield
            return
        with locked(folder):
            self._held.add(folder)
            try:
                yield
            finally:
                self._held.remove(folder)

    def save(self, pair: Pairing, adapter: Adapter, base: Any = None, dtype: Any = None,
             after: int | None = None) -> Path:
        """Write a new version, make it current, remove the older ones; the folder.

        base: the drafter that learned, if `pair.draft` is the result; np.float16 halves weights;
        OmnidraftError where another version than `after`, if given, is current.
        """
        with self.writing(pair):
            return self._save(self.folder(pair), pair, adapter, base or pair.draft, dtype, after)

    def _save(self, folder: Path, pair: Pairing, adapter: Adapter, base: Any, dtype: Any,
              after: int | None) -> Path:
        """`save`, in the folder that is held."""
        current = self.version(folder)
        if after not in (None, current):
            raise OmnidraftError(f"another process has learned into {folder} meanwhile")
        place = folder / f"v{current + 1}-{secrets.token_hex(4)}"  # a name that nobody else has
        try:
            make_folder_of(place / "any")
            if adapter.lora:
                adapter.lora.save(place, dtype, base=pair.draft.name)
            head = adapter.head.parameters if adapter.head else {}
            for name, arrays in zip(ARRAYS, (adapter.weights, head, adapter.arrays), strict=True):
                if arrays:
                    kept = None if name == "optimizer" else dtype
                    save_tensors(place / f"{name}.safetensors", arrays, kept)
            if adapter.cache is not None:
                adapter.cache.save(place / "ngrams.json")
            manifest = {"format": FORMAT, "version": current + 1, "folder": place.name,
                        **identity(base, pair.target),
                        "files": {path.name: checksum(path) for path in sorted(place.iterdir())},
                        "statistics": adapter.statistics}
            manifest["checksum"] = seal(manifest)
            write_text(folder / "current.json", json.dumps(manifest, indent=1) + "\n")
        except OmnidraftError:
            shutil.rmtree(place, ignore_errors=True)  # a full disk stays no fuller than it was
            raise
        for other in {*folder.glob("v*")} - {place}:
            shutil.rmtree(other, ignore_errors=True)
        return folder

    def version(self, folder: Path) -> int:
        """The number of the version in a folder that counts; 0 where there is none."""
        return (manifest_of(folder) or {"version": 0})["version"]

    def load(self, pair: Pairing, shipped: bool = False) -> Adapter | None:
        """The pair's adapter, or with `shipped` the package's, or None where nothing was learned.

        Raises OmnidraftError if it belongs to other models or a file has another checksum.
        """
        folder = self.folder(pair)
        manifest = manifest_of(folder)
        if manifest is None:
            return Adapters(SHIPPED).load(pair) if shipped else None
        try:
            return _read(pair, folder, manifest)
        except (OmnidraftError, OSError):
            if manifest_of(folder) != manifest:  # another process has saved a newer version
                return self.load(pair, shipped)
            raise

    def rank(self, pair: Pairing, default: int = 32) -> int:
        """The rank of the pair's adapter, here or in the package; 0 if all weights were trained."""
        adapter = self.load(pair, shipped=True) or Adapter(LoRA({}, default, default))
        return adapter.lora.rank if adapter.lora else 0

    def resume(self, pair: Pairing, recipe: Recipe, schedule: Schedule, rng: np.random.Generator,
               shipped: bool = False) -> Learner:
        """A learner that continues from the pair's adapter (see `load`), or begins one.

        It replaces `pair.draft`, the base. OmnidraftError if the adapter has another rank, say.
        """
        version = self.version(self.folder(pair))  # subtle: before what belongs to it is read
        base, adapter = pair.draft, self.load(pair, shipped) or Adapter()
        trainer, head = _training(base).Trainer(base, recipe, rng), adapter.head
        if head is None and schedule.head != "none":
            head = AcceptanceHead(base.embedding.shape[1])
        learner = Learner(pair, trainer, rng, schedule, head)
        learner.version = version
        weights = adapter.lora.parameters if adapter.lora else adapter.weights
        if not weights:
            return learner
        own = {k: v for k, v in adapter.arrays.items() if not k.startswith("head.")}
        state = {} if own else trainer.state()  # without its optimizer it gets a fresh one
        state |= {f"{kind}.{k}": v for k, v in weights.items() for kind in ("served", "parameters")}
        trainer.restore(state | own)
        if adapter.lora:
            trainer.lora.alpha = adapter.lora.alpha
        head_state = under("head.", adapter.arrays)
        if head_state and learner.head_optimizer:
            learner.head_optimizer.restore(head_state)
        pair.draft, pair.cache = trainer.model(), adapter.cache or pair.cache
        learner.statistics = statistics = adapter.statistics
        if recipe.rate is not None:
            statistics.pop("rate_share", None)
        trainer.optimizer.rate *= statistics.get("rate_share", 1.0)  # what the guard has found
        return learner

    def keep(self, learner: Learner) -> Path:
        """Save what a learner has learned, with all that it needs to continue; its folder.

        What cannot be saved here (a full disk, a damaged adapter, another process was faster) is
        saved next to this store or among temporary files; the OmnidraftError says where.
        """
        trainer, state = learner.trainer, learner.trainer.state()
        weights = under("served.", learner.guard.best or state)  # what drafts
        arrays = {k: v for k, v in state.items() if not k.startswith("served.")}
        if learner.head_optimizer:
            arrays |= {f"head.{k}": v for k, v in learner.head_optimizer.state().items()}
        lora = replace(trainer.lora, parameters=weights) if trainer.lora else None
        adapter = Adapter(lora, {} if lora else weights, learner.head, learner.pair.cache, arrays,
                          learner.statistics)
        try:
            with self.writing(learner.pair):
                folder = self.save(learner.pair, adapter, trainer.base, after=learner.version)
                learner.version = self.version(folder)
                return folder
        except OmnidraftError as error:
            reason = str(error)
        for beside in (self.root.parent, None):
            with suppress(OSError, OmnidraftError), ExitStack() as failing:
                root = tempfile.mkdtemp("", f"{self.root.name}-rescued-", beside)
                failing.callback(shutil.rmtree, root, ignore_errors=True)
                Adapters(root).save(learner.pair, adapter, trainer.base)
                failing.pop_all()
                reason += f"; what was learned is in {root}: continue with --adapters {root}"
                break
        raise OmnidraftError(reason)

    def all(self) -> dict[str, dict[str, Any]]:
        """Statistics of every adapter here by its folder's name; an `error` where it is damaged."""
        found = {}
        for path in sorted(self.root.glob("*/current.json")):
            try:
                found[path.parent.name] = (manifest_of(path.parent) or {}).get("statistics", {})
            except OmnidraftError as error:
                found[path.parent.name] = {"error": str(error)}
        return found


def _training(drafter: Any) -> Any:
    """The module that trains drafters of this kind."""
    name = "training" if isinstance(drafter, Llama) else "training_torch"
    return import_module(f".{name}", __package__)


def _read(pair: Pairing, folder: Path, manifest: dict[str, Any]) -> Adapter:
    """The adapter of a manifest, after a check of its models and files."""
    for role, own in identity(pair.draft, pair.target).items():
        for key in ("tokenizer", "weights"):
            if manifest[role][key] != own[key]:
                raise OmnidraftError(
                    f"{folder} was learned with another {role}: {manifest[role]['name']}, "
                    f"other {key}; delete the folder or choose another one")
    place, files = folder / manifest["folder"], manifest["files"]
    for name, known in files.items():
        if not (place / name).is_file() or checksum(place / name) != known:
            raise damaged(place / name)
    arrays = {name: {k: array.astype(np.result_type(array, "f4"))  # half is for storing only
                     for k, array in read_safetensors(place / f"{name}.safetensors").items()}
              for name in ARRAYS if f"{name}.safetensors" in files}
    lora = None if "model" in arrays else LoRA.load(place)
    for name, array in chain(*(part.items() for part in arrays.values()),
                             lora.parameters.items() if lora else ()):
        counts = "square." in name or name.endswith("steps")  # of an optimizer: never negative
        if not np.isfinite(array).all() or counts and array.min(initial=0) < 0:
            raise damaged(place / name)
    adapter = Adapter(lora, arrays.get("model", {}), arrays=arrays.get("optimizer", {}),
                      statistics=manifest["statistics"])
    if "head" in arrays:
        adapter.head = AcceptanceHead.of(arrays["head"], pair.draft.embedding.shape[1])
    if "ngrams.json" in files:
        fingerprints = (model.tokenizer.fingerprint for model in (pair.draft, pair.target))
        adapter.cache = NGramCache.load(place / "ngrams.json", *fingerprints)
    return adapter
