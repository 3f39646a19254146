"""Loading for `transformers_model`: folder or hub id, device, number type, tokenizer, and one line for every failure."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from ..errors import OUT_OF_MEMORY, OmnidraftError, is_out_of_memory
from ..files import read_json
from ..special_tokens import WELL_KNOWN
from ..tokenizer import Tokenizer
from .loading import HUB_ID

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]  # configuration and tokenizer


def load_parts(name: str, dtype: str, device: str, device_map: Any, trust_remote_code: bool, more: dict) -> dict[str, Any]:
    """What a TransformersModel is made of, for a folder or hub id; raises OmnidraftError with one line (see its `load`)."""
    if dtype not in DTYPES:
        raise OmnidraftError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    if device_map is not None and device != "auto":
        raise OmnidraftError("device and device_map exclude each other: give one of them")
    device, device_why = choose_device(device)
    folder, source = Path(name).expanduser(), name
    if folder.is_dir():
        name, source = folder.resolve().name, str(folder)
    else:
        folder, online = fetch(name)
        more = {"local_files_only": not online, **more}
    if not (folder / "config.json").is_file():
        raise OmnidraftError(f"{source} has no config.json (an ordinary Hugging Face model is needed)")
    if not read_json(folder / "config.json").get("model_type"):
        raise OmnidraftError(f"{folder / 'config.json'} names no model_type: it is damaged, or no model's")
    with quiet(), one_line(f"cannot load {source}"):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        stored = (config.architectures or [config.model_type])[0]
        known = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map")
        if not known or config.is_encoder_decoder or any(
                sign in stored for sign in ("MaskedLM", "PreTraining", "Classification")):
            raise OmnidraftError(f"{source} ({stored}) is not a causal language model: it cannot continue a text")
        kind, dtype_why = ("auto", "as stored") if dtype == "auto" else (getattr(torch, dtype), "as asked")
        if dtype == "auto" and device == "cpu":
            kind, dtype_why = torch.float32, "the fastest on a CPU"
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=kind, device_map=device_map, trust_remote_code=trust_remote_code, output_loading_info=True, **more)
        # transformers fills these with random numbers and goes on
        if lacking := sorted(set(found["missing_keys"]) & {key for key, _ in model.named_parameters()}):
            raise OmnidraftError(f"{source}: the weights lack {lacking[0]} (are they a causal language model's?)")
        if device_map is None:
            model = model.to(device)
        tokenizer = load_tokenizer(folder, trust_remote_code)
    return {"model": model.eval(), "tokenizer": tokenizer, "name": name, "folder": folder,
            "why": (device_why if device_map is None else "by device_map", dtype_why)}


def choose_device(device: str) -> tuple[str, str]:
    """The device and why ("cpu", "as asked"); raises OmnidraftError for one that is not there."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        chosen = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
        return chosen, "the fastest here" if chosen != "cpu" else "no CUDA or MPS here"
    try:
        kind = torch.device(device).type
        if kind == "meta":
            raise RuntimeError
    except RuntimeError:
        raise OmnidraftError(f"unknown device {device!r}: choose auto, cpu, cuda, cuda:1 or mps") from None
    if not there.get(kind, True):
        raise OmnidraftError(f"device {device} is not there: use --device cpu, or install a PyTorch build for it")
    return device, "as asked"


def fetch(name: str) -> tuple[Path, bool]:
    """Where the small files of a hub id lie in the local cache, and whether the hub was reached.

    The hub is asked once and without retries, so that no network or a wrong name is told at once.
    """
    if not HUB_ID.fullmatch(name):
        raise OmnidraftError(f"unknown model {name!r}: not a folder, and not a hub id (owner/name)")
    try:
        HfApi().model_info(name, timeout=10)
        online = True
    except RepositoryNotFoundError:
        raise OmnidraftError(f"unknown model {name!r}: not a folder, and not on the Hugging Face hub (or private: "
                             "run `hf auth login`)") from None
    except Exception:  # no network, a proxy, offline mode: only what is here can be used
        online = False
    with one_line(f"cannot load {name}"):
        try:
            return Path(snapshot_download(name, allow_patterns=SMALL_FILES, local_files_only=not online)), online
        except LocalEntryNotFoundError:
            raise OmnidraftError(f"cannot load {name}: no such folder, the Hugging Face hub is out of reach, and no "
                                 "earlier download is here") from None


def load_tokenizer(folder: Path, trust_remote_code: bool) -> Tokenizer:
    """tokenizer.json as it is where there is one (transformers rebuilds some), else what older files convert to."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    try:
        made = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # many lines on what was tried
        raise OmnidraftError(f"no usable tokenizer in {folder}: it needs a tokenizer.json (or vocab.json and merges.txt, or "
                             "tokenizer.model with the package sentencepiece)") from error
    raw = getattr(made, "_tokenizer", None)
    if raw is None:
        raise OmnidraftError(f"{folder} has only a slow tokenizer ({type(made).__name__}): it needs a tokenizer.json")
    named = {f"{role}_token": getattr(made, f"{role}_token") for role in WELL_KNOWN}
    tokenizer = Tokenizer(raw, folder.resolve().name, named)
    if not any(tokenizer.token_bytes):  # made up from nothing, with special tokens only
        raise OmnidraftError(f"no tokenizer in {folder}: it needs a tokenizer.json")
    return tokenizer


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn whatever goes wrong inside into an OmnidraftError of one line."""
    try:
        yield
    except OmnidraftError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OmnidraftError(f"{what}: {OUT_OF_MEMORY}") from error
        if "trust_remote_code=True" in str(error):
            raise OmnidraftError(f"{what}: it runs Python code of its own; read it, and if you trust it load it from "
                                 "Python with trust_remote_code=True") from error
        if "ignore_mismatched_sizes" in str(error):
            raise OmnidraftError(f"{what}: the weights have other shapes than config.json says") from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise OmnidraftError(f"{what}: {lines[0].rstrip(':')}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' warnings (what they tell is checked here); with its progress bar on terminals only."""
    told = transformers.utils.logging
    level, bar = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity(logging.ERROR)
    if not sys.stderr.isatty():
        told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if bar:
            told.enable_progress_bar()
