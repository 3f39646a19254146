"""Texts from a pair: `generate` returns them, `stream` yields pieces; transformers' argument names.

Every prompt takes one path: `prompts.read` gives its ids, a `Text` writes what follows.
"""

import codecs
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ..decoding import Round
from ..engine.arguments import expect, shown
from ..engine.collector import paused
from ..lifting import Lifting
from ..ngram_cache import NGramCache
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..stopping import FixedLength
from ..text.errors import OmnidraftError
from ..text.files import default_folder
from . import ngram_files
from .control import (
    Control,
    as_batch,
    check_streamer,
    names_of,
    several,
    takes_tensors,
    told,
    uniforms_of,
)
from .loop import MODEL, Model
from .pace import Pace, paced
from .prompts import as_lists, ids_of, kind_of, read
from .settings import ELSEWHERE, Settings, usual

if TYPE_CHECKING:
    from typing_extensions import Unpack

Chat: TypeAlias = Sequence[Mapping[str, Any]]  # messages with "role" and "content"
One: TypeAlias = str | Sequence[int] | Chat
Many: TypeAlias = list[str] | Sequence[Sequence[int]] | Sequence[Chat]
Reason = Literal["eos", "length", "stop", "context"]
LARGE = 2**16  # tokens of both vocabularies, from which their spellings are cached on disk
TRANSFORMERS = {"temperature", "top_k", "top_p", "min_p", "max_new_tokens", "processor",
                "eos_token_id", "do_sample"}  # prepared for a decoder by its `generate`


@dataclass(frozen=True)
class Generation:
    """A text that a pair wrote, without its prompt; `sequences` has the ids of both.

    It ended with an end token ("eos"), after max_new_tokens ("length"), by a stop string or
    criterion ("stop"), or because the target's context is full ("context").
    """

    text: str
    tokens: list[int]  # target ids
    rounds: list[Round] = field(repr=False)
    finish_reason: Reason = "length"
    prompt_tokens: list[int] = field(default_factory=list, repr=False)
    # With output_scores, the row (V,) of each token after the processors, before temperature.
    scores: tuple[Any, ...] | None = field(default=None, repr=False)

    @property
    def sequences(self) -> list[int]:
        """The ids of prompt and text."""
        return self.prompt_tokens + self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Everything but `scores`, ready for JSON."""
        found = {k: v for k, v in asdict(replace(self, scores=None)).items() if k != "scores"}
        return json.loads(json.dumps(found, default=lambda number: number.item()))


class Asked(Settings, total=False):
    """What else `generate` and `stream` take, with the forms of a tokenizer's output."""

    output_scores: bool
    seed: int
    generator: Any  # NumPy's or PyTorch's
    streamer: Any
    stop_strings: str | Sequence[str] | None
    stopping_criteria: Any
    logits_processor: Any
    repetition_penalty: float | None
    bad_words_ids: Sequence[Sequence[int]] | None
    input_ids: Any
    attention_mask: Any
    token_type_ids: Any


