"""Texts by a pair: `generate` returns them, `stream` their pieces, by transformers' names.

A prompt is a text, ids (list, array, tensor: (n,) or (1, n)), what a tokenizer of transformers
gives, or a chat: a list of {"role", "content"}. Prompts of one kind, or ids (B, n), are a batch.
"""

import codecs
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, overload

import numpy as np

from ..decoding import Round, check_prompt, speculative
from ..engine.loading import load_two, loaded
from ..errors import OmnidraftError
from ..files import default_folder
from ..ngram_cache import NGramCache
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from .control import Control, as_batch, takes_tensors
from .prompts import several, split

Reason = Literal["eos", "length", "stop", "context"]
LARGE = 2**16  # tokens of two vocabularies; how they spell each other is kept on disk
TRANSFORMERS = {"temperature", "top_k", "top_p", "min_p", "max_new_tokens", "processor",
                "eos_token_id", "do_sample"}  # what its `generate` has prepared for a decoder

@dataclass(frozen=True)
class Generation:
    """A text that a pair wrote, without its prompt; `sequences` are the ids of both.

    It ended with an end token ("eos"), after max_new_tokens ("length"), by a stop string or
    criterion ("stop"), or where the target's context is full ("context").
    """

    text: str
    tokens: list[int]  # the target's
    rounds: list[Round] = field(repr=False)
    finish_reason: Reason = "length"
    prompt_tokens: list[int] = field(default_factory=list, repr=False)
    # With output_scores, per token: its row (V,) after the processors, before temperature.
    scores: tuple[Any, ...] | None = field(default=None, repr=False)

    @property
    def sequences(self) -> list[int]:
        """The ids of prompt and text."""
        return self.prompt_tokens + self.tokens

    def to_dict(self) -> dict[str, Any]:
        """All but `scores`, for JSON."""
        found = {k: v for k, v in asdict(replace(self, scores=None)).items() if k != "scores"}
        return json.loads(json.dumps(found, default=lambda number: number.item()))


class Text:
    """One text being written: iterate for its pieces, then ask for its `result`."""

    def __init__(self, pair: "Pair", prompt: Any, options: Options, control: Control,
                 uniforms: Uniforms, streamer: Any = None, output_scores: bool = False) -> None:
        self.pair, self.control, self.uniforms, self.streamer = pair, control, uniforms, streamer
        self.prompts = pair.read(prompt)
        self.ids, self.rounds, self.data = [*self.prompts[0]], [], b""
        self.reason: Reason | None = None
        # By place: a row after a rejection is replaced in the next round.
        self.scores: dict[int, Any] | None = {} if output_scores else None
        run = control.processor(pair.target, options)

        def keep(ids: list[int], row: Any) -> Any:
            row = run(ids, row) if run else row
            self.scores[len(ids)] = row + 0
            return row

        self.options = replace(options, processor=keep if output_scores else run)

    def __iter__(self) -> Iterator[str]:
        spell = self.pair.target.tokenizer
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._show(self.ids)
        for record in speculative(self.pair, self.prompts, self.options, self.uniforms):
            for count, token in enumerate(record.emitted, 1):
                self.ids.append(token)
                self.reason = self._ends(token) or (
                    "context" if record.done and count == len(record.emitted) else None)
                if self.reason:
                    break
            if count < len(record.emitted):
                record = replace(  # what came after the stop is no part of the text
                    record, emitted=record.emitted[:count], kinds=record.kinds[:count],
                    accepted=min(record.accepted, count), done=True,
                    draft_kept=min(record.draft_kept, sum(record.spans[:count])))
            record.done = self.reason is not None
            self.rounds.append(record)
            self._show(record.emitted)
            if piece := decoder.decode(spell.decode_bytes(record.emitted), final=record.done):
                yield piece
            if record.done:
                break
        if self.streamer is not None:
            self.streamer.end()

    def result(self, text: str) -> Generation:
        """What was written, whose pieces are `text`."""
        size = len(self.prompts[0])
        scores = self.scores and tuple(self.scores[at] for at in range(size, len(self.ids)))
        return Generation(text, self.ids[size:], self.rounds, self.reason or "length",
                          self.prompts[0], scores)

    def _ends(self, token: int) -> Reason | None:
        """Why the text ends with its last token, if it does."""
        target, control, spell = self.pair.target, self.control, self.pair.target.tokenizer
        if token in self.options.ends(target):
            return "eos"
        # A special token spells nothing, but may be a stop string.
        spoken = spell.token_bytes[token] or (spell.strings[token] or "").encode()
        self.data += spoken
        for string in control.strings:
            if string in self.data[-len(spoken) - len(string) + 1:]:
                return "stop"
        for criterion in several(control.stopping_criteria):
            met = criterion(as_batch(self.ids, takes_tensors(criterion, target)), None)
            if met if isinstance(met, bool) else bool(met.all()):
                return "stop"
        full = len(self.ids) - len(self.prompts[0]) >= self.options.max_new_tokens
        return "length" if full else None

    def _show(self, ids: list[int]) -> None:
        if self.streamer is not None:
            ids = as_batch(ids, "torch" in sys.modules)
            self.streamer.put(ids if not self.rounds else ids[0])


