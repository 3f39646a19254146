"""Make a new target from another one: token rows taken over by their bytes, and fewer or more layers.

    python -m recipes.grow SOURCE SHAPE OUT 0 1 3 4          # fewer: training then repairs the loss of the others
    python -m recipes.grow SOURCE SOURCE OUT 0 1 2 2 3 4 4 5  # more: the new model computes the same, until it is trained

SOURCE is the folder of a trained model, SHAPE one whose config and tokenizer the new model gets; then follow the layers of the
source that become the new model's. The second time that a layer is named, its copy adds nothing yet: its output projections are
zero. A token gets the embedding of the source's token with the same bytes, or else the mean of its pieces' embeddings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from omnidraft.text.tokenizer import Tokenizer

FIRST = "model.layers.0."
OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # what a layer adds to the residual stream ends with one of these


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


def grow(source: Path, shape: Path, out: Path, layers: list[int]) -> None:
    """Write the folder of the new model."""
    weights, wanted = (load_file(folder / "model.safetensors") for folder in (source, shape))
    parts = [name.removeprefix(FIRST) for name in wanted if name.startswith(FIRST)]
    grown = {name: weight for name, weight in weights.items() if ".layers." not in name}
    for place, layer in enumerate(layers):
        again = layer in layers[:place]
        for part in parts:  # a Llama model takes no biases from a Qwen2 model
            weight = weights[f"model.layers.{layer}.{part}"]
            grown[f"model.layers.{place}.{part}"] = weight * (not (again and part in OUTPUTS))
    embedding = "model.embed_tokens.weight"
    one, other = Tokenizer.load(shape), Tokenizer.load(source)
    if one.strings != other.strings:
        grown[embedding] = token_rows(weights[embedding].float(), one, other).to(torch.float16)
    out.mkdir(parents=True, exist_ok=True)
    for file in shape.glob("*.json"):
        (out / file.name).write_bytes(file.read_bytes())
    config = json.loads((shape / "config.json").read_text(encoding="utf-8")) | {"num_hidden_layers": len(layers)}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:1] * len(layers)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(grown, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    grow(*map(Path, sys.argv[1:4]), [*map(int, sys.argv[4:])])
