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
from .adapt import curve, verdict
from .app import app, command
from .printing import columns, emit, escape, note, say

CARD = Path(__file__).parents[1] / "data" / "card.md"
Which = Annotated[str, typer.Argument(
    help="A name, a fingerprint prefix, or a folder.")]

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(group, name="adapters", help="List, show, delete or export adapters.")


@command("omnidraft adapters list", "omnidraft adapters list --json", to=group)
def list(
    adapters: options.Store = None,
    as_json: options.AsJson = False,
) -> None:
    """List the adapters of all drafters, your own and those shipped with the package."""
    own = Adapters(adapters)
    rows = [("name", "drafter", "target", "prompts", "updates", "version", "kB", "fingerprint")]
    for store in (own, Adapters(SHIPPED)):
        shipped = store is not own
        for name, manifest in store.all().items():
            found = facts(store.root / name, manifest)
            if as_json:
                emit({"name": name, "shipped": shipped, **found})
            else:
                rows.append(row_of(name + " (shipped)" * shipped, found))
    if not as_json:
        say(f"{columns(rows)}\n(your own adapters are in {own.root})")


def row_of(name: str, found: dict[str, Any]) -> tuple:
    """An adapter's row in the list; of a damaged one, the error."""
    if "error" in found:
        return name, found["error"]
    counts = Statistics.from_json(found["statistics"])
    return (
        name,
        found["draft"]["name"],
        found["target"]["name"],
        counts.prompts,
        counts.updates,
        found["version"],
        found["bytes"] // 1000,
        found["fingerprint"][:8])


@command("omnidraft adapters show draft-general--qwen-like", to=group)
def show(
    which: Which,
    adapters: options.Store = None,
    as_json: options.AsJson = False,
) -> None:
    """Show everything known about an adapter, and whether learning has paid off."""
    folder = Adapters(adapters).named(which)
    found = facts(folder, manifest_of(folder))
    if as_json:
        return emit(found)
    rows = []
    for key, value in found.items():
        parts = value if isinstance(value, dict) else {"": value}
        rows += [(f"{key} {part}", one) for part, one in parts.items()]
    counts = Statistics.from_json(found["statistics"])
    say(f"{columns(rows)}\n\n{columns(curve(counts))}\n\n{verdict(counts)}")


def facts(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of the adapter in a folder, its size on the disk, and its rank."""
    files = filter(Path.is_file, folder.rglob("*"))
    size = sum(path.stat().st_size for path in files)
    settings = read_json(folder / manifest.get("folder", "") / "adapter_config.json")
    rank = settings.get("r", "all weights")
    return {"in": str(folder), "bytes": size, **manifest, "rank": rank}


@command("omnidraft adapters delete draft-general--qwen-like --yes", to=group)
def delete(
    which: Which,
    yes: Annotated[bool, typer.Option(
        "--yes", help="Do not ask.")] = False,
    adapters: options.Store = None,
) -> None:
    """Delete one of your own adapters, unless a run is learning into it."""
    store = Adapters(adapters)
    folder = store.named(which)
    place = folder.parent.resolve()
    if place != store.root.resolve() or place == SHIPPED.resolve():
        raise OmnidraftError(f"{folder} is not one of your own adapters; only those can be changed")
    if not yes:
        question = escape(f"Delete {folder} and all it has learned?", "")
        typer.confirm(question, abort=True, err=True)
    with locked(folder):
        left = remove(folder)
    if left:
        note(f"deleted the adapter in {folder}; not what else is there: {', '.join(left)}")
    else:
        note(f"deleted {folder}")


@command("omnidraft adapters export draft-general--qwen-like ./draft-for-qwen-like", to=group)
def export(
    which: Which,
    folder: Annotated[Path, typer.Argument(
        help="A new or empty folder.")],
    draft: Annotated[str | None, options.models(
        "--draft", "-d", show_default="by its name", help="Its base drafter.")] = None,
    backend: options.Backend = "numpy",
    adapters: options.Store = None,
) -> None:
    """Merge an adapter into its drafter, as a Hugging Face folder that other programs can load."""
    saved = Adapters(adapters).named(which)
    found = facts(saved, manifest_of(saved))
    own = found["draft"]["name"]
    is_here = own in NAMES or "/" in own or Path(own).is_dir()  # "/": a hub id
    if not (draft or is_here):
        raise OmnidraftError(f"its base drafter, {own}, is not here: give its folder with --draft")
    base = load(draft or own, "float32", backend, "cpu")
    names = [re.sub(r"[^\w .-]", "_", found[role]["name"]) for role in ("draft", "target")]
    result = verdict(Statistics.from_json(found["statistics"]))
    card = CARD.read_text(encoding="utf-8").format(*names, result, **found)
    adapter = read(saved, found, draft=base)
    error = write_merged(base, adapter, folder.resolve(), card)
    note(f"exported to {folder}; same logits as the adapted drafter, up to {error:.1e}")
