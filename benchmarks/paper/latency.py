"""What a drafted token, a target pass and our own work cost at the paper's shapes, and the speedup.

    python -m benchmarks.paper.latency --json

The weights are random: a pass costs the same. `--shape paper` (the default with CUDA, in bfloat16)
has the shapes of arXiv 2507.02659: a drafter of 2 layers x 768 and 32,000 entries; targets like
Llama-2-7B and Qwen2-7B. `--shape small` keeps the vocabularies and makes the rest smaller, for a
CPU. Our own work (`overhead`) is a whole `lifted` round with models that return stored random rows
at once, for the tokenizers of $OMNIDRAFT_REAL_DATA, or else the embedded ones.

With the paper's acceptance rates a, k drafted tokens, and t_d, t_p(m), t_o for a drafted token, a
target pass over m tokens, and our overhead:

    speedup = tokens(a) t_p(1) / (k t_d + t_p(k + 1) + t_o)

tokens(a) = 1 + k a if a is the share of drafted tokens that are kept; (1 - a^(k+1)) / (1 - a) if a
is the probability that a token is kept once all before it were (arXiv 2211.17192, equation 1). The
paper does not say which; both are given.
"""

from __future__ import annotations

from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import REAL, arguments, chosen, save, skip, start, versions
from benchmarks.overhead import TEXT, stored_pair
from benchmarks.writing import draws
from omnidraft import Options, Pair, Tokenizer, speculative
from omnidraft.engine.load import folder
from omnidraft.stopping import FixedLength

# kind, width, inner width, layers, heads, key-value heads, vocabulary
SHAPES = {
    "paper": {"draft": ("llama", 768, 3072, 2, 12, 12, 32_000),
              "Llama-2-7B": ("llama", 4096, 11008, 32, 32, 32, 32_000),
              "Qwen2-7B": ("qwen2", 3584, 18944, 28, 28, 4, 152_064)},
    "small": {"draft": ("llama", 96, 256, 2, 4, 4, 32_000),
              "Llama-2-7B": ("llama", 512, 1376, 8, 8, 8, 32_000),
              "Qwen2-7B": ("qwen2", 512, 2048, 8, 8, 2, 152_064)},
}
# arXiv 2507.02659, T = 0.01, drafter Llama-68M: acceptance rate, and the speedup that the paper computes
TASKS = ("GSM8K", "MBPP+HumanEval", "Alpaca", "XSum")
PAPER = {
    "Qwen2-7B": {"direct mapping": [(.14, 1.04), (.09, .91), (.13, 1.01), (.12, .96)],
                 "distilled, with n-grams": [(.37, 1.61), (.26, 1.36), (.20, 1.30), (.22, 1.22)]},
    "Llama-2-7B": {
        "one vocabulary": [(.21, 1.44), (.14, 1.22), (.20, 1.44), (.20, 1.42)],
        "one vocabulary, distilled": [(.42, 2.20), (.35, 1.92), (.25, 1.57), (.23, 1.53)]}}


def random_model(shape: tuple, device: str, dtype: Any, tokenizer: Tokenizer) -> Any:
    """A model of this shape with random weights."""
    import torch
    import transformers

    from omnidraft.engine.transformers_model import TransformersModel

    kind, width, inner, layers, heads, shared, size = shape
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, bos_token_id=1,
        num_attention_heads=heads, num_key_value_heads=shared, vocab_size=size, eos_token_id=2,
        max_position_embeddings=4096)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        return TransformersModel(model, tokenizer)


def passes(model: Any, context: int, most: int, repeats: int) -> dict[int, float]:
    """Median milliseconds of a pass over 1 to `most` tokens after a text of `context`."""
    ids = np.random.default_rng(0).integers(3, model.tokenizer.size, context + most).tolist()
    cache, times = model.new_cache(on_device=True), {m: [] for m in range(1, most + 1)}
    model.forward(ids[:context], cache)

    def run(m: int) -> float:
        began = perf_counter()
        model.forward(ids[context:context + m], cache, rows=m)[0, 0].item()  # .item() waits for the device
        taken = perf_counter() - began
        cache.rewind(context)
        return 1000 * taken

    for _ in range(repeats + 2):  # the first two are not counted
        for m, taken in times.items():
            taken.append([run(m), run(m)][-1])
    return {m: median(taken[2:]) for m, taken in times.items()}


