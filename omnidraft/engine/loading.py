"""Models by name, folder or hub id."""

from contextlib import suppress
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OmnidraftError
from .config import ModelConfig

if TYPE_CHECKING:
    from .llama import Llama
    from .transformers_model import TransformersModel

EMBEDDED = ("draft-general", "draft-tasks", "qwen-like", "llama3-like")
BACKENDS = ("numpy", "torch")
NUMPY_DTYPES = ("auto", "float32", "float64")
NUMPY_IS_FASTER = 32_000_000  # parameters, below which calling PyTorch costs more than computing


def loaded(model: Any, tokenizer: Any = None) -> Any:
    """A name or a model of this package as it is; one of transformers behind the same interface."""
    if isinstance(model, tuple) and len(model) == 2 and tokenizer is None:
        model, tokenizer = model
    kind = type(model).__name__
    if all(hasattr(model, name) for name in ("config", "generation_config", "forward")):
        from .transformers_model import TransformersModel

        if tokenizer is None:
            raise OmnidraftError(f"{kind} needs its tokenizer: give (model, tokenizer), or "
                                 "draft_tokenizer and target_tokenizer")
        return TransformersModel.of(model, tokenizer)
    known = all(hasattr(model, name) for name in ("tokenizer", "eos_ids", "new_cache", "forward"))
    if not (known or isinstance(model, (str, PathLike))):
        raise OmnidraftError(f"{kind} is no model: give a name, a folder, what omnidraft.load "
                             "gives, or a model of transformers with its tokenizer")
    if tokenizer is not None:
        raise OmnidraftError(f"{model if kind == 'str' else kind} has a tokenizer: give no other")
    return model


def load_two(draft: Any, target: Any, backend: str = "numpy", draft_backend: str = "auto",
             device_map: Any = None, **how: Any) -> tuple[Any, Any]:
    """A drafter and a target, each by what `load` takes or loaded already.

    `draft_backend` "auto" gives a small drafter on a CPU to the NumPy engine, whatever runs the
    target. `device_map` spreads the target alone; the drafter goes to its first device.
    """
    wrong = {*how} if backend in BACKENDS else {f"backend {backend!r}"}
    if wrong and not any(isinstance(one, (str, PathLike)) for one in (draft, target)):
        raise OmnidraftError(f"{min(wrong)} is for loading, but both models are loaded already")
    if isinstance(target, (str, PathLike)):
        place = {"device": "auto", "device_map": device_map} if device_map else {}
        target = load(target, **{"backend": backend, **how, **place})
    if isinstance(draft, (str, PathLike)):
        if device_map and how.get("device", "auto") == "auto":
            how["device"] = str(target.device)
        if draft_backend == "numpy":  # wherever the target is
            return load(draft, how.get("dtype", "auto")), target
        either = backend == "torch" and draft_backend == "auto"
        draft = either and _small_in_numpy(draft, **how) or load(draft, backend=backend, **how)
    return draft, target


def load(name: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> "Llama | TransformersModel":
    """Load an embedded model by name, a Hugging Face folder, or with backend "torch" a hub id.

    Backend "numpy" runs Llama, Mistral and Qwen2 on the CPU, in float32 ("auto") or float64;
    "torch" has the options of `TransformersModel.load`. Raises OmnidraftError with one line.
    """
    more = {option: value for option, value in more.items() if value is not None}
    dtype = getattr(dtype, "__name__", str(dtype).removeprefix("torch."))  # np.float64 and others
    if backend not in BACKENDS:
        raise OmnidraftError(f"unknown backend {backend!r}: choose {' or '.join(BACKENDS)}")
    if backend == "numpy":
        from .llama import Llama

        what = list(more) if device in ("auto", "cpu") else [f"device {device}"]
        what += [] if dtype in NUMPY_DTYPES else [f"{dtype} numbers"]
        if what:
            raise OmnidraftError(f"the NumPy engine has no {', '.join(what)}; use --backend torch")
        return Llama.load(folder(name), "float32" if dtype == "auto" else dtype)
    try:
        from .transformers_model import TransformersModel
    except ModuleNotFoundError:
        raise OmnidraftError("--backend torch needs PyTorch and transformers: pip install "
                             "'omnidraft[torch]'") from None
    except ImportError as error:
        raise OmnidraftError(f"PyTorch or transformers does not load ({error}): pip install "
                             "--upgrade 'omnidraft[torch]'") from error
    return TransformersModel.load(folder(name) if name in EMBEDDED else name, dtype, device, **more)


def folder(name: str | Path) -> Path:
    """The folder of an embedded model or at the path `name`; OmnidraftError where there is none."""
    embedded = Path(__file__).parent / "embedded" / str(name)
    with suppress(OSError, RuntimeError):  # a name too long for the system; no such ~user
        path = embedded if name in EMBEDDED else Path(name).expanduser()
        if path.is_dir():
            return path
    raise OmnidraftError(f"unknown model {str(name)!r}: neither a folder nor an embedded model "
                         f"({', '.join(EMBEDDED)}; `make models` installs them); for a hub id "
                         "use --backend torch")


def _small_in_numpy(name: str | PathLike, device: str = "auto", dtype: Any = "auto",
                    **_: Any) -> "Llama | None":
    """The model in the NumPy engine, where that runs it, and faster than PyTorch on the CPU."""
    from .transformers_loading import choose_device

    with suppress(OmnidraftError):  # of a device, or of what only transformers reads
        shapes = ModelConfig.load(folder(name)).tensor_shapes().values()
        if choose_device(device)[0] == "cpu" and sum(map(prod, shapes)) < NUMPY_IS_FASTER:
            return load(name, dtype)
    return None
