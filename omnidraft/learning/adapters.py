"""Adapters on disk: what a drafter has learned for each target, kept apart, switched by name, safe against a crash.

Under one folder, per (drafter, target), a numbered folder holds LoRA weights in the format of PEFT (or, after full fine-tuning,
all weights), the acceptance head, the n-gram cache and the optimizer state. `current.json` names the version that counts, with
a checksum of each of its files and the models it belongs to. A save writes a new version first and then replaces that one
file, so whatever happens, either the old version is there or the new one, whole.

    adapters/draft-general--qwen-like/current.json
    adapters/draft-general--qwen-like/v3/adapter_config.json, adapter_model.safetensors, head.safetensors, ngrams.json, ...
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.llama import Llama
from ..engine.weights import read_safetensors
from ..errors import OmnidraftError
from ..files import make_folder_of, write_text
from ..generation import Pair
from ..ngram_cache import NGramCache
from ..stopping import AcceptanceHead
from ..vocabulary import default_folder
from .identity import checksum, identity
from .lora import LoRA, save_tensors
from .online import Learner, Schedule
from .training import Recipe

FORMAT = "omnidraft adapter 1"
SHIPPED = Path(__file__).parents[1] / "engine" / "embedded" / "adapters"  # what `recipes.adapters` made, only read here


@dataclass
class Adapter:
    """What was learned for one pair; `arrays` holds what a trainer and a head's optimizer go on from."""

    lora: LoRA | None = None  # None where all weights were trained: then they are `weights`
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    head: AcceptanceHead | None = None
    cache: NGramCache | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)

    def drafter(self, base: Any) -> Any:
        """The base drafter, of either backend, with what was learned; the base itself stays as it is."""
        return _training(base).adapted(base, self.lora, self.weights)


