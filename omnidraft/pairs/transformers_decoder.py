"""Inside transformers: what `model.generate(..., custom_generate=pair.decoder())` calls.

transformers prepares processors, criteria, configuration, mask and cache; the loop is this
package's: greedy text equals that of plain `generate`, sampled text has the same distribution.
At temperature 0 processors may keep state; above, only ids and logits may decide (`stateless`).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from ..decoding import Text
from ..options import Options
from ..reading import Reader
from ..sampling import Uniforms
from ..text.errors import OmnidraftError, shown
from .pace import paced
from .prompts import ids_of

PREPARED = {"attention_mask", "position_ids", "cache", "cache_params", "use_cache",
            "logits_to_keep", "synced_gpus"}
METHODS = ("dola_layers", "penalty_alpha", "prompt_lookup_num_tokens")  # other ways to decode


def held_by(cache: Any) -> int:
    """The number of tokens in a cache of transformers; 0 for a state, which has no length."""
    layers = getattr(cache, "layers", ())
    lengths = [one.get_seq_length() for one in layers if hasattr(one, "get_seq_length")]
    return max(lengths, default=0)


def given_to_generate() -> dict[str, Any]:
    """The arguments of the `generate` that calls a decoder.

    subtle: transformers does not hand on its `streamer`, and who reads from that would wait.
    """
    frame = sys._getframe(2)
    return frame.f_locals if frame.f_code.co_name == "generate" else {}


@dataclass
class Process:
    """transformers' processors as one of the loop; `before`: padding, which the loop omits."""

    processors: Any
    before: list[int]
    temperature: float
    keeps: bool  # are scores asked for?
    kept: dict[int, Any] = field(default_factory=dict)  # length of the text -> scores (1, V)

    def __call__(self, ids: list[int], row: Any) -> Any:
        """The processed row (V,) after the ids."""
        row = torch.as_tensor(row)[None].to(torch.float32, copy=True)  # as transformers does
        names = names_of(self.processors)
        with told(f"a logits processor ({names})"):
            made = logits_of(self.processors(self.whole(ids, row.device), row), row, names)
        if self.keeps:
            self.kept[len(ids)] = made
        return made[0] * (self.temperature or 1.0)  # the loop divides by it again

    def whole(self, ids: list[int], device: Any) -> Any:
        """The ids (1, n) of the text with its padding."""
        return torch.tensor([self.before + ids], device=device)

    def scores(self, begin: int, end: int) -> tuple[Any, ...] | None:
        """The rows that the tokens of the text from `begin` to `end` were chosen from, if kept."""
        if not self.keeps:
            return None
        return tuple(self.kept[length] for length in range(begin, end))


@dataclass
class Decoder:
    """A decoding method in transformers for a pair's target, made by `Pair.decoder`."""

    pair: Any
    options: Options
    generator: Any  # NumPy's or PyTorch's
    streamer: Any

    def __call__(self, model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any,
                 generation_config: Any, **prepared: Any) -> Any:
        """The ids (1, n) of prompt and text, or transformers' output class with these ids."""
        from transformers.generation import GenerateDecoderOnlyOutput

        from ..engine.transformers_cache import cache_name
        config = generation_config
        asked = given_to_generate()
        if asked.get("assistant_model") is not None:
            raise OmnidraftError("pair.decoder() has its drafter: do not give an assistant_model")
        prepared["cache"] = prepared.pop(cache_name(prepared), None)
        pad, cache = self._check(model, input_ids, config, prepared)
        before, ids = (part.tolist() for part in input_ids[0].tensor_split([pad]))
        options = self._options(config, config.max_length - input_ids.shape[1])
        keeps = config.output_scores and config.return_dict_in_generate
        process = Process(logits_processor, before, options.temperature, keeps)
        checked = process if options.exact_match else stateless(process, names_of(logits_processor))
        options = replace(options, processor=checked)
        text = self._text(ids, cache)
        streamer = self.streamer
        if streamer:
            streamer.put(input_ids.cpu())
        else:
            streamer = asked.get("streamer")  # it has got the prompt
        start = len(ids)
        prompts = ids_of(self.pair, list(ids))
        records = paced(self.pair, prompts, options, draws_of(self.generator), text)
        for token in chain.from_iterable(record.emitted for record in records):
            ids.append(token)
            if streamer:
                streamer.put(torch.tensor([token]))
            made = process.whole(ids, input_ids.device)
            scores = process.scores(start, len(ids))
            ended = token in options.ends(self.pair.target)
            if ended or stopping_criteria(made, scores).all():
                break
        if streamer:
            streamer.end()
        if cache is not None:  # remove what came after the stop
            own = text.target.cache
            own.rewind(min(own.length, len(ids) - 1))
        if not config.return_dict_in_generate:
            return made
        held = {cache_name(GenerateDecoderOnlyOutput.__dataclass_fields__): cache}
        return GenerateDecoderOnlyOutput(made, scores, **held)

    def _text(self, ids: list[int], cache: Any) -> Text:
        """A new text, whose target continues from the cache of transformers, if there is one."""
        text = Text(self.pair)
        if cache is not None:
            target = self.pair.target
            held = ids[:held_by(cache)]
            own = self.pair.sampler(Uniforms([])).new_cache(target)
            own.hold(cache, held)
            text.target = Reader(target, own, held)
        return text

    def _options(self, config: Any, room: int) -> Options:
        """The options with what transformers' configuration says; `room`: most new tokens."""
        temperature = 0.0
        if config.do_sample:
            temperature = config.temperature or 1.0
        ends = config.eos_token_id
        if ends is None:
            ends = ()
        return replace(self.options, temperature=temperature, eos_token_id=ends,
                       max_new_tokens=room)

    def _check(self, model: Any, ids: Any, config: Any,
               prepared: dict[str, Any]) -> tuple[int, Any]:
        """How many ids are padding, and the cache to use, if any; OmnidraftError if unsupported."""
        from ..engine.transformers_loading import unwrapped
        mask, cache = prepared.get("attention_mask"), prepared["cache"]
        pad = 0 if mask is None else int((mask[0] == 0).sum())
        held = held_by(cache)
        kinds = {type(one).__name__ for one in getattr(cache, "layers", ())}
        cut = cache is not None and self.pair.target.can_cut and kinds <= {"DynamicLayer"}
        size = getattr(config, "_mask_length", None) if mask is None else mask.shape[1]
        for wrong, why in (
            (unwrapped(model) is not self.pair.target.model, "use generate of the pair's target"),
            (len(ids) > 1, "give one prompt at a time, num_return_sequences=1, and no beams"),
            (config.output_attentions or config.output_hidden_states or config.output_logits,
             "of the optional outputs, only scores are supported"),
            ({k for k in prepared if prepared[k] is not None} - PREPARED, "only ids are supported"),
            ([name for name in METHODS if getattr(config, name, None) is not None],
             f"{', '.join(METHODS)} are other decoding methods: leave them out"),
            (size not in (None, ids.shape[1]) or held >= ids.shape[1], "give all ids of the text"),
            (pad and not mask[0, pad:].all(), "the mask may hide only padding on the left"),
            (held and (pad or not cut), "give a cache that can be shortened and has no padding"),
        ):
            if wrong:
                raise OmnidraftError(f"pair.decoder(): {why}")
        return pad, cache if cut and not pad and (held or config.return_dict_in_generate) else None


