"""Any causal language model of Hugging Face transformers, behind the interface of `llama.Llama`.

Every round takes back rejected tokens (arXiv 2507.02659, Algorithm 1). A cache with one entry per
token is cut; any other (state spaces, linear attention) goes back to a copy (`transformers_cache`)
or, if that does not give the model's own logits, each pass reads the text again.
"""

import inspect
import sys
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from .. import sampling_torch
from ..text.errors import OmnidraftError
from ..text.tokenizer import Tokenizer
from .config import FAMILIES
from .model import check_pass, check_rewind, flat_ids, printable
from .transformers_cache import Ahead, Copies
from .transformers_loading import copied, load_parts, one_line, quiet, unwrapped

ENTRY_PER_TOKEN = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}
# transformers' name for a cache; until 5.23 the second, or the third for a state; RWKV's the last
CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
# how copies are tried: read ids from `begin` to `end`, and go back to `stays`
READS = ((0, 24, 24), (24, 28, 25), (25, 26, 26), (26, 30, 27), (27, 30, 30))
STEPS = ((0, 24), *((place, place + 1) for place in range(24, 30)))  # a cache that only grows
CLEARLY = 0.7  # of the time of four passes: the most that one pass over four tokens may take
DIFFERS = ("; it has other logits for a token after others than for a whole text, so the text of a "
           "chat can differ from generate's")
NO_LIMIT = 1 << 20  # the context of a model that states none (ALiBi, state spaces)


def cache_name(names: Container[str]) -> str:
    """What transformers calls a cache among these arguments or fields; "" if there is none.

    >>> cache_name(["input_ids", "past_key_values"])
    'past_key_values'
    """
    return next((name for name in CACHE_NAMES if name in names), "")


