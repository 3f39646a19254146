"""llama.cpp as a target, by the low-level bindings of llama-cpp-python; used like `llama.Llama`.

Every round takes back rejected tokens (arXiv 2507.02659, Algorithm 1): what llama.cpp remembers of
the text is cut after the last token that stays. Its quantized products are why a GGUF file is fast
there; with them a pass over m tokens costs almost m times as much as over one on some CPUs: then
drafting cannot pay (docs/results.md, "llama.cpp"). Tokenizer, special tokens and chat template are
read by `gguf`, and the file is checked there before llama.cpp opens it.
"""

import math
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from llama_cpp import llama_cpp as library

from ..sampler import Sampler
from ..text.errors import OmnidraftError
from .config import check_pass, check_rewind, flat_ids
from .gguf import Gguf

LONGEST_PASS = 512  # tokens; longer prompts are fed in pieces
LONGEST_TEXT = 8192  # tokens; its keys and values take their memory at once


@library.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Write nothing."""


class LlamaCppCache:
    """The ids of one text; the model remembers one text at a time, and reads another one again."""

    hidden = None  # llama.cpp gives no hidden states

    def __init__(self) -> None:
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        """The number of tokens that have been read and not taken back."""
        return len(self.ids)

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; raises OmnidraftError if there are fewer."""
        check_rewind(self.length, length)
        del self.ids[length:]


class LlamaCpp:
    """A GGUF file run by llama.cpp on the CPU; used like `llama.Llama`, as a target.

    Texts have up to 8,192 tokens. Raises OmnidraftError if llama.cpp cannot run the file.

    >>> model = LlamaCpp("smollm2.gguf")  # doctest: +SKIP
    >>> model.forward([1, 2], model.new_cache()).shape  # doctest: +SKIP
    (1, 49152)
    """

    def __init__(self, path: str | Path):
        file = Gguf(path)
        tokenizer = file.tokenizer()  # subtle: first, as llama.cpp may abort at what this refuses
        self.folder, self.name, self.sampler = file.path, file.path.stem, Sampler
        library.llama_log_set(_silent, None)
        library.llama_backend_init()
        how = library.llama_model_default_params()
        how.n_gpu_layers = 0
        self._model = library.llama_model_load_from_file(os.fsencode(path), how)
        if not self._model:
            raise OmnidraftError(f"{path}: llama.cpp cannot run it")
        self.parameters = library.llama_model_n_params(self._model)
        vocabulary = library.llama_model_get_vocab(self._model)
        self.vocab_size = library.llama_vocab_n_tokens(vocabulary)
        self.context_size = min(LONGEST_TEXT, library.llama_model_n_ctx_train(self._model))
        self.tokenizer = tokenizer.within(self.vocab_size)
        self.eos_ids = flat_ids(file.ends(), self.tokenizer.roles["eos"], size=self.vocab_size)
        self._context, self.kernel = self._start()
        self._memory = library.llama_get_memory(self._context)
        self._batch = library.llama_batch_init(LONGEST_PASS, 0, 1)
        self._read: list[int] = []  # the ids whose keys and values llama.cpp holds
        self._lock = Lock()
        weakref.finalize(self, _free, self._batch, self._context, self._model)

    def __repr__(self) -> str:
        return f"LlamaCpp({self.name!r}: {self.parameters:,} parameters, {self.kernel})"

    def _start(self) -> tuple[object, str]:
        """A context, and one line on how it runs."""
        how = library.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch = self.context_size, LONGEST_PASS, LONGEST_PASS
        how.swa_full = True  # keep what a sliding window hides, as tokens may be taken back
        asked = os.environ.get("OMP_NUM_THREADS", "")  # OpenMP also knows lists, such as 4,2
        threads = int(asked) if asked.isdecimal() and int(asked) else os.cpu_count() or 1
        how.n_threads = how.n_threads_batch = threads
        context = library.llama_init_from_model(self._model, how)
        if not context:
            raise OmnidraftError(f"{self.name}: no memory for {self.context_size} tokens")
        about = bytearray(128)
        array = (library.ctypes.c_char * len(about)).from_buffer(about)
        library.llama_model_desc(self._model, array, len(about))
        on = f"{threads} thread{'s' * (threads > 1)}"
        return context, f"llama.cpp, {array.value.decode()}, {on}"

    def new_cache(self) -> LlamaCppCache:
        """An empty cache."""
        return LlamaCppCache()

    def forward(self, ids: Sequence[int], cache: LlamaCppCache, rows: int = 1) -> np.ndarray:
        """Feed `ids` after what the cache holds; returns the logits (rows, V) of the last ids.

        Raises OmnidraftError like `check_pass`, if llama.cpp fails, and for NaN or infinite logits.
        """
        check_pass(self, ids, len(ids), rows, cache.length)
        text = [*cache.ids, *ids]
        wanted = len(text) - rows  # the place from which logits are wanted
        with self._lock:
            first = self._keep(text[:wanted])
            logits = [self._pass(text[begin:begin + LONGEST_PASS], begin, wanted)
                      for begin in range(first, len(text), LONGEST_PASS)]
        cache.ids = text
        found = np.concatenate(logits)
        if not math.isfinite(found.max()):
            raise OmnidraftError(f"{self.name}: logits are NaN or infinite: its weights are broken")
        return found

    def _keep(self, text: list[int]) -> int:
        """Cut what is remembered to the longest start of `text`; returns its number of tokens."""
        same = min(len(self._read), len(text))
        if self._read[:same] != text[:same]:
            same = next(i for i in range(same) if self._read[i] != text[i])
        # subtle: a state space cannot drop its last tokens, and says so
        if not library.llama_memory_seq_rm(self._memory, 0, same, -1):
            library.llama_memory_clear(self._memory, True)
            same = 0
        del self._read[same:]
        return same

    def _pass(self, piece: list[int], begin: int, wanted: int) -> np.ndarray:
        """Read tokens at the places from `begin` on; the logits of those at `wanted` or later."""
        batch = self._batch
        batch.n_tokens = len(piece)
        for i, token in enumerate(piece):
            batch.token[i], batch.pos[i] = token, begin + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = begin + i >= wanted
        if library.llama_decode(self._context, batch):
            library.llama_memory_clear(self._memory, True)
            self._read = []
            raise OmnidraftError(f"{self.name}: llama.cpp failed to read {len(piece)} tokens")
        self._read += piece
        rows = max(0, begin + len(piece) - max(begin, wanted))
        if not rows:
            return np.empty((0, self.vocab_size), np.float32)
        logits = library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (rows, self.vocab_size)).copy()


def _free(batch: object, context: object, model: object) -> None:
    library.llama_batch_free(batch)
    library.llama_free(context)
    library.llama_model_free(model)
