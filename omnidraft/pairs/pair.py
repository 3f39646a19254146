"""A pair of models to use: `pair` loads it; `Pair` writes texts, whole or in pieces."""

import codecs
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import prod
from os import PathLike
from typing import Any, Literal

from ..decoding import Round
from ..engine.load import BACKENDS, config_of, drafter_for, load
from ..engine.model import Model
from ..lifting import Lifting
from ..ngram_cache import NGramCache
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import OmnidraftError, expect, shown
from ..text.files import paused
from .ngram_files import computed_once
from .pace import Pace, paced
from .prompts import ids_of, ids_of_each, uniforms_of

Reason = Literal["eos", "length", "stop", "context"]
MODEL = "a model, such as omnidraft.load gives"
NUMPY_IS_FASTER = 32_000_000  # parameters, below which calling PyTorch costs more than computing
TRANSFORMERS = {"temperature", "top_k", "top_p", "min_p", "max_new_tokens", "processor",
                "eos_token_id", "do_sample"}  # prepared for a decoder by its `generate`


@dataclass(frozen=True)
class Generation:
    """A text that a pair wrote, without its prompt; `sequences` has the ids of both.

    It ended with an end token ("eos"), after max_new_tokens ("length"), by a stop string
    ("stop"), or because the target's context is full ("context").
    """

    text: str
    tokens: list[int]  # target ids
    rounds: list[Round] = field(repr=False)
    finish_reason: Reason = "length"
    prompt_tokens: list[int] = field(default_factory=list, repr=False)

    @property
    def sequences(self) -> list[int]:
        """The ids of prompt and text."""
        return self.prompt_tokens + self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return json.loads(json.dumps(asdict(self), default=lambda number: number.item()))


