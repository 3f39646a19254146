"""`omnidraft align`, `models`, `info`, `tutorial`: a text in two vocabularies; models; lessons."""

import os
import platform
import re
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from .. import OmnidraftError, Tokenizer, __version__
from ..engine.cpu import has_avx512
from ..engine.load import EMBEDDED, PUBLISHED, folder, install, load, place, tokenizer_of
from ..pairs import template
from ..vocabulary import aligned_spans
from . import options
from .common import command
from .printing import columns, console, note, say, show_bytes

LESSONS = Path(__file__).parents[2] / "tutorials"  # in the repository; a wheel has none
SAMPLE = " Snowflakes fell on 128 cafés; she said: \"I'll be back.\"\n    return problem_solver(x)"
# block by numbers of draft and target tokens (2: several): style, sign, legend
BLOCKS = {(1, 1): ("green", "=", "same token"),
          (2, 1): ("cyan underline", "*", "several draft tokens, one target token"),
          (1, 2): ("bold magenta", "/", "one draft token, several target tokens"),
          (2, 2): ("yellow", "~", "crossing boundaries")}


def tokenizers(*names: str) -> list[Tokenizer]:
    """The tokenizers of models by name, folder or GGUF file."""
    return [*map(tokenizer_of, names)]


@command("omnidraft align draft-tasks qwen-like", "omnidraft align ./llama2-32k ./qwen2-151k",
         "omnidraft align draft-tasks llama3-like 'The windows were broken.'")
def align(draft: options.Side, target: options.Side, text: Annotated[str, typer.Argument(
        help="Text to tokenize.", show_default="a sample", callback=options.typed)] = SAMPLE,
          plain: options.Plain = False) -> None:
    """Show a text in the tokens of both vocabularies, split into the smallest common blocks.

    `omnidraft check` compares the whole vocabularies.
    """
    from rich.text import Text
    above, below = (one.pieces(one.encode_continuation(text)) for one in tokenizers(draft, target))
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
            lines.append(Text("one side cannot spell this text; from here on, the "
                              f"{name} side has {show_bytes(b''.join(rest))}"))
    legend = [Text(f"{sign} " * signs + meaning, style) for style, sign, meaning in BLOCKS.values()]
    out.print(Text("\n").join([*lines, Text(), Text("   ").join(legend)]), soft_wrap=True)


@command("omnidraft models", "omnidraft models --get smollm2")
def models(get: Annotated[str | None, options.models(metavar="NAME", help=(
        f"Download a published model: {', '.join(PUBLISHED)}."))] = None) -> None:
    """Describe the embedded models, and the published ones that can be downloaded."""
    if get is not None:
        if get in PUBLISHED:
            note(f"downloading {PUBLISHED[get].about} ...")
        say(str(install(get)))
        if not template.is_usable():
            note(template.NEEDED)
        return
    say((folder(EMBEDDED[0]).parent / "README.md").read_text(encoding="utf-8").split("---\n")[-1])
    for name, one in PUBLISHED.items():
        here = place(name) if place(name).exists() else f"omnidraft models --get {name}"
        say(f"{name}: {one.about}, {one.size / 1e6:.0f} MB: {here}")


@command("omnidraft tutorial", "omnidraft tutorial 1", "omnidraft tutorial 1 --check")
def tutorial(
    lesson: Annotated[str | None, typer.Argument(
        help="Number of the lesson; omit it to list all.", show_default=False)] = None,
    check: Annotated[bool, options.output(
        "--check", help="Test the functions you wrote for the lesson.")] = False,
) -> None:
    """Step through a lesson: prose, code and output. On a terminal, Enter continues and q quits."""
    if not (LESSONS / "runner.py").is_file():
        raise OmnidraftError("the installed package has no lessons: clone the repository")
    sys.path.append(str(LESSONS))  # the lessons import from there too
    import runner

    wait = sys.stdin.isatty() and sys.stdout.isatty()
    if failed := runner.teach(lesson, console()[0], wait, check):
        raise typer.Exit(failed)


@command("omnidraft info", "omnidraft info ./my-model --backend torch")
def info(
    model: Annotated[str | None, typer.Argument(
        help=f"{options.MODEL}.", show_default=False)] = None,
    backend: options.Backend = "numpy",
) -> None:
    """Show this machine and, of a model, its sizes and how it runs here: kernels, cache, why."""
    rows = [("omnidraft", __version__)]
    if model is not None:
        made = load(model, backend=backend)
        rows += [("model", made.name), ("parameters", f"{made.parameters:,}"),
                 ("vocabulary", f"{made.vocab_size:,}"), ("context", f"{made.context_size:,}"),
                 ("end tokens", " ".join(map(str, made.eos_ids)) or "none"), ("runs", made.kernel)]
    say(columns([*rows, *machine().items()]))


def machine() -> dict[str, str | int | bool]:
    """CPU, cores, system, Python, NumPy, its BLAS with settings, and PyTorch if it is used."""
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
