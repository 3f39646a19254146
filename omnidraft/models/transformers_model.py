"""Any causal language model of Hugging Face transformers, behind the interface of the NumPy engine (`llama.Llama`).

This is the only module of the package that imports torch and transformers. What decoding needs and transformers does
not promise is a key-value cache that can be rewound (arXiv 2507.02659, Algorithm 1 takes rejected tokens back every
round). Three kinds are told apart when a model is loaded:

- one entry per token: rewinding cuts the last entries off. A sliding window is kept this way too: the mask hides what
  lies behind it, where transformers' own windowed cache drops it for good;
- a state that sums up the text (Mamba, linear attention, and models that mix them with attention): it only goes
  forward, so after a rewind the kept ids are read again;
- no cache that goes on from several tokens correctly: every pass reads the whole text.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ..errors import OmnidraftError
from ..tokenizer import Tokenizer

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SMALL_FILES = ["*.json", "*.model", "*.txt", "*.jinja"]  # configuration and tokenizer
ENTRY_PER_TOKEN = {"DynamicLayer", "DummyLayer"}  # DummyLayer: shares another layer's entries


class TransformersCache:
    """The ids a model has read and what transformers keeps of them; `length` of them count, `rewind` takes the last back.

    >>> cache = model.new_cache(); _ = model.forward([1, 2, 3], cache); cache.rewind(1); cache.length
    1
    """

    def __init__(self, rewindable: bool) -> None:
        self.rewindable = rewindable
        self.ids: list[int] = []
        self.state: Any = None  # None: nothing is kept, the next pass reads all ids again

    @property
    def length(self) -> int:
        """How many tokens have been read and not taken back."""
        return len(self.ids)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens only; raises OmnidraftError where there are not as many."""
        if not 0 <= length <= self.length:
            raise OmnidraftError(f"cannot rewind a cache of {self.length} tokens to {length}")
        if 0 < length < self.length and self.rewindable and self.state is not None:
            self.state.crop(length - self.length)  # a negative number: how many entries to remove
        elif length < self.length:
            self.state = None
        del self.ids[length:]


