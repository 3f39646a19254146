"""Plain and speculative decoding next to transformers' own methods, on the same loaded models.

    python -m benchmarks.against_transformers --json          (PyTorch and transformers must be installed)

The embedded pair runs on its three tasks, and the two models of $OMNIDRAFT_REAL_DATA in both directions on stories. Figures
are medians over repeats of whole calls in one process; the methods take turns, with as many threads as the libraries choose
(PyTorch: one for each core; NumPy here: one). transformers' methods have its own defaults: plain; assisted by the drafter
(with two tokenizers: universal assisted generation at temperature 0, and UAG-TLI, arXiv 2502.05202, above 0); prompt lookup.
How far UAG-TLI is from the target's distribution is measured too: the total variation of the first token.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, product
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig
from transformers.generation import candidate_generator

from benchmarks.common import REAL_PAIRS, TASKS, arguments, chosen, folders_of, save, start, texts_of, versions
from benchmarks.writing import emitted, take_turns, write, write_plainly
from omnidraft import Options, Pair, Round, pair
from omnidraft.cli.bench import is_tie
from omnidraft.engine.load import load
from omnidraft.engine.transformers_loading import one_line, quiet
from omnidraft.metrics import summarize
from omnidraft.stopping import Confidence
from omnidraft.text.errors import OmnidraftError

PAIRS = ["draft-tasks:qwen-like", *REAL_PAIRS[::-1]]
ASSISTED = "transformers assisted"
Method = Callable[[str, int], list[Round]]  # prompt and seed


def methods_of(models: Pair, options: Options) -> dict[str, Method]:
    """Everything that is compared: the first is transformers' plain decoding, the last run in the NumPy engine."""
    numpy = [load(str(one.folder), "float32") for one in (models.draft, models.target)]
    mixed, both = Pair(numpy[0], models.target), Pair(*numpy)
    return {**theirs(models, options),
            "omnidraft plain": lambda text, seed: write_plainly(models.target, text, options),
            "omnidraft": lambda text, seed: write(models, text, options, seed),
            "omnidraft, custom_generate": inside(models, options),
            "omnidraft, NumPy drafter": lambda text, seed: write(mixed, text, options, seed),
            "omnidraft, NumPy": lambda text, seed: write(both, text, options, seed)}


def settings_of(models: Pair, options: Options) -> GenerationConfig:
    """The same settings for all calls of `generate`; a model's own, which a call does not give, do not count."""
    ends = list(models.target.eos_ids)
    how: dict[str, Any] = {"do_sample": False}
    if options.temperature:
        how = {"do_sample": True, "temperature": options.temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0, **how)


def theirs(models: Pair, options: Options) -> dict[str, Method]:
    """transformers' methods with the modules that our models wrap."""
    draft, target = models.draft, models.target
    assisted: dict[str, Any] = {"assistant_model": draft.model}
    if not models.one_vocabulary:
        if options.temperature:  # subtle: UAG-TLI reduces the drafter's layers to the shared tokens, and does not restore them
            assisted["assistant_model"] = copy.deepcopy(draft.model)
        for name, model in (("tokenizer", target), ("assistant_tokenizer", draft)):
            with quiet(), one_line(f"transformers cannot load the tokenizer of {model.name}"):
                assisted[name] = AutoTokenizer.from_pretrained(model.folder)
    ways = {"plain": {}, "assisted": assisted, "prompt lookup": {"prompt_lookup_num_tokens": 10}}
    config = settings_of(models, options)
    return {f"transformers {name}": partial(generate, target, config, options.max_new_tokens, how)
            for name, how in ways.items()}


def inside(models: Pair, options: Options) -> Method:
    """Drafting inside transformers' `generate`, with `custom_generate`."""
    how = {"custom_generate": models.decoder(stop=options.stop)}
    return partial(generate, models.target, settings_of(models, options), options.max_new_tokens, how)


def generate(target: Any, config: Any, limit: int, how: dict[str, Any], text: str, seed: int) -> list[Round]:
    """One call of `model.generate`: all tokens are in the first round; the others only count the target's passes."""
    passes: list[None] = []
    forward, model = target.forward, target.model

    def counted(*args: Any, **given: Any) -> Any:
        passes.append(None)
        return forward(*args, **given)

    ids = target.tokenizer.encode(text, bos=True)
    models = [model, *filter(None, [how.get("assistant_model")])]
    own = [one.generation_config for one in models]
    hook = None
    if "custom_generate" in how:
        target.forward = counted  # the decoder's passes may not be the module's
    else:
        hook = model.register_forward_hook(lambda *_: passes.append(None))
    torch.manual_seed(seed)  # transformers draws from the global generator only
    prompt = torch.tensor([ids], device=target.device)
    try:
        for one in models:
            one.generation_config = copy.deepcopy(config)
        with quiet():
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, **how)
    finally:
        target.forward = forward
        if hook:
            hook.remove()
        for one, kept in zip(models, own, strict=True):
            one.generation_config = kept
    return [Round(emitted=made[0, len(ids):].tolist()), *(Round() for _ in passes[1:])]


def timed(name: str, method: Method) -> Callable[[str], list[Round]]:
    """The method, timed from outside, each call with its own seed. If transformers fails: a printed line and no rounds."""
    seeds = count()

    def write_one(text: str) -> list[Round]:
        began = perf_counter()
        try:
            rounds = method(text, next(seeds))
        except OmnidraftError:
            raise
        except Exception as error:  # a failure of transformers with these models is a result too
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
            return []
        each = (perf_counter() - began) / len(rounds)
        return [replace(one, seconds={"other": each}) for one in rounds]

    return write_one