class Pair(Pairing):
    """A pairing that writes texts; `omnidraft.pair` makes one."""

    def between(self, what: str) -> NGramCache:
        sides = [self.draft.tokenizer, self.target.tokenizer][::1 if what == "splits" else -1]
        if sum(sizes := [side.size for side in sides]) < LARGE:
            return super().between(what)
        one, other = (side.fingerprint for side in sides)
        path = default_folder() / f"{what}-{one[:16]}-{other[:16]}.json"
        with suppress(OmnidraftError):  # not there, damaged, or of other vocabularies
            return NGramCache.load(path, one, other, sizes)
        sys.stderr.write(f"how {sizes[0]:,} tokens spell {sizes[1]:,} others is found out, once\n")
        made = super().between(what)
        with suppress(OmnidraftError):  # where nothing can be written, each time
            made.save(path)
        return made

    def __repr__(self) -> str:
        return f"Pair(draft={self.draft.name!r}, target={self.target.name!r})"

    @overload
    def generate(self, prompt: str, options: Options | None = None, *,
                 num_return_sequences: Literal[1] = 1,
                 return_dict_in_generate: Literal[True] = True, **settings: Any) -> Generation: ...

    @overload
    def generate(self, prompt: Any, options: Options | None = None, **settings: Any) -> Any: ...

    def generate(self, prompt: Any, options: Options | None = None, *, seed: int = 0,
                 generator: Any = None, num_return_sequences: int = 1,
                 return_dict_in_generate: bool = True, output_scores: bool = False,
                 streamer: Any = None, stop_strings: str | Sequence[str] | None = None,
                 stopping_criteria: Any = None, logits_processor: Any = None,
                 repetition_penalty: float | None = None,
                 bad_words_ids: Sequence[Sequence[int]] | None = None, **settings: Any) -> Any:
        """Continue a prompt: a `Generation`; of a batch, or several sequences of one, a list.

        `settings` are those of `Options.of` (max_new_tokens, do_sample, top_p, min_p,
        eos_token_id, ...), if no `options` are given; the others are called as in transformers.
        `generator` is NumPy's or PyTorch's, in place of `seed`; without return_dict_in_generate
        ids are returned. Raises OmnidraftError for a prompt or setting that will not do.

        >>> pair.generate("Once", max_new_tokens=8).finish_reason  # doctest: +SKIP
        'length'
        """
        control = Control(stop_strings, stopping_criteria, logits_processor, repetition_penalty,
                          bad_words_ids)
        options = _options(options, settings)
        prompts, batch = split(prompt, self.target.tokenizer.roles["pad"])
        count = num_return_sequences
        if not isinstance(count, Integral) or count < 1 or count > 1 and not options.temperature:
            raise OmnidraftError(f"num_return_sequences is {count!r}, but must be 1, or more with "
                                 "do_sample=True")
        if streamer is not None and len(prompts) * count > 1:
            raise OmnidraftError("a streamer shows one text: give one prompt")
        uniforms, made = uniforms_of(seed, generator), []
        for one in prompts:
            for _ in range(count):
                text = Text(self, one, options, control, uniforms, streamer, output_scores)
                made.append(text.result("".join(text)))
        found = made if return_dict_in_generate else [one.sequences for one in made]
        return found if batch or count > 1 else found[0]

    def stream(self, prompt: Any, options: Options | None = None, *, seed: int = 0,
               generator: Any = None, rounds: list[Round] | None = None,
               **settings: Any) -> Iterator[str]:
        """The text of `generate` piece by piece, never cut inside a character.

        `settings` as there, for one prompt; `rounds` collects the rounds.
        """
        control = Control(**{name: settings.pop(name) for name in (*settings,)
                             if name in Control.__dataclass_fields__})
        options = _options(options, settings)
        prompts, batch = split(prompt, self.target.tokenizer.roles["pad"])
        if batch:
            raise OmnidraftError("stream writes one text: give one prompt, or take generate")
        text = Text(self, prompts[0], options, control, uniforms_of(seed, generator))
        text.rounds = text.rounds if rounds is None else rounds
        yield from text

    def decoder(self, *, generator: Any = None, streamer: Any = None, **settings: Any) -> Any:
        """For transformers' own `generate` of the target: `custom_generate=pair.decoder()`.

        It takes what transformers prepared (sampling, processors, criteria, cache) for one prompt,
        and draws by `generator`, else as torch.manual_seed says. `settings` are those of
        `Options.of` on drafting. Raises OmnidraftError for a target that is not transformers', and
        when called for what it would ignore.

        >>> model.generate(**inputs, custom_generate=pair.decoder(draft_length=6))  # doctest: +SKIP
        """
        if wrong := settings.keys() & TRANSFORMERS:
            raise OmnidraftError(f"give {min(wrong)} to generate, not to decoder")
        if not hasattr(self.target, "speaks"):
            raise OmnidraftError(f"{self.target.name} is no model of transformers: pair one")
        from .transformers_decoder import Decoder
        source = sys.modules["torch"].default_generator if generator is None else generator
        return Decoder(self, Options.of(**settings), lambda: uniforms_of(0, source), streamer)

    def read(self, prompt: Any) -> tuple[list[int], list[int]]:
        """What target and drafter read for one prompt; with one vocabulary the same ids."""
        target, draft, other = self.target, self.draft, None
        if isinstance(prompt, str):
            ids, other = check_prompt(target, prompt), draft.tokenizer.encode(prompt, bos=True)
        elif isinstance(prompt[0], Mapping):
            if getattr(target, "speaks", None) is None:
                raise OmnidraftError(f"{target.name} came without a tokenizer of transformers, "
                                     "whose chat template reads messages: give (model, tokenizer)")
            ids, own = target.chat(prompt), getattr(draft, "speaks", None)
            other = draft.chat(prompt) if getattr(own, "chat_template", None) else None
        else:
            ids = check_prompt(target, prompt)
        if other is None:  # then the drafter reads the text of the target's ids
            other = draft.tokenizer.encode(target.tokenizer.decode(ids), bos=True)
        return check_prompt(target, ids), ids if self.one_vocabulary else other


