"""LoRA for any causal language model of transformers, on its head and inside every block.

The adapters are those of `lora`, with tensors instead of arrays and PEFT's names.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from ..engine.transformers_model import TransformersModel
from .lora import LoRA

Tensors = dict[str, torch.Tensor]  # by the name that transformers gives them


def tensors_of(base: TransformersModel) -> Tensors:
    """A model's weights, a tied head's too, in float64 where the model is, else in float32."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    return {f"{at}.{name}".lstrip("."): tensor.detach().to(dtype)
            for at, module in base.model.named_modules()
            for name, tensor in module.named_parameters(recurse=False)}


def fresh(base: TransformersModel, rng: np.random.Generator, rank: int) -> LoRA:
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


def placed(lora: LoRA, base: TransformersModel) -> LoRA:
    """Adapters in arrays, as tensors where the model is."""
    dtype = torch.promote_types(base.dtype, torch.float32)
    return replace(lora, parameters={name: torch.tensor(array).to(base.device, dtype)
                                     for name, array in lora.parameters.items()})


def merged(base: TransformersModel, tensors: Tensors, lora: LoRA) -> Tensors:
    """`LoRA.merged` of the `tensors_of` a model; GPT-2's Conv1D has its W as (in, out)."""
    flat = [f"{name}.weight" for name, module in base.model.named_modules()
            if isinstance(module, Conv1D)]
    new = lora.merged(tensors | {name: tensors[name].T for name in flat})
    return new | {name: new[name].T for name in flat}
