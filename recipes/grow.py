"""Begin a target from another model: every token's row from the same bytes, and more layers or fewer.

The three targets see the same text, so each need only learn what is its own: its vocabulary and its depth. qwen-like grows
from a trunk of four layers; llama3-like and sibling are cut from qwen-like. A token takes the embedding of the source's
token with the same bytes, else the mean of its pieces'. A layer that the source lacks begins as a copy of its neighbour
that adds nothing yet (its two output matrices are zero), so growing loses nothing; a layer too many is left out.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from omnidraft.tokenizer import Tokenizer

# (Layers of the source, of the target) -> the layer that each is copied from; a second copy of one is silent at first.
# Of all ways to leave out two or three of six, these lose least.
LAYERS = {(4, 6): (0, 1, 1, 2, 3, 3), (6, 4): (0, 1, 3, 4), (6, 3): (0, 1, 4)}


def grow(model: torch.nn.Module, tokenizer: Tokenizer, checkpoint: Path, source_tokenizer: Tokenizer) -> None:
    """Fill `model` from `checkpoint`, a folder that train.train wrote."""
    if not (checkpoint / "state.safetensors").is_file():
        raise SystemExit(f"nothing to grow from in {checkpoint}: make {checkpoint.parent.name} first")
    tensors = {k.removeprefix("model."): v for k, v in load_file(checkpoint / "state.safetensors").items()
               if k.startswith("model.")}
    source = tensors["model.embed_tokens.weight"]
    rows = source.mean(0, keepdim=True).repeat(tokenizer.size, 1)
    for token, data in enumerate(tokenizer.token_bytes):
        pieces = source_tokenizer.split(data) if data else None
        if pieces:
            rows[token] = source[list(pieces)].mean(0)
    for role in ("bos", "eos"):
        if tokenizer.roles.get(role):
            rows[tokenizer.roles[role][0]] = source[source_tokenizer.roles["eos"][0]]
    depth = 1 + max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
    kept = LAYERS[depth, model.config.num_hidden_layers]
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "embed_tokens" in name:
                param.copy_(rows)
                continue
            parts = name.split(".")
            if "layers" in parts:
                at = parts.index("layers") + 1
                layer = int(parts[at])
                parts[at] = str(kept[layer])
                if layer and kept[layer] == kept[layer - 1] and parts[-2] in ("o_proj", "down_proj"):
                    param.zero_()
                    continue
            param.copy_(tensors[".".join(parts)])
