"""LoRA (arXiv 2106.09685): a model learns for one target by low-rank changes that lie beside its weights.

A matrix W (out, in) becomes W + s B A with A (rank, in), B (out, rank) and s = alpha / rank. B starts at zero, so a
fresh adapter changes nothing; only A and B are trained and kept. One drafter then serves every target: its own weights
never change, and switching targets is switching adapters. Files are those of PEFT (https://huggingface.co/docs/peft).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from ..engine.config import ModelConfig
from ..engine.weights import read_safetensors
from ..errors import OmnidraftError
from ..files import make_folder_of, write_text

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
HEAD = "lm_head"
NAME = re.compile(r"base_model\.model\.((?:.+?\.(\d+)\.)?(?:.+\.)?(\w+))\.lora_A\.weight")  # module, its layer, its part
OTHER_KINDS = ("use_dora", "use_rslora", "use_qalora", "rank_pattern", "alpha_pattern", "layer_replication")


@dataclass
class LoRA:
    """The adapters of some of a model's projections; an optimizer changes `parameters` in place.
    >>> LoRA.fresh(config, rng, rank=4).parameters["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape
    (4, 128)
    """

    parameters: dict[str, np.ndarray]  # A and B of each projection, under PEFT's names
    rank: int
    alpha: float

    @classmethod
    def fresh(cls, config: ModelConfig, rng: np.random.Generator, rank: int = 32, alpha: float | None = None,
              projections: Iterable[str] = ATTENTION + MLP, layers: Sequence[int] | None = None, dtype: Any = "f4") -> LoRA:
        """Adapters that change nothing yet, on `projections` of `layers` (default: all seven of every layer).

        alpha defaults to the rank, so that s = 1. A is normal with variance 1 / (3 in), that of PEFT's uniform start
        (Kaiming, arXiv 1502.01852); B is zero. Raises OmnidraftError for a projection or layer that is not there.
        """
        lora, shapes = cls({}, rank, rank if alpha is None else alpha), config.tensor_shapes()
        targets = [HEAD] * (HEAD in projections) + [
            f"model.layers.{i}.{'mlp' if part in MLP else 'self_attn'}.{part}" for part in projections if part != HEAD
            for i in (range(config.layers) if layers is None else layers)]
        for target in targets if rank else ():
            if f"{target}.weight" not in shapes:
                raise OmnidraftError(f"the model has no {target} (LoRA adapts {', '.join((*ATTENTION, *MLP))}, and {HEAD} "
                                     "where it is not the embedding)")
            lora.add(target, shapes[f"{target}.weight"], rng, dtype)
        return lora

    def add(self, target: str, shape: tuple[int, int], rng: np.random.Generator, dtype: Any = "f4") -> None:
        """A fresh adapter for the module `target`, whose weight has this `shape` (out, in)."""
        a = rng.standard_normal((self.rank, shape[1])) / (3 * shape[1]) ** 0.5
        self.parameters[f"base_model.model.{target}.lora_A.weight"] = a.astype(dtype)
        self.parameters[f"base_model.model.{target}.lora_B.weight"] = np.zeros((shape[0], self.rank), dtype)

    @property
    def targets(self) -> dict[str, tuple[str, str]]:
        """The tensors that have an adapter (`wanted` for `backward.gradients`), each with the names of its A and B."""
        return {f"{found[1]}.weight": (name, name.replace(".lora_A.", ".lora_B."))
                for name in self.parameters if (found := NAME.fullmatch(name))}

    def merged(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A model's `tensors`, with a new array W + s B A where W has an adapter (else OmnidraftError: another model's)."""
        merged = dict(tensors)
        for name, (a, b) in self.targets.items():
            change = self.alpha / self.rank * self.parameters[b] @ self.parameters[a]
            if name not in tensors or tensors[name].shape != change.shape:
                raise OmnidraftError(f"the adapter belongs to another model: {name} is not {change.shape} here")
            merged[name] = tensors[name] + change
        return merged

    def gradients(self, full: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """∂L/∂A and ∂L/∂B by their names from ∂L/∂W, at the merged weights: dA = s B^T dW, dB = s dW A^T."""
        grads = {}
        for name, (a, b) in self.targets.items():
            change = self.alpha / self.rank * full[name]
            grads |= {a: self.parameters[b].T @ change, b: change @ self.parameters[a].T}
        return grads

    def save(self, folder: str | Path, dtype: Any = None, base: str | None = None) -> None:
        """Write PEFT's two files, each whole or not at all; `dtype` np.float16 halves their size, `base` names the model.
        Raises OmnidraftError where writing fails."""
        found = [NAME.fullmatch(a) for a, _ in self.targets.values()]
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True,
                  "r": self.rank, "lora_alpha": self.alpha, "target_modules": sorted({name[3] for name in found}),
                  "layers_to_transform": sorted({int(name[2]) for name in found if name[2]})}
        save_tensors(Path(folder) / "adapter_model.safetensors", self.parameters, dtype)
        write_text(Path(folder) / "adapter_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path, dtype: Any = np.float32) -> LoRA:
        """Read what `save` or PEFT wrote; raises OmnidraftError where it is missing, broken, or not plain LoRA."""
        arrays = read_safetensors(Path(folder) / "adapter_model.safetensors")
        try:
            config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
            lora = cls({name: array.astype(dtype) for name, array in arrays.items()}, config["r"], float(config["lora_alpha"]))
            ranks = {n for a, b in lora.targets.values() for n in (arrays[a].shape[0], arrays[b].shape[1])}
            if (config["peft_type"], len(arrays)) == ("LORA", 2 * len(lora.targets)) and ranks <= {lora.rank} and not any(
                    config.get(kind) for kind in OTHER_KINDS):
                return lora
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            pass
        raise OmnidraftError(f"{folder} holds no plain LoRA of one rank, or only a part of it")


def save_tensors(path: Path, tensors: dict[str, np.ndarray], dtype: Any = None) -> None:
    """Write safetensors, as they are or as `dtype`, to a temporary file, then rename; makes the folder if need be."""
    make_folder_of(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(save({name: np.ascontiguousarray(array, dtype) for name, array in tensors.items()}, {"format": "pt"}))
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OmnidraftError(f"cannot write {path}: {error.strerror or error}; choose another folder") from None
