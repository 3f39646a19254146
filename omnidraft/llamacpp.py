"""A drafter with another tokenizer for llama-cpp-python: `Llama(draft_model=Proposer(...))`."""

from typing import Any

import numpy as np

from .engine.gguf import Gguf
from .engine.load import load
from .pairs.proposer import Proposer as Drafts
from .pairs.proposer import Vocabulary


class Proposer:
    """What llama-cpp-python calls with the ids of its text; `target`: the path of its GGUF file."""

    def __init__(self, draft: Any, target: str, draft_length: int = 4) -> None:
        tokenizer = Gguf(target).tokenizer()
        known = Vocabulary(tokenizer, tokenizer.size, 2**20, target)
        self.drafts = Drafts(load(draft), known, draft_length)
        self.most = draft_length

    def __call__(self, input_ids: Any, /, **more: Any) -> np.ndarray:
        """The proposals (m,) for the text `input_ids` (n,)."""
        [found] = self.drafts.propose([np.asarray(input_ids).tolist()], self.most)
        return np.array(found, dtype=np.intc)
