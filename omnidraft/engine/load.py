"""Loading models by name, folder, GGUF file or hub id."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text.errors import OmnidraftError
from ..text.tokenizer import Tokenizer
from .config import ModelConfig
from .gguf import Gguf, is_gguf
from .published import PUBLISHED, installed

if TYPE_CHECKING:
    from .llama import Llama
    from .transformers_model import TransformersModel

EMBEDDED = ("draft-general", "draft-tasks", "draft-smol", "qwen-like", "llama3-like")
NAMES = (*EMBEDDED, *PUBLISHED)  # a folder of such a name is given as ./name
# Default drafters: for embedded targets, for those if the drafter is to learn, for other targets.
DRAFTERS = {"known": "draft-tasks", "learning": "draft-general", "other": "draft-smol"}
BACKENDS = ("numpy", "torch")
NUMPY_DTYPES = ("auto", "float32", "float64")


def load(name: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> "Llama | TransformersModel":
    """Load a model by name, Hugging Face folder, GGUF file or, with backend "torch", hub id.

    Backend "numpy" runs Llama, Mistral and Qwen2 on the CPU, in float32 ("auto") or float64;
    "torch" takes the options of `TransformersModel.load`.
    Raises OmnidraftError with one line.
    """
    more = {option: value for option, value in more.items() if value is not None}
    dtype = getattr(dtype, "__name__", str(dtype).removeprefix("torch."))  # np.float64 and others
    if backend not in BACKENDS:
        raise OmnidraftError(f"unknown backend {backend!r}: choose {' or '.join(BACKENDS)}")
    if backend == "numpy":
        what = list(more) if device in ("auto", "cpu") else [f"device {device}"]
        what += [] if dtype in NUMPY_DTYPES else [f"{dtype} numbers"]
        if what:
            raise OmnidraftError(f"the NumPy engine has no {', '.join(what)}; use --backend torch")
        from .llama import Llama
        return Llama.load(folder(name), "float32" if dtype == "auto" else dtype)
    try:
        from .transformers_model import TransformersModel
    except ImportError as error:
        raise OmnidraftError(f"--backend torch needs PyTorch and transformers ({error}): "
                             "pip install --upgrade 'omnidraft[torch]'") from error
    return TransformersModel.load(folder(name) if name in NAMES else name, dtype, device, **more)


def folder(name: str | Path) -> Path:
    """The folder of an embedded model, the file of a published one, or the folder or GGUF `name`.

    Raises OmnidraftError if there is none.
    """
    if isinstance(name, str) and name in PUBLISHED:
        return installed(name)
    with suppress(OSError, RuntimeError):  # if a name is too long, or there is no such ~user
        path = embedded(name) if name in EMBEDDED else Path(str(name)).expanduser()
        if path.is_dir() or is_gguf(path):
            return path
    raise OmnidraftError(f"unknown model {str(name)!r}: not a folder, a GGUF file or a known name "
                         f"({', '.join(NAMES)}); for a hub id use --backend torch")


def embedded(name: str) -> Path:
    """Where the package has, or would have, an embedded model."""
    return Path(__file__).parent / "embedded" / name


def drafter_for(target: str, learns: bool = False) -> str:
    """The default drafter of a target, by its name; `learns`: if it is to learn from the target."""
    if target not in EMBEDDED:
        return DRAFTERS["other"]
    return DRAFTERS["learning" if learns else "known"]


def config_of(name: str | Path) -> ModelConfig:
    """The sizes of a model by name; raises OmnidraftError if the NumPy engine cannot run it."""
    path = folder(name)
    return Gguf(path).config() if is_gguf(path) else ModelConfig.load(path)


def tokenizer_of(name: str | Path) -> Tokenizer:
    """The tokenizer of a model by name, without its weights; OmnidraftError if there is none."""
    path = folder(name)
    return Gguf(path).tokenizer() if is_gguf(path) else Tokenizer.load(path)
