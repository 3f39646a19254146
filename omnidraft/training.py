"""The drafter as something that learns: weights or LoRA adapters, an optimizer, and one step on a batch of texts.

A step runs every text through the training pass (`models.backward`), sums a loss of `losses` over them, and moves the
parameters with AdamW. The base model is never changed: `model()` builds the drafter anew from the merged tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import losses
from .errors import OmnidraftError
from .lora import ATTENTION, HEAD, MLP, LoRA
from .models import backward
from .models.config import ModelConfig
from .models.llama import Llama
from .models.weights import load_tensors
from .optimizer import AdamW


@dataclass(frozen=True)
class Recipe:
    """What is learned and how; arXiv 2507.02659 has AdamW at a constant rate, rank 32, weight 0.2."""

    loss: str = "lifted"  # one of losses.LOSSES
    weight: float | str = 0.2  # of the n-gram term of hybrid and hybrid-kl, or "dynamic"
    divergence: str = "forward"  # of lifted
    rank: int = 32  # of the LoRA adapters; 0 trains all weights
    rate: float | None = None  # of learning; None: see `step_size`
    decay: float = 0.01

    def __post_init__(self) -> None:
        if self.loss not in losses.LOSSES:
            raise OmnidraftError(f"unknown loss {self.loss!r}: choose one of {', '.join(losses.LOSSES)}")
        if self.divergence not in losses.DIVERGENCES:
            raise OmnidraftError(f"unknown divergence {self.divergence!r}: choose one of {', '.join(losses.DIVERGENCES)}")
        for name, value in (("rank", self.rank), ("rate", self.rate or 0.0), ("decay", self.decay)):
            if not 0 <= value < math.inf:
                raise OmnidraftError(f"{name} is {value}, but must be 0 or more")

    def options(self) -> dict[str, Any]:
        """The arguments of its own that the loss takes."""
        own = {"lifted": {"divergence": self.divergence}, "dm": {}}
        return own.get(self.loss, {"weight": self.weight})

    def step_size(self, drafter: Any) -> float:
        """The rate; by default what suits a drafter of 0.6 M parameters, 0.01 for adapters and 0.003 for all weights, but above
        10 M the paper's 1e-4."""
        if self.rate is not None:
            return self.rate
        return 1e-4 if drafter.parameters > 10_000_000 else 0.01 if self.rank else 0.003


class Trainer:
    """Trains a drafter of the NumPy engine; `parameters` are the LoRA adapters or, with rank 0, all weights.

    >>> trainer = Trainer(load("draft-general"), Recipe(), np.random.default_rng(0))
    >>> trainer.step(pair, [example]); pair.draft = trainer.model()  # doctest: +SKIP
    """

    def __init__(self, base: Llama, recipe: Recipe, rng: np.random.Generator) -> None:
        if not isinstance(base, Llama) or base.folder is None:
            raise OmnidraftError("this trainer needs a drafter run by the NumPy engine (for others: training_torch.Trainer)")
        self.base, self.recipe = base, recipe
        self.config, self.tensors = untied(base) if recipe.rank else (base.config, tensors_of(base))
        self.lora = LoRA.fresh(self.config, rng, recipe.rank, projections=(*ATTENTION, *MLP, HEAD),
                               dtype=base.dtype) if recipe.rank else None
        self.parameters = self.lora.parameters if self.lora else {name: self.tensors[name].copy() for name in
                                                                  self.config.tensor_shapes()}
        self.optimizer = AdamW(self.parameters, recipe.step_size(base), decay=recipe.decay, clip=1.0)

    def merged(self) -> dict[str, np.ndarray]:
        """The drafter's tensors as they are now, by Hugging Face name."""
        return self.lora.merged(self.tensors) if self.lora else self.parameters

    def model(self) -> Llama:
        """A drafter with the present weights (its key-value caches start empty); the base stays as it is."""
        return rebuilt(self.base, self.config, self.merged())

    def step(self, pair: Any, examples: Sequence[losses.Example]) -> float:
        """One update on the texts; the mean loss per comparison, or NaN where it was not finite and nothing was changed."""
        tensors, wanted = self.merged(), list(self.lora.targets) if self.lora else None
        sums: dict[str, np.ndarray] = {}
        total, counted = 0.0, 0
        for example in examples:
            trace = self._run(tensors, example)
            value, slope, count = losses.LOSSES[self.recipe.loss](trace.logits, example, pair, **self.recipe.options())
            total, counted = total + value, counted + count
            if not math.isfinite(total):
                return math.nan
            for name, gradient in backward.gradients(trace, slope, wanted=wanted).items():
                sums[name] = sums.get(name, 0) + gradient
        if not counted:
            return 0.0
        full = {name: gradient / counted for name, gradient in sums.items()}
        norm = self.optimizer.step(self.lora.gradients(full) if self.lora else full)
        return total / counted if math.isfinite(norm) else math.nan

    def expected_acceptance(self, pair: Any, examples: Sequence[losses.Example]) -> float:
        """Mean acceptance of a draft along the texts at temperature 1 under `lossless`, 1 - tv; no draw is involved."""
        tensors, value, count = self.merged(), 0.0, 0
        for example in examples:
            lost, _, compared = losses.lifted(self._run(tensors, example).logits, example, pair, "tv")
            value, count = value + lost, count + compared
        return 1.0 - value / count if count else math.nan

    def state(self) -> dict[str, np.ndarray]:
        """A copy of parameters and optimizer, flat."""
        return {f"parameters.{k}": v.copy() for k, v in self.parameters.items()} | {
            f"optimizer.{k}": np.array(v) for k, v in self.optimizer.state().items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go back to a `state`; raises OmnidraftError where it belongs to other parameters."""
        kept = {k.removeprefix("parameters."): v for k, v in state.items() if k.startswith("parameters.")}
        if kept.keys() != self.parameters.keys() or any(kept[k].shape != v.shape for k, v in self.parameters.items()):
            raise OmnidraftError("the saved state is of another drafter, rank or kind: start a new one")
        self.optimizer.restore({k.removeprefix("optimizer."): v for k, v in state.items() if k.startswith("optimizer.")})
        for name, array in self.parameters.items():
            array[...] = kept[name]

    def _run(self, tensors: dict[str, np.ndarray], example: losses.Example) -> backward.Trace:
        return backward.run(self.config, tensors, example.draft_ids[:self.base.context_size])


def tensors_of(model: Llama) -> dict[str, np.ndarray]:
    """A model's stored tensors by Hugging Face name, in the numbers that it computes in."""
    return {name: np.array(tensor, model.dtype) for name, tensor in load_tensors(model.folder).items()}


def untied(model: Llama) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Configuration and tensors with a head of its own, so that an adapter on the head leaves the embedding as it is."""
    tensors = tensors_of(model)
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    return replace(model.config, tied=False), tensors


def rebuilt(base: Llama, config: ModelConfig, tensors: dict[str, np.ndarray]) -> Llama:
    """The same drafter with other weights."""
    return Llama(config, tensors, base.dtype, name=base.name, folder=base.folder, tokenizer=base.tokenizer, layout=base.layout)


def adapted(base: Llama, lora: LoRA | None, weights: dict[str, np.ndarray]) -> Llama:
    """The drafter with adapters, or where there are none with other weights; the base stays as it is."""
    if lora is None:
        return rebuilt(base, base.config, weights)
    config, tensors = untied(base)
    return rebuilt(base, config, lora.merged(tensors))
