"""Language models: the embedded ones by name, folders, and hub ids; run by the NumPy engine or by transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OmnidraftError

if TYPE_CHECKING:
    from .llama import Llama
    from .transformers_model import TransformersModel

EMBEDDED = ("draft-general", "draft-tasks", "sibling", "qwen-like", "llama3-like")
BACKENDS = ("numpy", "torch")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def folder(name: str | Path) -> Path:
    """The folder of an embedded model, or the folder that `name` is the path of.

    Raises OmnidraftError where there is neither.

    >>> folder("qwen-like").name
    'qwen-like'
    """
    embedded = Path(__file__).parent / "embedded" / str(name)
    path = embedded if name in EMBEDDED else Path(name).expanduser()
    if not path.is_dir():
        known = ", ".join(EMBEDDED)
        raise OmnidraftError(f"embedded model {name} is not installed (run `make models`)" if name in EMBEDDED else
                             f"unknown model {str(name)!r}: neither a folder nor an embedded model ({known})")
    return path


def load(name_or_folder: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> Llama | TransformersModel:
    """Load an embedded model by name or any Hugging Face folder, with backend "torch" also any hub id.

    `backend` "numpy" runs Llama, Mistral and Qwen2 on the CPU, in float32 ("auto") or float64 (for exactness tests);
    "torch" runs what transformers does, with the options of `TransformersModel.load`. Raises OmnidraftError with one
    line where the model is missing, broken or of another kind, or the backend is not installed.

    >>> load("qwen-like").vocab_size
    4096
    """
    dtype = getattr(dtype, "__name__", str(dtype).removeprefix("torch."))  # np.float64, torch.float64 and "float64"
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
    known = name_or_folder in EMBEDDED
    return TransformersModel.load(folder(name_or_folder) if known else name_or_folder, dtype, device, **more)


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
    from .llama import Llama  # NumPy is loaded only when a model is

    return Llama.load(found, "float32" if dtype == "auto" else dtype)
