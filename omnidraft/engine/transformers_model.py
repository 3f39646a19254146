"""Any causal language model of Hugging Face transformers, behind the interface of the NumPy engine (`llama.Llama`).

What speculative decoding needs and transformers does not promise is a cache that can be rewound: every round takes
rejected tokens back (arXiv 2507.02659, Algorithm 1). When a model is taken over, its cache is found to be one of four:

- "cut": one entry per token, so the last ones can be cut off. A sliding window is kept this way too: the mask hides
  what lies behind it, whereas transformers' own windowed cache drops it for good.
- "again": a state that sums up the text (linear attention, or a mixture with attention). It only goes forward, so after
  a rewind the kept ids are read again.
- "single": the same, but several tokens at once would silently ignore the state (Mamba, Jamba): they go one by one.
- "none": nothing can be gone on from (RWKV, RecurrentGemma): every pass reads the whole text.

This module, `transformers_loading`, `transformers_generation` and `distributed_torch` alone import transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from .. import sampling_torch
from ..errors import OmnidraftError
from ..tokenizer import Tokenizer
from . import transformers_pass
from .config import flat_ids
from .transformers_loading import load_parts, one_line, quiet

ENTRY_PER_TOKEN = {"DynamicLayer", "DummyLayer"}  # the second uses another layer's entries
NO_LIMIT = 1 << 20  # the context of a model that names none (ALiBi, state spaces)


class TransformersCache:
    """The ids a model has read and what transformers keeps of them; `length` counts them, `rewind` takes the last back."""

    def __init__(self, can_cut: bool, on_device: bool = False) -> None:
        self.can_cut, self.on_device = can_cut, on_device
        self.ids: list[int | Tensor] = []
        self.keeps_hidden = False
        self.hidden: Tensor | None = None  # (rows, width) what the head read in the last pass, if it shall be kept
        self.state: Any = None  # transformers' cache; None: the next pass reads all ids again

    @property
    def length(self) -> int:
        """How many tokens have been read and not taken back."""
        return len(self.ids)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens only; raises OmnidraftError where there are not as many."""
        if not 0 <= length <= self.length:
            raise OmnidraftError(f"cannot rewind a cache of {self.length} tokens to {length}")
        if self.can_cut and self.state is not None and 0 < length < self.length:
            self.state.crop(length - self.length)  # minus the number of entries to remove
        elif length < self.length:
            self.state = None
        del self.ids[length:]


