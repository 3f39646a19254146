"""`omnidraft align`, `models`, `info`: a text in two vocabularies, and what is here."""

import os
import platform
import re
import sys
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from .. import Adapters, OmnidraftError, Tokenizer, __version__
from ..engine.config import ModelConfig
from ..engine.cpu import has_avx512
from ..engine.loading import EMBEDDED, folder, load
from ..files import default_folder
from ..learning.adapters import SHIPPED
from ..vocabulary import aligned_spans
from . import options
from .common import command
from .printing import columns, console, say, show_bytes

SAMPLE = " Snowflakes fell on 128 cafés; she said: \"I'll be back.\"\n    return problem_solver(x)"
# a block of so many draft and target tokens (2: several): style, sign, what the legend says
BLOCKS = {(1, 1): ("green", "=", "same token"),
          (2, 1): ("cyan underline", "*", "several draft tokens, one target token"),
          (1, 2): ("bold magenta", "/", "one draft token, several target tokens"),
          (2, 2): ("yellow", "~", "boundaries that cross")}


def tokenizers(*names: str) -> list[Tokenizer]:
    """The tokenizers of models by name or folder."""
    return [Tokenizer.load(folder(name)) for name in names]


@command("omnidraft align draft-tasks qwen-like", "omnidraft align ./llama2-32k ./qwen2-151k",
         "omnidraft align draft-tasks llama3-like 'The windows were broken.'")
def align(draft: options.Side, target: options.Side, text: Annotated[str, typer.Argument(
        help="What both tokenize.", show_default="a sample")] = SAMPLE,
          plain: options.Plain = False) -> None:
    """Show a text in the tokens of both sides, in the smallest blocks that they share.

    What the vocabularies share as a whole is counted by `omnidraft check`.
    """
    from rich.text import Text

    above, below = ([side.decode_bytes([token]) for token in side.encode_continuation(text)]
                    for side in tokenizers(draft, target))
    (out, signs), end, last = console(plain), 0, 0
    lines = [Text("draft   "), Text("target  ")]
    for (start, end), (first, last) in aligned_spans(above, below):
        sides = ["|".join(map(show_bytes, side)) for side in (above[start:end], below[first:last])]
        if not any(sides):  # a character that neither vocabulary has
            continue
        style, sign, _ = BLOCKS[min(2, end - start), min(2, last - first)]
        cells = [Text(sign * signs + side, style) for side in sides]
        size = max(cell.cell_len for cell in cells) + 2
        if lines[-1].cell_len + size > out.width and lines[-1].cell_len > 8:
            lines += [Text(" " * 8), Text(" " * 8)]
        for line, cell in zip(lines[-2:], cells, strict=True):
            line.append_text(cell).append(" " * (size - cell.cell_len))
    for name, rest in (("draft", above[end:]), ("target", below[last:])):
        if any(rest):
            lines.append(Text("one side cannot spell this text; from here on the "
                              f"{name} side has {show_bytes(b''.join(rest))}"))
    legend = [Text(f"{sign} " * signs + meaning, style) for style, sign, meaning in BLOCKS.values()]
    out.print(Text("\n").join([*lines, Text(), Text("   ").join(legend)]), soft_wrap=True)


@command("omnidraft models")
def models(adapters: options.Store = None) -> None:
    """List the embedded models and all adapters."""
    rows = [("name", "parameters", "layers", "width", "entries", "tokenizer", "context", "folder")]
    for name in EMBEDDED:
        try:
            config, [tokenizer] = ModelConfig.load(folder(name)), tokenizers(name)
        except OmnidraftError as error:
            rows.append((name, str(error)))
            continue
        parameters = sum(map(prod, config.tensor_shapes().values())) / 1e6
        kind = "byte-level BPE" if tokenizer.byte_level else "SentencePiece BPE"
        rows.append((name, f"{parameters:.1f} M", f"{config.layers}", f"{config.width}",
                     f"{tokenizer.size:,}", kind, f"{config.context_size}", str(folder(name))))
    say(columns(rows))
    own = Adapters(adapters)
    for store, whose in (Adapters(SHIPPED), "in the package"), (own, f"in {own.root}"):
        rows = [("adapter", "prompts", "tokens", "updates", "draft tokens kept", "per target pass")]
        for name, s in store.all().items():
            counts = [str(s.get(key, 0)) for key in rows[0][1:4]]
            kept = f"{s.get('kept', 0) / max(1, s.get('drafted', 0)):.0%}"
            each = f"{s.get('tokens', 0) / max(1, s.get('rounds', 0)):.2f}"
            rows.append((name, s["error"]) if "error" in s else (name, *counts, kept, each))
        if rows[1:]:
            say(f"\n{columns(rows)}\n({whose}, means since the first prompt)")


@command("omnidraft info")
def info() -> None:
    """Show the machine, and the kernels chosen for it."""
    rows = [("omnidraft", __version__), ("caches", str(default_folder()))]
    rows += [(name.replace("_", " "), str(value)) for name, value in machine().items()]
    for name in EMBEDDED:
        try:
            rows.append((f"kernels, {name}", load(name).kernel))
        except OmnidraftError as error:
            rows.append((f"kernels, {name}", str(error)))
    say(columns(rows))


def machine() -> dict[str, str | int | bool]:
    """CPU, cores, system, Python, NumPy, its BLAS with settings, PyTorch where it is used."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    name = re.search(r"^model name\s*: *(.*\S)", text, re.M)
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    loaded = [library for library in ("torch", "transformers") if library in sys.modules]
    return {"cpu": name[1] if name else platform.processor() or platform.machine(),
            "avx512": has_avx512(), "cores": os.cpu_count() or 1,
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(), "numpy": np.__version__,
            "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
            "blas_kernels": os.environ.get("OPENBLAS_CORETYPE", "chosen by the library"),
            "blas_threads": threads or "all cores",
            **{library: sys.modules[library].__version__ for library in loaded}}