class Pair(Pairing):
    """A pairing that writes texts, made by `pair`.

    Several threads may write with one pair at the same time, as long as none of them learns: with
    `learn`, with a Learner, or by changing `cache` or `draft`, give each thread a pair of its own.
    """

    _pace: tuple[Any, Any, Pace | None] = (None, None, None)  # drafter, settings, their account

    def __init__(self, draft: Any, target: Any, cache: NGramCache | None = None) -> None:
        expect("draft", draft, Model, MODEL)
        expect("target", target, Model, MODEL)
        expect("cache", cache, (None, NGramCache), "an NGramCache")
        with paused():
            super().__init__(draft, target, cache)

    def __repr__(self) -> str:
        return f"Pair(draft={self.draft.name!r}, target={self.target.name!r})"

    def find_splits(self) -> NGramCache:
        """As in `Pairing`; between large vocabularies it is computed once, and kept in a file."""
        compute = super().find_splits
        if self.one_vocabulary:
            return compute()
        return computed_once("splits", self.draft.tokenizer, self.target.tokenizer, compute)

    def find_spellings(self) -> NGramCache:
        """As in `Pairing`; kept in a file, as `find_splits` are."""
        compute = super().find_spellings
        if self.one_vocabulary:
            return compute()
        return computed_once("spellings", self.target.tokenizer, self.draft.tokenizer, compute)

    def _lift(self) -> Lifting:
        with paused():
            return super()._lift()

    def read(self, prompt: Any) -> tuple[list[int], list[int]]:
        """The ids for both models of a text, ids or a chat; OmnidraftError for anything else."""
        return ids_of(self, prompt)

    def pace(self, options: Options) -> Pace | None:
        """What decides whether a round drafts, kept for texts of equal settings; None: all do."""
        adaptive = options.adaptive
        if adaptive is None:
            adaptive = options.temperature == 0
        if not adaptive or options.stop.limit == 0:
            return None
        draft, known, pace = self._pace  # subtle: read at once, as for `lifting`
        settings = (options.verify, options.stop, options.sampling, options.heal, options.learn,
                    options.processor is None)
        if pace is None or draft is not self.draft or known != settings:
            pace = Pace.of(self.draft, self.target)
            self._pace = (self.draft, settings, pace)
        return pace

    def generate(self, prompt: Any, options: Options | None = None, *, seed: int = 0,
                 generator: Any = None, stop_strings: str | Sequence[str] = (),
                 **settings: Any) -> Any:
        """Continue a prompt; returns a `Generation`, or a list of them for a list of prompts.

        A prompt is a text, ids, or a chat (a list of {"role", "content"}). `generator` (NumPy's)
        replaces `seed`. `settings` are those of `Options.of` (max_new_tokens, do_sample, ...), if
        no `options` are given. Everything else that transformers' `generate` takes: see `decoder`.
        OmnidraftError for invalid arguments.

        >>> pair.generate("Once", max_new_tokens=8).finish_reason  # doctest: +SKIP
        'length'
        """
        options, stops = _checked(options, stop_strings, settings)
        uniforms = uniforms_of(seed, generator)
        read = ids_of_each(self, prompt)
        if isinstance(read, list):
            return [self._generation(one, options, uniforms, stops) for one in read]
        return self._generation(read, options, uniforms, stops)

    def stream(self, prompt: Any, options: Options | None = None, *,
               rounds: list[Round] | None = None, seed: int = 0, generator: Any = None,
               stop_strings: str | Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """The text of `generate`, in pieces of whole characters; `rounds` collects the rounds."""
        options, stops = _checked(options, stop_strings, settings)
        uniforms = uniforms_of(seed, generator)
        expect("rounds", rounds, (None, list), "a list, to which the rounds are added")
        read = ids_of_each(self, prompt)
        if isinstance(read, list):
            raise OmnidraftError("stream writes one text: give one prompt, or use generate")
        for record, piece, _ in self._pieces(read, options, uniforms, stops):
            if rounds is not None:
                rounds.append(record)
            if piece:
                yield piece

    def _generation(self, prompts: tuple[list[int], list[int]], options: Options,
                    uniforms: Uniforms, stops: list[bytes]) -> Generation:
        made = Generation("", [], [], prompt_tokens=prompts[0])
        text = ""
        for record, piece, reason in self._pieces(prompts, options, uniforms, stops):  # noqa: B007
            made.rounds.append(record)
            made.tokens.extend(record.emitted)
            text += piece
        return replace(made, text=text, finish_reason=reason)

    def _pieces(self, prompts: tuple[list[int], list[int]], options: Options, uniforms: Uniforms,
                stops: list[bytes]) -> Iterator[tuple[Round, str, Reason | None]]:
        """Each round, up to a stop string, its piece of text, and why the text ends with it."""
        tokenizer = self.target.tokenizer
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        data = tokenizer.decode_bytes(prompts[0])  # a stop string may begin there
        left = options.max_new_tokens
        for record in paced(self, prompts, options, uniforms):
            reason = None
            for count, token in enumerate(record.emitted, 1):
                if token in options.ends(self.target):
                    reason = "eos"
                    break
                # A special token has no bytes, but may be a stop string.
                spoken = tokenizer.token_bytes[token] or (tokenizer.strings[token] or "").encode()
                data += spoken
                if spoken and any(one in data[1 - len(spoken) - len(one):] for one in stops):
                    record = _cut(record, count)
                    reason = "stop"
                    break
            left -= len(record.emitted)
            if record.done and reason is None:
                reason = "context" if left else "length"
            piece = decoder.decode(tokenizer.decode_bytes(record.emitted), final=record.done)
            yield record, piece, reason
            if reason:
                break

    def decoder(self, *, generator: Any = None, streamer: Any = None, **settings: Any) -> Any:
        """For the `generate` of a target from transformers: `custom_generate=pair.decoder()`.

        It uses what transformers prepared (sampling, processors, criteria, cache) for one prompt,
        and draws with `generator`, else with torch.manual_seed's. `settings` are those options of
        `Options.of` that concern drafting. Raises OmnidraftError if the target is not from
        transformers and, when called, for options that it would ignore. Give a `streamer` here or
        to `generate`, and stop strings as StopStringCriteria. Above temperature 0, only ids and
        logits may decide what a processor returns. A text ends at the latest with the context.

        >>> model.generate(**inputs, custom_generate=pair.decoder(draft_length=6))  # doctest: +SKIP
        """
        wrong = settings.keys() & TRANSFORMERS
        if wrong:
            raise OmnidraftError(f"give {min(wrong)} to generate, not to decoder")
        if not hasattr(self.target, "speaks"):
            raise OmnidraftError(f"{self.target.name} is no transformers model: use one as target")
        if not (streamer is None or hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise OmnidraftError(f"streamer is {shown(streamer)}, but needs `put` and `end`")
        from .transformers_decoder import Decoder, in_transformers
        return Decoder(in_transformers(self), Options.of(**settings), generator, streamer)


def _checked(options: Options | None, stop_strings: Any,
             settings: dict[str, Any]) -> tuple[Options, list[bytes]]:
    """The options and stop strings of a text; OmnidraftError for invalid ones."""
    if options is not None and (settings or not isinstance(options, Options)):
        raise OmnidraftError(f"give Options or {min(settings, default='settings')}, not both")
    if options is None:
        options = Options.of(**settings)
    expect("stop_strings", stop_strings, (None, str, list, tuple), "texts")
    stops = stop_strings or ()
    if isinstance(stops, str):
        stops = [stops]
    if not all(type(one) is str and one for one in stops):
        raise OmnidraftError(f"stop_strings is {stop_strings!r}, but must be texts")
    return options, [one.encode(errors="surrogatepass") for one in stops]


def _cut(record: Round, count: int) -> Round:
    """The round with its first `count` tokens only: the text ends there."""
    draft_kept = record.draft_kept
    if count < len(record.emitted):
        draft_kept = min(draft_kept, sum(record.spans[:count]))
    return replace(record, emitted=record.emitted[:count], kinds=record.kinds[:count],
                   accepted=min(record.accepted, count), draft_kept=draft_kept, done=True)


def pair(draft: Any = None, target: Any = "qwen-like", backend: str = "numpy",
         draft_tokenizer: Any = None, target_tokenizer: Any = None, **how: Any) -> Pair:
    """A pair of two models: a drafter and a target, each given by name or already loaded.

    Give what `load` takes or returns, or a transformers model with its tokenizer: as (model,
    tokenizer), or in `draft_tokenizer` and `target_tokenizer`. Without `draft`: `drafter_for` the
    target. `how` goes to `load_two`: dtype, device; with torch also trust_remote_code, device_map.
    Raises OmnidraftError for anything else, or if the vocabularies have nothing in common.

    A float32 Llama, Mistral, Qwen or Gemma 3 of transformers on a CPU runs in the NumPy engine,
    which is faster and reads its weights once, now; with backend "torch" it runs as transformers
    runs it.

    >>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    >>> pair.generate("Once upon a time", max_new_tokens=11).text
    ', there was a girl named Ella who'
    """
    for name in how.keys() - {"draft_backend"}:
        if name.startswith(("draft", "target", "model")):
            raise OmnidraftError(f"unknown option {name!r}: give the models as draft and target")
    if draft is None:
        draft = drafter_for(str(getattr(target, "name", target)))
    draft = loaded(draft, draft_tokenizer, backend)
    target = loaded(target, target_tokenizer, backend)
    return Pair(*load_two(draft, target, backend=backend, **how))


def loaded(model: Any, tokenizer: Any = None, backend: str = "numpy") -> Any:
    """A name or a model of this package, unchanged; a transformers model behind its interface."""
    if isinstance(model, tuple) and len(model) == 2 and tokenizer is None:
        model, tokenizer = model
    kind = type(model).__name__
    theirs = all(hasattr(model, name) for name in ("config", "generation_config", "forward"))
    if theirs and not getattr(model.config, "is_encoder_decoder", False):
        if tokenizer is None:
            raise OmnidraftError(f"{kind} needs its tokenizer: give (model, tokenizer), or "
                                 "draft_tokenizer and target_tokenizer")
        from ..engine.transformers_model import TransformersModel
        from ..engine.transformers_numpy import in_numpy
        made = TransformersModel.of(model, tokenizer)
        if backend == "torch" or made.model is not model:  # in a wrapper, of PEFT for example
            return made
        return in_numpy(made) or made
    known = all(hasattr(model, name) for name in ("tokenizer", "eos_ids", "new_cache", "forward"))
    if not (known or isinstance(model, (str, PathLike))):
        raise OmnidraftError(f"{kind} is not a causal language model: give a name, a folder, what "
                             "omnidraft.load returns, or a transformers model with its tokenizer")
    if tokenizer is not None:
        raise OmnidraftError(f"{model if kind == 'str' else kind} has a tokenizer: do not give one")
    return model


def load_two(draft: Any, target: Any, backend: str = "numpy", draft_backend: str = "auto",
             device_map: Any = None, **how: Any) -> tuple[Any, Any]:
    """A drafter and a target, each given as for `load` or already loaded.

    `draft_backend` "auto" runs a small drafter on a CPU in the NumPy engine, whatever runs the
    target. `device_map` spreads only the target; the drafter goes to the target's first device.
    """
    wrong = set(how)
    if backend not in BACKENDS:
        wrong = {f"backend {backend!r}"}
    if wrong and not any(isinstance(one, (str, PathLike)) for one in (draft, target)):
        raise OmnidraftError(f"{min(wrong)} is for loading, but both models are loaded: omit it")
    if isinstance(target, (str, PathLike)):
        place = {}
        if device_map:
            place = {"device": "auto", "device_map": device_map}
        target = load(target, **{"backend": backend, **how, **place})
    if isinstance(draft, (str, PathLike)):
        if device_map and how.get("device", "auto") == "auto":
            how["device"] = str(target.device)
        if draft_backend == "numpy":  # wherever the target runs
            return load(draft, how.get("dtype", "auto")), target
        small = None
        if draft_backend == "auto":
            draft_backend = backend
            if backend == "torch":
                small = _small_in_numpy(draft, **how)
        draft = small or load(draft, backend=draft_backend, **how)
    return draft, target


def _small_in_numpy(name: Any, device: str = "auto", dtype: Any = "auto", **_: Any) -> Any:
    """The model in the NumPy engine if that can run it and is faster than PyTorch, else None."""
    from ..engine.transformers_loading import choose_device
    with suppress(OmnidraftError):  # an unknown device, or a model that only transformers reads
        shapes = config_of(name).tensor_shapes().values()
        if choose_device(device)[0] == "cpu" and sum(map(prod, shapes)) < NUMPY_IS_FASTER:
            return load(name, dtype)
