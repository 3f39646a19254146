"""A pair: one drafter, one target, and all that relates their two vocabularies; and texts written by it.

The models are never modified by being paired, so one drafter can serve several targets at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from .errors import OmnidraftError
from .lifting import Lifting, build_lifting
from .ngram_cache import NGramCache
from .ops import ops_of
from .sampling import Uniforms
from .translation import Direct
from .vocabulary import Alignment, align


@dataclass(frozen=True)
class Generation:
    """A text that a pair wrote: `text` without the prompt, its target `tokens`, and the `rounds` it took."""

    text: str
    tokens: list[int]
    rounds: list[Any]


class Pair:
    """A drafter and a target (models as in `models`), their alignment, n-gram cache, spellings and lifting.

    With `prefill` the cache starts with every target token's own split, computed from the two tokenizers alone; without
    it, empty, and learns from the text only (as in arXiv 2507.02659). Raises OmnidraftError where no token of one vocabulary
    is spelled by tokens of the other.

    >>> pair = Pair(load("draft-tasks"), load("qwen-like")); len(pair.cache) > 1000
    True
    """

    def __init__(self, draft: Any, target: Any, cache: NGramCache | None = None, prefill: bool = True,
                 alignment: Alignment | None = None) -> None:
        self.draft, self.target = draft, target
        alignment = align(draft.tokenizer, target.tokenizer) if alignment is None else alignment
        self.alignment = alignment.fitted(draft.vocab_size, target.vocab_size)
        self.cache = NGramCache() if cache is None else cache
        if cache is None and prefill:
            self.cache.prefill(draft.tokenizer, target.tokenizer, self.alignment)
        if not (alignment.shared_draft or len(self.cache) or self.spellings):
            raise OmnidraftError(f"the vocabularies of {draft.name} and {target.name} have nothing in common: no token of one "
                                 "is spelled by tokens of the other; take another drafter")
        self._lifting: Lifting | None = None
        self._lifted_cache, self._lifted_version = None, -1

    def generate(self, prompt: str, options: Any = None, *, seed: int = 0, **settings: Any) -> Generation:
        """Continue `prompt`; `settings` are those of `Options.of` (max_new_tokens, temperature, do_sample, draft_length, ...).

        >>> pair.generate("def area(", do_sample=True, temperature=0.8, seed=1).text  # doctest: +SKIP
        """
        rounds: list[Any] = []
        text = "".join(self.stream(prompt, options, seed=seed, rounds=rounds, **settings))
        return Generation(text, [token for record in rounds for token in record.emitted], rounds)

    def stream(self, prompt: str, options: Any = None, *, seed: int = 0, rounds: list[Any] | None = None,
               **settings: Any) -> Iterator[str]:
        """The text of `generate` piece by piece, never cut inside a character; `rounds` collects the rounds."""
        from .decoding import Options, speculative

        options = Options.of(**settings) if options is None else options
        if not isinstance(seed, (int, np.integer)) or seed < 0:
            raise OmnidraftError(f"seed is {seed!r}, but must be a whole number of 0 or more")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for record in speculative(self, prompt, options, Uniforms(np.random.default_rng(seed))):
            if rounds is not None:
                rounds.append(record)
            if piece := decoder.decode(self.target.tokenizer.decode_bytes(record.emitted), final=record.done):
                yield piece

    @property
    def ops(self) -> ModuleType:
        """`ops_torch` where both models are PyTorch's, else `ops`."""
        return ops_of(self.draft, self.target)

    @cached_property
    def one_vocabulary(self) -> bool:
        """True where both speak the same tokenizer, so that draft tokens are target tokens."""
        return self.draft.tokenizer.fingerprint == self.target.tokenizer.fingerprint

    @cached_property
    def direct(self) -> Direct:
        """The alignment's direct map, ready for `translation.merge`."""
        return Direct(self.alignment.draft_to_target)

    @cached_property
    def spellings(self) -> dict[int, tuple[int, ...]]:
        """Draft tokens without a direct token, and the two or more target tokens that the target writes for them."""
        found = {}
        for token in np.flatnonzero(self.alignment.draft_to_target[:self.draft.tokenizer.size] < 0).tolist():
            data = self.draft.tokenizer.token_bytes[token]
            if not data:
                continue
            try:
                spelling = tuple(self.target.tokenizer.encode_continuation(data.decode("utf-8")))
            except UnicodeDecodeError:
                spelling = self.target.tokenizer.split(data) or ()
            if spelling and self.target.tokenizer.decode_bytes(spelling) == data:
                found[token] = spelling
        return found

    @property
    def lifting(self) -> Lifting:
        """The trie of splits and the paths of atoms, made anew when the cache has changed since it was last asked for."""
        if self._lifting is None or self._lifted_cache is not self.cache or self._lifted_version != self.cache.version:
            to_target, to_draft = self.alignment.draft_to_target.tolist(), self.alignment.target_to_draft.tolist()
            splits: dict[int, tuple[int, ...]] = {}
            for token, atom in enumerate(to_draft):
                split = self.cache.split_of(token) if atom < 0 else (atom,)
                # Of several target tokens with the same bytes (<0x41> beside "A") the one that is written is covered.
                if split and max(split) < self.draft.vocab_size and (atom < 0 or to_target[atom] == token):
                    splits[token] = split
            # So is it with the drafter's: the others go by the atom of the one that stands for those bytes.
            direct = {token: (to,) for token, to in enumerate(to_target) if to >= 0}
            self._lifting = build_lifting(splits, self.spellings | direct, self.draft.vocab_size)
            self._lifted_cache, self._lifted_version = self.cache, self.cache.version
        return self._lifting
