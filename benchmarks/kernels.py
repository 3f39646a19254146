"""What a pass over m tokens costs, for each layout of the weights; and a one-token step against its products alone.

    python -m benchmarks.kernels [--model qwen-like | random | random-draft | FOLDER] [--json FILE]

Every figure is the median over interleaved repeats, so that other work on the machine falls on all of them alike;
before each timed run the same run is made twice, since decoding, too, meets its weights where the last pass left them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

from omnidraft.engine.cpu import prepare_blas

prepare_blas()

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.common import write_json  # noqa: E402
from omnidraft.cli.machine import machine  # noqa: E402
from omnidraft.engine.config import ModelConfig  # noqa: E402
from omnidraft.engine.kernels import Layout, choose_layout  # noqa: E402
from omnidraft.engine.llama import Llama, matrix_shapes  # noqa: E402
from omnidraft.engine.loading import EMBEDDED, folder  # noqa: E402
from omnidraft.engine.weights import load_tensors  # noqa: E402

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16)
LAYOUTS = {"packed once": Layout(multiple=4, packed=True),
           "plain x @ W": Layout(), "plain, padded to 4": Layout(multiple=4), "plain, gemv per token": Layout(alone=16),
           "blocks of 64": Layout(64), "blocks of 64, padded to 4": Layout(64, multiple=4),
           "blocks of 64, one token as two": Layout(64, alone=0, multiple=2),
           "blocks of 64, gemv per token": Layout(64, alone=16)}
RANDOM = {"random": (320, 864, 6, 10, 5, 4096), "random-draft": (128, 344, 2, 4, 2, 2048)}


def read(name: str) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Configuration and tensors of an embedded model, a folder, or made-up ones in the shape of the embedded models."""
    if name not in RANDOM:
        place = folder(name)
        return ModelConfig.load(place), load_tensors(place)
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "vocab_size")
    config = ModelConfig.parse({"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True,
                                "max_position_embeddings": 1024, **dict(zip(keys, RANDOM[name], strict=True))})
    rng = np.random.default_rng(0)
    return config, {tensor: rng.standard_normal(shape, np.float32) * np.float32(0.05) + np.float32("norm" in tensor)
                    for tensor, shape in config.tensor_shapes().items()}


def products(model: Llama, tokens: int) -> float:
    """Seconds for all matrix products of one pass over m tokens, and nothing else."""
    linears = [linear for layer in model.layers for linear in layer] + [model.head]
    inputs = [np.ones((tokens, linear.blocks.shape[1]), model.dtype) for linear in linears]
    began = perf_counter()
    for linear, x in zip(linears, inputs, strict=True):
        linear(x)
    return perf_counter() - began


def step(model: Llama, cache, tokens: int) -> float:
    """Seconds for a whole pass over m tokens; the cache is left as it was."""
    length, ids = cache.length, [int(i) for i in np.random.default_rng(tokens).integers(0, model.vocab_size, tokens)]
    began = perf_counter()
    model.forward(ids, cache, rows=tokens)
    seconds = perf_counter() - began
    cache.rewind(length)
    return seconds


def measure(jobs: dict, repeats: int) -> dict[tuple, np.ndarray]:
    """Seconds of each job in every one of the interleaved repeats: the third of three runs in a row."""
    times: dict = {key: [] for key in jobs}
    for _ in range(repeats):
        for key, job in jobs.items():
            times[key].append([job() for _ in range(3)][-1])
    return {key: np.array(values) for key, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random", help=f"{', '.join((*RANDOM, *EMBEDDED))} or a folder")
    parser.add_argument("--context", type=int, default=150, help="tokens in the cache before each pass")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()

    config, tensors = read(options.model)
    chosen = choose_layout(matrix_shapes(config), "float32", twice=True)
    names = {"chosen": chosen, **LAYOUTS}
    models = {name: Llama(config, tensors, layout=layout) for name, layout in names.items()}
    engine = models["chosen"]
    cache = engine.new_cache()
    engine.forward([0] * options.context, cache)

    jobs = {}
    for m in TOKENS:
        for name, model in models.items():
            jobs[name, m] = lambda model=model, m=m: products(model, m)
            if model is engine:  # beside its products, so that their ratio is fair
                jobs["whole pass", m] = lambda m=m: step(engine, cache, m)
    seconds = measure(jobs, options.repeats)

    result = {"machine": machine(), "model": options.model, "parameters": engine.parameters, "kernel": engine.kernel,
              "context": options.context, "repeats": options.repeats, "milliseconds": {}, "times_one_token": {}}
    table = Table("all products of a pass over … tokens", *map(str, TOKENS))
    for name in (*names, "whole pass"):
        one = seconds["chosen" if name in names else name, 1]
        times = {m: round(1e3 * median(seconds[name, m]), 4) for m in TOKENS}
        ratios = {m: round(median(seconds[name, m] / one), 3) for m in TOKENS}
        result["milliseconds"][name], result["times_one_token"][name] = times, ratios
        table.add_row(name, *(f"{times[m]:.2f}\n{ratios[m]:.1f}×" for m in TOKENS),
                      style="bold" if name in ("chosen", "whole pass") else "")
    over = {m: round(median(seconds["whole pass", m] / seconds["chosen", m]), 3) for m in TOKENS}
    result["pass_over_products"] = over
    table.add_row("whole pass / its products", *(f"{value:.2f}" for value in over.values()))
    console = Console(highlight=False)
    console.print(f"{options.model}: {engine.parameters / 1e6:.2f} M parameters, {options.context} tokens in cache; "
                  f"milliseconds, and × one token of the chosen layout\nchosen: {chosen}")
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in result["machine"].items() if value != ""))
    if options.json:
        write_json(options.json, result)


if __name__ == "__main__":
    main()
