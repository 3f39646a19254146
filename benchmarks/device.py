"""What runs on a GPU: the same numbers as NumPy, and the cost of a round, of an update and of a text.

    python -m benchmarks.device                                      # a CUDA machine: two and a half minutes (H100)
    python -m benchmarks.device --device cpu --small                 # any machine: less than a minute
    python -m benchmarks.device --tokenizers FOLDER --json FILE      # with published tokenizers

It needs NumPy, tokenizers, torch and transformers, and no network. Four parts, each printed as it is measured, then one
table of all:

parity   the Torch twins against NumPy, at real size, in float64: distributions and draws, verdicts,
         losses and gradients, the acceptance head. A difference makes the exit status 1.
round    a round without its models, k = 4, T = 1: both answer with stored rows. The draws of a
         round and what it compares are copied to the host; wall clock.
update   one step of the drafter (LoRA, rank 32) on `TEXTS` texts of `LENGTH` tokens with random
         rows, and its loss alone. The drafters have random weights and published shapes.
decode   the embedded pair draft-tasks -> qwen-like, greedy: tokens per second, and the same text.

The vocabularies have the sizes of Llama-2 -> Qwen2 and of SmolLM2 -> Gemma 3. They are made up
(byte-level BPE with random merges, a part of them common), unless FOLDER holds a folder for each
name in `PAIRS`. On the CPU, PyTorch and NumPy use all cores.
"""

from __future__ import annotations

import json
import platform
import random
import string
import sys
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

import omnidraft
from benchmarks.common import RESULTS, skip
from benchmarks.overhead import shared_words, stored_pair
from omnidraft import (
    losses,
    losses_torch,
    sampling,
    sampling_torch,
    stopping,
    stopping_torch,
    verification,
)
from omnidraft.engine.load import load
from omnidraft.engine.transformers_model import TransformersModel
from omnidraft.learning import training_torch
from omnidraft.learning.training import Recipe
from omnidraft.pairing import Pairing
from omnidraft.stopping import FixedLength

# Names of the folders of tokenizers, their sizes, and the widths of the models' logits.
PAIRS = [("llama2-32k", 32_000, 32_000, "qwen2-151k", 151_646, 152_064),
         ("smollm2-49k", 49_152, 49_152, "gemma3-262k", 262_144, 262_144)]
SMALL = [("draft-2k", 2_000, 2_048, "target-5k", 5_000, 5_120)]
SHAPES = {32_000: (768, 2, 12, 3072), 49_152: (576, 30, 9, 1536)}  # width, layers, heads, inner
SMALL_SHAPE = 64, 2, 4, 128
TEXTS, LENGTH = 4, 96  # of an update
DRAFTED, FAVOURED = 4, 0.8  # of a round: k, probability of the next word


class Case(NamedTuple):
    """A pair of vocabularies, with texts to measure on."""

    name: str
    pair: Pairing  # of models that have a vocabulary and nothing else
    words: list[tuple[int, int]]  # tokens that both vocabularies have
    shape: tuple[int, int, int, int]  # of the drafter


