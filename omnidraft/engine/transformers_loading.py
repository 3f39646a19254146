"""Loading for `transformers_model`: folder or hub id, device, dtype, tokenizer, errors."""

import json
import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError

from ..text.errors import OmnidraftError
from ..text.files import read_json
from ..text.special_tokens import WELL_KNOWN
from ..text.tokenizer import Tokenizer
from .gguf import Gguf, is_gguf
from .model import OUT_OF_MEMORY, is_out_of_memory
from .transformers_numpy import check_conversion, from_gguf
from .weights import WEIGHTS, read_header, weight_files

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
ATTENTION = ("sdpa", "eager")  # of PyTorch and transformers; any other may be code from a hub
SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]  # configuration and tokenizer
CLEARER = {  # clearer messages than transformers' own, by a phrase in these
    "trust_remote_code=True": "it runs its own code: if you trust it, give trust_remote_code=True",
    "ignore_mismatched_sizes": "the shapes of its weights do not match its config.json",
    "Unrecognized configuration class": "it is not a causal language model",
    "weights_only": "its weights file holds more than numbers: use a safetensors copy",
    "outgoing traffic": "the Hugging Face hub is not reachable, and there is no earlier download"}


def load_parts(name: str, dtype: str, device: str, device_map: Any = None,
               trust_remote_code: bool = False, **more: Any) -> dict[str, Any]:
    """Arguments of a TransformersModel; raises OmnidraftError with one line (see its `load`)."""
    device, device_why = choose_device(device)
    if dtype not in DTYPES:
        raise OmnidraftError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    if device_map is not None:
        device_why = "by device_map"
    asked = more.get("attn_implementation")
    if asked not in (None, *ATTENTION) and not trust_remote_code:
        raise OmnidraftError(f"attn_implementation {asked!r} may be code from a hub: choose "
                             f"{' or '.join(ATTENTION)}, or give trust_remote_code=True")
    folder = Path(os.path.expanduser(name))
    source = str(folder)  # what transformers opens
    if is_gguf(folder):
        name = folder.stem
    elif os.path.isdir(folder):  # False for a name that is too long
        name = folder.resolve().name
    else:
        folder, online = fetch(name)
        source = name if online else str(folder)
    with one_line(f"cannot load {source}"):
        config = read_json(folder / "config.json")  # {} for a GGUF
        stored = config.get("dtype") or config.get("torch_dtype")
        number, dtype_why = choose_dtype(dtype, device, stored)
        how = {"dtype": number, "device_map": device_map}
        if is_gguf(folder):
            model, tokenizer = from_file(folder, device, how, more)
        else:
            model = from_folder(source, folder, device, how, trust_remote_code, more)
            tokenizer = load_tokenizer(folder, trust_remote_code)
    return {"model": model, "tokenizer": tokenizer, "name": name, "folder": folder,
            "why": (device_why, dtype_why)}


def from_file(path: Path, device: str, how: dict[str, Any],
              more: dict[str, Any]) -> tuple[Any, Tokenizer]:
    """Model and tokenizer of a GGUF: from our tensors or, where we do not read it, converted."""
    file = Gguf(path)
    model = None
    if how["device_map"] is None:  # spread over devices only by transformers
        model = from_gguf(file, device, how["dtype"], **more)
    if model is None:
        check_layers(path, file.layers, file.tensors)
        model = complete(path.parent, device, gguf_file=path.name, **how, **more)
        check_conversion(file, model)
    return model, file.tokenizer()


def from_folder(source: str, folder: Path, device: str, how: dict[str, Any], trust: bool,
                more: dict[str, Any]) -> Any:
    """The model of a folder, or of a hub id `source` whose small files are in `folder`."""
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OmnidraftError(f"{path} is a pipe or a device, which is not read: remove it")
    config = read_json(folder / "config.json")
    if not config.get("model_type"):
        raise OmnidraftError(f"{source} has no config.json with a model_type: give a model folder")
    if config.get("is_encoder_decoder"):
        raise OmnidraftError(f"{source} is an encoder-decoder, not a causal language model")
    names: list[str] = []
    for file in weight_files(folder, WEIGHTS[:1]):
        if file.exists():  # subtle: of a hub id, the weights may not be downloaded yet
            names += read_header(file)
    if names:
        check_layers(source, config.get("num_hidden_layers"), names)
    if not trust:
        more = configured(config, more)
    return complete(source, device, trust_remote_code=trust, **how, **more)


def check_layers(source: Any, layers: Any, tensors: Collection[str]) -> None:
    """Raise OmnidraftError for no layers, or more than tensors, which take very long to build."""
    if type(layers) is not int:
        return
    if layers < 1:
        raise OmnidraftError(f"{source}: a model with {layers} layers cannot be used")
    if layers > len(tensors):
        raise OmnidraftError(f"{source}: the weights lack some of its {layers} layers")


def complete(source: Any, device: str, **how: Any) -> Any:
    """The model in eval mode, by `from_pretrained(source, **how)`; a lack of weights raises."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        source, output_loading_info=True, **how)
    # subtle: transformers fills these with random numbers, without an error
    missing = dict(model.named_parameters()).keys() & found["missing_keys"]
    if missing:
        raise OmnidraftError(f"{source}: the weights lack {min(missing)}")
    if how["device_map"] is None:
        model = model.to(device)
    return model.eval()


def configured(config: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `from_pretrained`: `more`, and a configuration that names no code to run.

    config: the content of config.json. Without an implementation of attention and experts there,
    transformers takes its own; with one, it would download and run what that names on the hub.
    """
    with TemporaryDirectory() as place:
        Path(place, "config.json").write_text(json.dumps(without_code(config)), encoding="utf-8")
        made, rest = transformers.AutoConfig.from_pretrained(
            place, trust_remote_code=False, return_unused_kwargs=True, **more)
    return {"config": made, **rest}


