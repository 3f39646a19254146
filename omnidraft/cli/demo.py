"""`omnidraft demo`: three prompts, every token coloured by its fate, and the measured speed beside plain decoding."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

import omnidraft as od

from ..errors import OmnidraftError
from ..files import check_writable, write_text
from . import common
from .machine import machine
from .render import Painter, escape, export_svg, legend, speed_table

# Held-out prompts (lines of data/TASK.jsonl) of templates that training saw, picked by hand because their answers read well:
# their speedups lie above those over many prompts, which benchmarks/speed.py measures.
PROMPTS = {"math": 5, "code": 4, "text": 1}


@common.command("omnidraft demo", "omnidraft demo --task code --slow",
                "omnidraft demo --target llama3-like --verify slem --seed 7",
                "omnidraft demo --temperature 1 --plain --json figures.json --svg demo.svg")
def demo(
    target: common.Target = "qwen-like",
    draft: Annotated[str | None, common.models("--draft", "-d", metavar="MODEL", help=f"The drafter: {common.MODEL}.",
                                               show_default="draft-general with its adapter for the target")] = None,
    adapter: common.Adapted = False,
    backend: common.Backend = "numpy", device: common.Device = "auto", dtype: common.Dtype = "auto",
    task: Annotated[str | None, common.models("--task", help="Only math, code or text.", show_default="all three")] = None,
    verify: common.Verify = "lossless", draft_length: common.DraftLength = 12, threshold: common.Threshold = 0.4,
    payoff: common.Payoff = False, temperature: common.Temperature = 0.0,
    seed: Annotated[int | None, common.sampling("--seed", show_default="the usual prompts", help=(
        "Choose other held-out prompts, and the random draws."))] = None,
    max_new_tokens: common.Tokens = 192,
    learn: Annotated[bool, common.models("--learn", help=(
        "Serve a stream of prompts of one task (default math) and let the drafter learn."))] = False,
    seconds: Annotated[float, common.models("--seconds", metavar="S", help="How long --learn serves prompts.")] = 120.0,
    slow: Annotated[bool, common.output("--slow", help="Pause after every round, for watching.")] = False,
    plain: common.Plain = False,
    svg: Annotated[Path | None, common.output("--svg", metavar="FILE", help="Save what is shown as a picture.")] = None,
    figures: Annotated[Path | None, common.output("--json", metavar="FILE", help="Save every figure of the table.")] = None,
) -> None:
    """Watch a small model draft for a bigger one with another tokenizer, beside plain decoding of the same prompts."""
    from ..decoding import check_prompt

    options = common.options_of(verify, draft_length, threshold, temperature, max_new_tokens, payoff=payoff)
    prompts = choose_prompts(task, seed)
    check_writable(svg, figures)
    if svg and figures and svg.resolve() == figures.resolve():
        raise OmnidraftError(f"--svg and --json both name {svg}: one would overwrite the other")
    common.uniforms_of(seed or 0)
    if learn and adapter:
        raise OmnidraftError("--learn begins with the drafter as it is: leave out --adapter")
    how = {"stored": False, "backend": backend, "device": device, "dtype": dtype}
    pair = common.load_pair(draft or "draft-general", target, **how)
    if draft is None and not learn and not adapter:
        adapter = od.Adapters().load(pair, shipped=True) is not None
        if not adapter:  # a target of the user's own
            pair = common.load_pair("draft-tasks", pair.target, **how)
    if adapter:
        if head := common.use_adapter(pair, None):
            options = replace(options, stop=replace(options.stop, head=head))
        pair.draft.name += " with its adapter"
    for prompt in prompts.values():
        check_prompt(pair.target, prompt)
    if learn:
        from .learning import watch

        shown, rows = watch(pair, task or "math", options, seconds, seed or 0, plain)
    else:
        shown, rows = show(pair, prompts, options, seed or 0, plain, 0.35 if slow else 0.0)
    settings = {"draft": pair.draft.name, "adapter": adapter, "target": pair.target.name, "verify": verify,
                "draft_length": draft_length, "threshold": threshold, "temperature": temperature,
                "max_new_tokens": max_new_tokens, "kernels": {model.name: model.kernel for model in (pair.draft, pair.target)}}
    if figures:
        everything = {"omnidraft": od.__version__, "machine": machine(), "settings": settings, "tasks": rows}
        write_text(figures, json.dumps(everything, indent=1) + "\n")
    if svg:
        write_text(svg, export_svg(shown, f"{pair.draft.name} drafts for {pair.target.name}"))


def choose_prompts(task: str | None, seed: int | None) -> dict[str, str]:
    """One held-out prompt per task (or of one task): the usual ones, or others by `seed`."""
    if task not in (None, *PROMPTS):
        raise OmnidraftError(f"unknown task {task!r}: choose one of {', '.join(PROMPTS)}")
    rng, chosen = random.Random(seed), {}
    for name, usual in PROMPTS.items():
        lines = (Path(__file__).parents[1] / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        chosen[name] = json.loads(lines[usual if seed is None else rng.randrange(len(lines))])["prompt"]
    return chosen if task is None else {task: chosen[task]}


def show(pair: od.Pair, prompts: dict[str, str], options: od.Options, seed: int, plain: bool,
         pause: float) -> tuple[list[Any], list[dict]]:
    """Decode each prompt plainly, then speculatively, and print it all: what was shown, and one row of figures per prompt."""
    out, errors = common.consoles()
    plain = plain or common.without_colour(out)
    names = [f"{model.name} ({model.tokenizer.size:,} entries)" for model in (pair.draft, pair.target)]
    shown: list[Any] = [Text(f"{names[0]} drafts for {names[1]}, rule {options.verify}"), legend(signs=True)]
    errors.print(shown[0], legend(plain), sep="\n", soft_wrap=True)
    rows: list[dict] = []
    for task, prompt in prompts.items():
        ids, painter = pair.target.tokenizer.encode(prompt, bos=True), Painter(pair.target.tokenizer, plain)
        pictured = Painter(pair.target.tokenizer, signs=True)  # the picture has both
        if not rows:  # the first passes of a process read the weights from disk: a few tokens unseen and untimed
            short = replace(options, max_new_tokens=8)
            list(od.plain(pair.target, ids, short, common.uniforms_of(0)))
            list(od.speculative(pair, prompt, short, common.uniforms_of(0)))
        errors.print(f"\n--- {task} ---")
        text = Text.assemble((escape(prompt), "dim"))
        out.print(Text(text.plain, "" if plain else "dim"), end="", soft_wrap=True)
        alone = list(od.plain(pair.target, ids, options, common.uniforms_of(seed)))
        drafted = []
        for record in od.speculative(pair, prompt, options, common.uniforms_of(seed)):
            drafted.append(record)
            text.append_text(pictured.paint(record))
            out.print(painter.paint(record), end="", soft_wrap=True)
            time.sleep(pause)
        out.print()
        rows.append({"task": task, "prompt": prompt, **compare(pair, ids, options, alone, drafted)})
        shown += [Text(f"\n--- {task} ---"), text]
    shown += [Text(), speed_table(rows)]
    errors.print(shown[-1])
    if any(row.get("tie") for row in rows):
        errors.print("tie: the texts part where the target's two best tokens are equal but for float32 rounding")
    return shown, rows


def compare(pair: od.Pair, ids: list[int], options: od.Options, alone: list[od.Round], drafted: list[od.Round]) -> dict:
    """Figures of plain and of speculative decoding of one prompt, and whether the texts (or the distributions) are the same."""
    from ..metrics import computed_speedup

    slow, fast = od.summarize(alone), od.summarize(drafted)
    written = [[token for record in records for token in record.emitted] for records in (alone, drafted)]
    row = {"text": pair.target.tokenizer.decode(written[1]), "plain": slow.figures(), "speculative": fast.figures(),
           "speedup": od.speedup(fast, slow), "computed_speedup": computed_speedup(fast, slow)}
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