# ---- vocabularies ----------------------------------------------------------------------------------------------------
def made_up(name: str, size: int, common: int) -> omnidraft.Tokenizer:
    """Byte-level BPE with `size` tokens; the first `common` of them are the same for every name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known, merges = dict.fromkeys(alphabet), []
    begins, inner = ["Ġ"], list(string.ascii_lowercase)  # a space only begins a token
    first, own = random.Random(0), random.Random(name)
    while len(known) < size:
        draws = first if len(known) < common else own
        left = draws.choice(draws.choice([begins, inner]))
        right = inner[int(len(inner) * draws.random() ** 3)]  # rather one of the first, which are short
        made = left + right
        if len(made) > 16 or made in known:
            continue
        known[made] = None
        merges.append((left, right))
        (begins if made[0] == "Ġ" else inner).append(made)
    vocabulary = {piece: i for i, piece in enumerate(known)}
    # A word that is a token is written as that token, as in Llama-3.
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return omnidraft.Tokenizer(raw, name)


def cases(args: Namespace) -> Iterator[Case]:
    """The pairs of vocabularies to measure."""
    for draft, draft_size, draft_width, target, target_size, target_width in SMALL if args.small else PAIRS:
        common = draft_size * 3 // 4
        sides = []
        for name, size, width in ((draft, draft_size, draft_width), (target, target_size, target_width)):
            folder = args.tokenizers and args.tokenizers / name
            known = folder and (folder / "tokenizer.json").exists()
            tokenizer = omnidraft.Tokenizer.load(folder) if known else made_up(name, size, common)
            sides.append(SimpleNamespace(tokenizer=tokenizer, name=name, vocab_size=max(width, tokenizer.size),
                                         context_size=1 << 20, eos_ids=()))
        pair = Pairing(*sides)
        entries = " -> ".join(f"{side.tokenizer.size:,}" for side in sides)
        words = shared_words(*(side.tokenizer for side in sides))
        yield Case(entries, pair, words, SMALL_SHAPE if args.small else SHAPES[draft_size])


def text_of(case: Case, seed: int) -> list[int]:
    """Target tokens of a text in which some words are split, merged and expanded."""
    draws = random.Random(seed)
    sides = [case.pair.draft.tokenizer, case.pair.target.tokenizer]
    plain = [[data.decode() for data in side.token_bytes if data and data.isascii() and data.strip().isalpha()]
             for side in sides]
    pieces = []
    for _ in range(LENGTH):
        word, _ = draws.choice(case.words)
        pieces += [draws.choice([sides[0].decode_bytes([word]).decode(), *map(draws.choice, plain)])]
    return sides[1].encode_continuation("".join(pieces))[:LENGTH]


# ---- parity ----------------------------------------------------------------------------------------------------------
def parity(case: Case, device: str) -> dict[str, Any]:
    """Largest differences between NumPy on the host and the twins on the device; `fine`: are all within rounding?"""
    found = {"distributions": of_sampling(case, device), "verdicts that differ": of_verification(case, device)}
    found |= {"acceptance head": of_the_head(case.shape[0], device)} | of_losses(case, device)
    limits = {"distributions": 1e-12, "verdicts that differ": 0}
    return found | {"fine": all(value <= limits.get(name, 1e-9) for name, value in found.items())}


def of_sampling(case: Case, device: str) -> float:
    """The largest difference of any probability, over all filters; the draws must be the same."""
    rng, worst = np.random.default_rng(0), 0.0
    logits = 3 * rng.standard_normal((4, case.pair.target.vocab_size))
    for settings in ({}, {"temperature": 0.7}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"temperature": 0.0}):
        expected = sampling.process(logits, **settings)
        rows = sampling_torch.process(torch.from_numpy(logits).to(device), **settings)
        worst = max(worst, float(np.abs(rows.cpu().numpy() - expected).max()))
        draws = rng.random(len(rows)).tolist()
        drawn = [*sampling_torch.Uniforms(draws).samples(rows)]
        if drawn != [*sampling.Uniforms(draws).samples(expected)]:
            return float("inf")
    return worst


def of_verification(case: Case, device: str, rounds: int = 40) -> int:
    """How many of some rounds end differently, with the same rows and draws."""
    pair, rng, wrong = case.pair, np.random.default_rng(0), 0
    sampler = sampling_torch.Sampler(sampling.Uniforms([]))
    twin = sampler.lifting(pair.lifting, SimpleNamespace(device=device))
    for seed in range(rounds):
        ids = text_of(case, seed)[:DRAFTED]
        tokens = pair.draft.tokenizer.encode_continuation(pair.target.tokenizer.decode_bytes(ids).decode())[:DRAFTED]
        q = favouring(rng, tokens, pair.draft.vocab_size)
        atoms, origins = pair.lifting.reveal(tokens, q)
        proposals = pair.lifting.walk(atoms)[0]
        p = favouring(rng, [*proposals, 0], pair.target.vocab_size)
        draws = rng.random(99).tolist()
        one, other = sampling.Uniforms(draws), sampling_torch.Uniforms(draws)
        expected = verification.lifted(atoms, origins, pair.lifting, p, one)
        _, origins = twin.reveal(tokens, torch.from_numpy(q).to(device))
        verdict = verification.lifted(atoms, origins, twin, torch.from_numpy(p).to(device), other)
        wrong += verdict != expected or one.next() != other.next()
    return wrong


def favouring(rng: np.random.Generator, tokens: Sequence[int], size: int) -> np.ndarray:
    """Random distributions (n, size) that give each token in turn a large part."""
    rows = rng.random((len(tokens), size)) ** 8
    rows /= rows.sum(-1, keepdims=True)
    rows *= 1 - FAVOURED
    rows[range(len(tokens)), list(tokens)] += FAVOURED
    return rows


def of_losses(case: Case, device: str) -> dict[str, float]:
    """The largest relative difference of value, gradient and count, for each loss."""
    example = examples(case, 1, np.float64)[0]
    logits = np.random.default_rng(0).standard_normal((len(example.draft_ids), case.pair.draft.vocab_size))
    found = {}
    for name, options in (("dm", {}), ("hybrid", {}), ("lifted", {}), ("lifted", {"divergence": "reverse"}),
                          ("lifted", {"divergence": "tv"})):
        expected, slope, count = losses.LOSSES[name](logits, example, case.pair, **options)
        leaf = torch.from_numpy(logits).to(device).requires_grad_()
        value, counted = losses_torch.LOSSES[name](leaf, example, case.pair, **options)
        value.backward()
        differences = [abs(float(value.detach()) / expected - 1), float(abs(count - counted)),
                       float(np.abs(leaf.grad.cpu().numpy() - slope).max() / np.abs(slope).max())]
        found[" ".join(["loss", name, *options.values()])] = max(differences)
    return found


def of_the_head(width: int, device: str) -> float:
    """The largest relative difference of the loss and of its gradients."""
    rng = np.random.default_rng(0)
    parameters = {"out.weight": rng.standard_normal(2 * width + 1), "out.bias": rng.standard_normal(1)}
    features, labels = rng.standard_normal((256, 2 * width + 1)) / 8, rng.random(256)
    value, gradients = stopping.AcceptanceHead(width, parameters).loss(features, labels)
    head = stopping_torch.AcceptanceHead(width, parameters).to(device)
    loss = head.loss(torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device))
    loss.backward()
    slopes = {name: one.grad.cpu().numpy() for name, one in head.named_parameters()}
    differences = [np.abs(slopes[name] / one - 1).max() for name, one in gradients.items()]
    return float(max(abs(loss.item() / value - 1), *differences))


def examples(case: Case, count: int, dtype: Any = np.float32) -> list[losses.Example]:
    """Texts with random rows of the target."""
    rng, made = np.random.default_rng(0), []
    for seed in range(count):
        ids = text_of(case, seed)
        rows = sampling.process(3 * rng.standard_normal((len(ids), case.pair.target.vocab_size), np.float32))
        made.append(losses.make_example(case.pair, "A", ids, rows.astype(dtype)))
    return made


# ---- a round ---------------------------------------------------------------------------------------------------------
def rounds_of(case: Case, device: str | None, rounds: int = 60) -> Iterator[float]:
    """Milliseconds of rounds without their models; device None: NumPy."""
    sides = case.pair.draft, case.pair.target
    pair = stored_pair(*(side.tokenizer for side in sides), [side.vocab_size for side in sides], favoured=FAVOURED,
                       device=device, clock=perf_counter)
    options = omnidraft.Options(stop=FixedLength(DRAFTED), temperature=1.0, max_new_tokens=1 << 19)
    each = omnidraft.speculative(pair, "A", options, sampling.Uniforms(np.random.default_rng(0)))
    for number in range(rounds + 10):
        before = pair.draft.seconds + pair.target.seconds
        began = perf_counter()
        next(each)
        wait(device)
        spent = perf_counter() - began - (pair.draft.seconds + pair.target.seconds - before)
        if number >= 10:  # the others warm up
            yield 1000 * spent


def wait(device: str | None) -> None:
    """Wait until the device has finished."""
    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def cost_of_a_round(case: Case, device: str) -> dict[str, float]:
    """Milliseconds of a round: median."""
    ways = {"NumPy": None, "torch on cpu": "cpu", f"torch on {device}": device}
    return {f"ms, {way}": median(rounds_of(case, at)) for way, at in ways.items()}


# ---- an update -------------------------------------------------------------------------------------------------------
def drafter(case: Case, device: str) -> TransformersModel:
    """A Llama of this shape with random weights."""
    width, layers, heads, inner = case.shape
    config = transformers.LlamaConfig(
        vocab_size=case.pair.draft.vocab_size, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=inner, max_position_embeddings=2048, tie_word_embeddings=True)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval().to(device)
    return TransformersModel(model, case.pair.draft.tokenizer, name="random")


def timed(work: Callable[[], Any], device: str, turns: int) -> float:
    """Milliseconds of one turn: median, after one to warm up."""
    times = []
    for _ in range(turns + 1):
        began = perf_counter()
        work()
        wait(device)
        times.append(1000 * (perf_counter() - began))
    return median(times[1:])


def cost_of_an_update(case: Case, device: str) -> dict[str, float]:
    """Milliseconds of one step on all texts, and of the lifted loss and its gradient for one of them."""
    texts, found = examples(case, TEXTS), {"texts": TEXTS}
    found["draft tokens"] = sum(len(text.draft_ids) for text in texts)
    logits = np.random.default_rng(0).standard_normal(
        (len(texts[0].draft_ids), case.pair.draft.vocab_size), np.float32)
    found["loss ms, NumPy"] = timed(lambda: losses.lifted(logits, texts[0], case.pair), "cpu", 2)
    for at in dict.fromkeys(["cpu", device]):
        def loss(at: str = at) -> None:
            leaf = torch.from_numpy(logits).to(at).requires_grad_()
            losses_torch.lifted(leaf, texts[0], case.pair)[0].backward()

        found[f"loss ms, torch on {at}"] = timed(loss, at, 2)
    for at in dict.fromkeys(["cpu", device]):
        base = drafter(case, at)
        trainer = training_torch.Trainer(base, Recipe(rank=32), np.random.default_rng(0))
        pair = Pairing(base, case.pair.target, case.pair.cache)
        found[f"step ms, torch on {at}"] = timed(lambda t=trainer, p=pair: t.step(p, texts), at, 2)
    found["parameters"] = base.parameters
    return found


# ---- decoding --------------------------------------------------------------------------------------------------------
def decoding(device: str, count: int, length: int) -> dict[str, Any]:
    """Tokens per second of the embedded pair, plain and speculative, and whether the text is the same."""
    folder = Path(omnidraft.__file__).parent / "data"
    texts = [json.loads(line)["prompt"] for line in
             (folder / "math.jsonl").read_text(encoding="utf-8").splitlines()[:count]]
    options, found, written = omnidraft.Options.of(max_new_tokens=length), {}, {}
    for backend, at in (("numpy", "cpu"), ("torch", device)):
        # float32, so that passes of different widths round alike
        pair = Pairing(*(load(name, "float32", backend, at) for name in ("draft-tasks", "qwen-like")))
        ways = {"plain": lambda text, p=pair: omnidraft.plain(p.target, p.target.tokenizer.encode(text, bos=True), options,
                                                              sampling.Uniforms(np.random.default_rng(0))),
                "speculative": lambda text, p=pair: omnidraft.speculative(p, text, options,
                                                                          sampling.Uniforms(np.random.default_rng(0)))}
        for way, write in ways.items():
            list(write(texts[0]))  # to warm up
            began = perf_counter()
            made = [[token for one in write(text) for token in one.emitted] for text in texts]
            found[f"{way} tokens/s, {backend} on {at}"] = sum(map(len, made)) / (perf_counter() - began)
            written[backend, way] = made
    found["same text as plain"] = written["torch", "plain"] == written["torch", "speculative"]
    found["same text as NumPy"] = written["torch", "plain"] == written["numpy", "plain"]
    return found | {"fine": found["same text as plain"]}


# ---- all of it -------------------------------------------------------------------------------------------------------
def machine(device: str) -> dict[str, Any]:
    """What the figures depend on."""
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else platform.processor()
    return {"device": name, "python": platform.python_version(), "torch": torch.__version__,
            "transformers": transformers.__version__, "numpy": np.__version__, "tokenizers": tokenizers.__version__,
            "threads": torch.get_num_threads()}


def attempt(part: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures of one part, or its error: the other parts are measured in any case."""
    began = perf_counter()
    try:
        found = work()
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}", "fine": False}
    found["seconds"] = perf_counter() - began
    print(part, json.dumps(found, default=str), flush=True)
    return found