def without_code(part: Any) -> Any:
    """A part of a config.json without the keys that choose an implementation, at any depth.

    >>> without_code({"model_type": "x", "text_config": {"_attn_implementation": "someone/code"}})
    {'model_type': 'x', 'text_config': {}}
    """
    if isinstance(part, list):
        return [without_code(one) for one in part]
    if isinstance(part, dict):
        return {key: without_code(one) for key, one in part.items() if "implementation" not in key}
    return part


def unwrapped(model: Any) -> Any:
    """The model inside the wrappers of PEFT and `torch.compile`, which computes the same.

    A LoRA adapter is part of its layers. OmnidraftError for a prompt that PEFT puts before the ids.
    """
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise OmnidraftError(f"{type(model).__name__} puts learned vectors before the ids, which "
                             "other models cannot read: use LoRA or another adapter of the layers")
    if hasattr(model, "_orig_mod"):  # torch.compile
        return unwrapped(model._orig_mod)
    if hasattr(model, "get_base_model"):  # PEFT
        return unwrapped(model.get_base_model())
    return model


def choose_dtype(dtype: str, device: str, stored: Any) -> tuple[Any, str]:
    """The dtype for `from_pretrained` and the reason.

    stored: the name of the weights' dtype, if known. Others would lose precision in bfloat16.
    """
    if dtype != "auto":
        return getattr(torch, dtype), "as asked"
    if device != "cpu":
        return "auto", "as stored"
    units = getattr(torch.cpu, "get_capabilities", dict)()  # older releases of PyTorch do not tell
    if stored == "bfloat16" and units.get("avx512_bf16"):  # subtle: where there is AMX, it is too
        return torch.bfloat16, "the fastest here"
    return torch.float32, "the fastest on a CPU"


def choose_device(device: str) -> tuple[str, str]:
    """The device and the reason ("cpu", "as asked"); raises OmnidraftError if it is missing."""
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda", "the fastest here"
        if torch.backends.mps.is_available():
            return "mps", "the fastest here"
        return "cpu", "no CUDA or MPS here"
    try:
        torch.empty(0, device=device).cpu()  # "meta" holds no numbers
    except (RuntimeError, AssertionError):  # the latter if PyTorch was built without it
        raise OmnidraftError(f"unknown device {device!r}, or PyTorch does not find it here: "
                             "choose auto, cpu, cuda, cuda:1 or mps") from None
    return device, "as asked"


def fetch(name: str) -> tuple[Path, bool]:
    """The folder with a hub id's small files, and whether the hub was reached (asked once)."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise OmnidraftError(f"unknown model {name!r}: not a folder, and not a hub id (owner/name)")
    try:
        HfApi().model_info(name, timeout=10)
        online = True
    except RepositoryNotFoundError:
        raise OmnidraftError(f"unknown model {name!r}: not a folder, and not on the Hugging Face "
                             "hub (or private: run `hf auth login`)") from None
    except Exception:  # no network, a proxy, offline mode: only earlier downloads can be used
        online = False
    with one_line(f"cannot load {name}"):
        folder = snapshot_download(name, allow_patterns=SMALL_FILES, local_files_only=not online)
    return Path(folder), online


def load_tokenizer(folder: Path, trust: bool) -> Tokenizer:
    """The tokenizer.json itself (transformers rebuilds some), else older files, converted."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    try:
        made = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        tokenizer = copied(made, folder.resolve().name)
        if not any(tokenizer.token_bytes):
            raise ValueError("an empty one, with special tokens only")
    except Exception as error:  # its message has many lines
        raise OmnidraftError(f"no usable tokenizer in {folder}: it needs a tokenizer.json, or its "
                             "source files and the package sentencepiece") from error
    return tokenizer


def copied(made: Any, name: str) -> Tokenizer:
    """A copy of a tokenizer of transformers; OmnidraftError for one written in Python."""
    raw = getattr(made, "backend_tokenizer", None)
    if raw is None:
        raise OmnidraftError(f"{type(made).__name__} has no tokenizer.json: give the fast "
                             "tokenizer that AutoTokenizer.from_pretrained loads")
    named = {f"{role}_token": getattr(made, f"{role}_token") for role in WELL_KNOWN}
    return Tokenizer(raw.from_str(raw.to_str()), name, named)


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn any error raised inside into an OmnidraftError of one line."""
    try:
        yield
    except OmnidraftError:
        raise
    except Exception as error:
        says = str(error).strip() or type(error).__name__
        reason = says.splitlines()[0].rstrip(" :")
        for sign, clearer in CLEARER.items():
            if sign in says:
                reason = clearer
        if is_out_of_memory(error):
            reason = OUT_OF_MEMORY
        raise OmnidraftError(f"{what}: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings (this package checks the causes), and its bar in a pipe."""
    log = transformers.utils.logging
    level, bar = log.get_verbosity(), log.is_progress_bar_enabled() and not sys.stderr.isatty()
    log.set_verbosity_error()
    if bar:
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bar:
            log.enable_progress_bar()