def overhead(pair: Pair, k: int, temperature: float, repeats: int) -> float:
    """Median milliseconds of a round whose models cost nothing; the first four rounds are not counted."""
    options = Options(stop=FixedLength(k), temperature=temperature, max_new_tokens=1 << 19)
    rounds, times = speculative(pair, TEXT, options, draws()), []
    for _ in range(repeats + 6):
        began = perf_counter()
        next(rounds)  # its copies to the host make it wait for the device
        times.append(1000 * (perf_counter() - began))
    return median(times[4:])


def predictions(target: str, k: int, draft: float, costs: dict[int, float], own: float) -> dict:
    """Speedups by the formula above, for each method and task of the paper."""
    per_round = costs[1] / (k * draft + costs[k + 1] + own)
    return {method: {task: {"acceptance": a, "paper": speedup, "share": (1 + k * a) * per_round,
                            "chance": (1 - a**(k + 1)) / (1 - a) * per_round}
                     for task, (a, speedup) in zip(TASKS, figures, strict=True)}
            for method, figures in PAPER[target].items()}


def main() -> None:
    """Measure, print and write."""
    args = arguments(
        __doc__, "latency", shape={"choices": SHAPES, "help": "paper with CUDA, else small"},
        device=(str, "cuda where there is one, else cpu"), repeats=15,
        context=(256, "tokens before the measured ones"),
        k={"type": int, "default": 4, "choices": range(1, 8), "help": "drafted tokens per round"})
    if not (find_spec("torch") and find_spec("transformers")):
        skip("latency", "pip install 'omnidraft[torch]'")
    import torch
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    gpu, real = device.startswith("cuda"), REAL.is_dir()
    dtype = torch.bfloat16 if gpu else torch.float32
    shape = args.shape or ("paper" if gpu else "small")
    places, sizes = [folder("draft-tasks"), folder("qwen-like")], SHAPES[shape]
    if real:
        places = [REAL / "tokenizers" / name for name in ("llama2-32k", "qwen2-151k")]
    tokenizers = [Tokenizer.load(place) for place in places]
    found = start(None, chosen(args, "context", "repeats", "k") | {"shape": shape}, targets={})
    found["machine"] |= versions() | {
        "device": torch.cuda.get_device_name(device) if gpu else "cpu", "dtype": str(dtype)[6:]}
    draft = random_model(sizes["draft"], device, dtype, tokenizers[0])
    found["draft_ms"] = passes(draft, args.context, 1, 4 * args.repeats)[1]
    print(f"{shape} shapes: a drafted token {found['draft_ms']:.2f} ms")

    for name, tokenizer in zip(PAPER, reversed(tokenizers), strict=True):
        model = random_model(sizes[name], device, dtype, tokenizer)
        costs = passes(model, args.context, 8, args.repeats)
        widths = [sizes[part][-1] if real else side.size for part, side in (("draft", tokenizers[0]), (name, tokenizer))]
        pair = stored_pair(tokenizers[0], tokenizer, widths, favoured=0, device=device)
        own = {f"T={at}": overhead(pair, args.k, at, args.repeats) for at in (0, 1)}
        made = predictions(name, args.k, found["draft_ms"], costs, own["T=1"])
        found["targets"][name] = {"pass_ms": costs, "overhead_ms": own, "predicted": made,
                                  "vocabularies": [pair.draft.vocab_size, pair.target.vocab_size]}
        print(f"{name}: passes of 1 to 8 tokens", *(f"{ms:.1f}" for ms in costs.values()),
              "ms; overhead per round", *(f"{at} {ms:.2f}" for at, ms in own.items()), "ms")
        for method, tasks in made.items():
            print(f"  {method}:", ", ".join(
                f"{task} a = {f['acceptance']}: {f['chance']:.2f} to {f['share']:.2f} "
                f"(paper {f['paper']})" for task, f in tasks.items()))
    save(args.json, found)


if __name__ == "__main__":
    main()
