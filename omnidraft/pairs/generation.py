"""Texts from a pair: `generate` returns one, `stream` yields its pieces as they are written."""

import codecs
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..decoding import Round
from ..engine.model import Model
from ..lifting import Lifting
from ..ngram_cache import NGramCache
from ..options import Options
from ..pairing import Pairing
from ..sampling import Uniforms
from ..text.errors import OmnidraftError, expect
from ..text.files import default_folder, paused
from . import ngram_files
from .loop import MODEL
from .pace import Pace, paced
from .prompts import ids_of
from .settings import uniforms_of, usual

Reason = Literal["eos", "length", "stop", "context"]
LARGE = 2**16  # tokens of both vocabularies, from which their spellings are cached on disk
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


class Text:
    """One text being written: iterate over its pieces, then read `result`."""

    def __init__(self, pair: "Pair", prompts: tuple[list[int], list[int]], options: Options,
                 uniforms: Uniforms, stop_strings: Sequence[str] = ()) -> None:
        self.pair, self.prompts, self.options, self.uniforms = pair, prompts, options, uniforms
        self.stops = [one.encode(errors="surrogatepass") for one in stop_strings]
        self.tokens: list[int] = []
        self.rounds: list[Round] = []
        self.data = pair.target.tokenizer.decode_bytes(prompts[0])  # a stop string may begin there
        self.reason: Reason | None = None

    def __iter__(self) -> Iterator[str]:
        spell = self.pair.target.tokenizer
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for record in paced(self.pair, self.prompts, self.options, self.uniforms):
            record = self._cut(record)
            self.rounds.append(record)
            if piece := decoder.decode(spell.decode_bytes(record.emitted), final=record.done):
                yield piece
            if record.done:
                break

    def _cut(self, record: Round) -> Round:
        """Add a round's tokens to the text; the round, without those that come after its end."""
        count = 0
        for token in record.emitted:
            count += 1
            self.tokens.append(token)
            self.reason = self._ends(token)
            if self.reason:
                break
        if record.done and not self.reason:
            self.reason = "context"
        record.done = self.reason is not None
        return replace(record, emitted=record.emitted[:count], kinds=record.kinds[:count],
                       accepted=min(record.accepted, count), draft_kept=min(
                           record.draft_kept, sum(record.spans[:count]))
                       ) if count < len(record.emitted) else record

    def _ends(self, token: int) -> Reason | None:
        """Why the text ends with this token, or None."""
        target = self.pair.target
        if token in self.options.ends(target):
            return "eos"
        # A special token has no bytes, but may be a stop string.
        spell = target.tokenizer
        spoken = spell.token_bytes[token] or (spell.strings[token] or "").encode()
        self.data += spoken
        if spoken and any(one in self.data[1 - len(spoken) - len(one):] for one in self.stops):
            return "stop"
        return "length" if len(self.tokens) >= self.options.max_new_tokens else None

    def result(self, text: str) -> Generation:
        """The Generation for what was written; `text` is its joined pieces."""
        return Generation(text, self.tokens, self.rounds, self.reason or "length", self.prompts[0])


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

    def read(self, prompt: Any) -> tuple[list[int], list[int]]:
        """The ids for both models of a text, ids or a chat; OmnidraftError for anything else."""
        return ids_of(self, prompt)

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

    def generate(self, prompt: Any, options: Options | None = None, *, seed: int = 0,
                 stop_strings: Sequence[str] = (), **settings: Any) -> Generation:
        """Continue a prompt: a text, ids, or a chat (a list of {"role", "content"}).

        `settings` are those of `Options.of` (max_new_tokens, do_sample, ...), if no `options` are
        given. For everything else that transformers' `generate` knows, see `decoder`.

        >>> pair.generate("Once", max_new_tokens=8).finish_reason  # doctest: +SKIP
        'length'
        """
        text = self._text(prompt, options, seed, stop_strings, **settings)
        return text.result("".join(text))

    def stream(self, prompt: Any, options: Options | None = None, *,
               rounds: list[Round] | None = None, seed: int = 0,
               stop_strings: Sequence[str] = (), **settings: Any) -> Iterator[str]:
        """The text of `generate`, in pieces of whole characters; `rounds` collects the rounds."""
        text = self._text(prompt, options, seed, stop_strings, **settings)
        text.rounds = text.rounds if rounds is None else rounds
        yield from text

    def _text(self, prompt: Any, options: Options | None, seed: int, stop_strings: Sequence[str],
              **settings: Any) -> Text:
        if options is not None and (settings or not isinstance(options, Options)):
            raise OmnidraftError(f"give Options or {min(settings, default='settings')}, not both")
        options = usual(options or Options.of(**settings), self.target)
        stops = [stop_strings] if isinstance(stop_strings, str) else stop_strings or ()
        if not (isinstance(stops, (list, tuple)) and all(type(one) is str and one for one in stops)):
            raise OmnidraftError(f"stop_strings is {stop_strings!r}, but must be texts")
        return Text(self, ids_of(self, prompt), options, uniforms_of(seed), stops)

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
        from .transformers_decoder import Decoder, in_transformers
        return Decoder(in_transformers(self), usual(Options.of(**settings), self.target), generator, streamer)
