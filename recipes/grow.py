"""Make a new target from another one: token rows taken over by their bytes, and fewer layers.

    python -m recipes.grow SOURCE SHAPE OUT

SOURCE is the folder of a trained model with six layers. SHAPE is one with four layers, whose config and tokenizer the new
model gets. A token gets the embedding of the source's token with the same bytes, or else the mean of its pieces' embeddings.
Training then repairs the loss of the layers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from omnidraft.tokenizer import Tokenizer

LAYERS = (0, 1, 3, 4)  # the layers of qwen-like's six that are kept: leaving out the other two costs least


def token_rows(source: torch.Tensor, tokenizer: Tokenizer, other: Tokenizer) -> torch.Tensor:
    """Embeddings (V, width) of the tokens of `tokenizer` from those of `other`."""
    rows = source.mean(0, keepdim=True).repeat(tokenizer.size, 1)
    for token, data in enumerate(tokenizer.token_bytes):
        if pieces := other.split(data) if data else None:
            rows[token] = source[list(pieces)].mean(0)
    for role in ("bos", "eos"):
        if tokenizer.roles.get(role):
            rows[tokenizer.roles[role][0]] = source[other.roles["eos"][0]]
    return rows


def grow(source: Path, shape: Path, out: Path) -> None:
    """Write the folder of the new model."""
    weights = load_file(source / "model.safetensors")
    names = load_file(shape / "model.safetensors").keys()
    grown = {}
    for name in names:
        parts = name.split(".")
        if "layers" in parts:
            at = parts.index("layers") + 1
            parts[at] = str(LAYERS[int(parts[at])])
        grown[name] = weights[".".join(parts)].clone()
    embedding = "model.embed_tokens.weight"
    tokenizers = Tokenizer.load(shape), Tokenizer.load(source)
    grown[embedding] = token_rows(weights[embedding].float(), *tokenizers).to(torch.float16)
    out.mkdir(parents=True, exist_ok=True)
    for file in shape.glob("*.json"):
        (out / file.name).write_bytes(file.read_bytes())
    save_file(grown, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    grow(*map(Path, sys.argv[1:]))
