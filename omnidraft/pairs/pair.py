"""`omnidraft.pair`: a pair of two models, given by name, folder or hub id, or already loaded."""

from contextlib import suppress
from math import prod
from os import PathLike
from typing import Any

from ..engine.load import BACKENDS, config_of, drafter_for, load
from ..text.errors import OmnidraftError
from .generation import Pair

NUMPY_IS_FASTER = 32_000_000  # parameters, below which calling PyTorch costs more than computing


def pair(draft: Any = None, target: Any = "qwen-like", backend: str = "numpy",
         draft_tokenizer: Any = None, target_tokenizer: Any = None, **how: Any) -> Pair:
    """A pair of two models: a drafter and a target, each given by name or already loaded.

    Give what `load` takes or returns, or a transformers model with its tokenizer: as (model,
    tokenizer), or in `draft_tokenizer` and `target_tokenizer`. Without `draft`: `drafter_for` the
    target. `how` goes to `load_two`: dtype, device; with torch also trust_remote_code, device_map.
    Raises OmnidraftError for anything else, or if the vocabularies have nothing in common.

    A float32 Llama, Mistral or Qwen2 of transformers on a CPU runs in the NumPy engine, which is
    faster and reads its weights once, now; with backend "torch" it runs as transformers runs it.

    >>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    >>> pair.generate("Once upon a time", max_new_tokens=11).text
    ', there was a girl named Ella who'
    """
    for name in how.keys() - {"draft_backend"}:
        if name.startswith(("draft", "target", "model")):
            raise OmnidraftError(f"unknown option {name!r}: give the models as draft and target")
    if draft is None:
        draft = drafter_for(str(getattr(target, "name", target)))
    draft = loaded(draft, draft_tokenizer, backend)
    target = loaded(target, target_tokenizer, backend)
    return Pair(*load_two(draft, target, backend=backend, **how))


def loaded(model: Any, tokenizer: Any = None, backend: str = "numpy") -> Any:
    """A name or a model of this package, unchanged; a transformers model behind its interface."""
    if isinstance(model, tuple) and len(model) == 2 and tokenizer is None:
        model, tokenizer = model
    kind = type(model).__name__
    theirs = all(hasattr(model, name) for name in ("config", "generation_config", "forward"))
    if theirs and not getattr(model.config, "is_encoder_decoder", False):
        if tokenizer is None:
            raise OmnidraftError(f"{kind} needs its tokenizer: give (model, tokenizer), or "
                                 "draft_tokenizer and target_tokenizer")
        from ..engine.transformers_model import TransformersModel
        from ..engine.transformers_numpy import in_numpy
        made = TransformersModel.of(model, tokenizer)
        if backend == "torch" or made.model is not model:  # in a wrapper, of PEFT for example
            return made
        return in_numpy(made) or made
    known = all(hasattr(model, name) for name in ("tokenizer", "eos_ids", "new_cache", "forward"))
    if not (known or isinstance(model, (str, PathLike))):
        raise OmnidraftError(f"{kind} is not a causal language model: give a name, a folder, what "
                             "omnidraft.load returns, or a transformers model with its tokenizer")
    if tokenizer is not None:
        raise OmnidraftError(f"{model if kind == 'str' else kind} has a tokenizer: do not give one")
    return model


def load_two(draft: Any, target: Any, backend: str = "numpy", draft_backend: str = "auto",
             device_map: Any = None, **how: Any) -> tuple[Any, Any]:
    """A drafter and a target, each given as for `load` or already loaded.

    `draft_backend` "auto" runs a small drafter on a CPU in the NumPy engine, whatever runs the
    target; every drafter, if that is llama.cpp. `device_map` spreads only the target; the drafter
    goes to the target's first device.
    """
    wrong = {*how} if backend in BACKENDS else {f"backend {backend!r}"}
    if wrong and not any(isinstance(one, (str, PathLike)) for one in (draft, target)):
        raise OmnidraftError(f"{min(wrong)} is for loading, but both models are loaded: omit it")
    if isinstance(target, (str, PathLike)):
        place = {"device": "auto", "device_map": device_map} if device_map else {}
        target = load(target, **{"backend": backend, **how, **place})
    if isinstance(draft, (str, PathLike)):
        if device_map and how.get("device", "auto") == "auto":
            how["device"] = str(target.device)
        if draft_backend == "numpy":  # wherever the target runs
            return load(draft, how.get("dtype", "auto")), target
        either = backend == "torch" and draft_backend == "auto"
        own = backend if draft_backend == "auto" else draft_backend
        draft = either and _small_in_numpy(draft, **how) or load(draft, backend=own, **how)
    return draft, target


def _small_in_numpy(name: Any, device: str = "auto", dtype: Any = "auto", **_: Any) -> Any:
    """The model in the NumPy engine if that can run it and is faster than PyTorch, else None."""
    from ..engine.transformers_loading import choose_device
    with suppress(OmnidraftError):  # an unknown device, or a model that only transformers reads
        shapes = config_of(name).tensor_shapes().values()
        if choose_device(device)[0] == "cpu" and sum(map(prod, shapes)) < NUMPY_IS_FASTER:
            return load(name, dtype)