class Adapters:
    """The adapters under one folder (default: `adapters` in $OMNIDRAFT_CACHE, else in ~/.cache/omnidraft).

    >>> store = Adapters(folder); store.save(pair, adapter); store.load(pair).statistics  # doctest: +SKIP
    {'prompts': 200, ...}
    """

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root).expanduser() if root else default_folder() / "adapters"

    def folder(self, pair: Pair) -> Path:
        """Where the pair's adapter is or would be."""
        names = (re.sub(r"[^\w.-]+", "_", model.name) for model in (pair.draft, pair.target))
        return self.root / "--".join(names)

    def save(self, pair: Pair, adapter: Adapter, base: Any = None, dtype: Any = None) -> Path:
        """Write a new version, make it the current one, remove older ones. Raises OmnidraftError where writing fails.

        `base` is the drafter that learned, where the pair has the one that came of it; `dtype` np.float16 halves the weights.
        """
        folder = self.folder(pair)
        old = _manifest(folder) or {"version": 0}
        place = folder / f"v{old['version'] + 1}"
        shutil.rmtree(place, ignore_errors=True)  # of a save that was cut short
        try:
            self._write(place, pair, adapter, dtype)
            manifest = {"format": FORMAT, "version": old["version"] + 1, **identity(base or pair.draft, pair.target),
                        "files": {path.name: checksum(path) for path in sorted(place.iterdir())},
                        "statistics": adapter.statistics}
            write_text(folder / "current.json", json.dumps(manifest | {"checksum": _seal(manifest)}, indent=1) + "\n")
        except OmnidraftError:
            shutil.rmtree(place, ignore_errors=True)  # a full disk stays no fuller than it was
            raise
        for other in folder.glob("v*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        return folder

    def _write(self, place: Path, pair: Pair, adapter: Adapter, dtype: Any) -> None:
        make_folder_of(place / "any")
        if adapter.lora is not None:
            adapter.lora.save(place, dtype, base=pair.draft.name)
        else:
            save_tensors(place / "model.safetensors", adapter.weights, dtype)
        if adapter.head is not None:
            save_tensors(place / "head.safetensors", adapter.head.parameters, dtype)
        if adapter.arrays:
            save_tensors(place / "optimizer.safetensors", adapter.arrays)
        if adapter.cache is not None:
            adapter.cache.save(place / "ngrams.json")

    def load(self, pair: Pair, shipped: bool = False) -> Adapter | None:
        """The pair's adapter, None where nothing was learned yet; with `shipped` then the one in the package, if it has one.

        Raises OmnidraftError where it belongs to other models or a file does not have its checksum; nothing is changed then.
        """
        folder = self.folder(pair)
        manifest = _manifest(folder)
        if manifest is None:
            return Adapters(SHIPPED).load(pair) if shipped else None
        try:
            return self._read(pair, folder, manifest)
        except (OmnidraftError, OSError):
            if _manifest(folder) != manifest:  # another process has meanwhile kept a newer version
                return self.load(pair, shipped)
            raise

    def _read(self, pair: Pair, folder: Path, manifest: dict[str, Any]) -> Adapter:
        for role, own in identity(pair.draft, pair.target).items():
            for key in ("tokenizer", "weights"):
                if manifest[role].get(key) != own.get(key):
                    raise OmnidraftError(f"{folder} was learned with another {role}: {manifest[role]['name']}, other {key}; "
                                         "delete the folder or choose another one")
        place = folder / f"v{manifest['version']}"
        for name, known in manifest["files"].items():
            if not (place / name).is_file() or checksum(place / name) != known:
                raise OmnidraftError(f"{place / name} is missing or damaged: delete {folder} to learn anew "
                                     "(other adapters are not affected)")
        adapter = Adapter(statistics=manifest["statistics"])
        if "model.safetensors" in manifest["files"]:
            adapter.weights = _arrays(place / "model.safetensors")
        else:
            adapter.lora = LoRA.load(place)
        if "head.safetensors" in manifest["files"]:
            adapter.head = AcceptanceHead.of(_arrays(place / "head.safetensors"))
        if "optimizer.safetensors" in manifest["files"]:
            adapter.arrays = _arrays(place / "optimizer.safetensors")
        if "ngrams.json" in manifest["files"]:
            adapter.cache = NGramCache.load(place / "ngrams.json", pair.draft.tokenizer.fingerprint,
                                            pair.target.tokenizer.fingerprint)
        return adapter

    def rank(self, pair: Pair, default: int = 32) -> int:
        """The rank of what is kept for the pair here or in the package; 0 where all weights were trained."""
        adapter = self.load(pair, shipped=True)
        return default if adapter is None else adapter.lora.rank if adapter.lora else 0

    def resume(self, pair: Pair, recipe: Recipe, schedule: Schedule, rng: np.random.Generator,
               shipped: bool = False) -> Learner:
        """A learner that goes on from the pair's adapter, or begins one; `pair.draft` is the base drafter and is replaced.

        With `shipped` it goes on from the package's, where there is no own one. Raises OmnidraftError where the adapter does
        not fit the pair or the recipe (its rank, say).
        """
        adapter, base = self.load(pair, shipped) or Adapter(), pair.draft
        trainer = _training(base).Trainer(base, recipe, rng)
        head = adapter.head or (AcceptanceHead(base.embedding.shape[1]) if schedule.head != "none" else None)
        learner = Learner(pair, trainer, rng, schedule, head)
        weights = adapter.lora.parameters if adapter.lora else adapter.weights
        if weights:
            own = {k: v for k, v in adapter.arrays.items() if not k.startswith("head.")}
            if not own:  # kept without its optimizer, which begins anew
                own = {f"parameters.{k}": v for k, v in weights.items()} | {
                    k: v for k, v in trainer.state().items() if k.startswith("optimizer.")}
            if adapter.lora and trainer.lora:
                trainer.lora.alpha = adapter.lora.alpha
            trainer.restore({f"served.{k}": v for k, v in weights.items()} | own)
            kept = {k.removeprefix("head."): v for k, v in adapter.arrays.items() if k.startswith("head.")}
            if kept and learner.head_optimizer:
                learner.head_optimizer.restore(kept)
            pair.draft, pair.cache = trainer.model(), adapter.cache or pair.cache
            learner.statistics = adapter.statistics
            if recipe.rate is not None:
                learner.statistics.pop("rate_share", None)
            trainer.slow_down(learner.statistics.get("rate_share", 1.0))  # what the guard has found out about the rate
        return learner

    def keep(self, learner: Learner) -> Path:
        """Save what a learner has learned, with all that it needs to go on."""
        trainer, state = learner.trainer, learner.trainer.state()
        arrays = {k: v for k, v in state.items() if not k.startswith("served.")}
        if learner.head_optimizer:
            arrays |= {f"head.{k}": v for k, v in learner.head_optimizer.state().items()}
        weights = {k.removeprefix("served."): v for k, v in state.items() if k.startswith("served.")}
        lora = replace(trainer.lora, parameters=weights) if trainer.lora else None
        return self.save(learner.pair, Adapter(lora, {} if lora else weights, learner.head, learner.pair.cache, arrays,
                                               learner.statistics), trainer.base)

    def all(self) -> dict[str, dict[str, Any]]:
        """Statistics of every adapter here by the name of its folder; what cannot be read says so."""
        found = {}
        for path in sorted(self.root.glob("*/current.json")):
            try:
                found[path.parent.name] = (_manifest(path.parent) or {}).get("statistics", {})
            except OmnidraftError as error:
                found[path.parent.name] = {"error": str(error)}
        return found


def _training(drafter: Any) -> Any:
    """The module that trains drafters of this kind."""
    return import_module(".training" if isinstance(drafter, Llama) else ".training_torch", __package__)


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What current.json says, None where there is none."""
    path = folder / "current.json"
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest.pop("checksum") == _seal(manifest) and manifest["format"] == FORMAT:
            return manifest
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise OmnidraftError(f"{path} is damaged: delete {folder} to learn anew (other adapters are not affected)")


def _seal(manifest: dict[str, Any]) -> str:
    """A checksum of the manifest itself."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a file; half precision is for storing only."""
    return {name: array.astype(np.float32 if array.dtype == np.float16 else array.dtype)
            for name, array in read_safetensors(path).items()}
