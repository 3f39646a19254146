"""`training` for any causal language model of transformers, on any device, by autograd.

Parameters are float64 where the base is, else float32. Public names, arguments and the arrays of
`state` are those of `training`: either backend continues what the other has learned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from .. import losses_torch
from ..engine.transformers_model import TransformersModel
from ..errors import OmnidraftError
from . import training
from .lora import LoRA
from .training import OTHER, SHARE_OF_A, Recipe, follow

Tensors = dict[str, torch.Tensor]  # by the name that transformers gives them


class Trainer(training.Trainer):
    """Trains a drafter run by transformers; see `training.Trainer`."""

    _losses = losses_torch

    def __init__(self, base: TransformersModel, recipe: Recipe, rng: np.random.Generator) -> None:
        if not isinstance(base, TransformersModel) or getattr(base.model, "is_quantized", False) \
                or {parameter.device for parameter in base.model.parameters()} != {base.device}:
            raise OmnidraftError("this trainer needs a drafter run by transformers, "
                                 "not quantized and on one device")
        self.base, self.recipe, self.tensors = base, recipe, tensors_of(base)
        self.lora = fresh(base, rng, recipe.rank) if recipe.rank else None
        self.parameters: Tensors = self.lora.parameters if self.lora else {
            name: self.tensors[name].clone() for name, _ in base.model.named_parameters()}
        rate = recipe.step_size(base)
        groups = [{"params": [tensor], "lr": rate * (SHARE_OF_A if ".lora_A." in name else 1.0)}
                  for name, tensor in self.parameters.items()]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=recipe.decay)
        self._drafter = copied(base, untie=self.lora is not None)
        self.served = {name: tensor.clone() for name, tensor in self.parameters.items()}
        self._live: Tensors = {}  # what steps change, by its name in `state`
        for name, tensor in self.parameters.items():
            tensor.requires_grad_().grad = torch.zeros_like(tensor)
            mean, square = torch.zeros_like(tensor), torch.zeros_like(tensor)
            self.optimizer.state[tensor] = {"step": torch.zeros(()), "exp_avg": mean,
                                            "exp_avg_sq": square}
            self._live |= {
                f"parameters.{name}": tensor, f"served.{name}": self.served[name],
                f"optimizer.mean.{name}": mean, f"optimizer.square.{name}": square}

    def model(self) -> TransformersModel:
        """The drafter with the served weights, always the same copy: use new caches with it."""
        return filled(self._drafter, self.merged())

    def step(self, pair: Any, examples: Sequence[losses_torch.Example]) -> float:
        """One update on the texts; the mean loss per comparison, NaN where nothing was changed."""
        self.optimizer.zero_grad(set_to_none=False)
        loss, options = losses_torch.LOSSES[self.recipe.loss], self.recipe.options()
        total, counted = 0.0, 0
        for example in examples:
            logits = self._run(self.merged(served=False), example).logits
            value, _, count = loss(logits, example, pair, **options)
            value.backward()
            total, counted = total + value.item(), counted + count
            if not math.isfinite(total):
                return math.nan
        if not counted:
            return 0.0
        norm = torch.stack([p.grad.norm() for p in self.parameters.values()]).norm() / counted
        if not norm.isfinite():
            return math.nan
        for tensor in self.parameters.values():
            tensor.grad /= counted * norm.clamp(min=1.0)
        self.optimizer.step()
        share = follow(int(next(iter(self.optimizer.state.values()))["step"]))
        with torch.no_grad():
            for name, mean in self.served.items():
                mean.lerp_(self.parameters[name], share)
        return total / counted

    def slow_down(self, factor: float) -> None:
        """Continue at a part of the rate."""
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    def state(self) -> dict[str, np.ndarray]:
        """A copy of parameters, served ones and optimizer, flat."""
        steps = np.array([own["step"].item() for own in self.optimizer.state.values()][:1])
        live = {k: v.detach().cpu().numpy().copy() for k, v in self._live.items()}
        return live | {"optimizer.steps": steps}

    @torch.no_grad()
    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Return to a `state`; raises OmnidraftError where it belongs to other parameters."""
        shapes = {k: tuple(v.shape) for k, v in self._live.items()} | {"optimizer.steps": (1,)}
        if {k: v.shape for k, v in state.items()} != shapes:
            raise OmnidraftError(OTHER)
        for name, tensor in self._live.items():
            tensor.copy_(torch.tensor(state[name]))
        for own in self.optimizer.state.values():
            own["step"].fill_(state["optimizer.steps"][0])

    def _run(self, tensors: Tensors, example: losses_torch.Example) -> Any:
        ids = torch.tensor([example.draft_ids[:self.base.context_size]], device=self.base.device)
        given = {"input_ids": ids, "use_cache": False}
        trace = functional_call(self._drafter.model, tensors, (), given)
        trace.logits = trace.logits[0]  # (n, V)
        return trace


