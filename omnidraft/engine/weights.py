"""Reading safetensors: eight bytes of header length, a JSON header, and the raw numbers.

Written out, since the library cannot give NumPy bfloat16; the arrays look into the mapped file.
Format: https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..errors import OmnidraftError
from ..files import read_json

NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of one file by name, read-only (float16, 32 or 64; bfloat16 comes as float32).

    Raises OmnidraftError where the file is missing, cut short or holds other (quantized) numbers.
    """
    tensors = {}
    try:
        raw = np.asarray(np.memmap(path, np.uint8, mode="r"))  # the subclass is slow to index
        start = 8 + int(raw[:8].view("<u8")[0])
        header = json.loads(raw[8:start].tobytes())
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if (kind := entry["dtype"]) not in NUMBERS:
                raise OmnidraftError(f"{path}: {name} holds {kind} numbers; the NumPy engine reads "
                                     f"{', '.join(NUMBERS)} (use --backend torch)")
            begin, end = (start + offset for offset in entry["data_offsets"])
            array = raw[begin:end].view(NUMBERS[kind]).reshape(entry["shape"])
            if kind == "BF16":  # the upper half of a float32
                array = (array.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = array
    except OmnidraftError:
        raise
    except FileNotFoundError:
        raise OmnidraftError(f"{path} is missing (copy the model's folder again)") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise OmnidraftError(f"{path} is not a whole safetensors file (cut short?)") from None
    return tensors


def load_tensors(folder: str | Path) -> dict[str, np.ndarray]:
    """All tensors of a Hugging Face folder: of model.safetensors, or of the shards in its index.

    Raises OmnidraftError where there are none, or one of the files is missing or damaged.
    """
    path = Path(folder, "model.safetensors")
    if path.exists():
        return read_safetensors(path)
    index = path.with_suffix(".safetensors.index.json")
    if not index.exists():
        raise OmnidraftError(f"{folder} has no model.safetensors and no {index.name} (weights in "
                             "another format, as pytorch_model.bin, are not read)")
    try:
        shards = sorted(set(read_json(index)["weight_map"].values()))
    except (OmnidraftError, KeyError, AttributeError, TypeError):
        raise OmnidraftError(f"{index} is not a safetensors index (copy it again)") from None
    return {name: array for shard in shards
            for name, array in read_safetensors(path.with_name(shard)).items()}
