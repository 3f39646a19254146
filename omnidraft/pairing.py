"""A pairing: one drafter, one target, and everything that relates their vocabularies."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .lifting import Lifting
from .ngram_cache import NGramCache
from .sampling import Sampler
from .text.errors import OmnidraftError
from .vocabulary import Direct, align


class Pairing:
    """A drafter and a target, their alignment, n-gram cache, spellings and lifting.

    A model has `tokenizer`, `vocab_size`, `context_size`, `eos_ids`, `new_cache()` and
    `forward(ids, cache, rows)`; pairing does not modify it. The default cache is prefilled from the
    tokenizers (`prefill`); an empty `NGramCache()` with `Options.learn` learns only from the text,
    as in arXiv 2507.02659. OmnidraftError if no token of one side is spelled by the other's.
    """

    def __init__(self, draft: Any, target: Any, cache: NGramCache | None = None) -> None:
        self.draft = draft
        self.target = target
        one = draft.tokenizer
        other = target.tokenizer
        # the same id is the same token on both sides, so draft tokens are target tokens
        self.one_vocabulary = one.strings == other.strings and one.token_bytes == other.token_bytes
        self.alignment = align(one, other, sizes=(draft.vocab_size, target.vocab_size))
        self.direct = Direct(self.alignment.draft_to_target)
        self.cache = self.find_splits() if cache is None else cache
        if not (self.alignment.shared_draft or len(self.cache) or self.spellings):
            raise OmnidraftError(f"the vocabularies of {draft.name} and {target.name} have nothing "
                                 "in common: no token of one is spelled by tokens of the other; "
                                 "use another drafter")
        self._lifting: tuple[Any, Any] = (None, None)  # (what it was built from, the lifting)

    @property
    def sampler(self) -> type[Sampler]:
        """The class of sampler: PyTorch's if both models run in PyTorch, else NumPy's."""
        kinds = {getattr(model, "sampler", Sampler) for model in (self.draft, self.target)}
        if len(kinds) == 1:
            return kinds.pop()
        return Sampler

    def read(self, prompt: Any) -> Any:
        """A prompt in the form that `decoding.speculative` takes; here it has that form already."""
        return prompt

    @cached_property
    def spellings(self) -> dict[int, tuple[int, ...]]:
        """Draft tokens without a direct token -> the target tokens that spell them."""
        return {token: spelling for spelling, token, _ in self.find_spellings().items()}

    def find_splits(self) -> NGramCache:
        """An n-gram cache with the drafter's spelling of each target token without a direct one."""
        cache = NGramCache()
        cache.prefill(self.draft.tokenizer, self.target.tokenizer, self.alignment)
        return cache

    def find_spellings(self) -> NGramCache:
        """A cache with the target's spelling of each draft token without a direct one.

        Draft tokens with the same spelling have the same bytes: only the last is kept.
        """
        draft = self.draft.tokenizer
        target = self.target.tokenizer
        texts: dict[int, str] = {}  # the draft tokens that hold whole characters
        spellings: dict[int, Sequence[int]] = {}
        for token in np.flatnonzero(self.alignment.draft_to_target < 0).tolist():
            data = draft.token_bytes[token] or b""
            try:
                texts[token] = data.decode("utf-8")
            except UnicodeDecodeError:  # part of a character
                spellings[token] = target.split(data) or ()
        found = target.encode_continuations([*texts.values()])
        for token, (ids, _) in zip(texts, found, strict=True):
            spellings[token] = ids
        cache = NGramCache()
        cache.bind(target, draft)
        cache.add({tuple(spelling): (token, 0) for token, spelling in sorted(spellings.items())
                   if len(spelling) > 1
                   and target.decode_bytes(spelling) == (draft.token_bytes[token] or b"")})
        return cache

    def span(self, token: int) -> int:
        """How many draft tokens a target token stands for: 1, or the length of its n-gram."""
        split = None
        if self.alignment.target_to_draft[token] < 0:  # no direct token
            split = self.cache.split_of(token)
        return len(split) if split else 1

    @property
    def lifting(self) -> Lifting:
        """The trie of splits and the paths of atoms, rebuilt when the cache has changed."""
        source = self.cache, self.cache.version
        before, made = self._lifting  # subtle: read at once, as another thread may replace it
        if before != source:
            made = self._lift()
            self._lifting = (source, made)
        return made

    def _lift(self) -> Lifting:
        to_target = self.alignment.draft_to_target.tolist()  # (V_q,)
        to_draft = self.alignment.target_to_draft.tolist()  # (V_p,)
        splits = {}
        for atom, token in enumerate(to_target):
            # subtle: if several target tokens have the same bytes (<0x41> and "A"), the one that is
            # written is covered. If several draft tokens do, one is the atom and the path of all.
            if token >= 0 and to_draft[token] == atom:
                splits[token] = (atom,)
        for token, split in self.cache.splits().items():
            if token < len(to_draft) and to_draft[token] < 0 and max(split) < len(to_target):
                splits[token] = split
        direct = {atom: (token,) for atom, token in enumerate(to_target) if token >= 0}
        return Lifting(splits, self.spellings | direct, self.draft.vocab_size)
