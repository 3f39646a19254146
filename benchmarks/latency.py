"""What a drafted token, a target pass and our own work in a round cost at the paper's shapes, and the speedup that follows.

    python -m benchmarks.latency --json benchmarks/results/latency.json

The weights are random: a pass costs the same. `--shape paper` (the default where there is CUDA, in bfloat16) is arXiv
2507.02659's: drafter of 2 layers x 768 and 32,000 entries; targets like Llama-2-7B and Qwen2-7B. `--shape small` keeps the
vocabularies and shrinks the rest, for a CPU. Our own work (`overhead`) is a whole round of the loop around models that answer
at once with stored random rows, `lossless`, for the tokenizers of ../shared/real (or $OMNIDRAFT_REAL_DATA), else the embedded.

With the paper's acceptance rates a, k drafted tokens, and t_d, t_p(m), t_o for a drafted token, a target pass, our overhead:

    speedup = tokens(a) t_p(1) / (k t_d + t_p(k + 1) + t_o)

tokens(a) = 1 + k a where a is the share of drafted tokens that are kept, (1 - a^(k+1)) / (1 - a) where it is the chance of each
to be kept once all before it were (arXiv 2211.17192, equation 1). The paper does not say which; both are given.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from omnidraft.engine.cpu import prepare_blas

prepare_blas()

import numpy as np  # noqa: E402

from benchmarks.common import write_json  # noqa: E402
from omnidraft import Options, Pair, Tokenizer, Uniforms, speculative  # noqa: E402
from omnidraft.cli.machine import machine  # noqa: E402
from omnidraft.engine.loading import folder  # noqa: E402
from omnidraft.stopping import FixedLength  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("OMNIDRAFT_REAL_DATA", ROOT.parent / "shared" / "real")) / "tokenizers"
# kind, width, inner width, layers, heads, key-value heads, vocabulary
SHAPES = {
    "paper": {"draft": ("llama", 768, 3072, 2, 12, 12, 32_000),
              "Llama-2-7B": ("llama", 4096, 11008, 32, 32, 32, 32_000),
              "Qwen2-7B": ("qwen2", 3584, 18944, 28, 28, 4, 152_064)},
    "small": {"draft": ("llama", 96, 256, 2, 4, 4, 32_000),
              "Llama-2-7B": ("llama", 512, 1376, 8, 8, 8, 32_000),
              "Qwen2-7B": ("qwen2", 512, 2048, 8, 8, 2, 152_064)},
}
# arXiv 2507.02659, T = 0.01: acceptance rate and speedup by its own computation, drafter Llama-68M; tasks in this order
TASKS = ("GSM8K", "MBPP+HumanEval", "Alpaca", "XSum")
PAPER = {"Qwen2-7B": {"direct mapping": [(.14, 1.04), (.09, .91), (.13, 1.01), (.12, .96)],
                      "distilled, with n-grams": [(.37, 1.61), (.26, 1.36), (.20, 1.30), (.22, 1.22)]},
         "Llama-2-7B": {"one vocabulary": [(.21, 1.44), (.14, 1.22), (.20, 1.44), (.20, 1.42)],
                        "one vocabulary, distilled": [(.42, 2.20), (.35, 1.92), (.25, 1.57), (.23, 1.53)]}}
TEXT = "Question: Ann has 3 boxes of 12 pens and gives 7 away. How many are left?\nAnswer:"


def random_model(shape: tuple, device: str, dtype: Any, tokenizer: Tokenizer) -> Any:
    """A model of this shape with random weights, on the device."""
    import torch
    import transformers

    from omnidraft.engine.transformers_model import TransformersModel

    kind, width, inner, layers, heads, shared, size = shape
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=shared, vocab_size=size, max_position_embeddings=4096, bos_token_id=1, eos_token_id=2)
    with torch.device(device):
        return TransformersModel(transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval(), tokenizer)


def passes(model: Any, context: int, most: int, repeats: int) -> dict[int, float]:
    """Median milliseconds of a pass over 1 to `most` tokens after a text of `context`."""
    from omnidraft.ops_torch import wait

    ids = np.random.default_rng(0).integers(3, model.tokenizer.size, context + most).tolist()
    cache, times = model.new_cache(on_device=True), {m: [] for m in range(1, most + 1)}
    model.forward(ids[:context], cache)
    for _ in range(repeats + 2):  # two to warm up
        for m, taken in times.items():
            wait(model.forward(ids[context:context + m], cache, rows=m))
            cache.rewind(context)
            began = perf_counter()
            wait(model.forward(ids[context:context + m], cache, rows=m))
            taken.append(1000 * (perf_counter() - began))
            cache.rewind(context)
    return {m: median(taken[2:]) for m, taken in times.items()}


class Stored:
    """A model that answers at once, with the next of a few stored rows of random logits."""

    ops, context_size, eos_ids = "ops_torch", 1 << 20, ()

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, device: str, seed: int) -> None:
        import torch

        self.tokenizer, self.vocab_size, self.name, self.device = tokenizer, vocab_size, tokenizer.name, torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        self.rows, self.at = 3 * torch.randn(64, vocab_size, generator=generator).to(device), 0

    def new_cache(self, on_device: bool = False) -> Any:
        """Only a length."""
        from types import SimpleNamespace

        cache = SimpleNamespace(length=0)
        cache.rewind = lambda length: setattr(cache, "length", length)
        return cache

    def forward(self, ids: list, cache: Any, rows: int = 1) -> Any:
        """The next `rows` rows."""
        cache.length += len(ids)
        self.at = (self.at + rows) % (len(self.rows) - 16)
        return self.rows[self.at:self.at + rows]


def overhead(pair: Pair, k: int, temperature: float, repeats: int) -> float:
    """Median milliseconds of a round around models that cost nothing."""
    options = Options(stop=FixedLength(k), temperature=temperature, max_new_tokens=16 * repeats)
    times, began = [], perf_counter()
    for count, _ in enumerate(speculative(pair, TEXT, options, Uniforms(np.random.default_rng(0)))):
        times.append(1000 * (perf_counter() - began))  # what the round copies to the host makes it wait for the device
        if count > repeats + 4:
            break
        began = perf_counter()
    return median(times[4:])


def predictions(target: str, k: int, draft: float, costs: dict[int, float], own: float) -> dict:
    """Speedups by the formula above, per method and task of the paper."""
    per_round = costs[1] / (k * draft + costs[k + 1] + own)
    return {method: {task: {"acceptance": a, "paper": speedup, "share": (1 + k * a) * per_round,
                            "chance": (1 - a**(k + 1)) / (1 - a) * per_round}
                     for task, (a, speedup) in zip(TASKS, figures, strict=True)}
            for method, figures in PAPER[target].items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="paper where there is CUDA, else small")
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("--context", type=int, default=256, help="tokens before the measured ones")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("-k", type=int, default=4, choices=range(1, 8), help="drafted tokens per round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not (find_spec("torch") and find_spec("transformers")):
        print("latency is not measured: pip install 'omnidraft[torch]'", file=sys.stderr)
        return  # `make bench` goes on
    import torch

    from omnidraft.cli.transformers_generation import versions

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    shape = args.shape or ("paper" if device.startswith("cuda") else "small")
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    real = REAL.is_dir()
    draft_tokenizer, other = (Tokenizer.load(REAL / name if real else folder(embedded)) for name, embedded in (
        ("llama2-32k", "draft-tasks"), ("qwen2-151k", "qwen-like")))
    found = {"machine": machine() | versions() | {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu", "dtype": str(dtype)[6:]},
        "settings": {name: getattr(args, name) for name in ("context", "repeats", "k")} | {"shape": shape}, "targets": {}}
    sizes = SHAPES[shape]
    draft = random_model(sizes["draft"], device, dtype, draft_tokenizer)
    found["draft_ms"] = passes(draft, args.context, 1, 4 * args.repeats)[1]
    print(f"{shape} shapes on {found['machine']['device']}: a drafted token {found['draft_ms']:.2f} ms")
    for name, tokenizer in (("Llama-2-7B", draft_tokenizer), ("Qwen2-7B", other)):
        costs = passes(random_model(sizes[name], device, dtype, tokenizer), args.context, 8, args.repeats)
        pair = Pair(Stored(draft_tokenizer, sizes["draft"][-1] if real else draft_tokenizer.size, device, 1),
                    Stored(tokenizer, sizes[name][-1] if real else tokenizer.size, device, 2))
        own = {f"T={at}": overhead(pair, args.k, at, args.repeats) for at in (0, 1)}
        made = predictions(name, args.k, found["draft_ms"], costs, own["T=1"])
        found["targets"][name] = {"pass_ms": costs, "overhead_ms": own, "vocabularies": [m.vocab_size for m in (
            pair.draft, pair.target)], "predicted": made}
        print(f"{name}: passes of 1 to 8 tokens", *(f"{ms:.1f}" for ms in costs.values()), "ms; overhead per round",
              *(f"{at} {ms:.2f}" for at, ms in own.items()), "ms")
        for method, tasks in made.items():
            print(f"  {method}:", ", ".join(f"{task} a = {f['acceptance']}: {f['chance']:.2f} to {f['share']:.2f} "
                                             f"(paper {f['paper']})" for task, f in tasks.items()))
    if args.json:
        write_json(args.json, found)


if __name__ == "__main__":
    main()
