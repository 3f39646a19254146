"""`omnidraft demo`: three prompts, every token coloured by its fate, and the measured speed beside plain decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import OmnidraftError
from . import common

if TYPE_CHECKING:
    from rich.text import Text

    from ..decoding import Options, Round
    from ..pairing import Pair

# Held-out prompts (lines of data/TASK.jsonl) of templates that training saw, picked by hand because their answers read well:
# their speedups lie above those over many prompts, which benchmarks/speed.py measures.
PROMPTS = {"math": 0, "code": 2, "text": 0}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=common.examples(
        "omnidraft demo",
        "omnidraft demo --task code --slow",
        "omnidraft demo --target llama3-like --verify slem --seed 7",
        "omnidraft demo --temperature 1 --plain --json figures.json --svg demo.svg",
    ))(demo)


def demo(
    target: common.Target = "qwen-like",
    draft: common.Draft = "draft-tasks",
    backend: common.Backend = "numpy",
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    task: Annotated[str | None, typer.Option("--task", help="Only math, code or text.", rich_help_panel="Models",
                                             show_default="all three")] = None,
    verify: common.Verify = "lossless",
    draft_length: common.DraftLength = 12,
    threshold: common.Threshold = 0.4,
    payoff: common.Payoff = False,
    temperature: common.Temperature = 0.0,
    seed: Annotated[int | None, typer.Option("--seed", rich_help_panel="Sampling", show_default="the usual prompts",
                                             help="Choose other held-out prompts, and the random draws.")] = None,
    max_new_tokens: common.Tokens = 192,
    slow: Annotated[bool, typer.Option("--slow", help="Pause after every round, for watching.",
                                       rich_help_panel="Output")] = False,
    plain: common.Plain = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Save what is shown as a picture.",
                                             rich_help_panel="Output")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Save every figure of the table.",
                                              rich_help_panel="Output")] = None,
) -> None:
    """Watch a small model draft for a bigger one with another tokenizer, beside plain decoding of the same prompts."""
    from ..files import check_writable, write_text

    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens, payoff=payoff)
    prompts = choose_prompts(task, seed)
    check_writable(svg, json)
    common.uniforms_of(seed or 0)
    pair = common.load_pair(draft, target, stored=False, backend=backend, device=device, dtype=dtype)
    for prompt in prompts.values():
        common.check_context(pair.target, prompt)
    shown, rows = show(pair, prompts, options, seed or 0, plain, 0.35 if slow else 0.0)
    if json:
        write_text(json, figures(pair, options, rows))
    if svg:
        from ..render import export_svg
        write_text(svg, export_svg(shown, f"{pair.draft.name} drafts for {pair.target.name}"))


def choose_prompts(task: str | None, seed: int | None) -> dict[str, str]:
    """One held-out prompt per task (or of one task): the usual ones, or others by `seed`."""
    import json
    import random

    if task is not None and task not in PROMPTS:
        raise OmnidraftError(f"unknown task {task!r}: choose one of {', '.join(PROMPTS)}")
    rng = random.Random(seed)
    chosen = {}
    for name, usual in PROMPTS.items():
        path = Path(__file__).parent.parent / "data" / f"{name}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        line = lines[usual if seed is None else rng.randrange(len(lines))]
        if task in (None, name):
            chosen[name] = json.loads(line)["prompt"]
    return chosen


def show(pair: Pair, prompts: dict[str, str], options: Options, seed: int, plain: bool,
         pause: float) -> tuple[list[Any], list[dict]]:
    """Run and print the demo: what was shown, and one row of figures per prompt."""
    from rich.text import Text

    from ..render import Painter, legend, speed_table

    out, errors = common.consoles()
    plain = plain or common.without_colour(out)
    heading = Text(f"{_named(pair.draft)} drafts for {_named(pair.target)}, rule {options.verify}")
    shown: list[Any] = [heading, legend(plain)]
    errors.print(*shown, sep="\n", soft_wrap=True)
    warm_up(pair, next(iter(prompts.values())), options)
    rows = []
    for task, prompt in prompts.items():
        errors.print(f"\n--- {task} ---")
        painter = Painter(pair.target.tokenizer, plain)
        text = painter.prompt(prompt)
        out.print(text, end="", soft_wrap=True)

        def paint(record: Round, painter: Painter = painter, text: Text = text) -> None:
            piece = painter.paint(record)
            if record.done:
                piece.append_text(painter.finish())
            text.append_text(piece)
            out.print(piece, end="", soft_wrap=True)
            time.sleep(pause)

        rows.append({"task": task, "prompt": prompt, **compare(pair, prompt, options, seed, paint)})
        out.print()
        shown += [Text(f"\n--- {task} ---"), text]
    shown += [Text(), speed_table(rows)]
    errors.print(shown[-1])
    if any(row.get("tie") for row in rows):
        errors.print("tie: the texts part where the target's two best tokens are equal but for float32 rounding")
    return shown, rows


def compare(pair: Pair, prompt: str, options: Options, seed: int, paint: Callable[[Round], None]) -> dict:
    """Decode one prompt plainly, then speculatively (`paint` gets each round), both timed in this process."""
    from ..decoding import plain, speculative
    from ..metrics import computed_speedup, speedup, summarize

    ids = pair.target.tokenizer.encode(prompt, bos=True)
    alone = list(plain(pair.target, ids, options, common.uniforms_of(seed)))
    drafted = list(_each(speculative(pair, prompt, options, common.uniforms_of(seed)), paint))
    slow, fast = summarize(alone), summarize(drafted)
    written = [[token for record in records for token in record.emitted] for records in (alone, drafted)]
    row = {"text": pair.target.tokenizer.decode(written[1]), "plain": slow.figures(), "speculative": fast.figures(),
           "speedup": speedup(fast, slow), "computed_speedup": computed_speedup(fast, slow)}
    if options.temperature == 0:
        same = written[0] == written[1]
        return row | {"same_text": same, "tie": not same and is_tie(pair.target, ids, *written)}
    kind = "biased" if options.verify == "omnidraft" else "exact"
    return row | {"distribution": f"{kind} ({options.verify})"}


def is_tie(model: Any, prompt_ids: list[int], one: list[int], other: list[int], gap: float = 1e-3) -> bool:
    """Whether two greedy texts part at two tokens whose logits are closer than float32 sums in another order may be."""
    from ..translation import common_prefix

    place = common_prefix(one, other)
    if place >= min(len(one), len(other)):
        return False
    row = model.forward(prompt_ids + one[:place], model.new_cache())[0]
    return bool(row.max() - min(row[one[place]], row[other[place]]) < gap)


def warm_up(pair: Pair, prompt: str, options: Options) -> None:
    """Decode a few tokens unseen and untimed: the first passes of a process read the weights from disk."""
    from dataclasses import replace

    from ..decoding import plain, speculative

    options = replace(options, max_new_tokens=8)
    list(plain(pair.target, pair.target.tokenizer.encode(prompt, bos=True), options, common.uniforms_of(0)))
    list(speculative(pair, prompt, options, common.uniforms_of(0)))


def figures(pair: Pair, options: Options, rows: list[dict]) -> str:
    """Everything measured, with the settings and the machine, as JSON."""
    import json

    from .. import __version__
    from ..machine import machine

    settings = {"draft": pair.draft.name, "target": pair.target.name, "verify": options.verify,
                "draft_length": options.stop.limit, "threshold": options.stop.threshold,
                "temperature": options.temperature, "max_new_tokens": options.max_new_tokens,
                "kernels": {model.name: model.kernel for model in (pair.draft, pair.target)}}
    everything = {"omnidraft": __version__, "machine": machine(), "settings": settings, "tasks": rows}
    return json.dumps(everything, indent=1) + "\n"


def _named(model: Any) -> str:
    return f"{model.name} ({model.tokenizer.size:,} entries)"


def _each(records: Iterator[Round], paint: Callable[[Round], None]) -> Iterator[Round]:
    for record in records:
        paint(record)
        yield record