def compare(models: Pair, texts: Sequence[str], options: Options, repeats: int) -> dict[str, dict]:
    """Figures per method: medians, ratios to the first, equal texts. The row of a method that failed is empty."""
    methods = {name: timed(name, method) for name, method in methods_of(models, options).items()}
    runs = take_turns(methods, texts, repeats)
    encode, rows = models.target.tokenizer.encode, {}
    base, *_ = runs.values()
    plain = [summarize(chain(*run)).tokens_per_second for run in base]
    for name, found in runs.items():
        rows[name] = {}
        if not all(chain(*found)):
            continue
        each = [summarize(chain(*run)).tokens_per_second for run in found]
        ratios = [one / other for one, other in zip(each, plain, strict=True)]
        s = summarize(chain(*chain(*found)))
        rows[name] = {"tokens_per_second": median(each), "each": each, "ratio": median(ratios), "ratios": ratios,
                      "tokens": s.tokens, "target_passes": s.rounds, "block_efficiency": s.block_efficiency}
        if not options.temperature:  # every repeat writes the same text
            pairs = [(emitted(one), emitted(other)) for one, other in zip(base[0], found[0], strict=True)]
            differ = [(text, *two) for text, two in zip(texts, pairs, strict=True) if two[0] != two[1]]
            ties = sum(is_tie(models.target, encode(text, bos=True), *two) for text, *two in differ)
            rows[name] |= {"prompts": len(texts), "same_text": len(texts) - len(differ), "ties": ties}
    return rows


def distance(models: Pair, prompts: Sequence[str], temperature: float) -> dict[str, Any]:
    """The total variation of assisted sampling's first token over prompts; {} where it fails."""
    try:
        found = first_token_distance(models, prompts, temperature)
    except AttributeError as error:  # transformers fails if the target has all of the drafter's tokens
        print(f"{ASSISTED}: {error}", file=sys.stderr)
        return {}
    return {"first_token_distance": fmean(found), "first_token_distance_range": [min(found), max(found)]}


def first_token_distance(models: Pair, prompts: Sequence[str], temperature: float) -> list[float]:
    """How far assisted sampling is from the target's distribution: total variation, per prompt.

    For the first token, without sampling noise: from p, the probability that the assistant draws
    each token, and the q that transformers uses for it in verification (docs/upstream).
    """
    target, draft = models.target, models.draft
    ours, others = (AutoTokenizer.from_pretrained(one.folder) for one in (target, draft))
    assistant, found = copy.deepcopy(draft.model), []
    translator = candidate_generator.AssistantToTargetTranslator(
        ours, others, target.vocab_size, assistant, assistant_prune_lm_head=True)
    for prompt in prompts:
        ids = torch.tensor([target.tokenizer.encode(prompt, bos=True)])
        text = ours.decode(ids[0], skip_special_tokens=True)
        drafter_ids = others(text, add_special_tokens=False, return_tensors="pt").input_ids
        translator.unmap_input_ids()  # the assistant reads the prompt in its own ids
        with torch.no_grad():
            p, logits = (model(one.to(model.device)).logits[0, -1].float().cpu() / temperature
                         for model, one in ((target.model, ids), (assistant, drafter_ids)))
        p, drafted = p.double().softmax(-1), logits.double().softmax(-1)  # (V_p,), (shared,)
        every = torch.cat([drafter_ids, torch.arange(len(drafted))[None]], 1)
        tokens = translator.get_target_ids(drafter_ids, ids, every)[0, ids.shape[1]:]
        drawn = torch.zeros_like(p).index_add(0, tokens, drafted)
        q = translator.get_target_logits(logits).double().softmax(-1)
        kept = drawn * torch.where(q > 0, p / q, 1.0).clamp(max=1)  # accepted with min(1, p / q)
        left = (p - q).clamp(min=0)
        sampled = kept + (1 - kept.sum()) * left / left.sum()
        found.append(float((sampled - p).abs().sum() / 2))
    return found


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "against_transformers", pairs=PAIRS, prompts=12, repeats=3, tokens=96,
                     temperatures=[0.0, 1.0], k=12, threshold=0.4, device="cpu")
    results = start(None, chosen(args, "prompts", "repeats", "tokens", "k", "threshold", "device"), pairs={})
    results["machine"] |= versions()
    for line in args.pairs:
        if not (folders := folders_of(line)):
            continue
        models = pair(*folders, backend="torch", draft_backend="torch", device=args.device)
        name = f"{models.draft.name}:{models.target.name}"
        tasks = ["text"] if line.startswith("real:") else TASKS
        for task, at in product(tasks, args.temperatures):
            texts, stop = texts_of(task, args.prompts), Confidence(args.k, args.threshold)
            options = Options(stop=stop, temperature=at, max_new_tokens=args.tokens)
            rows = compare(models, texts, options, args.repeats)
            if at and not models.one_vocabulary:
                rows[ASSISTED] |= distance(models, texts, at)
            results["pairs"].setdefault(name, {})[f"{task} T = {at:g}"] = rows
            print(name, task, at, *(f"{method} {row.get('ratio', 0):.2f}x" for method, row in rows.items()), flush=True)
    save(args.json, results)


if __name__ == "__main__":
    main()
