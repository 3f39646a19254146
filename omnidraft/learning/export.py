"""A drafter with its adapter merged in, as a Hugging Face folder that other programs can load."""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.config import FAMILIES
from ..engine.gguf import is_gguf
from ..engine.llama import Llama
from ..engine.load import load
from ..engine.weights import save_tensors
from ..text.errors import OmnidraftError
from ..text.files import check_readable, make_folder_of, read_json, write_text
from ..text.tokenizer import LARGEST
from .adapters import Adapter

TOLERANCE = 1e-4  # largest difference of the logits of an exported folder
# The files of a tokenizer and of settings, by the names that Hugging Face's libraries read: nothing
# else is copied. A folder from others may hold links to anything under any name.
SETTINGS = (
    "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "spm.model",
    "sentencepiece.bpe.model")


def write_merged(base: Any, adapter: Adapter, place: Path, card: str) -> float:
    """Write the drafter with its adapter and reload it; the largest difference of the logits.

    card: the content of README.md. OmnidraftError, with nothing written, if the difference is above
    TOLERANCE, `place` is not empty, or the drafter is a GGUF file.
    """
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OmnidraftError(f"{place} already exists: give a new or empty folder")
    if is_gguf(base.folder):
        raise OmnidraftError(f"the drafter {base.name} is a GGUF file: only one in a Hugging Face "
                             "folder can be exported (--adapter uses the adapter as it is)")
    settings = settings_in(base.folder)
    drafter = adapter.drafter(base)
    # subtle: not a hidden folder, so that whoever ends this process with `kill -9` can see it
    part = place.with_name(f"export-{secrets.token_hex(4)}.part")
    make_folder_of(part / "any")
    try:
        for path in settings:
            shutil.copyfile(path, part / path.name)
        write_text(part / "README.md", card)
        if isinstance(base, Llama):
            write_config(part, drafter)
            # subtle: LoRA changes the head, but not the embedding that it was tied to
            _, own = base.stored(untied=bool(adapter.lora.rank))
            save_tensors(part / "model.safetensors", adapter.lora.merged(own), np.float32)
            again = load(part, "float32", "numpy", "cpu")
        else:
            drafter.model.save_pretrained(part)
            again = load(part, "float32", "torch", "cpu")
        error = largest_difference(drafter, again)
        if error > TOLERANCE:
            raise OmnidraftError(f"{place} would change the logits by {error:.1e}: not written")
        if not place.exists():
            part.rename(place)
            return error
        # subtle: keep a folder that exists: a shell may be in it; config.json follows the weights
        for path in sorted(part.iterdir(), reverse=True):
            path.rename(place / path.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return error


def write_config(folder: Path, drafter: Llama) -> None:
    """Adapt the drafter's config.json; both names of its family are needed by other programs."""
    config = read_json(folder / "config.json")
    family = drafter.config.family
    config |= {"architectures": [FAMILIES[family].architecture], "model_type": family,
               "tie_word_embeddings": drafter.config.tied,
               "dtype": "float32", "torch_dtype": "float32"}  # the second for transformers < 4.56
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def settings_in(folder: Path) -> list[Path]:
    """The files of SETTINGS in a model's folder; OmnidraftError if one of them is not its own.

    A file is its own if it lies in the folder, also behind a link. The hub's cache has links from
    `snapshots/<commit>/` to `blobs/`.
    """
    home = folder.resolve()
    blobs = home.parents[1] / "blobs" if home.parent.name == "snapshots" else home
    found = [folder / name for name in SETTINGS if (folder / name).is_file()]
    for path in found:
        check_readable(path, LARGEST)
        real = path.resolve()
        if home not in real.parents and real.parent != blobs:
            raise OmnidraftError(f"{path} is a link out of its folder: replace it with a copy of "
                                 "the file if you want it in the export")
    return found


def largest_difference(one: Any, other: Any) -> float:
    """The largest difference of two models' logits on ids from all over the vocabulary."""
    count = min(64, one.context_size)
    ids = np.linspace(0, one.vocab_size - 1, count).astype(int).tolist()
    logits, others = (model.forward(ids, model.new_cache(), count) for model in (one, other))
    return float(np.abs(logits - others).max())
