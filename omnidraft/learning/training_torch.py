"""`training` for any causal language model of transformers, on any device, with autograd.

Parameters are float64 if the base is, else float32. Public names, arguments and the arrays of
`state` are those of `training`: each backend can continue what the other has learned.
"""

import re
from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from .. import losses_torch, sampling_torch
from ..engine.transformers_model import TransformersModel
from ..losses import Example
from ..sampling import BROKEN, mask
from ..text.errors import OmnidraftError
from . import training
from .lora import LoRA
from .training import Recipe

Tensors = dict[str, torch.Tensor]  # by transformers' names


class Trainer(training.Trainer):
    """Trains a drafter that runs in transformers; see `training.Trainer`."""

    def __init__(self, base: TransformersModel, recipe: Recipe, rng: np.random.Generator) -> None:
        if not isinstance(base, TransformersModel) or getattr(base.model, "is_quantized", False) \
                or {parameter.device for parameter in base.model.parameters()} != {base.device}:
            raise OmnidraftError("this trainer needs a drafter run by transformers, "
                                 "not quantized and on one device")
        self._check(recipe, rng)
        base = self.base = getattr(base, "untouched", base)
        self.recipe = recipe
        self.tensors = tensors_of(base)
        own = [name for name, _ in base.model.named_parameters()]  # a tied head only once
        lora = LoRA({name: self.tensors[name].clone() for name in own}, 0, 0.0)
        if recipe.rank:
            lora = fresh(base, rng, recipe.rank)
        self._drafter = copied(base, untie=bool(recipe.rank))
        self._start(lora)

    def model(self) -> TransformersModel:
        """The drafter with the served weights: always the same copy, so use new caches with it."""
        return filled(self._drafter, self.merged())

    expected_acceptance = torch.no_grad()(training.Trainer.expected_acceptance)
    _gradients = torch.enable_grad()(training.Trainer._gradients)

    @staticmethod
    def host(array: Any) -> np.ndarray:
        return torch.as_tensor(array).cpu().numpy().copy()

    @staticmethod
    def like(array: Any) -> Any:
        return torch.as_tensor(array)

    def rows(self, logits: Sequence[Any], size: int) -> Any:
        """As in NumPy; rows that are on a device stay there."""
        if isinstance(logits[0], np.ndarray):
            return super().rows(logits, size)
        probs = sampling_torch.process(mask(torch.cat([*logits]), size))
        if not probs.isfinite().all():
            raise OmnidraftError(BROKEN)
        return probs

    def _loss(self, logits: torch.Tensor, example: Example, pair: Any, name: str,
              **options: Any) -> tuple[float, Any, int]:
        if numpy_is_faster(logits):
            return super()._loss(logits.numpy(), example, pair, name, **options)
        wanted = torch.is_grad_enabled()
        logits = logits.requires_grad_(wanted)
        value, count = losses_torch.LOSSES[name](logits, example, pair, **options)
        slope = torch.autograd.grad(value, logits)[0] if wanted else None
        return value.item(), slope, int(count)

    def _run(self, tensors: Tensors, example: Example) -> Any:
        """A pass; `logits` (n, V) for the losses are the tensor `output` without its graph."""
        wanted = torch.is_grad_enabled()
        # subtle: a tensor that two parts share, such as RoBERTa's last bias, is given by one name
        own = dict(self._drafter.model.named_parameters())
        tensors = {name: one.detach().requires_grad_(wanted)
                   for name, one in tensors.items() if name in own}
        ids = torch.tensor([example.draft_ids[:self.base.context_size]], device=self.base.device)
        given = {"input_ids": ids, "use_cache": False}
        trace = functional_call(self._drafter.model, tensors, (), given)
        trace.output = trace.logits[0]
        trace.logits = trace.output.detach()
        trace.tensors = tensors
        return trace

    @staticmethod
    def _back(trace: Any, slope: Any, wanted: Sequence[str]) -> Tensors:
        leaves = [trace.tensors[name] for name in wanted]
        slope = torch.as_tensor(slope).to(trace.output)
        found = torch.autograd.grad(trace.output, leaves, slope, materialize_grads=True)
        return dict(zip(wanted, found, strict=True))


def numpy_is_faster(tensor: torch.Tensor) -> bool:
    """Where losses run: on a CPU in NumPy, on any other device there (their twins)."""
    return tensor.device.type == "cpu"


def copied(base: TransformersModel, untie: bool) -> TransformersModel:
    """A copy of the drafter; `untie`: with its head separate from the embedding."""
    other = copy(base)
    other.model = deepcopy(base.model)
    other.untouched = base
    head = other.model.get_output_embeddings()
    if untie and head is not None:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        other.model.config.tie_word_embeddings = False
    return other


@torch.no_grad()
def filled(model: TransformersModel, tensors: Tensors | dict[str, np.ndarray]) -> TransformersModel:
    """Write these weights into the model; returns the model."""
    for name, parameter in model.model.named_parameters():
        parameter.copy_(torch.as_tensor(tensors[name]))
    return model


def adapted(base: TransformersModel, lora: LoRA) -> TransformersModel:
    """The drafter with what was learned; the base is not changed."""
    merged = placed(lora, base).merged(tensors_of(base))
    return filled(copied(base, untie=bool(lora.rank)), merged)


def tensors_of(base: TransformersModel) -> Tensors:
    """A model's weights, including a tied head; float64 if the model is, else float32."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    named = base.model.named_parameters(remove_duplicate=False)
    return {name: tensor.detach().to(dtype) for name, tensor in named}


def placed(lora: LoRA, base: TransformersModel) -> LoRA:
    """Adapters given as arrays, as tensors on the model's device."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    parameters = {name: torch.tensor(array).to(base.device, dtype)
                  for name, array in lora.parameters.items()}
    turned = tuple(f"{name}.weight" for name, module in base.model.named_modules()
                   if isinstance(module, Conv1D))
    return LoRA(parameters, lora.rank, lora.alpha, turned)


def fresh(base: TransformersModel, rng: np.random.Generator, rank: int) -> LoRA:
    """New adapters, which change nothing yet, for the head and every block."""
    head = base.model.get_output_embeddings()
    own = dict(base.model.named_parameters())  # blocks that share a weight (Zamba2) adapt it once
    shapes = {}
    for name, module in base.model.named_modules():
        if not isinstance(module, (torch.nn.Linear, Conv1D)):
            continue
        in_block = re.search(r"\.\d+\.", name) and f"{name}.weight" in own
        if module is head or in_block:
            shape = tuple(module.weight.shape)
            if isinstance(module, Conv1D):
                shape = shape[::-1]
            shapes[f"{name}.weight"] = shape
    return placed(LoRA.fresh(shapes, rng, rank, "f8"), base)
