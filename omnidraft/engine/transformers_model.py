"""Any causal language model of Hugging Face transformers, behind the interface of `llama.Llama`.

How rejected tokens leave its cache, which is not of one kind, is in `transformers_cache`.
"""

import inspect
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import sampling_torch
from ..text.errors import OmnidraftError
from ..text.tokenizer import Tokenizer
from .config import FAMILIES
from .model import check_pass, flat_ids, printable
from .transformers_cache import Cut, cache_name, choose
from .transformers_loading import copied, load_parts, one_line, quiet, unwrapped

TRIAL = 30  # tokens of a text on which caches are tried
NO_LIMIT = 1 << 20  # the context of a model that states none (ALiBi, state spaces)


class TransformersModel:
    """A model of transformers in eval mode, which is never changed; used like `llama.Llama`.

    `why` says how device and dtype were chosen. Raises OmnidraftError if it is not causal. If its
    cache cannot take tokens back cheaply, a line on stderr says so (`choice.warning`).
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, *, name: str = "model",
                 folder: Path | None = None, why: tuple[str, str] = ("as given", "as given")):
        self.model = model
        self.tokenizer = tokenizer
        self.name = printable(name)
        self.folder = folder
        self.dtype = model.dtype
        self.device = device_of(model)
        self._why = why
        self.speaks: Any = None  # the tokenizer of transformers that it came with, if any
        config = model.config.get_text_config(decoder=True)
        stated = (getattr(config, "max_position_embeddings", None)
                  or getattr(config, "max_seq_len", None))
        self.context_size = stated or NO_LIMIT
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        arguments = inspect.signature(model.forward).parameters
        self._only_some_rows = "logits_to_keep" in arguments
        self._positions = "position_ids" in arguments  # given as transformers' generate gives them
        self.cache_name = cache_name(arguments)
        self.vocab_size = self._check_causal()
        ends = (getattr(where, "eos_token_id", None) for where in (model.generation_config, config))
        self.eos_ids = flat_ids(*ends, tokenizer.roles["eos"], size=self.vocab_size)
        # many ids, far from the special ones: a fault may show only with some, or in a window
        middle = self.vocab_size // 2
        ids = middle // 2 + torch.arange(TRIAL) * 7919 % middle
        self.trial_ids = ids[None].to(self.device)
        self.choice = choose(self)
        if self.choice.warning():
            sys.stderr.write(f"{name!r} {self.choice.warning()}\n")

    @property
    def rereads(self) -> str:
        """Why a text is read again after a rejection or in every pass; "" if it is not."""
        return self.choice.rereads

    @property
    def can_cut(self) -> bool:
        """Can the last tokens be taken back from its cache?"""
        return not self.choice.rereads

    @property
    def drafting_pays(self) -> bool:
        """False if each proposal is a pass of its own."""
        return self.choice.drafting_pays

    @property
    def sampler(self) -> Any:
        """The class of sampler for its logits."""
        if self.device.type == "cpu":
            return sampling_torch.CpuSampler
        return sampling_torch.Sampler

    def __repr__(self) -> str:
        return f"TransformersModel({self.name!r}: {self.parameters:,} parameters, {self.kernel})"

    @classmethod
    def load(cls, name_or_folder: str | Path, dtype: str = "auto", device: str = "auto",
             **more: Any) -> "TransformersModel":
        """Load a Hugging Face folder or hub id; raises OmnidraftError with one line.

        `dtype` "auto" is the stored one, or float32 on a CPU, unless it is bfloat16 and the CPU
        multiplies that; `device` "auto" is cuda, else mps, else cpu. `more` goes to
        `from_pretrained`; a `device_map` spreads the model over devices.
        """
        with quiet(), one_line(f"cannot use {name_or_folder}, check its config.json"):
            made = cls(**load_parts(str(name_or_folder), dtype, device, **more))
        made.tokenizer = made.tokenizer.within(made.vocab_size)
        return made

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> "TransformersModel":
        """Wrap a loaded model, also of PEFT or compiled, and its tokenizer; both stay unchanged.

        Raises OmnidraftError for a model in training mode, or a tokenizer that is not its own.
        """
        model = unwrapped(model)
        name = Path(getattr(model, "name_or_path", "")).name or type(model).__name__
        if model.training:
            raise OmnidraftError(f"{name} is in training mode, with dropout: call model.eval()")
        with quiet():
            made = cls(model, copied(tokenizer, name), name=name)
        made.tokenizer = made.tokenizer.within(made.vocab_size)
        made.speaks = tokenizer
        return made

    @property
    def kernel(self) -> str:
        """One line on where and how this model runs, and why."""
        way = f"{getattr(self.model.config, '_attn_implementation', None)} attention"
        return (f"torch {torch.__version__} on {self.device} ({self._why[0]}), "
                f"{str(self.dtype)[6:]} ({self._why[1]}), {way}, cache: {self.choice}")

    @property
    def embedding(self) -> Tensor:
        """The embedding of each token (V, width)."""
        return self.model.get_input_embeddings().weight.detach()

    def new_cache(self, on_device: bool = False) -> Cut:
        """An empty cache; `on_device`: `forward` then returns tensors that stay on the device."""
        return self.choice.kind(self.choice.make, self.device, on_device)

    def forward(self, ids: Sequence[int | Tensor], cache: Cut,
                rows: int = 1) -> np.ndarray | Tensor:
        """Feed `ids` after what the cache holds; returns the logits (rows, V) of the last ids.

        They are float64 or float32, and copied from the device in one copy, unless the cache is
        `on_device`. Ids may be tokens drawn on the device, () or (1,) each. Raises OmnidraftError
        like `Llama.forward`, and if memory is full.
        """
        if ids and isinstance(ids[0], Tensor):
            check_pass(self, (), len(ids), rows, cache.length)
            text = torch.cat([token.view(1) for token in ids])
            # subtle: broken logits give invalid ids, which are reported when copied
            text = text.clamp(0, self.vocab_size - 1)
        else:
            check_pass(self, ids, len(ids), rows, cache.length)
            text = torch.tensor(ids, device=self.device)
        before = cache.ids
        try:
            run = partial(self.run, hidden=cache.keeps_hidden)
            logits, cache.hidden = cache.read(run, text[None], rows)
        except BaseException:
            # subtle: a failed pass leaves entries in some of the layers
            cache.ids = before
            cache.reset()
            raise
        return logits[0] if cache.on_device else self._to_host(logits[0])

    def run(self, texts: Tensor, rows: int, cache: Any = False, held: int = 0,
            hidden: bool = False) -> tuple[Tensor, Tensor | None, Any]:
        """One pass of transformers over texts (B, m) after the `held` tokens in its `cache`.

        Returns the last logits (B, rows, V); with `hidden` also the last hidden states (rows,
        width) of the first text, without the last norm's gain, as in the NumPy engine; and the
        cache. A cache of False: none; of None: the model makes it.
        """
        options = {"use_cache": cache is not False, "output_hidden_states": hidden}
        if options["use_cache"] and cache is not None:
            options[self.cache_name] = cache
        if self._positions:  # subtle: some models count otherwise, or ask a layer that cannot tell
            places = torch.arange(held, held + texts.shape[1], device=self.device)
            options["position_ids"] = places[None].expand(texts.shape)
        if self._only_some_rows:
            options["logits_to_keep"] = rows
        with torch.no_grad(), one_line(f"{self.name}: a pass over {texts.shape[1]} tokens failed"):
            result = self.model(input_ids=texts.to(self.device), **options)
            logits = result.logits[:, -rows:]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            states = None
            if hidden:
                states = result.hidden_states[-1][0, -rows:]
                family = FAMILIES.get(self.model.config.model_type)
                if family:
                    states = states / (self.model.model.norm.weight + int(family.gemma))
            return logits, states, result.get(cache_name(result), cache)

    def _to_host(self, logits: Tensor) -> np.ndarray:
        """Logits (..., V) in one copy; raises OmnidraftError if they are not finite."""
        made = logits.cpu().numpy()
        if not np.isfinite(made.max(axis=-1)).all():
            raise OmnidraftError(f"{self.name}: the model's logits are NaN or infinite: its "
                                 f"weights are broken or {str(self.dtype)[6:]} is too small for it")
        return made

    def _check_causal(self) -> int:
        """The width of the logits, from a pass over two texts that differ in their last token."""
        texts = torch.tensor([[0, 1, 2, 0], [0, 1, 2, 1]])
        try:
            logits, *_ = self.run(texts, 4)
        except OmnidraftError:  # it takes only positions of its own kind
            self._positions = False
            logits, *_ = self.run(texts, 4)
        one, other = self._to_host(logits)  # (4, V) each
        near = 0.02
        if self.dtype in (torch.float32, torch.float64):
            near = 1e-4
        if np.abs(one[:3] - other[:3]).max() > near * np.abs(one[3] - other[3]).max():
            raise OmnidraftError(f"{self.name} ({self.model.config.model_type}) is not a causal "
                                 "language model: later tokens change its earlier logits")
        return one.shape[-1]


def device_of(model: Any) -> torch.device:
    """Where ids go and logits come back: of a model on several devices, the first that computes."""
    places = getattr(model, "hf_device_map", None) or {
        "": model.get_input_embeddings().weight.device}
    for place in places.values():
        if place not in ("cpu", "disk"):
            return torch.device(place)
    return torch.device("cpu")
