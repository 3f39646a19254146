"""LoRA (arXiv 2106.09685): a model adapts to one target by low-rank changes to its weights.

A matrix W (out, in) becomes W + s B A with A (rank, in), B (out, rank), s = alpha / rank. B starts
at zero; only A and B are trained and saved, in PEFT's format. To switch targets, switch A and B.
With rank 0 there are no adapters: the weights W themselves are trained and saved.
"""

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.weights import read_safetensors, save_tensors
from ..text.errors import OmnidraftError
from ..text.files import read_json, write_text

PREFIX, WEIGHTS = "base_model.model.", "adapter_model.safetensors"
NAME = re.compile(re.escape(PREFIX) + r"((?:.+?\.(\d+)\.)?(?:.+\.)?(\w+))\.lora_A\.weight")
OTHER_KINDS = "use_dora use_rslora use_qalora rank_pattern alpha_pattern layer_replication".split()


@dataclass
class LoRA:
    """Adapters of some projections of a model; an optimizer changes `parameters` in place."""

    # A and B of each projection, under PEFT's names; with rank 0, all weights under their own
    parameters: dict[str, np.ndarray]
    rank: int
    alpha: float
    turned: tuple[str, ...] = ()  # weights that are stored as (in, out), as in GPT-2

    @classmethod
    def fresh(cls, shapes: dict[str, tuple[int, int]], rng: np.random.Generator, rank: int = 32,
              dtype: Any = "f4") -> "LoRA":
        """New adapters, which change nothing yet, for weights with these shapes (out, in) by name.

        The head is drawn first, then each kind in all layers. OmnidraftError for too high a rank.
        """
        most = max(32, max(map(min, shapes.values()), default=0))  # the default is always fine
        if rank > most:
            raise OmnidraftError(f"rank is {rank}, above that of any matrix: give at most {most}")
        kinds = {name: re.sub(r"\d+", "", name) for name in shapes}  # without the layer's number
        order = list(kinds.values())
        names = sorted(shapes, key=lambda name: (kinds[name] != name, order.index(kinds[name])))
        lora = cls({}, rank, rank)
        for name in names:
            outputs, inputs = shapes[name]
            at = PREFIX + name.removesuffix("weight")
            # normal with variance 1 / (3 in), that of PEFT's uniform init (arXiv 1502.01852)
            a = rng.standard_normal((rank, inputs)) / (3 * inputs) ** 0.5
            lora.parameters[f"{at}lora_A.weight"] = a.astype(dtype)
            lora.parameters[f"{at}lora_B.weight"] = np.zeros((outputs, rank), dtype)
        return lora

    @property
    def targets(self) -> dict[str, tuple[str, str]]:
        """The tensors that have an adapter, each with the names of its A and B."""
        targets = {}
        for name in self.parameters:
            found = NAME.fullmatch(name)
            if found:
                targets[f"{found[1]}.weight"] = (name, name.replace(".lora_A.", ".lora_B."))
        return targets

    def merged(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A model's `tensors`, with a new array W + s B A for each W that has an adapter."""
        merged = dict(tensors)
        if not self.rank:
            return merged | self.parameters
        for name, (a, b) in self.targets.items():
            change = self.alpha / self.rank * self.parameters[b] @ self.parameters[a]
            if name in self.turned:
                change = change.T
            if name not in tensors or tensors[name].shape != change.shape:
                raise OmnidraftError("the adapter belongs to another model: "
                                     f"{name} is not of shape {change.shape} here")
            merged[name] = tensors[name] + change
        return merged

    def gradients(self, full: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """∂L/∂A and ∂L/∂B from ∂L/∂W at the merged weights: dA = s B^T dW, dB = s dW A^T."""
        if not self.rank:
            return full
        grads = {}
        for name, (a, b) in self.targets.items():
            change = self.alpha / self.rank * full[name]
            if name in self.turned:
                change = change.T
            grads[a] = self.parameters[b].T @ change
            grads[b] = change @ self.parameters[a].T
        return grads

    def save(self, folder: str | Path, base: str | None = None) -> None:
        """Write PEFT's two files; `base` is the model's name."""
        found = [NAME.fullmatch(a) for a, _ in self.targets.values()]
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base,
                  "inference_mode": True, "r": self.rank, "lora_alpha": self.alpha,
                  "target_modules": sorted({name[3] for name in found}),
                  "layers_to_transform": sorted({int(name[2]) for name in found if name[2]})}
        save_tensors(Path(folder) / WEIGHTS, self.parameters)
        write_text(Path(folder) / "adapter_config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "LoRA":
        """What `save` or PEFT wrote; OmnidraftError if it is broken or not plain."""
        arrays = read_arrays(Path(folder) / WEIGHTS)
        with suppress(OSError, ValueError, KeyError, TypeError, IndexError):  # and OmnidraftError
            config = read_json(Path(folder) / "adapter_config.json")
            lora = cls(arrays, config["r"], float(config["lora_alpha"]))
            pairs = lora.targets.values()
            ranks = {n for a, b in pairs for n in (arrays[a].shape[0], arrays[b].shape[1])}
            if (len(arrays) == 2 * len(pairs) and ranks <= {lora.rank} and type(lora.rank) is int
                    and lora.rank >= bool(arrays) and math.isfinite(lora.alpha)
                    and config["peft_type"] == "LORA" and not any(map(config.get, OTHER_KINDS))):
                return lora
        raise OmnidraftError(f"{folder} holds no complete plain LoRA of one rank: copy it again")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, as float32 or wider: float16 is only for storage."""
    stored = read_safetensors(path)
    return {name: array.astype(np.result_type(array, "f4")) for name, array in stored.items()}
