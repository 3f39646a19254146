"""What transformers reads of a GGUF file, without the file's vocabulary.

transformers parses each of its entries twice, in Python (Gemma 3: 262,144 tokens and as many scores
and merges, half a minute). omnidraft reads the tokenizer itself (`gguf_tokenizer`), so here a long
list only keeps its length, from which transformers knows the size of the vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

try:
    import gguf
    from gguf import GGUFReader, GGUFValueType
except ImportError:  # transformers says then that it is missing
    gguf = GGUFValueType = None
    GGUFReader = object

LONG = 4096  # entries: no setting of a model has so many
ONE_BY_ONE = Lock()  # two threads would each restore what the other one has put in its place


class Brief(GGUFReader):
    """A file whose long lists are read as zeros of the same number."""

    def _build_fields(self, offs: int, count: int) -> int:
        self.data = self.data.view(np.ndarray)  # a slice of a memory map takes ten times as long
        return super()._build_fields(offs, count)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list, list]:
        offset = orig_offs + 12  # after the kind of the entries and their number
        if raw_type != GGUFValueType.ARRAY or (count := self._number(orig_offs + 4)) < LONG:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        if kind == GGUFValueType.STRING:
            for _ in range(count):
                offset += 8 + self._number(offset)
        else:
            offset += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        return offset - orig_offs, [np.zeros(1, np.uint8)], count * [0], [GGUFValueType.UINT8]

    def _number(self, offset: int) -> int:
        return int.from_bytes(self.data[offset:offset + 8].tobytes(), "little")


@contextmanager
def brief(path: Path) -> Iterator[None]:
    """While transformers loads this file, its reader is `Brief`; other files are read as always."""
    if gguf is None:
        yield
        return
    with ONE_BY_ONE:
        usual = gguf.GGUFReader

        def reader(file: Any, *args: Any) -> GGUFReader:
            return (Brief if Path(file).samefile(path) else usual)(file, *args)

        gguf.GGUFReader = reader
        try:
            yield
        finally:
            gguf.GGUFReader = usual
