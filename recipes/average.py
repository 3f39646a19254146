"""A weighted mean of checkpoints of one training run, which is often better than each of them (arXiv 2203.05482).

    python -m recipes.average OUT FOLDER:0.3 FOLDER:0.5 FOLDER:0.2

OUT gets the first folder's configuration and tokenizer. The shares should add up to 1.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def mean(parts: list[tuple[dict[str, torch.Tensor], float]]) -> dict[str, torch.Tensor]:
    """The sum of the tensors times their shares, computed in float64, in the first one's dtype."""
    first, _ = parts[0]
    return {name: sum(share * tensors[name].double() for tensors, share in parts).to(one.dtype) for name, one in first.items()}


def main() -> None:
    """Write a model folder with the mean."""
    out, *parts = sys.argv[1:]
    folders = [(Path(folder), float(share)) for folder, _, share in (part.rpartition(":") for part in parts)]
    weights = "model.safetensors"
    with safe_open(folders[0][0] / weights, "pt") as file:
        metadata = file.metadata()
    made = mean([(load_file(folder / weights), share) for folder, share in folders])
    shutil.copytree(folders[0][0], out)
    save_file(made, Path(out) / weights, metadata=metadata)


if __name__ == "__main__":
    main()
