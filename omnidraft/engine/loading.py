"""Language models: the embedded ones by name, folders, and hub ids; run by the NumPy engine or by transformers."""

from __future__ import annotations

import re
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OmnidraftError
from ..generation import Pair
from ..vocabulary import load_or_build

if TYPE_CHECKING:
    from .llama import Llama
    from .transformers_model import TransformersModel

EMBEDDED = ("draft-general", "draft-tasks", "sibling", "qwen-like", "llama3-like")
BACKENDS = ("numpy", "torch")
NUMPY_IS_FASTER = 32_000_000  # parameters, below which calling PyTorch costs more than the arithmetic does
SPREAD = ("device_map", "max_memory", "offload_folder", "tensor_parallel")  # options that spread a model over devices
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def folder(name: str | Path) -> Path:
    """The folder of an embedded model, or the folder that `name` is the path of.

    Raises OmnidraftError where there is neither.

    >>> folder("qwen-like").name
    'qwen-like'
    """
    embedded = Path(__file__).parent / "embedded" / str(name)
    try:
        path = embedded if name in EMBEDDED else Path(name).expanduser()
        found = path.is_dir()
    except (OSError, RuntimeError):  # a name too long for the system; no such ~user
        found = False
    if not found:
        known = ", ".join(EMBEDDED)
        raise OmnidraftError(f"embedded model {name} is not installed (run `make models`)" if name in EMBEDDED else
                             f"unknown model {str(name)!r}: neither a folder nor an embedded model ({known})")
    return path


def load(name_or_folder: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> Llama | TransformersModel:
    """Load an embedded model by name or any Hugging Face folder, with backend "torch" also any hub id.

    `backend` "numpy" runs Llama, Mistral and Qwen2 on the CPU, in float32 ("auto") or float64 (for exactness tests);
    "torch" runs what transformers does, with the options of `TransformersModel.load`, or with tensor_parallel=True as one of
    several processes (`distributed_torch`). Raises OmnidraftError with one line where the model is missing, broken or of
    another kind, or the backend is not installed.

    >>> load("qwen-like").vocab_size
    4096
    """
    dtype = getattr(dtype, "__name__", str(dtype).removeprefix("torch."))  # np.float64, torch.float64 and "float64"
    more = {name: value for name, value in more.items() if value or name not in SPREAD}
    if backend == "numpy":
        return _load_numpy(name_or_folder, dtype, device, more)
    if backend != "torch":
        raise OmnidraftError(f"unknown backend {backend!r}: choose {' or '.join(BACKENDS)}")
    try:
        from .transformers_model import TransformersModel
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) or str(error.name).split(".")[0] not in (
                "torch", "transformers", "huggingface_hub"):
            raise OmnidraftError(f"PyTorch or transformers does not load ({error}): pip install --upgrade "
                                 "'omnidraft[torch]'") from error
        raise OmnidraftError("--backend torch needs PyTorch and transformers: pip install 'omnidraft[torch]'") from None
    kind, known = TransformersModel, name_or_folder in EMBEDDED
    if more.pop("tensor_parallel", False):
        from .distributed_torch import DistributedModel as kind
    return kind.load(folder(name_or_folder) if known else name_or_folder, dtype, device, **more)


def load_two(draft: Any, target: Any, draft_backend: str = "auto", compile: bool = False, **how: Any) -> tuple[Any, Any]:
    """A drafter and a target, by what `load` takes or loaded already; `SPREAD` options are for the target alone.

    With any of them the drafter goes to `device`, by default the first that the target uses. `draft_backend` "auto" gives a
    small drafter on the CPU to the NumPy engine, whatever runs the target: there the calls of PyTorch alone take longer.
    `compile` runs the drafter through torch.compile (see `TransformersModel.load`).
    """
    spread = {name: value for name in SPREAD if (value := how.pop(name, None))}
    if isinstance(target, (str, PathLike)):
        target = load(target, **how | spread | {"device": "auto"} if spread else how)
    if isinstance(draft, (str, PathLike)):
        one = spread and how.get("device", "auto") == "auto"
        how = how | {"device": str(target.device)} if one else how
        if draft_backend == "numpy" or draft_backend == "auto" and not compile and _suits_numpy(draft, how):
            try:
                return load(draft, how.get("dtype", "auto")), target
            except OmnidraftError:  # weights or a tokenizer in a form that only transformers reads
                if draft_backend == "numpy":
                    raise
        # Of a drafter the calls cost most of the time on any device, and its number type is its own affair.
        how |= {"compile": True} if compile else {"own_pass": True} if how.get("backend") == "torch" else {}
        draft = load(draft, **how)
    return draft, target


def _suits_numpy(name: str | PathLike, how: dict[str, Any]) -> bool:
    """Whether the NumPy engine runs this model, and faster than PyTorch on the CPU would."""
    from .config import ModelConfig

    if how.get("backend") != "torch":
        return False
    try:
        sizes = ModelConfig.load(folder(name)).tensor_shapes().values()
    except OmnidraftError:
        return False
    from .transformers_loading import choose_device

    known = str(how.get("dtype", "auto")).removeprefix("torch.") in ("auto", "float32", "float64")
    return known and sum(map(prod, sizes)) < NUMPY_IS_FASTER and choose_device(how.get("device", "auto"))[0] == "cpu"


def _load_numpy(name: str | Path, dtype: str, device: str, more: dict[str, Any]) -> Llama:
    if more or device not in ("auto", "cpu"):
        raise OmnidraftError(f"the NumPy engine has no {'device ' + device if not more else ', '.join(more)}; "
                             "use --backend torch")
    if dtype not in ("auto", "float32", "float64"):
        raise OmnidraftError(f"the NumPy engine computes in float32 or float64, not {dtype}; use --backend torch")
    try:
        found = folder(name)
    except OmnidraftError as error:
        if name in EMBEDDED or not HUB_ID.fullmatch(str(name)):
            raise
        raise OmnidraftError(f"{error}; for an id of the Hugging Face hub use --backend torch") from None
    from .llama import Llama

    return Llama.load(found, "float32" if dtype == "auto" else dtype)


def pair(draft: Any = "draft-tasks", target: Any = "qwen-like", backend: str = "numpy", **how: Any) -> Pair:
    """A Pair of two models by name, folder or (backend "torch") hub id, or of models that are loaded already.

    `how` goes to `load_two`. The alignment is kept on disk. Raises OmnidraftError where a model cannot be loaded, or the
    vocabularies have nothing in common.

    >>> import omnidraft
    >>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    >>> pair.generate("Once upon a time", max_new_tokens=8).text  # doctest: +SKIP
    ', there was a little fox who'
    """
    draft, target = load_two(draft, target, backend=backend, **how)
    return Pair(draft, target, alignment=load_or_build(draft.tokenizer, target.tokenizer))