class TransformersModel:
    """A model ready to run: `forward` feeds tokens, `tokenizer` spells them, `eos_ids` end a text.

    `model` is a causal model of transformers, on its device and in eval mode; nothing of it is ever changed. Raises
    OmnidraftError where later tokens change the logits of earlier ones (an encoder), or the logits are not finite.

    >>> model = TransformersModel.load("models/stories260K"); cache = model.new_cache()
    >>> model.forward([1, 403], cache).shape, cache.length
    ((1, 512), 2)
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, *, name: str = "model", folder: Path | None = None,
                 why: tuple[str, str] = ("as given", "as given")) -> None:
        self.model, self.tokenizer, self.name, self.folder = model, tokenizer, name, folder
        self.dtype, self.device = model.dtype, model.get_input_embeddings().weight.device
        text_config = model.config.get_text_config(decoder=True)
        # A model without positions (ALiBi, state spaces) names no limit.
        self.context_size = int(getattr(text_config, "max_position_embeddings", None) or 1 << 20)
        ends = [getattr(config, "eos_token_id", None) for config in (model.generation_config, text_config)]
        ends = [i for end in ends for i in (end if isinstance(end, (list, tuple)) else [end]) if i is not None]
        self.eos_ids = tuple(dict.fromkeys((*ends, *tokenizer.roles.get("eos", ()))))
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        accepted = inspect.signature(model.forward).parameters
        self._keeps_rows = "logits_to_keep" in accepted
        self._cache_name = next((kind for kind in ("past_key_values", "cache_params") if kind in accepted), None)
        self.vocab_size = self._check_causal()
        self._rewindable = self._cache_name is not None and self._has_entry_per_token()
        if not self._rewindable and self._cache_name and not self._goes_on():
            self._cache_name = None
        self._why = why

    @classmethod
    def load(cls, name_or_folder: str | Path, dtype: str = "auto", device: str = "auto", *, device_map: Any = None,
             trust_remote_code: bool = False, **more: Any) -> TransformersModel:
        """Load a folder or a hub id; raises OmnidraftError with one line for whatever is wrong with it.

        `dtype` is one of `DTYPES`; "auto" is the stored one, on a CPU float32. `device` "auto" is cuda, else mps, else
        cpu; `device_map` (needs accelerate) spreads a model over several instead. `more` goes to `from_pretrained`.
        """
        name, local = str(name_or_folder), Path(name_or_folder).expanduser()
        if dtype not in DTYPES:
            raise OmnidraftError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
        device, device_why = _choose_device(device)
        online = False
        if not local.is_dir():
            local, online = _fetch(name)
        elif not (local / "config.json").is_file():
            raise OmnidraftError(f"{local} has no config.json (an ordinary Hugging Face model folder is needed)")
        trust = {"trust_remote_code": trust_remote_code}
        with _quiet(), _one_line(f"cannot load {name}"):
            config = transformers.AutoConfig.from_pretrained(local, **trust)
            if config.is_encoder_decoder:
                raise OmnidraftError(f"{name} ({config.model_type}) is an encoder-decoder model, not a causal one: it "
                                     "cannot continue a text")
            kind, dtype_why = _choose_dtype(dtype, device, config)
            if not local.samefile(name) if Path(name).is_dir() else True:  # a hub id: weights are fetched by it
                more = {"local_files_only": not online, **more}
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                name if "local_files_only" in more else local, dtype=kind, device_map=device_map,
                output_loading_info=True, **trust, **more)
            if missing := sorted(set(found["missing_keys"]) & dict(model.named_parameters()).keys()):
                raise OmnidraftError(f"{name}: the weights lack {missing[0]} (is it a causal language model?)")
            if device_map is None:
                model = model.to(device)
            tokenizer = _load_tokenizer(local, trust)
            model_name = local.resolve().name if Path(name).expanduser().is_dir() else name
            return cls(model.eval(), tokenizer, name=model_name, folder=local, why=(device_why, dtype_why))

    @property
    def kernel(self) -> str:
        """Where and how this model runs, and why, in a line."""
        cache = ("cut on rewind" if self._rewindable else "read again on rewind" if self._cache_name else "none")
        attention = getattr(self.model.config, "_attn_implementation", None)
        return (f"torch {torch.__version__} on {self.device} ({self._why[0]}), {str(self.dtype)[6:]} ({self._why[1]}), "
                f"{attention} attention, cache: {cache}")

    def new_cache(self) -> TransformersCache:
        """An empty key-value cache for this model."""
        return TransformersCache(self._rewindable)

    def forward(self, ids: Sequence[int], cache: TransformersCache, rows: int = 1) -> np.ndarray:
        """Feed `ids` after what the cache holds; the logits after the last `rows` of them: (rows, vocab_size).

        float64 if the model is, else float32; one copy from the device. Raises OmnidraftError where there are fewer
        ids than `rows`, ids outside the vocabulary, more than the context holds, no memory left, or NaN logits.
        """
        if not 1 <= rows <= len(ids):
            raise OmnidraftError(f"a pass over {len(ids)} tokens cannot give {rows} rows of logits")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise OmnidraftError(f"token ids {min(ids)} to {max(ids)} do not fit a vocabulary of {self.vocab_size}")
        if cache.length + len(ids) > self.context_size:
            raise OmnidraftError(f"the text is {cache.length + len(ids)} tokens long, but the model's context holds "
                                 f"{self.context_size} (shorten the prompt or generate fewer tokens)")
        state, cache.state = cache.state, None  # a pass that fails leaves entries in some layers only: drop them
        unread = list(ids) if state is not None else [*cache.ids, *ids]
        if state is None and self._cache_name:
            state = self._new_state()
        logits, state = self._run([unread], state, rows)  # (1, rows, V)
        cache.state = state
        cache.ids += ids
        return logits[0]

    def _run(self, texts: list[list[int]], state: Any, rows: int) -> tuple[np.ndarray, Any]:
        """One pass over (B, m) ids that follow `state` (None: no cache): logits (B, rows, V), the state after it."""
        options: dict[str, Any] = {"use_cache": state is not None}
        if state is not None:
            options[self._cache_name] = state
        if self._keeps_rows:
            options["logits_to_keep"] = rows
        with torch.inference_mode(), _one_line(f"{self.name}: a pass over {len(texts[0])} tokens failed"):
            result = self.model(input_ids=torch.tensor(texts, device=self.device), **options)
            logits = result.logits[:, -rows:]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu().numpy()
        if not np.isfinite(logits.max(axis=-1)).all():
            raise OmnidraftError(f"{self.name}: the model's logits are NaN or infinite: its weights are broken or "
                                 f"{str(self.dtype)[6:]} is too small for it (try --dtype float32)")
        return logits, getattr(result, self._cache_name) if state is not None else None

    def _new_state(self) -> Any:
        """transformers' cache for this model, with whole layers in place of those that forget behind a window."""
        state = DynamicCache(config=self.model.config)
        for place, layer in enumerate(state.layers):
            if type(layer) is DynamicSlidingWindowLayer:
                state.layers[place] = DynamicLayer()
        return state

    def _has_entry_per_token(self) -> bool:
        return {type(layer).__name__ for layer in self._new_state().layers} <= ENTRY_PER_TOKEN

    def _check_causal(self) -> int:
        """The width of the logits, V, by a pass over two texts that part at their last token."""
        (one, other), _ = self._run([[0, 1, 2, 0], [0, 1, 2, 1]], None, 4)  # (4, V) each
        if np.abs(one[:3] - other[:3]).max() > 0.02 * np.abs(one[3] - other[3]).max():
            raise OmnidraftError(f"{self.name} ({self.model.config.model_type}) is not a causal language model: what "
                                 "comes later changes what it says before")
        return one.shape[-1]

    def _goes_on(self) -> bool:
        """Whether two passes with a cache give what one pass over the whole text gives (not all models' do)."""
        text, cache = [0, 1, 2, 0, 2, 1, 1], TransformersCache(False)
        whole, _ = self._run([text], None, 4)
        try:
            self.forward(text[:3], cache)
            pieces = self.forward(text[3:], cache, rows=4)
        except OmnidraftError:
            return False
        exact = self.dtype in (torch.float32, torch.float64)
        return bool(np.abs(pieces - whole[0]).mean() < (1e-4 if exact else 0.05) * whole.std())