class Text:
    """One text being written: iterate over its pieces, then call `result`."""

    def __init__(self, pair: "Pair", prompts: tuple[list[int], list[int]], options: Options,
                 control: Control, uniforms: Uniforms, streamer: Any = None,
                 output_scores: bool = False) -> None:
        self.pair, self.control, self.uniforms, self.streamer = pair, control, uniforms, streamer
        self.prompts, self.ids, self.rounds, self.size = prompts, [*prompts[0]], [], len(prompts[0])
        self.data = pair.target.tokenizer.decode_bytes(self.ids)  # a stop string may begin there
        self.reason: Reason | None = None
        # By position: a row after a rejection is overwritten in the next round.
        self.options, self.scores = options, {} if output_scores else None

    def __iter__(self) -> Iterator[str]:
        run = self.control.processor(self.pair.target, self.options)

        def keep(ids: list[int], row: Any) -> Any:
            self.scores[len(ids)] = (run(ids, row) if run else row) + 0  # a copy
            return self.scores[len(ids)]

        options = replace(self.options, processor=run if self.scores is None else keep)
        spell = self.pair.target.tokenizer
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._show(self.ids)
        for record in paced(self.pair, self.prompts, options, self.uniforms):
            for count, token in enumerate(record.emitted, 1):
                self.ids.append(token)
                self.reason = self._ends(token) or (
                    "context" if record.done and count == len(record.emitted) else None)
                if self.reason:
                    break
            if count < len(record.emitted):
                record = replace(  # tokens after the stop are not part of the text
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
        """The Generation for what was written; `text` is its joined pieces."""
        scores = self.scores and tuple(self.scores[at] for at in range(self.size, len(self.ids)))
        return Generation(text, self.ids[self.size:], self.rounds, self.reason or "length",
                          self.prompts[0], scores)

    def _ends(self, token: int) -> Reason | None:
        """Why the text ends with this token, or None."""
        target, control, spell = self.pair.target, self.control, self.pair.target.tokenizer
        if token in self.options.ends(target):
            return "eos"
        # A special token has no bytes, but may be a stop string.
        spoken = spell.token_bytes[token] or (spell.strings[token] or "").encode()
        self.data += spoken
        if spoken and any(one in self.data[1 - len(spoken) - len(one):] for one in control.strings):
            return "stop"
        for criterion in several(control.stopping_criteria):
            tensors = takes_tensors(criterion, target)
            scores = self.scores and tuple(
                as_batch(self.scores[at], tensors) for at in range(self.size, len(self.ids)))
            with told(f"the stopping criterion {names_of([criterion])}"):
                met = criterion(as_batch(self.ids, tensors), scores)
            if met.all() if hasattr(met, "all") else met:
                return "stop"
        return "length" if len(self.ids) - self.size >= self.options.max_new_tokens else None

    def _show(self, ids: list[int]) -> None:
        if self.streamer is not None:
            ids = as_batch(ids, "torch" in sys.modules)
            self.streamer.put(ids if not self.rounds else ids[0])


class Pair(Pairing):
    """A pairing that writes texts, made by `pairs.pair`.

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

    def find_splits(self) -> NGramCache:
        """As in `Pairing`; between large vocabularies it is computed once, and kept in a file."""
        return self._computed_once("splits", self.draft, self.target, super().find_splits)

    def find_spellings(self) -> dict[tuple[int, ...], int]:
        """As in `Pairing`; kept in a file, as `find_splits` are."""
        def compute() -> NGramCache:
            cache = NGramCache()
            cache.bind(self.target.tokenizer, self.draft.tokenizer)
            cache.add({spelling: (token, 0) for spelling, token in found().items()})
            return cache

        found = super().find_spellings
        cache = self._computed_once("spellings", self.target, self.draft, compute)
        return {spelling: token for spelling, token, _ in cache.items()}

    def _computed_once(self, what: str, one: Any, other: Any,
                       compute: Callable[[], NGramCache]) -> NGramCache:
        """What takes long between two large vocabularies, how `one` spells `other`, from a file."""
        spelling, spelled = one.tokenizer, other.tokenizer
        if self.one_vocabulary or spelling.size + spelled.size < LARGE:
            return compute()
        path = default_folder() / f"{what}-{spelling.key[:16]}-{spelled.key[:16]}.json"
        with suppress(OmnidraftError), paused():  # missing, damaged, or for other vocabularies
            return ngram_files.load(path, spelling, spelled)
        sys.stderr.write(f"computing once how {spelling.size:,} tokens spell {spelled.size:,} "
                         "others\n")
        with paused():
            made = compute()
        with suppress(OmnidraftError):  # if it cannot be written, it is computed each time
            ngram_files.save(made, path)
        return made

    def _lift(self) -> Lifting:
        with paused():
            return super()._lift()

    def read(self, prompt: Any) -> Any:
        """A text, or the ids for both models, as they are; ids and chats as these two lists of ids.

        Raises OmnidraftError for anything else.
        """
        if (kind := kind_of(as_lists(prompt))) in ("chat", "ids"):
            return ids_of(self, prompt)
        both = isinstance(prompt, tuple) and len(prompt) == 2
        if kind == "text" or both and kind_of(as_lists(prompt[0])) == "ids":
            return prompt
        raise OmnidraftError(f"{shown(prompt)} is not a prompt: give a text, ids, or a chat")

    def pace(self, options: Options) -> Pace | None:
        """What decides whether a round drafts, kept for texts of equal settings; None: all do."""
        adaptive = not options.temperature if options.adaptive is None else options.adaptive
        if not (adaptive and options.stop.limit):
            return None
        draft, known, pace = self._pace  # subtle: read at once, as for `lifting`
        settings = (options.verify, options.stop, options.sampling, options.heal, options.learn,
                    options.processor is None)
        if pace is None or draft is not self.draft or known != settings:
            pace = Pace()
            self._pace = self.draft, settings, pace
        return pace

    def __repr__(self) -> str:
        return f"Pair(draft={self.draft.name!r}, target={self.target.name!r})"

    @overload
    def generate(self, prompt: One, options: Options | None = None, *,
                 num_return_sequences: Literal[1] = 1,
                 return_dict_in_generate: Literal[True] = True,
                 **settings: "Unpack[Asked]") -> Generation: ...
    @overload
    def generate(self, prompt: Many, options: Options | None = None, *,
                 num_return_sequences: int = 1, return_dict_in_generate: Literal[True] = True,
                 **settings: "Unpack[Asked]") -> list[Generation]: ...
    @overload
    def generate(self, prompt: One, options: Options | None = None, *,
                 num_return_sequences: int, return_dict_in_generate: Literal[True] = True,
                 **settings: "Unpack[Asked]") -> list[Generation]: ...
    @overload
    def generate(self, prompt: Any = None, options: Options | None = None, *,
                 num_return_sequences: int = 1, return_dict_in_generate: bool = True,
                 **settings: "Unpack[Asked]") -> Any: ...
    def generate(self, prompt: Any = None, options: Options | None = None, *,
                 num_return_sequences: int = 1, return_dict_in_generate: bool = True,
                 output_scores: bool = False, seed: int = 0, generator: Any = None,
                 streamer: Any = None, stop_strings: str | Sequence[str] | None = None,
                 stopping_criteria: Any = None, logits_processor: Any = None,
                 repetition_penalty: float | None = None,
                 bad_words_ids: Sequence[Sequence[int]] | None = None, **settings: Any) -> Any:
        """Continue a prompt; returns a `Generation`, or a list for a batch or several sequences.

        A prompt is a text, ids (list, array or tensor, (n,) or (1, n)), the output of a
        transformers tokenizer (also as **inputs), or a chat: a list of {"role", "content"}. Several
        prompts of one kind, or ids (B, n), are a batch. Names are those of transformers;
        `generator` (NumPy's or PyTorch's) replaces `seed`. `settings` are those of `Options.of`
        (max_new_tokens, do_sample, ...), if no `options` are given; the sampling defaults in a
        model's generation_config.json are not used: the text is greedy unless you ask otherwise.
        return_dict_in_generate=False returns ids. A logits processor may keep state if the text is
        greedy; above temperature 0 only ids and logits may decide what it returns. OmnidraftError
        for invalid arguments.

        >>> pair.generate("Once", max_new_tokens=8).finish_reason  # doctest: +SKIP
        'length'
        """
        control = Control(stop_strings, stopping_criteria, logits_processor, repetition_penalty,
                          bad_words_ids)
        texts, batch = self._texts(prompt, options, control, num_return_sequences, seed, generator,
                                   streamer, output_scores, **settings)
        made = [text.result("".join(text)) for text in texts]
        found = made if return_dict_in_generate else [one.sequences for one in made]
        return found if batch or num_return_sequences > 1 else found[0]

    def stream(self, prompt: Any = None, options: Options | None = None, *,
               rounds: list[Round] | None = None,
               **settings: "Unpack[Asked]") -> Iterator[str]:
        """The text of `generate`, in pieces of whole characters; `rounds` collects the rounds."""
        control = Control(**{name: settings.pop(name) for name in (*settings,)
                             if name in Control.__dataclass_fields__})
        (text, *_), batch = self._texts(prompt, options, control, **settings)
        if batch:
            raise OmnidraftError("stream writes one text: give one prompt, or use generate")
        expect("rounds", rounds, (None, list), "a list, to which the rounds are added")
        text.rounds = text.rounds if rounds is None else rounds
        yield from text

    def _texts(self, prompt: Any, options: Options | None, control: Control, count: int = 1,
               seed: int = 0, generator: Any = None, streamer: Any = None,
               output_scores: bool = False, **settings: Any) -> tuple[list[Text], bool]:
        """The texts to write, and whether they are a batch; arguments as for `generate`."""
        uniforms = uniforms_of(seed, generator)
        masks = {k: settings.pop(k) for k in ("attention_mask", "token_type_ids") if k in settings}
        if prompt is None or masks:  # generate(**inputs)
            ids = settings.pop("input_ids", None) if prompt is None else prompt
            prompt = {"input_ids": ids, **masks}
        if options is not None and (settings or not isinstance(options, Options)):
            raise OmnidraftError(f"give Options or {min(settings, default='settings')}, not both; "
                                 "several prompts go into one list")
        for name in settings:
            given = settings[name] is not None and not isinstance(settings[name], FixedLength)
            if name in ELSEWHERE and given:
                raise OmnidraftError(f"unknown option {name!r}: {ELSEWHERE[name]}")
            if near := get_close_matches(name, Control.__dataclass_fields__, 1, 0.8):
                raise OmnidraftError(f"unknown option {name!r}: did you mean {near[0]!r}?")
        options = usual(options or Options.of(**settings), self.target)
        if not isinstance(count, Integral) or count < 1 or count > 1 and not options.temperature:
            raise OmnidraftError(f"num_return_sequences is {count!r}: give 1, or more if do_sample")
        prompts, batch = read(self, prompt)
        if streamer is not None:
            check_streamer(streamer)
            if len(prompts) * count > 1:
                raise OmnidraftError("a streamer can show one text only: give one prompt")
        return [Text(self, ids, options, control, uniforms, streamer, output_scores)
                for ids in prompts for _ in range(count)], batch

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
        if wrong := settings.keys() & TRANSFORMERS:
            raise OmnidraftError(f"give {min(wrong)} to generate, not to decoder")
        if not hasattr(self.target, "speaks"):
            raise OmnidraftError(f"{self.target.name} is no transformers model: use one as target")
        if streamer is not None:
            check_streamer(streamer)
        from .transformers_decoder import Decoder
        source = sys.modules["torch"].default_generator if generator is None else generator
        options = usual(Options.of(**settings), self.target)
        return Decoder(self, options, lambda: uniforms_of(0, source), streamer)
