"""Safetensors: eight bytes of header length, a JSON header, and the raw numbers.

The library checks a file (its ranges are contiguous and end with the file) but cannot pass bfloat16
to NumPy. So the checked file is read here; the arrays are views of the memory-mapped file.
Format: https://huggingface.co/docs/safetensors
"""

import json
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..text.errors import OmnidraftError
from ..text.files import check_readable, make_folder_of, read_json, write_text

# The weights' file, or the file whose shards an index names; the second is read by PyTorch only.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
LONGEST_HEADER = 2**23  # bytes; 90 for a tensor. As Python objects it takes 25 times as much
NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Tensors(UserDict):
    """Tensors by name; a bfloat16 tensor is converted to float32 on first access."""

    def __getitem__(self, name: str) -> np.ndarray:
        array = self.data[name]
        if array.dtype == np.uint16:  # the upper half of a float32
            array = self.data[name] = (array.astype(np.uint32) << 16).view(np.float32)
        return array


def read_safetensors(path: Path) -> Tensors:
    """The tensors of one file: float16, 32, 64 or bfloat16.

    Raises OmnidraftError if the file is missing, truncated or has other (quantized) numbers.
    """
    header = read_header(path)
    stored = {}
    raw = np.asarray(np.memmap(path, np.uint8, mode="r"))  # the subclass is slow to index
    start = 8 + int(raw[:8].view("<u8")[0])
    for name, entry in header.items():
        kind = entry["dtype"]
        if kind not in NUMBERS:
            raise OmnidraftError(f"{path}: {name} holds {kind} numbers; the NumPy engine reads "
                                 f"{', '.join(NUMBERS)} (use --backend torch)")
        begin, end = entry["data_offsets"]
        numbers = raw[start + begin:start + end].view(NUMBERS[kind])
        stored[name] = numbers.reshape(entry["shape"])
    return Tensors(stored)


def read_header(path: Path) -> dict[str, dict]:
    """The header of a safetensors file, checked by the library: an entry for each tensor's name.

    Each has a "dtype", a "shape" and "data_offsets". Raises OmnidraftError for any other file.
    """
    check_readable(path, 2**62)  # reading a pipe would wait
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > LONGEST_HEADER:  # before the library makes objects of it
                raise OmnidraftError(f"{path} has a header of {size:,} bytes, over "
                                     f"{LONGEST_HEADER:,}: is it the right file?")
            with safe_open(path, "numpy") as checked:
                header = json.loads(file.read(size))
                return {name: header[name] for name in checked.keys()}
    except OmnidraftError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError):
        raise OmnidraftError(f"{path} is not a complete safetensors file: copy it again") from None


def load_tensors(folder: str | Path) -> Tensors:
    """All tensors in a Hugging Face folder: from model.safetensors, or the shards in its index.

    Raises OmnidraftError if there are none, or one of the files is missing or damaged.
    """
    files = weight_files(folder, WEIGHTS[:1])
    if not files:
        raise OmnidraftError(f"{folder} has no model.safetensors and no "
                             "model.safetensors.index.json (weights in another format, like "
                             "pytorch_model.bin, are not read)")
    tensors = Tensors()
    for file in files:
        tensors.data |= read_safetensors(file).data  # not widened yet
    return tensors


def weight_files(place: str | Path, names: Sequence[str] = WEIGHTS) -> list[Path]:
    """The files that hold a model's weights, in the order of their names; [] if there are none.

    place: a folder, or the file itself. Of the `names`, the first that is there counts: one file,
    or the shards in its index. Raises OmnidraftError for a damaged index.
    """
    if Path(place).is_file():
        return [Path(place)]
    for name in names:
        path = Path(place, name)
        if path.exists():
            return [path]
        index = path.with_name(f"{name}.index.json")
        if not index.exists():
            continue
        try:  # `with_name` rejects names that lead to another folder
            shards = read_json(index)["weight_map"].values()
            return sorted({path.with_name(shard) for shard in shards})
        except (ValueError, KeyError, AttributeError, TypeError):  # OmnidraftError is a ValueError
            raise OmnidraftError(f"{index} is not an index of weights: copy it again") from None
    return []


def save_tensors(path: Path, tensors: dict[str, np.ndarray], dtype: Any = None) -> None:
    """Write safetensors atomically, as `dtype` if given; OmnidraftError on failure, or for NaN."""
    make_folder_of(path)
    arrays = {name: np.ascontiguousarray(array, dtype) for name, array in tensors.items()}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise OmnidraftError(f"{path}: what would be saved is NaN or infinite: use a lower rate")
    write_text(path, save(arrays, {"format": "pt"}))