def _options(options: Options | None, settings: dict[str, Any]) -> Options:
    """The options, or made of settings; not both."""
    if options is not None and settings:
        raise OmnidraftError(f"give options or {min(settings)}, not both")
    return options or Options.of(**settings)


def uniforms_of(seed: int, generator: Any = None) -> Uniforms:
    """Draws by a seed, or by NumPy's generator; PyTorch's gives a seed. OmnidraftError for others.

    >>> uniforms_of(0).accept(0.7)  # the first draw is 0.637
    True
    """
    own = isinstance(generator, np.random.Generator)
    if type(generator).__module__.startswith("torch"):
        torch = sys.modules["torch"]
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    elif generator is not None and not own:
        raise OmnidraftError(f"generator is {generator!r}, but must be NumPy's or PyTorch's")
    if not isinstance(seed, Integral) or seed < 0:
        raise OmnidraftError(f"seed is {seed!r}, but must be a whole number of 0 or more")
    return Uniforms(generator if own else np.random.default_rng(seed))


def pair(draft: Any = "draft-tasks", target: Any = "qwen-like", backend: str = "numpy",
         draft_tokenizer: Any = None, target_tokenizer: Any = None, **how: Any) -> Pair:
    """A pair of two models: a drafter and a target, each by name or as it is loaded.

    By name, folder or (backend "torch") hub id, as `load` gives it, or a model of transformers
    with its tokenizer, as (model, tokenizer) or in `draft_tokenizer` and `target_tokenizer`. `how`
    goes to `load_two`: dtype, device, with torch trust_remote_code, device_map. Raises
    OmnidraftError for anything else, or where the vocabularies have nothing in common.

    >>> pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    >>> pair.generate("Once upon a time", max_new_tokens=8).text  # doctest: +SKIP
    ', there was a little fox who'
    """
    draft, target = loaded(draft, draft_tokenizer), loaded(target, target_tokenizer)
    return Pair(*load_two(draft, target, backend=backend, **how))