def table(results: dict[str, Any]) -> str:
    """One line for each figure."""
    lines = [", ".join(f"{name} {value}" for name, value in results["machine"].items())]
    for part, figures in results["parts"].items():
        lines += ["", part]
        for name, value in figures.items():
            if isinstance(value, (bool, str)):
                shown = str(value)
            elif isinstance(value, float) and value < 100:
                shown = f"{value:.3g}"
            else:
                shown = f"{value:,.0f}"
            lines.append(f"  {name:40} {shown:>12}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 if something differs or fails."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="of torch: cuda, cuda:1, cpu")
    parser.add_argument("--small", action="store_true", help="small vocabularies and drafters: a test of this script")
    parser.add_argument("--tokenizers", type=Path, help="a folder with one folder for each tokenizer")
    parser.add_argument("--json", type=Path, nargs="?", metavar="FILE", const=RESULTS / "device.json",
                        help="write the figures; without FILE to results/device.json")
    args = parser.parse_args(arguments)
    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        skip("device", "no CUDA device here: give --device cpu")
    results: dict[str, Any] = {"machine": machine(args.device), "parts": {}}
    parts = results["parts"]
    parts["decode"] = attempt("decode", lambda: decoding(args.device, 2 if args.small else 8, 16 if args.small else 64))
    for case in cases(args):
        for name, work in (("parity", parity), ("round", cost_of_a_round), ("update", cost_of_an_update)):
            part = f"{name}, {case.name}"
            parts[part] = attempt(part, lambda w=work, c=case: w(c, args.device))
    print("\n" + table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
    return int(not all(figures.get("fine", True) for figures in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
