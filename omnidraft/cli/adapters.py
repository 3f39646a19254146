"""`omnidraft adapters`: list, show, rename, delete or export adapters."""

import json
import re
import secrets
import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .. import Adapters, OmnidraftError
from ..engine.config import FAMILIES
from ..engine.gguf import is_gguf
from ..engine.llama import Llama
from ..engine.load import NAMES, load
from ..engine.weights import save_tensors
from ..learning.adapters import SHIPPED, Adapter, read
from ..learning.versions import manifest_of, remove
from ..text.files import check_readable, make_folder_of, read_json, write_text
from ..text.tokenizer import LARGEST
from . import options
from .adapt import verdict
from .common import app, command
from .printing import columns, emit, escape, note, say

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(group, name="adapters", help="List, show, rename, delete or export adapters.")
Which = Annotated[str, typer.Argument(help="A name, a fingerprint prefix, or a folder.")]
TOLERANCE = 1e-4  # largest difference of the logits of an exported folder
# The files of a tokenizer and of settings, by the names that Hugging Face's libraries read: nothing
# else is copied. A folder from others may hold links to anything under any name.
SETTINGS = (
    "config.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "spm.model",
    "sentencepiece.bpe.model")


@command("omnidraft adapters list", "omnidraft adapters list --json", to=group)
def list(adapters: options.Store = None, as_json: options.AsJson = False) -> None:
    """List the adapters of all drafters, your own and those shipped with the package."""
    rows = [("name", "drafter", "target", "prompts", "updates", "version", "kB", "fingerprint")]
    own = Adapters(adapters)
    for folder, manifest in ((store.root / name, found) for store in (own, Adapters(SHIPPED))
                             for name, found in store.all().items()):
        found, shipped = facts(folder, manifest), folder.parent == SHIPPED
        if as_json:
            emit({"name": folder.name, "shipped": shipped, **found})
        elif "error" in found:
            rows.append((folder.name, found["error"]))
        else:
            counts = [found["statistics"].get(key, 0) for key in ("prompts", "updates")]
            rows.append((folder.name + " (shipped)" * shipped, found["draft"]["name"],
                         found["target"]["name"], *counts, found["version"],
                         found["bytes"] // 1000, found["fingerprint"][:8]))
    if not as_json:
        say(f"{columns(rows)}\n(your own adapters are in {own.root})")


@command("omnidraft adapters show draft-general--qwen-like", to=group)
def show(which: Which, adapters: options.Store = None, as_json: options.AsJson = False) -> None:
    """Show everything known about an adapter, and whether learning has paid off."""
    folder = Adapters(adapters).named(which)
    found = facts(folder, manifest_of(folder))
    if as_json:
        return emit(found)
    parts = {key: one if isinstance(one, dict) else {"": one} for key, one in found.items()}
    say(columns([(f"{key} {k}", v) for key, part in parts.items() for k, v in part.items()]))
    say(verdict(found["statistics"]))


def facts(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the adapter in a folder, its size on the disk, and its rank."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    settings = read_json(folder / manifest.get("folder", "") / "adapter_config.json")
    return {"in": str(folder), "bytes": size, **manifest, "rank": settings.get("r", "all weights")}


@command("omnidraft adapters rename draft-general--qwen-like sums", to=group)
def rename(which: Which, name: Annotated[str, typer.Argument(help="The new name.")],
           adapters: options.Store = None) -> None:
    """Rename one of your own adapters. Its pair still finds it."""
    new = (store := Adapters(adapters)).root / name
    if not re.fullmatch(r"\w[\w.-]{,62}", name) or name in ("auto", "none") or new.exists():
        raise OmnidraftError(f"{name!r} is taken or not valid: use up to 63 letters, digits, -, _")
    with store.writing(own_folder(store, which)) as folder:
        note(f"renamed to {folder.rename(new)}")


@command("omnidraft adapters delete sums --yes", to=group)
def delete(which: Which, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
           adapters: options.Store = None) -> None:
    """Delete one of your own adapters, unless a run is learning into it."""
    folder = own_folder(store := Adapters(adapters), which)
    if not yes:
        typer.confirm(escape(f"Delete {folder} and all it has learned?", ""), abort=True, err=True)
    with store.writing(folder):
        left = remove(folder)
    note(f"deleted {folder}" if not left else
         f"deleted the adapter in {folder}; not what else is there: {', '.join(left)}")


def own_folder(store: Adapters, which: str) -> Path:
    """The folder of an adapter that may be changed; OmnidraftError for a shipped one."""
    folder = store.named(which)
    if (place := folder.parent.resolve()) != store.root.resolve() or place == SHIPPED.resolve():
        raise OmnidraftError(f"{folder} is not one of your own adapters; only those can be changed")
    return folder


@command("omnidraft adapters export draft-general--qwen-like ./draft-for-qwen-like", to=group)
def export(which: Which, folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
           draft: Annotated[str | None, options.models(
               "--draft", "-d", show_default="by its name", help="Its base drafter.")] = None,
           backend: options.Backend = "numpy", adapters: options.Store = None) -> None:
    """Merge an adapter into its drafter, as a Hugging Face folder that other programs can load."""
    saved = Adapters(adapters).named(which)
    found = facts(saved, manifest_of(saved))
    name = draft or found["draft"]["name"]
    if not (draft or name in NAMES or "/" in name or Path(name).is_dir()):  # "/": a hub id
        raise OmnidraftError(f"its base drafter, {name}, is not here: give its folder with --draft")
    base = load(name, "float32", backend, "cpu")
    error = write_merged(base, read(saved, found, draft=base), found, folder.resolve())
    note(f"exported to {folder}; same logits as the adapted drafter, up to {error:.1e}")


def settings_in(folder: Path) -> tuple[Path, ...]:
    """The files of SETTINGS in a model's folder; OmnidraftError if one of them is not its own.

    A file is its own if it lies in the folder, also behind a link. The hub's cache has links from
    `snapshots/<commit>/` to `blobs/`.
    """
    home = folder.resolve()
    blobs = home.parents[1] / "blobs" if home.parent.name == "snapshots" else home
    found = tuple(folder / name for name in SETTINGS if (folder / name).is_file())
    for path in found:
        check_readable(path, LARGEST)
        real = path.resolve()
        if home not in real.parents and real.parent != blobs:
            raise OmnidraftError(f"{path} is a link out of its folder: replace it with a copy of "
                                 "the file if you want it in the export")
    return found


def write_merged(base: Any, adapter: Adapter, found: dict[str, Any], place: Path) -> float:
    """Write the drafter with its adapter and reload it; the largest difference of the logits.

    OmnidraftError, with nothing written, if that is above TOLERANCE or `place` is not empty.
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
        if isinstance(base, Llama):
            config = read_json(base.folder / "config.json")
            family = base.config.family  # both keys are needed
            config |= {"architectures": [FAMILIES[family].architecture], "model_type": family,
                       "tie_word_embeddings": drafter.config.tied,
                       "dtype": "float32", "torch_dtype": "float32"}  # for transformers < 4.56
            write_text(part / "config.json", json.dumps(config, indent=2) + "\n")
            # subtle: LoRA changes the head, but not the embedding that it was tied to
            own = base.stored(untied=True)[1]
            merged = adapter.lora.merged(own) if adapter.lora else adapter.weights
            save_tensors(part / "model.safetensors", merged, np.float32)
        else:
            drafter.model.save_pretrained(part)
        card = (SHIPPED.parents[2] / "data" / "card.md").read_text(encoding="utf-8")
        names = [re.sub(r"[^\w .-]", "_", found[role]["name"]) for role in ("draft", "target")]
        write_text(part / "README.md", card.format(*names, verdict(found["statistics"]), **found))
        again = load(part, "float32", "numpy" if isinstance(base, Llama) else "torch", "cpu")
        ids = np.linspace(0, base.vocab_size - 1, min(64, base.context_size)).astype(int).tolist()
        one, other = (model.forward(ids, model.new_cache(), len(ids)) for model in (drafter, again))
        if (error := float(np.abs(one - other).max())) > TOLERANCE:
            raise OmnidraftError(f"{place} would change the logits by {error:.1e}: not written")
        # subtle: keep a folder that exists: a shell may be in it; config.json follows the weights
        for path in sorted(part.iterdir(), reverse=True) if place.exists() else [part]:
            path.rename(place if path == part else place / path.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return error
