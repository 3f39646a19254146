"""Begin a target from the trunk: every token's row from the same bytes, and more layers or fewer.

The three targets see the same text, so each need only learn what is its own: its vocabulary and its depth. A token takes
the embedding of the trunk's token with the same bytes, else the mean of its pieces'. A layer that the trunk lacks begins
as a copy of its neighbour that adds nothing yet (its two output matrices are zero), so growing loses nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from omnidraft.tokenizer import Tokenizer

# Depth -> the trunk layer that each layer is copied from; a second copy of one is silent at first.
LAYERS = {3: (0, 1, 3), 4: (0, 1, 2, 3), 6: (0, 1, 1, 2, 3, 3)}


def grow(model: torch.nn.Module, tokenizer: Tokenizer, trunk: Path, trunk_tokenizer: Tokenizer) -> None:
    """Fill `model` from the checkpoint `trunk` (a folder that train.train wrote) of the trunk."""
    tensors = {k.removeprefix("model."): v for k, v in load_file(trunk / "state.safetensors").items()
               if k.startswith("model.")}
    source = tensors["model.embed_tokens.weight"]
    rows = source.mean(0, keepdim=True).repeat(tokenizer.size, 1)
    for token, data in enumerate(tokenizer.token_bytes):
        pieces = trunk_tokenizer.split(data) if data else None
        if pieces:
            rows[token] = source[list(pieces)].mean(0)
    for role in ("bos", "eos"):
        if tokenizer.roles.get(role):
            rows[tokenizer.roles[role][0]] = source[trunk_tokenizer.roles["eos"][0]]
    kept = LAYERS[model.config.num_hidden_layers]
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
