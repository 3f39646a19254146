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
    from .llamacpp import LlamaCpp
    from .transformers_model import TransformersModel

EMBEDDED = ("draft-general", "draft-tasks", "draft-smol", "qwen-like", "llama3-like")
NAMES = (*EMBEDDED, *PUBLISHED)  # a folder of such a name is given as ./name
# Default drafters: for embedded targets, for those if the drafter is to learn, for other targets.
DRAFTERS = {"known": "draft-tasks", "learning": "draft-general", "other": "draft-smol"}
BACKENDS = ("numpy", "torch", "llamacpp")
NUMPY_DTYPES = ("auto", "float32", "float64")


def load(name: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> "Llama | TransformersModel | LlamaCpp":
    """Load a model by name, Hugging Face folder, GGUF file or, with backend "torch", hub id.

    Backend "numpy" runs Llama, Mistral and Qwen2 on the CPU, in float32 ("auto") or float64;
    "torch" takes the options of `TransformersModel.load`; "llamacpp" runs a GGUF file as it is.
    Raises OmnidraftError with one line.
    """
    more = {option: value for option, value in more.items() if value is not None}
    dtype = getattr(dtype, "__name__", str(dtype).removeprefix("torch."))  # np.float64 and others
    if backend not in BACKENDS:
        raise OmnidraftError(f"unknown backend {backend!r}: choose {', '.join(BACKENDS[:-1])} or "
                             f"{BACKENDS[-1]}")
    if backend != "torch":
        what = list(more) if device in ("auto", "cpu") else [f"device {device}"]
        what += [] if dtype in NUMPY_DTYPES[:1 + 2 * (backend == "numpy")] else [f"{dtype} numbers"]
        if what:
            engine = "the NumPy engine" if backend == "numpy" else "llama.cpp here"
            raise OmnidraftError(f"{engine} has no {', '.join(what)}; use --backend torch")
    if backend == "llamacpp":
        return in_llamacpp(folder(name))
    if backend == "numpy":
        from .llama import Llama
        return Llama.load(folder(name), "float32" if dtype == "auto" else dtype)
    try:
        from .transformers_model import TransformersModel
    except ImportError as error:
        raise OmnidraftError(f"--backend torch needs PyTorch and transformers ({error}): "
                             "pip install --upgrade 'omnidraft[torch]'") from error
    return TransformersModel.load(folder(name) if name in NAMES else name, dtype, device, **more)


def in_llamacpp(path: Path) -> "LlamaCpp":
    """A GGUF file as llama.cpp runs it; OmnidraftError for a folder, or without the package."""
    if not is_gguf(path):
        raise OmnidraftError(f"--backend llamacpp runs GGUF files, and {path.name} is a folder: "
                             "use --backend numpy or torch")
    try:
        from .llamacpp import LlamaCpp
    except (ImportError, OSError, RuntimeError) as error:  # missing, or its library is
        raise OmnidraftError(f"--backend llamacpp needs llama-cpp-python ({error}): "
                             "pip install 'omnidraft[llamacpp]' (it is compiled for this computer, "
                             "in some 20 minutes)") from error
    return LlamaCpp(path)


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
