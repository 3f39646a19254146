"""Language models: the NumPy engine, the embedded models by name, and any Hugging Face folder of a supported family."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OmnidraftError

if TYPE_CHECKING:
    from .llama import Llama

EMBEDDED = ("draft-general", "draft-tasks", "sibling", "qwen-like", "llama3-like")


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


def load(name_or_folder: str | Path, dtype: Any = "float32") -> Llama:
    """Load an embedded model by name, or any Llama, Mistral or Qwen2 folder, for the NumPy engine.

    `dtype` is np.float32, or np.float64 for exactness tests. Raises OmnidraftError with one line where the folder is
    missing or broken or its model is of another kind.

    >>> load("qwen-like").vocab_size
    4096
    """
    from .llama import Llama  # NumPy is loaded only when a model is

    return Llama.load(folder(name_or_folder), dtype)