def in_transformers(pair: Any) -> Any:
    """The pair with its target in transformers, whose cache `generate` hands over."""
    original = getattr(pair.target, "original", None)
    if original is None:
        return pair
    made = copy(pair)  # the same n-gram cache
    made.target = original
    return made


def draws_of(generator: Any) -> Uniforms:
    """Draws from NumPy's generator, or PyTorch's, which makes a seed; None: torch.manual_seed's."""
    if isinstance(generator, np.random.Generator):
        return Uniforms(generator)
    generator = torch.default_generator if generator is None else generator
    if not isinstance(generator, torch.Generator):
        raise OmnidraftError(f"generator is {generator!r}, but must be NumPy's or PyTorch's")
    seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    return Uniforms(np.random.default_rng(int(seed)))


def names_of(processors: Sequence[Any]) -> str:
    """The names of functions and the classes of objects, for messages."""
    return ", ".join(getattr(one, "__name__", type(one).__name__) for one in processors)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn an error of somebody's own function into one line."""
    try:
        yield
    except OmnidraftError:
        raise
    except Exception as error:
        says = f"{type(error).__name__} {error}".strip().splitlines()[0]
        raise OmnidraftError(f"{what} failed: {says}") from error


def stateless(run: Callable[[list[int], Any], Any], names: str) -> Callable[[list[int], Any], Any]:
    """`run`, a processor of ids [n] and logits (V,); its first call looks whether it keeps state.

    Then it is called for a text, a longer one, and the first again, which must give the same row.
    """
    looked: list[bool] = []

    def first(ids: list[int], row: Any) -> Any:
        if not looked:
            try:
                before = run(ids, row + 0)  # + 0: a copy, as it may change its argument
                likely = before + 0
                likely[sorted(set(ids))] = -np.inf  # a token that is new to the text
                run([*ids, int(likely.argmax())], row + 0)
                after = run(ids, row + 0)
            except OmnidraftError as error:
                raise OmnidraftError(f"{error}; above temperature 0 it also sees drafts that do "
                                     "not stay: if it keeps state, use do_sample=False, where it "
                                     "is called once per token") from error
            with np.errstate(invalid="ignore"):
                same = (before == after) | (abs(before - after) < 1e-3) | (before != before)
            if not same.all():
                raise OmnidraftError(f"{names} keeps state: its rows depend on earlier calls, but "
                                     "above temperature 0 only ids and logits may decide: use "
                                     "do_sample=False, where it is called once per token")
            looked.append(True)
        return run(ids, row)

    return first


def logits_of(made: Any, row: Any, who: str) -> Any:
    """What a processor returned for `row`; OmnidraftError if it has another shape."""
    if getattr(made, "shape", None) != row.shape:
        raise OmnidraftError(f"the logits processor {who} returned {shown(made)}, but must return "
                             f"logits of shape {tuple(row.shape)}")
    return made
