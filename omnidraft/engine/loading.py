"""Models by name, folder or hub id, and the one door to a pair of them."""

from __future__ import annotations

from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OmnidraftError
from ..generation import Pair
from .config import HUB_ID, ModelConfig

if TYPE_CHECKING:
    from .llama import Llama
    from .transformers_model import TransformersModel

EMBEDDED = ("draft-general", "draft-tasks", "sibling", "qwen-like", "llama3-like")
BACKENDS = ("numpy", "torch")
NUMPY_DTYPES = ("auto", "float32", "float64")
NUMPY_IS_FASTER = 32_000_000  # parameters, below which calling PyTorch costs more than computing
SPREAD = ("device_map", "max_memory", "offload_folder")  # of a target over devices


def pair(draft: Any = "draft-tasks", target: Any = "qwen-like", backend: str = "numpy",
         **how: Any) -> Pair:
    """A pair of two models by name, folder or (backend "torch") hub id, or of loaded models.

    `how` goes to `load_two`: dtype, device, with torch trust_remote_code, compile=True for the
    drafter, and for a target that one device does not hold device_map="auto". Raises
    OmnidraftError where a model cannot be loaded, or the vocabularies have nothing in common.

    >>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    >>> pair.generate("Once upon a time", max_new_tokens=8).text  # doctest: +SKIP
    ', there was a little fox who'
    """
    return Pair(*load_two(draft, target, backend=backend, **how))


def load_two(draft: Any, target: Any, backend: str = "numpy", draft_backend: str = "auto",
             compile: bool = False, **how: Any) -> tuple[Any, Any]:
    """A drafter and a target, each by what `load` takes or loaded already.

    `draft_backend` "auto" gives a small drafter on a CPU to the NumPy engine, whatever runs the
    target; `compile` runs it through torch.compile. Options of `SPREAD` are the target's alone: the
    drafter goes to `device`, by default the first that the target uses.
    """
    spread = {name: value for name in SPREAD if (value := how.pop(name, None))}
    if isinstance(target, (str, PathLike)):
        place = spread | {"device": "auto"} if spread else {}
        target = load(target, **{"backend": backend} | how | place)
    if isinstance(draft, (str, PathLike)):
        if spread and how.get("device", "auto") == "auto":
            how["device"] = str(target.device)
        auto = draft_backend == "auto" and not compile
        if draft_backend == "numpy" or auto and backend == "torch" and _suits_numpy(draft, how):
            try:
                return load(draft, how.get("dtype", "auto")), target
            except OmnidraftError:  # weights or a tokenizer that only transformers reads
                if not auto:
                    raise
        draft = load(draft, **{"backend": backend} | how | ({"compile": True} if compile else {}))
    return draft, target


def load(name: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> Llama | TransformersModel:
    """Load an embedded model by name, a Hugging Face folder, or with backend "torch" a hub id.

    Backend "numpy" runs Llama, Mistral and Qwen2 on the CPU, in float32 ("auto") or float64 (for
    exactness tests). "torch" runs what transformers does, with the options of
    `TransformersModel.load`. Raises OmnidraftError with one line where the model is missing, broken
    or of another kind, or the backend is not installed.

    >>> load("qwen-like").vocab_size
    4096
    """
    more = {option: value for option, value in more.items() if value or option not in SPREAD}
    dtype = _name_of(dtype)
    if backend == "numpy":
        return _load_numpy(name, dtype, device, more)
    if backend != "torch":
        raise OmnidraftError(f"unknown backend {backend!r}: choose {' or '.join(BACKENDS)}")
    try:
        from .transformers_model import TransformersModel
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            raise OmnidraftError(f"PyTorch or transformers does not load ({error}): pip install "
                                 "--upgrade 'omnidraft[torch]'") from error
        raise OmnidraftError("--backend torch needs PyTorch and transformers: pip install "
                             "'omnidraft[torch]'") from None
    return TransformersModel.load(folder(name) if name in EMBEDDED else name, dtype, device, **more)


def _load_numpy(name: str | Path, dtype: str, device: str, more: dict[str, Any]) -> Llama:
    from .llama import Llama

    if more or device not in ("auto", "cpu"):
        what = ", ".join(more) or f"device {device}"
        raise OmnidraftError(f"the NumPy engine has no {what}; use --backend torch")
    if dtype not in NUMPY_DTYPES:
        raise OmnidraftError(f"the NumPy engine computes in float32 or float64, not {dtype}; "
                             "use --backend torch")
    try:
        return Llama.load(folder(name), "float32" if dtype == "auto" else dtype)
    except OmnidraftError as error:
        if name in EMBEDDED or Path(name).is_dir() or not HUB_ID.fullmatch(str(name)):
            raise
        raise OmnidraftError(f"{error}; for a hub id use --backend torch") from None


def folder(name: str | Path) -> Path:
    """The folder of an embedded model, or the folder that `name` is the path of.

    Raises OmnidraftError where there is neither.

    >>> folder("qwen-like").name
    'qwen-like'
    """
    embedded = Path(__file__).parent / "embedded" / str(name)
    try:
        path = embedded if name in EMBEDDED else Path(name).expanduser()
        if path.is_dir():
            return path
    except (OSError, RuntimeError):  # a name too long for the system; no such ~user
        pass
    raise OmnidraftError(f"unknown model {str(name)!r}: neither a folder nor an embedded model "
                         f"({', '.join(EMBEDDED)}; `make models` installs them)")


def _suits_numpy(name: str | PathLike, how: dict[str, Any]) -> bool:
    """Whether the NumPy engine runs this model, and faster than PyTorch on the CPU would."""
    from .transformers_loading import choose_device

    if choose_device(how.get("device", "auto"))[0] != "cpu" or _name_of(
            how.get("dtype", "auto")) not in NUMPY_DTYPES:
        return False
    try:
        shapes = ModelConfig.load(folder(name)).tensor_shapes().values()
    except OmnidraftError:
        return False
    return sum(map(prod, shapes)) < NUMPY_IS_FASTER


def _name_of(dtype: Any) -> str:
    """The same for np.float64, torch.float64 and "float64"."""
    return getattr(dtype, "__name__", str(dtype).removeprefix("torch."))