class TransformersCache:
    """The ids that a model has read, and transformers' cache for them."""

    def __init__(self, on_device: bool = False) -> None:
        self.on_device, self.keeps_hidden = on_device, False
        self.ids: list[int | Tensor] = []
        self.hidden: Tensor | None = None  # (rows, width) the head's last input, if it is kept
        self.state: Any = None  # transformers' cache; None: the next pass rereads all ids

    @property
    def length(self) -> int:
        """The number of tokens that have been read and not taken back."""
        return len(self.ids)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError if there are fewer."""
        check_rewind(self.length, length)
        if length == 0 < self.length:
            self.state = None
        elif isinstance(self.state, (Ahead, Copies)):
            self.state = self.state if self.state.back_to(length) else None
        elif self.state is not None and length < self.length:
            self.state.crop(length - self.length)  # minus the number of entries to remove
        del self.ids[length:]


class TransformersModel:
    """A model of transformers in eval mode, which is never changed; used like `llama.Llama`.

    `why` says how device and dtype were chosen. Raises OmnidraftError if it is not causal. If each
    pass has to read all of the text again, `rereads` says why, and so does a line on stderr.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, *, name: str = "model",
                 folder: Path | None = None, why: tuple[str, str] = ("as given", "as given")):
        self.model, self.tokenizer, self.folder = model, tokenizer, folder
        self.name = printable(name)
        self.dtype, self._why = model.dtype, why
        # if spread over devices: ids go to the first that computes, and logits come back to it
        spread = getattr(model, "hf_device_map", None)
        places = spread.values() if spread else [model.get_input_embeddings().weight.device]
        self.device = torch.device(next((at for at in places if at not in ("cpu", "disk")), "cpu"))
        config = model.config.get_text_config(decoder=True)
        sizes = (getattr(config, key, None) for key in ("max_position_embeddings", "max_seq_len"))
        self.context_size = next(filter(None, sizes), NO_LIMIT)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        arguments = inspect.signature(model.forward).parameters
        self._only_some_rows = "logits_to_keep" in arguments
        self._positions = "position_ids" in arguments  # given as transformers' generate gives them
        self._cache_name = cache_name(arguments)
        self.rereads = self._why_it_rereads()  # "": its cache can drop the last tokens
        self._at_once: bool | None = None  # argument of `Copies`; None: its cache is cut
        self._alone = ""  # why not at once
        self._ahead: Callable[[], Ahead] | None = None  # makes a cache that only grows
        self.speaks: Any = None  # the tokenizer of transformers that it came with, if any
        self.vocab_size = self._check_causal()
        # several, far from the special ones: a fault may show only with some tokens, or in a window
        middle = self.vocab_size // 2
        self.trial_ids = middle // 2 + torch.arange(30)[None] * 7919 % middle
        ends = (getattr(where, "eos_token_id", None) for where in (model.generation_config, config))
        self.eos_ids = flat_ids(*ends, tokenizer.roles["eos"], size=self.vocab_size)
        if self.rereads and self._cache_name:
            self._try_copies()
        if self.rereads and self._cache_name:
            self._try_ahead()
        if self._ahead:
            sys.stderr.write(f"{name!r} would read the whole text again after a rejected proposal: "
                             f"{self.rereads}; as a target it writes without drafts, unless you "
                             "give a draft length or a stop rule\n")
        elif self.rereads:
            sys.stderr.write(f"{name!r} reads the whole text again in every pass, which is slow: "
                             f"{self.rereads}\n")
        elif self._at_once is False:
            sys.stderr.write(f"{name!r} reads proposals one at a time, as several at once are "
                             f"{self._alone} here: as a target it writes without drafts, unless "
                             "you give a draft length or a stop rule\n")

    can_cut = property(lambda self: not self.rereads)  # can the last tokens be taken back?
    # else each proposal is a pass of its own
    drafting_pays = property(lambda self: self._at_once is not False and not self._ahead)
    sampler = property(lambda self: (
        sampling_torch.CpuSampler if self.device.type == "cpu" else sampling_torch.Sampler))

    def __repr__(self) -> str:
        return f"TransformersModel({self.name!r}: {self.parameters:,} parameters, {self.kernel})"

    @classmethod
    def load(cls, name_or_folder: str | Path, dtype: str = "auto", device: str = "auto",
             **more: Any) -> "TransformersModel":
        """Load a Hugging Face folder or hub id; raises OmnidraftError with one line.

        `dtype` "auto" is the stored one, or float32 on a CPU; `device` "auto" is cuda, else mps,
        else cpu. `more` goes to `from_pretrained`; a `device_map` spreads the model over devices.
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
        made.tokenizer, made.speaks = made.tokenizer.within(made.vocab_size), tokenizer
        return made

    @property
    def kernel(self) -> str:
        """One line on where and how this model runs, and why."""
        way = f"{getattr(self.model.config, '_attn_implementation', None)} attention"
        cache = "cut on rewind" if self._at_once is None else "copied every round"
        cache += ", one token at a time" * (self._at_once is False)
        cache = f"none, all is read every time: {self.rereads}" if self.rereads else cache
        cache = f"read again after a rejection: {self.rereads}" if self._ahead else cache
        return (f"torch {torch.__version__} on {self.device} ({self._why[0]}), "
                f"{str(self.dtype)[6:]} ({self._why[1]}), {way}, cache: {cache}")

    @property
    def embedding(self) -> Tensor:
        """The embedding of each token (V, width)."""
        return self.model.get_input_embeddings().weight.detach()

    def new_cache(self, on_device: bool = False) -> TransformersCache:
        """An empty cache; `on_device`: `forward` then returns tensors that stay on the device."""
        return TransformersCache(on_device)

    def forward(self, ids: Sequence[int | Tensor], cache: TransformersCache,
                rows: int = 1) -> np.ndarray | Tensor:
        """Feed `ids` after what the cache holds; returns the logits (rows, V) of the last ids.

        They are float64 or float32, and copied from the device in one copy, unless the cache is
        `on_device`. Ids may be tokens drawn on the device, () or (1,) each. Raises OmnidraftError
        like `Llama.forward`, and if memory is full.
        """
        drawn = isinstance(ids[0], Tensor) if ids else False
        check_pass(self, () if drawn else ids, len(ids), rows, cache.length)
        # subtle: a failed pass leaves entries in some of the layers, so its state is discarded
        state, cache.state = cache.state, None
        held = cache.length
        if state is None:
            held = 0
            state, text = self._new_state(), torch.tensor([int(i) for i in (*cache.ids, *ids)])
            if isinstance(state, Copies) and cache.ids:  # apart, so that there is a copy after it
                before, text = text.tensor_split([len(cache.ids)])
                self._run(before[None], state, 1)
        elif drawn:  # subtle: broken logits give invalid ids, which are reported when copied
            text = torch.cat([token.view(1) for token in ids]).clamp(0, self.vocab_size - 1)
        else:
            text = torch.tensor(ids)
        logits, cache.hidden = self._run(text[None], state, rows, cache.keeps_hidden, held)
        cache.state = state
        cache.ids += ids
        return logits[0] if cache.on_device else self._to_host(logits[0])

    def _to_host(self, logits: Tensor) -> np.ndarray:
        """Logits (..., V) in one copy; raises OmnidraftError if they are not finite."""
        made = logits.cpu().numpy()
        if not np.isfinite(made.max(axis=-1)).all():
            raise OmnidraftError(f"{self.name}: the model's logits are NaN or infinite: its "
                                 f"weights are broken or {str(self.dtype)[6:]} is too small for it")
        return made

    def _run(self, texts: Tensor, state: Any, rows: int, hidden: bool = False,
             held: int = 0) -> tuple[Tensor, Tensor | None]:
        """The logits (B, rows, V) of (B, m) ids after the `held` ones in `state`, which grows.

        If it is None, nothing is kept. With `hidden`, also the last hidden states (rows, width) of
        the first text, without the last norm's gain, as in the NumPy engine.
        """
        with torch.no_grad(), one_line(f"{self.name}: a pass over {texts.shape[1]} tokens failed"):
            if isinstance(state, (Ahead, Copies)):
                return state.read(partial(self._run_one, hidden=hidden), texts, rows)
            return self._run_one(texts, state, rows, hidden, held)

    def _run_one(self, texts: Tensor, state: Any, rows: int, hidden: bool,
                 held: int) -> tuple[Tensor, Tensor | None]:
        """One pass of transformers' own forward, which also fills the cache of an `Ahead`."""
        cache = state.cache if isinstance(state, Ahead) else state
        options = {"use_cache": state is not None}
        options |= {} if cache is None else {self._cache_name: cache}
        if self._positions:  # subtle: some models count otherwise, or ask a layer that cannot tell
            places = torch.arange(held, held + texts.shape[1], device=self.device)
            options["position_ids"] = places[None].expand(texts.shape)
        options |= {"logits_to_keep": rows} if self._only_some_rows else {}
        options |= {"output_hidden_states": hidden}
        result = self.model(input_ids=texts.to(self.device), **options)
        logits = result.logits[:, -rows:]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        states = result.hidden_states[-1][0, -rows:] if hidden else None
        if isinstance(state, Ahead):  # the model may have made it
            state.cache = result.get(cache_name(result), cache)
        if hidden and self.model.config.model_type in (*FAMILIES, "qwen3"):
            states = states / self.model.model.norm.weight
        return logits, states if hidden else None

    def _new_state(self) -> Copies | Ahead | DynamicCache | None:
        """An empty cache; None if tokens cannot be taken back from the model's cache."""
        if self._ahead:
            return self._ahead()
        state = DynamicCache(config=self.model.config)
        # keep all entries of a sliding-window layer: the mask hides those outside the window
        state.layers = [DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer
                        for layer in state.layers]
        if self.can_cut and self._at_once is not None:
            return Copies(state, self._at_once)
        return state if self.can_cut else None

    def _try_copies(self) -> None:
        """Use copies if they give the logits that the model has without a cache.

        Several tokens are read at once, if that is right and clearly faster here than one after
        another, which must be right in any case: plain decoding reads so.
        """
        why, ids = self.rereads, self.trial_ids
        wanted, _ = self._run(ids, None, ids.shape[1])
        seconds: dict[bool, float] = {}  # of reading four tokens, if the logits are right
        for self._at_once in (True, False, True, False):
            self.rereads = ""
            with suppress(OmnidraftError), one_line(f"{self.name}: its cache cannot be copied"):
                state, found, took = self._new_state(), [], []
                for begin, end, stays in READS:
                    began = time.perf_counter()
                    logits, _ = self._run(ids[:, begin:end], state, end - begin)
                    found.append(logits[:, :stays - begin].cpu())  # waits for the device
                    took += [time.perf_counter() - began] * (end - begin == 4)
                    state.back_to(stays)
                if _near(torch.cat(found, 1), wanted.cpu(), self.dtype):
                    least = min(took)
                    seconds[self._at_once] = min(least, seconds.get(self._at_once, least))
        if False in seconds:  # far more than a measurement's noise must be won
            self._at_once = True in seconds and seconds[True] < CLEARLY * seconds[False]
            self._alone = "no faster" if True in seconds else "wrong"
            return
        self.rereads, self._at_once = why, None

    def _try_ahead(self) -> None:
        """Use a cache that only grows, of transformers or of the model's own kind, if it can be.

        Not if a model keeps its state elsewhere: then one text would change another.
        """
        one = self.trial_ids
        texts = [one, one.flip(1)]
        for make in (partial(DynamicCache, config=self.model.config), lambda: None):
            with suppress(OmnidraftError), one_line(f"{self.name}: its cache does not grow"):
                alone = [logits for text in texts for logits in self._steps([text], make)]
                if all(map(partial(_near, dtype=self.dtype), alone, self._steps(texts, make))):
                    whole = self._run(one, None, one.shape[1])[0].cpu()
                    differs = not _near(alone[0], whole, self.dtype)
                    self._ahead = partial(Ahead, make, differs)
                    self.rereads += DIFFERS * differs
                    return

    def _steps(self, texts: list[Tensor], make: Callable[[], Any]) -> list[Tensor]:
        """The logits (1, m, V) of texts (1, m) that are read in turns, each in `STEPS`."""
        states = [Ahead(make) for _ in texts]
        found: list[list[Tensor]] = [[] for _ in texts]
        for begin, end in STEPS:
            for text, state, logits in zip(texts, states, found, strict=True):
                state.prompt = STEPS[0][1]
                logits.append(self._run(text[:, begin:end], state, end - begin)[0].cpu())
                if state.cache is None:
                    raise OmnidraftError("it returns no cache")
        return [torch.cat(logits, 1) for logits in found]

    def _why_it_rereads(self) -> str:
        """Why a new text cannot continue what the model has read; "" if it can."""
        if not self._cache_name:
            return "its forward takes no cache"
        if self._cache_name == "state":
            return "it keeps one state for the whole text"
        kinds = {type(layer).__name__ for layer in DynamicCache(config=self.model.config).layers}
        if others := sorted(kinds - ENTRY_PER_TOKEN):
            return f"tokens cannot be taken back from its cache ({', '.join(others)})"
        return ""

    def _check_causal(self) -> int:
        """The width of the logits, from a pass over two texts that differ in their last token."""
        texts = torch.tensor([[0, 1, 2, 0], [0, 1, 2, 1]])
        state = self._new_state()
        try:
            logits, _ = self._run(texts, state, 4)
        except OmnidraftError:  # it takes only positions or a cache of its own kind
            self._positions, state = False, None
            logits, _ = self._run(texts, state, 4)
            if self.can_cut:
                self.rereads = "it does not take transformers' cache"
        # some models in older transformers keep their state elsewhere and leave this one empty
        layers = [one for one in getattr(state, "layers", ()) if type(one) is DynamicLayer]
        if any(layer.get_seq_length() != 4 for layer in layers):
            self.rereads = "it does not use transformers' cache"
        if state is not None and self.can_cut and not self._cuts(state, texts, logits):
            self.rereads = "its cache does not take several tokens after others"
        one, other = self._to_host(logits)  # (4, V) each
        near = 1e-4 if self.dtype in (torch.float32, torch.float64) else 0.02
        if np.abs(one[:3] - other[:3]).max() > near * np.abs(one[3] - other[3]).max():
            raise OmnidraftError(f"{self.name} ({self.model.config.model_type}) is not a causal "
                                 "language model: later tokens change its earlier logits")
        return one.shape[-1]

    def _cuts(self, state: Any, texts: Tensor, logits: Tensor) -> bool:
        """Does a cache that holds `texts` (B, m) give the last logits again, if these are cut?"""
        with suppress(OmnidraftError):
            for count in (2, 1):
                state.crop(-count)
                found, _ = self._run(texts[:, -count:], state, count, held=texts.shape[1] - count)
                # subtle: coarse, as this must not cost a model its cache for half precision's noise
                if not (found - logits[:, -count:]).abs().max() < 0.5 * logits.std():
                    return False
            return True
        return False


def _near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Are these the same logits, up to rounding?"""
    within = 1e-4 if dtype in (torch.float32, torch.float64) else 0.1
    return bool((found - wanted).abs().max() < within * wanted.std())
