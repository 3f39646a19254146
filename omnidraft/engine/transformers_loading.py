"""Loading for `transformers_model`: folder or hub id, device, number type, tokenizer, errors."""

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
from .config import HUB_ID

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]  # configuration and tokenizer
NOT_CAUSAL = ("MaskedLM", "PreTraining", "Classification")


def load_parts(name: str, dtype: str, device: str, device_map: Any, trust_remote_code: bool,
               more: dict) -> dict[str, Any]:
    """What a TransformersModel is made of; raises OmnidraftError with one line (see its `load`)."""
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
    if not read_json(folder / "config.json").get("model_type"):
        raise OmnidraftError(f"{source} has no config.json with a model_type: it is no model's "
                             "folder, or damaged")
    number = getattr(torch, dtype, "auto")
    dtype_why = "as stored" if dtype == "auto" else "as asked"
    if dtype == "auto" and device == "cpu":
        number, dtype_why = torch.float32, "the fastest on a CPU"
    trust = {"trust_remote_code": trust_remote_code}
    with quiet(), one_line(f"cannot load {source}"):
        config = transformers.AutoConfig.from_pretrained(folder, **trust)
        stored = (config.architectures or [config.model_type])[0]
        causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        if (not (causal or hasattr(config, "auto_map")) or config.is_encoder_decoder
                or any(sign in stored for sign in NOT_CAUSAL)):
            raise OmnidraftError(f"{source} ({stored}) is not a causal language model: it cannot "
                                 "continue a text")
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=number, device_map=device_map, output_loading_info=True, **trust, **more)
        # subtle: transformers fills these with random numbers and says nothing here
        missing = set(found["missing_keys"]) & {key for key, _ in model.named_parameters()}
        if missing:
            raise OmnidraftError(f"{source}: the weights lack {min(missing)} (are they a causal "
                                 "language model's?)")
        model = model.to(device) if device_map is None else model
        tokenizer = load_tokenizer(folder, trust)
    return {"model": model.eval(), "tokenizer": tokenizer, "name": name, "folder": folder,
            "why": (device_why if device_map is None else "by device_map", dtype_why)}


def choose_device(device: str) -> tuple[str, str]:
    """The device and why ("cpu", "as asked"); raises OmnidraftError where it is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        best = next((kind for kind in there if there[kind]), None)
        return (best, "the fastest here") if best else ("cpu", "no CUDA or MPS here")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = "meta"
    if kind == "meta":
        raise OmnidraftError(f"unknown device {device!r}: choose auto, cpu, cuda, cuda:1 or mps")
    if not there.get(kind, True):
        raise OmnidraftError(f"device {device} is not there: use --device cpu, or install a "
                             "PyTorch build for it")
    return device, "as asked"


def fetch(name: str) -> tuple[Path, bool]:
    """Where the small files of a hub id are on disk, and whether the hub was reached.

    The hub is asked once, without retries: a wrong name or no network is reported at once.
    """
    if not HUB_ID.fullmatch(name):
        raise OmnidraftError(f"unknown model {name!r}: not a folder, and not a hub id (owner/name)")
    try:
        HfApi().model_info(name, timeout=10)
        online = True
    except RepositoryNotFoundError:
        raise OmnidraftError(f"unknown model {name!r}: not a folder, and not on the Hugging Face "
                             "hub (or private: run `hf auth login`)") from None
    except Exception:  # no network, a proxy, offline mode: only what is here can be used
        online = False
    with one_line(f"cannot load {name}"):
        try:
            return Path(snapshot_download(name, allow_patterns=SMALL_FILES,
                                          local_files_only=not online)), online
        except LocalEntryNotFoundError:
            raise OmnidraftError(f"cannot load {name}: no such folder, the Hugging Face hub is out "
                                 "of reach, and no earlier download is here") from None


def load_tokenizer(folder: Path, trust: dict[str, bool]) -> Tokenizer:
    """tokenizer.json as it is (transformers rebuilds some), else what older files convert to."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    try:
        made = transformers.AutoTokenizer.from_pretrained(folder, **trust)
    except Exception as error:  # many lines on what was tried
        raise OmnidraftError(f"no usable tokenizer in {folder}: it needs a tokenizer.json (or its "
                             "source and the package sentencepiece)") from error
    raw = getattr(made, "_tokenizer", None)
    if raw is None:
        raise OmnidraftError(f"{folder} has only a slow tokenizer ({type(made).__name__}): it "
                             "needs a tokenizer.json")
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
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reasons = {  # what is clearer than what transformers says
            "trust_remote_code=True":
                "it has Python code of its own; if you trust it, give trust_remote_code=True",
            "ignore_mismatched_sizes": "the weights have other shapes than config.json says"}
        reason = next((reasons[sign] for sign in reasons if sign in str(error)),
                      lines[0].rstrip(" :"))
        reason = OUT_OF_MEMORY if is_out_of_memory(error) else reason
        raise OmnidraftError(f"{what}: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' warnings (their causes are checked here); no progress bar in a pipe."""
    log = transformers.utils.logging
    level, bar = log.get_verbosity(), log.is_progress_bar_enabled() and not sys.stderr.isatty()
    log.set_verbosity(logging.ERROR)
    if bar:
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bar:
            log.enable_progress_bar()
