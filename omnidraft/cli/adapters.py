"""`omnidraft adapters`: list, show, delete or export adapters."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import Adapters, OmnidraftError
from ..engine.load import NAMES, load
from ..learning.adapters import SHIPPED, locked, manifest_of, read, remove
from ..learning.export import write_merged
from ..learning.online import Statistics
from ..text.files import read_json
from . import options
from .adapt import verdict
from .app import app, command
from .printing import columns, emit, escape, note, say

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(group, name="adapters", help="List, show, delete or export adapters.")
Which = Annotated[str, typer.Argument(help="A name, a fingerprint prefix, or a folder.")]
CARD = Path(__file__).parents[1] / "data" / "card.md"


@command("omnidraft adapters list", "omnidraft adapters list --json", to=group)
def list(adapters: options.Store = None, as_json: options.AsJson = False) -> None:
    """List the adapters of all drafters, your own and those shipped with the package."""
    rows = [("name", "drafter", "target", "prompts", "updates", "version", "kB", "fingerprint")]
    own = Adapters(adapters)
    for store in (own, Adapters(SHIPPED)):
        for name, manifest in store.all().items():
            found = facts(store.root / name, manifest)
            shipped = store is not own
            if as_json:
                emit({"name": name, "shipped": shipped, **found})
            elif "error" in found:
                rows.append((name, found["error"]))
            else:
                counts = found["statistics"]
                rows.append((name + " (shipped)" * shipped, found["draft"]["name"],
                             found["target"]["name"], counts.get("prompts", 0),
                             counts.get("updates", 0), found["version"],
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
    rows = []
    for key, value in found.items():
        parts = value if isinstance(value, dict) else {"": value}
        rows += [(f"{key} {part}", one) for part, one in parts.items()]
    say(columns(rows))
    say(verdict(Statistics.from_json(found["statistics"])))


def facts(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the adapter in a folder, its size on the disk, and its rank."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    settings = read_json(folder / manifest.get("folder", "") / "adapter_config.json")
    return {"in": str(folder), "bytes": size, **manifest, "rank": settings.get("r", "all weights")}


@command("omnidraft adapters delete draft-general--qwen-like --yes", to=group)
def delete(which: Which, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
           adapters: options.Store = None) -> None:
    """Delete one of your own adapters, unless a run is learning into it."""
    store = Adapters(adapters)
    folder = store.named(which)
    place = folder.parent.resolve()
    if place != store.root.resolve() or place == SHIPPED.resolve():
        raise OmnidraftError(f"{folder} is not one of your own adapters; only those can be changed")
    if not yes:
        typer.confirm(escape(f"Delete {folder} and all it has learned?", ""), abort=True, err=True)
    with locked(folder):
        left = remove(folder)
    if left:
        note(f"deleted the adapter in {folder}; not what else is there: {', '.join(left)}")
    else:
        note(f"deleted {folder}")


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
    names = [re.sub(r"[^\w .-]", "_", found[role]["name"]) for role in ("draft", "target")]
    result = verdict(Statistics.from_json(found["statistics"]))
    card = CARD.read_text(encoding="utf-8").format(*names, result, **found)
    error = write_merged(base, read(saved, found, draft=base), folder.resolve(), card)
    note(f"exported to {folder}; same logits as the adapted drafter, up to {error:.1e}")
