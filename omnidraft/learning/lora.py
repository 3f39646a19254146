"""LoRA (arXiv 2106.09685): a model learns for one target by low-rank changes next to its weights.

A matrix W (out, in) becomes W + s B A with A (rank, in), B (out, rank), s = alpha / rank. B starts
at zero; only A and B are trained and kept, in PEFT's files. Switching targets is switching them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from ..engine.config import ModelConfig
from ..engine.weights import read_safetensors
from ..errors import OmnidraftError
from ..files import make_folder_of, read_json, write_text

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
HEAD = "lm_head"
PREFIX = "base_model.model."
NAME = re.compile(re.escape(PREFIX) + r"((?:.+?\.(\d+)\.)?(?:.+\.)?(\w+))\.lora_A\.weight")
OTHER_KINDS = ("use_dora", "use_rslora", "use_qalora", "rank_pattern", "alpha_pattern",
               "layer_replication")


@dataclass
class LoRA:
    """The adapters of some of a model's projections; an optimizer changes `parameters` in place."""

    parameters: dict[str, np.ndarray]  # A and B of each projection, under PEFT's names
    rank: int
    alpha: float

    @classmethod
    def fresh(cls, config: ModelConfig, rng: np.random.Generator, rank: int = 32,
              alpha: float | None = None, projections: Iterable[str] = ATTENTION + MLP,
              dtype: Any = "f4") -> LoRA:
        """Adapters that change nothing yet, on `projections` of every layer, or HEAD."""
        lora, shapes = cls({}, rank, rank if alpha is None else alpha), config.tensor_shapes()
        targets = [HEAD] * (HEAD in projections) + [
            f"model.layers.{i}.{'mlp' if part in MLP else 'self_attn'}.{part}"
            for part in projections if part != HEAD for i in range(config.layers)]
        for target in targets if rank else ():
            if f"{target}.weight" not in shapes:
                raise OmnidraftError(f"the model has no {target} (LoRA adapts "
                                     f"{', '.join((*ATTENTION, *MLP))}, and an untied {HEAD})")
            lora.add(target, shapes[f"{target}.weight"], rng, dtype)
        return lora

    def add(self, target: str, shape: tuple[int, int], rng: np.random.Generator,
            dtype: Any = "f4") -> None:
        """A fresh adapter for the module `target`, whose weight has this `shape` (out, in)."""
        # A is normal with variance 1 / (3 in), that of PEFT's uniform start (arXiv 1502.01852)
        a = rng.standard_normal((self.rank, shape[1])) / (3 * shape[1]) ** 0.5
        self.parameters[f"{PREFIX}{target}.lora_A.weight"] = a.astype(dtype)
        self.parameters[f"{PREFIX}{target}.lora_B.weight"] = np.zeros((shape[0], self.rank), dtype)

    @property
    def targets(self) -> dict[str, tuple[str, str]]:
        """The tensors that have an adapter, each with the names of its A and B."""
        return {f"{found[1]}.weight": (name, name.replace(".lora_A.", ".lora_B."))
                for name in self.parameters if (found := NAME.fullmatch(name))}

    def merged(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A model's `tensors`, with a new array W + s B A for each W that has an adapter."""
        merged = dict(tensors)
        for name, (a, b) in self.targets.items():
            change = self.alpha / self.rank * self.parameters[b] @ self.parameters[a]
            if name not in tensors or tensors[name].shape != change.shape:
                raise OmnidraftError("the adapter belongs to another model: "
                                     f"{name} is not {change.shape} here")
            merged[name] = tensors[name] + change
        return merged

    def gradients(self, full: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """∂L/∂A and ∂L/∂B from ∂L/∂W at the merged weights: dA = s B^T dW, dB = s dW A^T."""
        grads = {}
        for name, (a, b) in self.targets.items():
            change = self.alpha / self.rank * full[name]
            grads |= {a: self.parameters[b].T @ change, b: change @ self.parameters[a].T}
        return grads

    def save(self, folder: str | Path, dtype: Any = None, base: str | None = None) -> None:
        """Write PEFT's two files, in numbers of `dtype` if given; `base` names the model."""
        found = [NAME.fullmatch(a) for a, _ in self.targets.values()]
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
                  "inference_mode": True, "r": self.rank, "lora_alpha": self.alpha,
                  "target_modules": sorted({name[3] for name in found}),
                  "layers_to_transform": sorted({int(name[2]) for name in found if name[2]})}
        save_tensors(Path(folder) / "adapter_model.safetensors", self.parameters, dtype)
        write_text(Path(folder) / "adapter_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path, dtype: Any = np.float32) -> LoRA:
        """What `save` or PEFT wrote; OmnidraftError if missing, broken, or not plain LoRA."""
        arrays = read_safetensors(Path(folder) / "adapter_model.safetensors")
        parameters = {name: array.astype(dtype) for name, array in arrays.items()}
        try:
            config = read_json(Path(folder) / "adapter_config.json")
            lora = cls(parameters, config["r"], float(config["lora_alpha"]))
            pairs = lora.targets.values()
            ranks = {n for a, b in pairs for n in (arrays[a].shape[0], arrays[b].shape[1])}
            if (len(arrays) == 2 * len(pairs) and ranks <= {lora.rank} and type(lora.rank) is int
                    and lora.rank >= 0 and math.isfinite(lora.alpha)
                    and config["peft_type"] == "LORA" and not any(map(config.get, OTHER_KINDS))):
                return lora
        except (OSError, ValueError, KeyError, TypeError, IndexError):  # OmnidraftError: ValueError
            pass
        raise OmnidraftError(f"{folder} holds no plain LoRA of one rank, or only a part of it")


def save_tensors(path: Path, tensors: dict[str, np.ndarray], dtype: Any = None) -> None:
    """Write safetensors in one step, as `dtype` if given; OmnidraftError where that fails."""
    make_folder_of(path)
    arrays = {name: np.ascontiguousarray(array, dtype) for name, array in tensors.items()}
    write_text(path, save(arrays, {"format": "pt"}))
