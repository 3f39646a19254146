"""`omnidraft bench`: the measured speed of a pair next to plain decoding of its target."""

from itertools import chain, islice
from statistics import median
from typing import Annotated

from .. import OmnidraftError, Options, Pair, plain, speculative
from ..decoding import check_prompt
from ..files import check_writable
from . import options
from .common import command
from .demo import compare, save_figures
from .printing import console, note
from .prompts import read_prompts


@command("omnidraft bench", "omnidraft bench -d draft-general --adapter",
         "omnidraft bench --task code --target llama3-like --repeats 5 --json bench.json",
         "omnidraft bench -d ./my-drafter -t ./my-target --prompts my.jsonl")
def bench(
    models: options.Served, decoding: options.Decoding,
    task: Annotated[str, options.models(help="Prompts that ship: math, code or text.")] = "math",
    prompts: Annotated[str | None, options.models(
        help="Others: .jsonl with a `prompt` in each line, a file of lines, or - (stdin).")] = None,
    count: Annotated[int, options.models(help="Most prompts to use.")] = 6,
    repeats: Annotated[int, options.output(help="The speedup is the median over these.")] = 3,
    figures: options.Json = None,
) -> None:
    """Measure how much faster a pair writes than its target alone."""
    from .render import headline, speed_table

    how = decoding.options()
    if min(count, repeats) < 1:
        raise OmnidraftError(f"--count is {count} and --repeats is {repeats}: give 1 or more")
    texts = list(islice(read_prompts(prompts or task)[0], count))
    check_writable(figures)
    pair = models.pair(stored=False)
    if models.adapter:
        how = options.use_adapter(pair, models.adapters, how)
    note(" drafts for ".join(f"{one.name} ({one.kernel})" for one in (pair.draft, pair.target)))
    row = {"task": "all" if prompts else task}
    row |= measure(pair, texts, how, repeats, decoding.seed)
    console()[0].print(speed_table([row]), headline([row]))
    if figures:
        settings = vars(models) | vars(decoding) | {"count": len(texts), "repeats": repeats}
        save_figures(figures, pair, settings, [row])


def measure(pair: Pair, prompts: list[str], how: Options, repeats: int, seed: int) -> dict:
    """Figures of all texts as `demo.compare` has them; the speedup is the median over repeats.

    Both methods take turns at each prompt, after each has written the first one untimed.
    """
    asked, every = [(prompt, check_prompt(pair.target, prompt)) for prompt in prompts], []
    methods = [(plain, pair.target), (speculative, pair)]
    for repeat in range(repeats + 1):
        texts = []
        for place, (prompt, ids) in enumerate(asked if repeat else asked[:1]):
            draw, done = seed + repeat * len(asked) + place, {}
            for decode, models in methods[::(-1) ** (repeat + place)]:
                done[decode] = [*decode(models, prompt, how, options.uniforms_of(draw))]
            texts.append((ids, done[plain], done[speculative]))
        every.append(texts)
        note(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    each = [compare(pair.target, texts, how)["speedup"] for texts in every[1:]]
    row = compare(pair.target, [*chain(*every[1:])], how)
    return row | {"speedup": median(each), "each": each}
