"""The drafter as something that learns: weights or LoRA adapters, an optimizer, and one step on a batch of texts.

A step runs every text through the training pass (`models.backward`), sums a loss of `losses` over them, and moves the
parameters with AdamW. At a constant rate they wander about what they have learned, so what is served is their running mean
(Polyak and Juditsky 1992). The base model is never changed: `model()` builds the drafter anew from the merged tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import losses
from ..engine import backward
from ..engine.config import ModelConfig
from ..engine.llama import Llama
from ..engine.weights import load_tensors
from ..errors import OmnidraftError
from .lora import ATTENTION, HEAD, MLP, LoRA
from .optimizer import AdamW

SHARE_OF_A = 1 / 16  # of the learning rate, for A in W + B A: at one rate for both, long runs diverge (arXiv 2402.12354)


@dataclass(frozen=True)
class Recipe:
    """What is learned and how; arXiv 2507.02659 has AdamW at a constant rate, rank 32, weight 0.2."""

    loss: str = "lifted"  # one of losses.LOSSES
    weight: float | str = 0.2  # of the n-gram term of hybrid and hybrid-kl, or "dynamic"
    divergence: str = "forward"  # of lifted
    rank: int = 32  # of the LoRA adapters; 0 trains all weights
    rate: float | None = None  # of learning; None: see `step_size`
    decay: float = 0.01
    average: float = 0.95  # share of the old in the running mean of the weights that is served; 0 serves the latest ones

    def __post_init__(self) -> None:
        if self.loss not in losses.LOSSES:
            raise OmnidraftError(f"unknown loss {self.loss!r}: choose one of {', '.join(losses.LOSSES)}")
        if self.divergence not in losses.DIVERGENCES:
            raise OmnidraftError(f"unknown divergence {self.divergence!r}: choose one of {', '.join(losses.DIVERGENCES)}")
        for name, value in (("rank", self.rank), ("rate", self.rate or 0.0), ("decay", self.decay), ("average", self.average)):
            if not 0 <= value < (1 if name == "average" else math.inf):
                raise OmnidraftError(f"{name} is {value}, but must be 0 or more" + " and below 1" * (name == "average"))
        if self.weight != "dynamic" and not (isinstance(self.weight, (int, float)) and 0 <= self.weight < math.inf):
            raise OmnidraftError(f"weight is {self.weight!r}, but must be a number of 0 or more, or dynamic")

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

    def follow(self, steps: int) -> float:
        """Share of the latest weights in the served ones after so many steps: large at first, 1 - `average` in the end."""
        return 1 - min(self.average, steps / (steps + 10))


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
        self.optimizer = AdamW(self.parameters, recipe.step_size(base), decay=recipe.decay, clip=1.0,
                               shares={name: SHARE_OF_A for name in self.parameters if ".lora_A." in name})
        self.served = {name: array.copy() for name, array in self.parameters.items()}

    def merged(self, served: bool = True) -> dict[str, np.ndarray]:
        """The drafter's tensors by Hugging Face name, with the running mean of what was learned or with the latest."""
        parameters = self.served if served else self.parameters
        return replace(self.lora, parameters=parameters).merged(self.tensors) if self.lora else parameters

    def model(self) -> Llama:
        """A drafter with the served weights (its key-value caches start empty); the base stays as it is."""
        return rebuilt(self.base, self.config, self.merged())

    def step(self, pair: Any, examples: Sequence[losses.Example]) -> float:
        """One update on the texts; the mean loss per comparison, or NaN where it was not finite and nothing was changed."""
        tensors, wanted = self.merged(served=False), list(self.lora.targets) if self.lora else None
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
        if not math.isfinite(norm):
            return math.nan
        share = self.recipe.follow(self.optimizer.steps)
        for name, mean in self.served.items():
            mean += share * (self.parameters[name] - mean)
        return total / counted

    def slow_down(self, factor: float) -> None:
        """Go on at a part of the rate."""
        self.optimizer.rate *= factor

    def expected_acceptance(self, pair: Any, examples: Sequence[losses.Example]) -> float:
        """Mean acceptance of a draft along the texts at temperature 1 under `lossless`, 1 - tv; no draw is involved."""
        tensors, value, count = self.merged(), 0.0, 0
        for example in examples:
            lost, _, compared = losses.lifted(self._run(tensors, example).logits, example, pair, "tv")
            value, count = value + lost, count + compared
        return 1.0 - value / count if count else math.nan

    def state(self) -> dict[str, np.ndarray]:
        """A copy of parameters, served ones and optimizer, flat."""
        kinds = {"parameters": self.parameters, "served": self.served, "optimizer": self.optimizer.state()}
        return {f"{kind}.{name}": np.array(array) for kind, arrays in kinds.items() for name, array in arrays.items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go back to a `state`; raises OmnidraftError where it belongs to other parameters."""
        live = {f"{kind}.{name}": array for kind, arrays in (("parameters", self.parameters), ("served", self.served))
                for name, array in arrays.items()}
        if any(name not in state or state[name].shape != array.shape for name, array in live.items()) or (
                sum(not name.startswith("optimizer.") for name in state) != len(live)):
            raise OmnidraftError("the saved state is of another drafter, rank or kind: choose its rank, or another place")
        self.optimizer.restore({k.removeprefix("optimizer."): v for k, v in state.items() if k.startswith("optimizer.")})
        for name, array in live.items():
            array[...] = state[name]

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
