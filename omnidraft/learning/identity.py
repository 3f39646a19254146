"""Which models an adapter belongs to: weights and tokenizers, told by checksums, so that no name has to be trusted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


def identity(draft: Any, target: Any) -> dict[str, dict[str, str]]:
    """What an adapter belongs to: weights and tokenizers of both, the target's weights by a sample of their bytes.

    Weights are told by the checksums of their files, whichever backend runs them; where the drafter has no files, as when it
    was made in memory, by its numbers.
    """
    weights = hashlib.sha256()
    kinds = [sorted(Path(draft.folder).glob(f"*.{kind}")) for kind in ("safetensors", "bin") if draft.folder]
    files = next(filter(None, kinds), [])
    for path in files:
        weights.update(checksum(path).encode())
    for parameter in () if files else draft.model.parameters():
        weights.update(parameter.detach().cpu().double().numpy().tobytes())
    return {"draft": {"name": draft.name, "tokenizer": draft.tokenizer.fingerprint, "weights": weights.hexdigest()},
            "target": {"name": target.name, "tokenizer": target.tokenizer.fingerprint, "weights": _sample(target)}}


def checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sample(model: Any) -> str:
    """Tells two models apart by the sizes of their weight files and 64 kB in the middle of each; "" where it has none."""
    digest, found = hashlib.sha256(), False
    for path in sorted(Path(model.folder).glob("*.safetensors")) if getattr(model, "folder", None) else ():
        size, found = path.stat().st_size, True
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            file.seek(size // 2)
            digest.update(file.read(1 << 16))
    return digest.hexdigest() if found else ""
