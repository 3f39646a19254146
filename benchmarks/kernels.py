"""What a pass over m tokens costs in each layout of the weights, and what only its products cost.

    python -m benchmarks.kernels --model qwen-like --json     (or random, random-draft, random-135m, a
    folder)

Every figure is the median over interleaved repeats, so that other work on the machine affects all
of them equally. Each timed run comes after two untimed ones, because in decoding, too, the last
pass has just used the weights.
"""

from __future__ import annotations

from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import arguments, save, start
from omnidraft.engine.config import ModelConfig
from omnidraft.engine.llama import LARGE, Llama
from omnidraft.engine.load import folder
from omnidraft.engine.matmul import Layout
from omnidraft.engine.weights import load_tensors

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16)
LAYOUTS = {"packed only": Layout(alone=0, multiple=4, packed=True), "plain x @ W": Layout(),
           "plain, padded to 4": Layout(multiple=4), "plain, gemv per token": Layout(alone=16),
           "blocks of 64": Layout(64), "blocks of 64, padded to 4": Layout(64, multiple=4),
           "blocks of 64, one token as two": Layout(64, alone=0, multiple=2),
           "blocks of 64, gemv per token": Layout(64, alone=16)}
KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size")
RANDOM = {"random": (320, 864, 6, 10, 5, 4096), "random-draft": (128, 344, 2, 4, 2, 2048),
          "random-135m": (576, 1536, 30, 9, 3, 49152)}  # the shape of SmolLM2-135M


def read(name: str) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Configuration and tensors of a model, or random ones with the shapes of the embedded models."""
    if name not in RANDOM:
        return ModelConfig.load(folder(name)), load_tensors(folder(name))
    config = ModelConfig.parse({
        "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True,
        "max_position_embeddings": 1024, **dict(zip(KEYS, RANDOM[name], strict=True))})
    rng, small = np.random.default_rng(0), np.float32(0.05)
    return config, {
        tensor: rng.standard_normal(shape, np.float32) * small + np.float32("norm" in tensor)
        for tensor, shape in config.tensor_shapes().items()}


def products(model: Llama, tokens: int) -> float:
    """Seconds for only the matrix products of one pass over m tokens."""
    linears = [linear for layer in model.layers for linear in layer] + [model.head]
    inputs = [np.ones((tokens, linear.inputs), model.dtype) for linear in linears]
    began = perf_counter()
    for linear, x in zip(linears, inputs, strict=True):
        linear(x)
    return perf_counter() - began


def step(model: Llama, cache: Any, tokens: int) -> float:
    """Seconds for a whole pass over m tokens; the cache is then restored."""
    length, rng = cache.length, np.random.default_rng(tokens)
    ids = rng.integers(0, model.vocab_size, tokens).tolist()
    began = perf_counter()
    model.forward(ids, cache, rows=tokens)
    seconds = perf_counter() - began
    cache.rewind(length)
    return seconds


def measure(jobs: dict, repeats: int) -> dict[tuple, np.ndarray]:
    """Seconds of each job in each of the interleaved repeats: the third of three runs in a row."""
    times: dict = {key: [] for key in jobs}
    for _, (key, job) in product(range(repeats), jobs.items()):
        times[key].append([job() for _ in range(3)][-1])
    return {key: np.array(values) for key, values in times.items()}


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "kernels", model="random", repeats=25,
                     context=(150, "tokens in the cache before each pass"))
    config, tensors = read(args.model)
    models = {"chosen": Llama(config, tensors)}
    if models["chosen"].parameters < LARGE:  # copies of a large model would not fit into memory
        models |= {name: Llama(config, tensors, layout=layout) for name, layout in LAYOUTS.items()}
    engine = models["chosen"]
    cache = engine.new_cache()
    engine.forward([0] * args.context, cache)
    jobs = {}
    for m, (name, model) in product(TOKENS, models.items()):
        jobs[name, m] = lambda model=model, m=m: products(model, m)
        if model is engine:  # right after its products, so that their ratio is fair
            jobs["whole pass", m] = lambda m=m: step(engine, cache, m)
    seconds = measure(jobs, args.repeats)

    result = start(None, model=args.model, parameters=engine.parameters, kernel=engine.kernel,
                   context=args.context, repeats=args.repeats, milliseconds={}, times_one_token={})
    table = Table("all products of a pass over … tokens", *map(str, TOKENS))
    for name in (*models, "whole pass"):
        one = seconds["chosen" if name in models else name, 1]
        times = {m: round(1e3 * median(seconds[name, m]), 4) for m in TOKENS}
        ratios = {m: round(median(seconds[name, m] / one), 3) for m in TOKENS}
        result["milliseconds"][name], result["times_one_token"][name] = times, ratios
        table.add_row(name, *(f"{times[m]:.2f}\n{ratios[m]:.1f}×" for m in TOKENS),
                      style="bold" if name in ("chosen", "whole pass") else "")
    over = {m: round(median(seconds["whole pass", m] / seconds["chosen", m]), 3) for m in TOKENS}
    result["pass_over_products"] = over
    table.add_row("whole pass / its products", *(f"{value:.2f}" for value in over.values()))
    console = Console(highlight=False)
    console.print(f"{args.model}: {engine.parameters / 1e6:.2f} M parameters, {args.context} "
                  "tokens in cache; milliseconds, and × one token of the chosen layout\n"
                  f"chosen: {engine.layout}")
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    save(args.json, result)


if __name__ == "__main__":
    main()
