"""A pairing: one drafter, one target, and everything that relates their vocabularies."""

from functools import cached_property
from typing import Any

import numpy as np

from .lifting import Lifting
from .ngram_cache import NGramCache
from .sampling import Sampler
from .text.errors import OmnidraftError
from .translation import Direct
from .vocabulary import align


class Pairing:
    """A drafter and a target, their alignment, n-gram cache, spellings and lifting.

    A model has `tokenizer`, `vocab_size`, `context_size`, `eos_ids`, `new_cache()` and
    `forward(ids, cache, rows)`; pairing does not modify it. The default cache is prefilled from the
    tokenizers (`prefill`); an empty `NGramCache()` with `Options.learn` learns only from the text,
    as in arXiv 2507.02659. OmnidraftError if no token of one side is spelled by the other's.
    """

    def __init__(self, draft: Any, target: Any, cache: NGramCache | None = None) -> None:
        self.draft, self.target = draft, target
        one, other = draft.tokenizer, target.tokenizer
        # the same id is the same token on both sides, so draft tokens are target tokens
        self.one_vocabulary = one.strings == other.strings and one.token_bytes == other.token_bytes
        self.alignment = align(one, other, sizes=(draft.vocab_size, target.vocab_size))
        self.direct = Direct(self.alignment.draft_to_target)
        self.cache = self.between("splits") if cache is None else cache
        if not (self.alignment.shared_draft or len(self.cache) or self.spellings):
            raise OmnidraftError(f"the vocabularies of {draft.name} and {target.name} have nothing "
                                 "in common: no token of one is spelled by tokens of the other; "
                                 "use another drafter")
        self._lifting: tuple[Any, Any] = None, None  # (what it was built from, the lifting)

    @property
    def sampler(self) -> type[Sampler]:
        """The PyTorch sampler if both models run in PyTorch, else the NumPy one."""
        kinds = {getattr(model, "sampler", Sampler) for model in (self.draft, self.target)}
        return kinds.pop() if len(kinds) == 1 else Sampler

    def read(self, prompt: Any) -> Any:
        """A prompt in the form that `decoding.speculative` takes; here it has that form already."""
        return prompt

    @cached_property
    def spellings(self) -> dict[int, tuple[int, ...]]:
        """Draft tokens without a direct token -> the target tokens that spell them."""
        return {token: spelling for spelling, token, _ in self.between("spellings").items()}

    def between(self, what: str) -> NGramCache:
        """How one side spells the other: "splits" of target tokens, "spellings" of draft tokens."""
        draft, target = self.draft.tokenizer, self.target.tokenizer
        if what == "splits":
            (cache := NGramCache()).prefill(draft, target, self.alignment)
            return cache
        (cache := NGramCache()).bind(target, draft)
        for token in np.flatnonzero(self.alignment.draft_to_target < 0).tolist():
            data = draft.token_bytes[token] or b""
            try:
                spelling = target.encode_continuation(data.decode("utf-8"))
            except UnicodeDecodeError:
                spelling = target.split(data) or ()
            if len(spelling) > 1 and target.decode_bytes(spelling) == data:
                cache.insert(spelling, token)
        return cache

    def span(self, token: int) -> int:
        """How many draft tokens a target token stands for: 1, or the length of its n-gram."""
        direct = self.alignment.target_to_draft[token] >= 0
        return 1 if direct else len(self.cache.split_of(token) or (0,))

    @property
    def lifting(self) -> Lifting:
        """The trie of splits and the paths of atoms, rebuilt when the cache has changed."""
        source = self.cache, self.cache.version
        if self._lifting[0] != source:
            same, back = (table.tolist() for table in (self.alignment.draft_to_target,
                                                       self.alignment.target_to_draft))
            # If several target tokens have the same bytes (<0x41> and "A"), the one that is
            # written is covered. If several draft tokens do, one is the atom and the path of all.
            splits = {to: (atom,) for atom, to in enumerate(same) if to >= 0 and back[to] == atom}
            splits |= {to: split for to, split in self.cache.splits().items() if to < len(back)
                       and back[to] < 0 and max(split) < len(same)}
            direct = {token: (to,) for token, to in enumerate(same) if to >= 0}
            self._lifting = source, Lifting(splits, self.spellings | direct, self.draft.vocab_size)
        return self._lifting[1]