def _choose_device(device: str) -> tuple[str, str]:
    """The device's name and why it was chosen."""
    mps = torch.backends.mps.is_available()
    if device == "auto":
        chosen = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
        return chosen, "the best there is" if chosen != "cpu" else "no CUDA, no MPS here"
    kind = device.partition(":")[0]
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not mps):
        raise OmnidraftError(f"device {device} is not there (torch {torch.__version__}): use --device cpu, or install a "
                             "PyTorch for it")
    try:
        return str(torch.device(device)), "as asked"
    except RuntimeError:
        raise OmnidraftError(f"unknown device {device!r}: choose auto, cpu, cuda, cuda:1, ... or mps") from None


def _choose_dtype(dtype: str, device: str, config: Any) -> tuple[torch.dtype, str]:
    """The number type and why it was chosen."""
    if dtype != "auto":
        return getattr(torch, dtype), "as asked"
    stored = getattr(config.get_text_config(decoder=True), "dtype", None) or getattr(config, "dtype", None)
    if device == "cpu" or not isinstance(stored, torch.dtype):
        return torch.float32, "CPUs are made for it" if device == "cpu" else "none is stored"
    return stored, "as stored"


def _fetch(name: str) -> tuple[Path, bool]:
    """The small files of a hub id in the local cache, and whether the hub was reached; one request, no retries."""
    if not HUB_ID.fullmatch(name):
        raise OmnidraftError(f"unknown model {name!r}: no such folder, and not a hub id (owner/name)")
    try:
        HfApi().model_info(name, timeout=10)
        online = True
    except RepositoryNotFoundError:
        raise OmnidraftError(f"unknown model {name!r}: neither a folder nor on huggingface.co (or private: log in with "
                             "`hf auth login`)") from None
    except Exception:  # no network, a proxy, offline mode: whatever it is, only what is here can be used
        online = False
    with _one_line(f"cannot load {name}"):
        try:
            return Path(snapshot_download(name, allow_patterns=SMALL_FILES, local_files_only=not online)), online
        except LocalEntryNotFoundError:
            raise OmnidraftError(f"cannot load {name}: huggingface.co is not reached, and no copy was downloaded "
                                 "before") from None


def _load_tokenizer(folder: Path, trust: dict[str, bool]) -> Tokenizer:
    """tokenizer.json as it is where there is one, else what transformers makes of the older files."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    try:
        fast = transformers.AutoTokenizer.from_pretrained(folder, **trust)
    except Exception as error:
        raise OmnidraftError(f"no usable tokenizer in {folder} ({_first_line(error)}): a tokenizer.json is needed") from None
    raw = getattr(fast, "_tokenizer", None)
    if raw is None:
        raise OmnidraftError(f"{folder} has only a slow tokenizer ({type(fast).__name__}): convert it to a tokenizer.json")
    config: dict[str, Any] = {f"{role}_token": getattr(fast, f"{role}_token") for role in ("bos", "eos", "pad", "unk")}
    return Tokenizer(raw, folder.resolve().name, config)


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Whatever goes wrong inside, in one line."""
    try:
        yield
    except OmnidraftError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error).lower()):
            raise OmnidraftError(f"{what}: out of memory (use a smaller model, a shorter text, --dtype bfloat16 or another "
                                 "--device)") from error
        raise OmnidraftError(f"{what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of transformers about what is checked here anyway; its progress bar only on a terminal."""
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