class TransformersModel:
    """A model ready to run: `forward` feeds tokens, `tokenizer` spells them, `eos_ids` end a text.

    `model` is a causal language model of transformers in eval mode on its device; it is never changed. `why` says how
    device and dtype were chosen; `own_pass` lets `transformers_pass` run a model that it knows, by default in full precision
    on a CPU. Raises OmnidraftError where later tokens change the logits of earlier ones.

    >>> model = TransformersModel.load("models/stories260K"); cache = model.new_cache()
    >>> model.forward([1, 403], cache).shape, cache.length, cache.rewind(1)
    ((1, 512), 2, None)
    """

    sampler = sampling_torch.Sampler  # for logits that stay on the device

    def __init__(self, model: Any, tokenizer: Tokenizer, *, name: str = "model", folder: Path | None = None,
                 why: tuple[str, str] = ("as given", "as given"), own_pass: bool | None = None) -> None:
        self.model, self.tokenizer, self.name, self.folder, self._why = model, tokenizer, name, folder, why
        # Where a map keeps parts on several devices, ids go to the first that computes, and the logits come back to it.
        places = getattr(model, "hf_device_map", None) or {"": model.get_input_embeddings().weight.device}
        self.device = torch.device(next((place for place in places.values() if place not in ("cpu", "disk")), "cpu"))
        self.dtype = model.dtype
        self._exact = self.dtype in (torch.float32, torch.float64)  # how closely two ways to compute must agree
        config = model.config.get_text_config(decoder=True)
        names = ("max_position_embeddings", "max_seq_len")
        self.context_size = next((size for name in names if (size := getattr(config, name, None))), NO_LIMIT)
        ends = [getattr(where, "eos_token_id", None) for where in (model.generation_config, config)]
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        arguments = inspect.signature(model.forward).parameters
        self._only_some_rows = "logits_to_keep" in arguments
        self._cache_name = "cache_params" if "cache_params" in arguments else "past_key_values"
        self.vocab_size = self._check_causal()
        own_pass = self._exact and self.device.type == "cpu" if own_pass is None else own_pass
        self.own_pass = own_pass and transformers_pass.runs(model)
        self._columns = self.own_pass and transformers_pass.streams(model)
        self.eos_ids = tuple(token for token in flat_ids(*ends, tokenizer.roles["eos"]) if token < self.vocab_size)
        self.cache_kind = self._find_cache_kind() if self._cache_name in arguments else "none"

    @classmethod
    def load(cls, name_or_folder: str | Path, dtype: str = "auto", device: str = "auto", *, device_map: Any = None,
             trust_remote_code: bool = False, compile: bool = False, own_pass: bool | None = None,
             **more: Any) -> TransformersModel:
        """Load a Hugging Face folder or hub id; raises OmnidraftError with one line for whatever is wrong with it.

        `dtype` "auto" is the stored one, on a CPU float32; `device` "auto" is cuda, else mps, else cpu; `device_map`
        spreads the model over several devices instead (needs accelerate); `compile` is for torch.compile, slow at first and
        in need of a C++ compiler; `own_pass` as above; `more` goes to `from_pretrained`.
        """
        own_pass = False if compile else own_pass
        with quiet():  # the first passes of some models warn of slower ways
            made = cls(**load_parts(str(name_or_folder), dtype, device, device_map, trust_remote_code, more), own_pass=own_pass)
        made.tokenizer = made.tokenizer.within(made.vocab_size)
        if compile:
            made.model.compile(dynamic=True)
        return made

    @property
    def kernel(self) -> str:
        """Where and how this model runs, and why, in a line."""
        runs = "our own pass" + ", W x^T for up to 16 tokens" * self._columns
        if not self.own_pass:
            runs = f"{getattr(self.model.config, '_attn_implementation', None)} attention"
        cache = {"cut": "cut on rewind", "again": "read again after a rewind",
                 "single": "read again after a rewind, token by token otherwise", "none": "none, all is read every time"}
        return (f"torch {torch.__version__} on {self.device} ({self._why[0]}), {str(self.dtype)[6:]} ({self._why[1]}), "
                f"{runs}, cache: {cache[self.cache_kind]}")

    @property
    def embedding(self) -> Tensor:
        """The embedding of each token (V, width)."""
        return self.model.get_input_embeddings().weight

    def new_cache(self, on_device: bool = False) -> TransformersCache:
        """An empty key-value cache for this model, with which `forward` gives tensors if they shall stay on the device."""
        return TransformersCache(self.cache_kind == "cut", on_device)

    def forward(self, ids: Sequence[int | Tensor], cache: TransformersCache, rows: int = 1) -> np.ndarray | Tensor:
        """Feed `ids` after what the cache holds; the logits after the last `rows` of them: (rows, vocab_size).

        float64 if the model is, else float32; copied from the device once, unless the cache says that they stay there. Ids may
        be tokens drawn there, () or (1,) each (copied where all is read again). Raises OmnidraftError where there are fewer ids
        than `rows`, ids outside the vocabulary, more than the context holds, no memory left, or copied logits not finite.
        """
        if not 1 <= rows <= len(ids):
            raise OmnidraftError(f"a pass over {len(ids)} tokens cannot give {rows} rows of logits")
        drawn = isinstance(ids[0], Tensor)
        if not drawn and (min(ids) < 0 or max(ids) >= self.vocab_size):
            raise OmnidraftError(f"token ids {min(ids)} to {max(ids)} do not fit a vocabulary of {self.vocab_size}")
        length = cache.length + len(ids)
        if length > self.context_size:
            raise OmnidraftError(f"the text is {length} tokens long, but the model's context holds {self.context_size} "
                                 "(shorten the prompt or generate fewer tokens)")
        state, cache.state = cache.state, None  # a pass that fails leaves its entries in some layers only: drop them all
        parts = [list(ids)]
        if state is None:
            parts, drawn = [[int(token) for token in (*cache.ids, *ids)]], False
            state = None if self.cache_kind == "none" else self._new_state()
        elif self.cache_kind == "single":
            parts = [[token] for token in ids]
        logits, hidden = [], []
        for part in parts:
            # What was drawn from broken logits is no token; it is told when it is copied.
            fed = torch.cat([token.view(1) for token in part]).clamp(0, self.vocab_size - 1) if drawn else torch.tensor(part)
            some, state, states = self._run(fed[None], state, min(rows, len(part)), cache.keeps_hidden)
            logits.append(some[0])
            hidden.append(states)
        cache.state, cache.hidden = state, torch.cat(hidden)[-rows:] if cache.keeps_hidden else None
        cache.ids += ids
        made = logits[0] if len(logits) == 1 else torch.cat(logits[-rows:])
        return made if cache.on_device else self._to_host(made)

    def _to_host(self, logits: Tensor) -> np.ndarray:
        """Logits (..., V) in one copy; raises OmnidraftError where they are not finite."""
        made = logits.cpu().numpy()
        if not np.isfinite(made.max(axis=-1)).all():
            raise OmnidraftError(f"{self.name}: the model's logits are NaN or infinite: its weights are broken or "
                                 f"{str(self.dtype)[6:]} is too small for it")
        return made

    def _run(self, texts: Tensor, state: Any, rows: int, hidden: bool = False) -> tuple[Tensor, Any, Tensor | None]:
        """One pass over (B, m) ids that follow `state` (None: no cache): logits (B, rows, V), the state after it, and if asked
        for the first text's last hidden states (rows, width), for models of the NumPy engine without the last norm's gain, as
        there."""
        if isinstance(state, transformers_pass.Pass):
            with torch.no_grad(), one_line(f"{self.name}: a pass over {texts.shape[1]} tokens failed"):
                logits, states = state(texts[0].to(self.device), rows, hidden)
                return logits[None].to(torch.promote_types(logits.dtype, torch.float32)), state, states
        options: dict[str, Any] = {"use_cache": state is not None} | ({"output_hidden_states": True} if hidden else {})
        if state is not None:
            options[self._cache_name] = state
        if self._only_some_rows:
            options["logits_to_keep"] = rows
        with torch.no_grad(), one_line(f"{self.name}: a pass over {texts.shape[1]} tokens failed"):
            result = self.model(input_ids=texts.to(self.device), **options)
            logits = result.logits[:, -rows:]  # (B, rows, V)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            state = getattr(result, self._cache_name) if state is not None else None
            states = result.hidden_states[-1][0, -rows:] if hidden else None
            if hidden and self.model.config.model_type in ("llama", "mistral", "qwen2", "qwen3"):
                states = states / self.model.model.norm.weight
        return logits, state, states

    def _new_state(self) -> DynamicCache | transformers_pass.Pass:
        """transformers' cache for this model, with whole layers in place of those that forget behind a window."""
        if self.own_pass:
            return transformers_pass.Pass(self.model, self._columns)
        state = DynamicCache(config=self.model.config)
        for place, layer in enumerate(state.layers):
            if type(layer) is DynamicSlidingWindowLayer:
                state.layers[place] = DynamicLayer()
        return state

    def _check_causal(self) -> int:
        """The width of the logits, V, by a pass over two texts that part at their last token."""
        one, other = self._to_host(self._run(torch.tensor([[0, 1, 2, 0], [0, 1, 2, 1]]), None, 4)[0])  # (4, V) each
        if np.abs(one[:3] - other[:3]).max() > (1e-4 if self._exact else 0.02) * np.abs(one[3] - other[3]).max():
            raise OmnidraftError(f"{self.name} ({self.model.config.model_type}) is not a causal language model: what "
                                 "comes later changes what it says before")
        return one.shape[-1]

    def _find_cache_kind(self) -> str:
        """Told by the cache's layers, and tried: whether going on from a state gives what reading it all at once does."""
        text = [0, 1, 2, 0, 2, 1, 1]
        [whole] = self._to_host(self._run(torch.tensor([text]), None, 4)[0])  # (4, V)
        self.own_pass, wished = False, self.own_pass
        cuts = {type(layer).__name__ for layer in self._new_state().layers} <= ENTRY_PER_TOKEN
        ways = [(True, "cut")] * wished + [(False, kind) for kind in ("cut", "again", "single")[not cuts:]]
        for self.own_pass, self.cache_kind in ways:
            cache = self.new_cache()
            try:
                for part in (text[:2], text[2:3]):
                    self.forward(part, cache)
                difference = np.abs(self.forward(text[3:], cache, rows=4) - whole).mean()
            except OmnidraftError:
                continue
            if cuts and not self.own_pass or difference < (1e-4 if self._exact else 0.05) * whole.std():
                return self.cache_kind
        return "none"