def copied(base: TransformersModel, untie: bool) -> TransformersModel:
    """A copy of the drafter, with `untie` its head separate from the embedding."""
    other = copy(base)
    other.model = deepcopy(base.model)
    if untie and (head := other.model.get_output_embeddings()) is not None:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        other.model.config.tie_word_embeddings = False
    return other


@torch.no_grad()
def filled(model: TransformersModel, tensors: Tensors | dict[str, np.ndarray]) -> TransformersModel:
    """The model, with these weights from now on."""
    for name, parameter in model.model.named_parameters():
        parameter.copy_(torch.as_tensor(tensors[name]))
    return model


def adapted(base: TransformersModel, lora: LoRA | None,
            weights: dict[str, np.ndarray]) -> TransformersModel:
    """The drafter with adapters, or without them with other weights; the base is not changed."""
    new = placed(lora, base).merged(tensors_of(base)) if lora else weights
    return filled(copied(base, untie=lora is not None), new)


def tensors_of(base: TransformersModel) -> Tensors:
    """A model's weights, a tied head's too, in float64 where the model is, else in float32."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    named = base.model.named_parameters(remove_duplicate=False)
    return {name: tensor.detach().to(dtype) for name, tensor in named}


@dataclass
class TensorLoRA(LoRA):
    """LoRA with tensors instead of arrays, for a head and every block of any transformer."""

    flat: list[str]  # weights of GPT-2's Conv1D, which are (in, out)

    def merged(self, tensors: Tensors) -> Tensors:
        """See `LoRA.merged`."""
        new = super().merged(tensors | {name: tensors[name].T for name in self.flat})
        return new | {name: new[name].T for name in self.flat}


def placed(lora: LoRA, base: TransformersModel) -> TensorLoRA:
    """Adapters in arrays, as tensors where the model is."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    parameters = {name: torch.tensor(array).to(base.device, dtype)
                  for name, array in lora.parameters.items()}
    flat = [f"{name}.weight" for name, module in base.model.named_modules()
            if isinstance(module, Conv1D)]
    return TensorLoRA(parameters, lora.rank, lora.alpha, flat)


def fresh(base: TransformersModel, rng: np.random.Generator, rank: int) -> TensorLoRA:
    """Adapters that change nothing yet, drawn in the order of `LoRA.fresh` for a Llama."""
    lora, head = LoRA({}, rank, rank), base.model.get_output_embeddings()
    found = {name: module for name, module in base.model.named_modules()
             if isinstance(module, (torch.nn.Linear, Conv1D))
             and (module is head or re.search(r"\.\d+\.", name))}
    kind = {name: re.sub(r"\d+", "", name) for name in found}  # without its layer
    kinds = list(kind.values())
    for name in sorted(found, key=lambda name: (found[name] is not head, kinds.index(kind[name]))):
        shape = tuple(found[name].weight.shape)
        lora.add(name, shape[::-1] if isinstance(found[name], Conv1D) else shape, rng, "f8")
    return placed(lora, base)
