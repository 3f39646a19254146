"""The last matrix of a transformers model: a few tokens cost little more than one.

With a large vocabulary it is most of a pass (Gemma 3 270M: 168 of 268 million weights), and a plain
product reads it once for one token, but copies it first for several: five cost three times as much.
Here oneDNN stores it once more, in the order in which its kernel reads (the gain of speculative
decoding depends on such passes, as in `kernels`). Everything before it is the model's own forward.
"""

import time
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from .transformers_pass import CHANGED

LARGE = 2**24  # weights from which it is tried (64 MB)
TOKENS = 4  # of the timed product
CLEARLY = 0.8  # of the plain product's time: what it may take to be worth its memory


class Head:
    """The output matrix (V, width) of a model, packed by oneDNN, and its bias (V,) or None."""

    def __init__(self, part: torch.nn.Linear):
        self.part, self.weight = part, part.weight
        self.version = part.weight._version  # PyTorch counts changes in place
        self.packed = torch.ops.mkldnn._reorder_linear_weight(part.weight.detach(), TOKENS)

    def __call__(self, hidden: Tensor) -> Tensor:
        """The logits (..., V) of hidden states (..., width)."""
        bias = self.part.bias
        return torch.ops.mkldnn._linear_pointwise(hidden, self.packed, bias, "none", [], "")

    def serves(self, model: Any) -> bool:
        """Is it still this model's? A copy that learns has other weights; hooks may have come."""
        same = model.get_output_embeddings() is self.part and self.part.weight is self.weight
        return same and self.weight._version == self.version and fits(model)


def fits(model: Any) -> bool:
    """Is the output matrix one that can be packed, and has nobody changed what is called?"""
    part, inner = model.get_output_embeddings(), model.base_model
    return (type(part) is torch.nn.Linear and inner is not model and part.weight.numel() >= LARGE
            and model.device.type == "cpu" and part.weight.dtype == torch.float32
            and not getattr(model, "hf_device_map", None)
            and not any(vars(one).get(key) for one in (model, inner, part) for key in CHANGED))


def choose_head(model: Any, ids: Tensor, logits: Tensor) -> Head | None:
    """A packed head, if it gives the model's `logits` (m, V) for `ids` (m,) and is clearly faster.

    Some families scale or cap the logits after the head, so that they are others: None.
    """
    # subtle: the operations are PyTorch's own, but not promised: a build without them has no head
    with suppress(RuntimeError, AttributeError, TypeError, ValueError), torch.inference_mode():
        if not fits(model):
            return None
        hidden = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        head, weight = Head(model.get_output_embeddings()), model.get_output_embeddings().weight
        if not (head(hidden) - logits).abs().max() < 1e-4 * logits.std():
            return None
        best = {head: float("inf"), linear: float("inf")}
        some = hidden[:1].repeat(TOKENS, 1)
        for way in 3 * [*best]:
            began = time.perf_counter()
            way(some) if way is head else way(some, weight)
            best[way] = min(best[way], time.perf_counter() - began)
        return head if best[head] < CLEARLY * best[linear] else None
    return None
