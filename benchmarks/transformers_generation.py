"""transformers' own decoding with the same modules that our models wrap, for `against_transformers`.

Plain; assisted by the drafter (with two tokenizers: universal assisted generation at temperature 0,
and UAG-TLI, arXiv 2502.05202, above 0); prompt lookup. Each has transformers' own defaults, without
the penalties that a model's folder sets. Also drafting inside its `generate`, with
`custom_generate`: `pair.decoder()`, and the folder integrations/custom_generate as on the hub.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, GenerationConfig
from transformers.generation import candidate_generator

from benchmarks.writing import chi_squared
from omnidraft.decoding import Round
from omnidraft.engine.transformers_loading import one_line, quiet

Method = Callable[[str, list[int], int, int], list[Round]]
FOLDER = Path(__file__).resolve().parent.parent / "integrations" / "custom_generate"


def decoders(pair: Any, temperature: float, assistant: dict[str, Any] | None = None) -> dict[str, Method]:
    """transformers' methods: functions (prompt, its ids, maximum new tokens, seed) -> rounds.

    The rounds have no seconds. `pair` holds two TransformersModels; `assistant` has settings of
    assisted drafting that replace its defaults. Errors of transformers come at the first call.

    >>> write = decoders(pair, 0.0)["transformers plain"]              # doctest: +SKIP
    >>> [one.emitted for one in write("a b", [17, 4], 2, 0)]           # doctest: +SKIP
    [[5], [9]]
    """
    target, draft, assisted = pair.target, pair.draft, {"assistant_model": pair.draft.model}
    how: dict[str, Any] = {"do_sample": False}
    if temperature:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    config = GenerationConfig(eos_token_id=list(target.eos_ids) or None,
                              pad_token_id=next(iter(target.eos_ids), 0), **how, **(assistant or {}))
    if not pair.one_vocabulary:
        if temperature:  # subtle: UAG-TLI reduces the drafter's layers to the shared tokens, and does not restore them
            assisted["assistant_model"] = copy.deepcopy(draft.model)
        for name, model in (("tokenizer", target), ("assistant_tokenizer", draft)):
            with quiet(), one_line(f"transformers cannot load the tokenizer of {model.name}"):
                assisted[name] = AutoTokenizer.from_pretrained(model.folder)
    methods = {"plain": {}, "assisted": assisted, "prompt lookup": {"prompt_lookup_num_tokens": 10}}
    return {f"transformers {name}": partial(_generate, target.model, config, method)
            for name, method in methods.items()}


def inside(pair: Any, temperature: float, **drafting: Any) -> dict[str, Method]:
    """`custom_generate` with the pair's decoder (`drafting`: its settings), and with the folder and its defaults.

    Functions as in `decoders`; all tokens are in the first round, and the others only count the passes.
    """
    target = pair.target
    how: dict[str, Any] = {"do_sample": bool(temperature)}
    how |= {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    config = GenerationConfig(eos_token_id=list(target.eos_ids) or None, pad_token_id=next(iter(target.eos_ids), 0), **how)
    tokenizer, other = (AutoTokenizer.from_pretrained(one.folder) for one in (target, pair.draft))
    folder = {"custom_generate": str(FOLDER), "trust_remote_code": True, "assistant_model": pair.draft.model,
              "tokenizer": tokenizer, "assistant_tokenizer": other}
    return {"omnidraft, custom_generate": partial(_custom, target, config, {"custom_generate": pair.decoder(**drafting)}),
            "omnidraft, folder": partial(_custom, target, config, folder)}


def remember(model: Any) -> None:
    """Let a TransformersModel compute the logits after each text only once: they do not change."""
    forward, known = model.forward, {}

    def remembered(ids: list[int], cache: Any, rows: int = 1) -> np.ndarray:
        cache.ids += ids
        texts = [tuple(cache.ids[:len(cache.ids) - back]) for back in reversed(range(rows))]
        for text in texts:
            if text not in known:
                known[text] = forward([*text], model.new_cache())[0]
        return np.stack([known[text] for text in texts])

    model.forward = remembered


def p_value(write: Method, target: Any, prompt: str, draws: int, first_seed: int = 0) -> float:
    """p of a chi-squared test of the first two tokens at temperature 1 against the target's exact distribution.

    Each draw has its own seed, from `first_seed` on.
    """
    ids, counts = target.tokenizer.encode(prompt, bos=True), Counter()
    for seed in range(first_seed, first_seed + draws):
        [first, *_] = write(prompt, ids, 3, seed)
        counts[tuple(first.emitted[:2])] += 1

    def rows(texts: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            return target.model(torch.tensor(texts)).logits[:, -1, :target.tokenizer.size].double().softmax(-1)

    p, expected = rows([ids])[0], {}
    after = rows([[*ids, token] for token in range(len(p))])
    for token, share in enumerate(p.tolist()):
        ended = token in target.eos_ids
        expected |= {(token,): share} if ended else {(token, b): share * q for b, q in enumerate(after[token].tolist())}
    found = [counts.pop(cell, 0) for cell in expected] + [counts.total()]  # the last ones are impossible
    return chi_squared(np.array(found), np.array([*expected.values(), 0.0]))["p"]



def first_token_distance(pair: Any, prompts: list[str], temperature: float) -> list[float]:
    """How far assisted sampling is from the target's distribution: total variation, per prompt.

    For the first token, without sampling noise: from p, the probability that the assistant draws
    each token, and the q that transformers uses for it in verification (docs/upstream).
    """
    ours, theirs = (AutoTokenizer.from_pretrained(one.folder) for one in (pair.target, pair.draft))
    assistant, found = copy.deepcopy(pair.draft.model), []
    translator = candidate_generator.AssistantToTargetTranslator(
        ours, theirs, pair.target.vocab_size, assistant, assistant_prune_lm_head=True)
    for prompt in prompts:
        ids = torch.tensor([pair.target.tokenizer.encode(prompt, bos=True)])
        text = ours.decode(ids[0], skip_special_tokens=True)
        drafter_ids = theirs(text, add_special_tokens=False, return_tensors="pt").input_ids
        translator.unmap_input_ids()  # the assistant reads the prompt in its own ids
        with torch.no_grad():
            p, logits = (model(one.to(model.device)).logits[0, -1].float().cpu() / temperature
                         for model, one in ((pair.target.model, ids), (assistant, drafter_ids)))
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


def _custom(target: Any, config: Any, how: dict[str, Any], _: str, ids: list[int], limit: int, seed: int) -> list[Round]:
    """One call of `model.generate` with `custom_generate`; the target's passes are counted in the target."""
    passes, model, forward = [], target.model, target.forward

    def counted(*args: Any, **given: Any) -> Any:
        passes.append(None)
        return forward(*args, **given)

    def read(*_: Any) -> None:
        passes.append(None)

    decoder = callable(how["custom_generate"])  # its pass may be the package's own, which no hook sees
    hook = None if decoder else model.register_forward_hook(read)
    own, prompt = model.generation_config, torch.tensor([ids], device=model.get_input_embeddings().weight.device)
    torch.manual_seed(seed)
    try:
        model.generation_config = copy.deepcopy(config)
        if decoder:
            target.forward = counted
        with quiet():
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, **how)
    finally:
        model.generation_config = own
        target.forward = forward
        if hook:
            hook.remove()
    return [Round(emitted=made[0, len(ids):].tolist()), *(Round() for _ in passes[1:])]


def _generate(model: Any, config: Any, how: dict[str, Any], _: str, ids: list[int], limit: int,
              seed: int) -> list[Round]:
    """One call of `model.generate`; a hook sees what each pass reads, and a streamer what it writes."""
    widths: list[int] = []
    written: list[list[int]] = []  # the prompt, then one entry per pass
    models = [model, *(other for other in [how.get("assistant_model")] if other is not None)]
    own = [one.generation_config for one in models]
    prompt = torch.tensor([ids], device=model.get_input_embeddings().weight.device)

    def read(_: Any, args: tuple, given: dict[str, Any], out: Any) -> None:
        widths.append(given["input_ids"].shape[1])

    hook = model.register_forward_hook(read, with_kwargs=True)
    streamer = SimpleNamespace(end=lambda: None,
                               put=lambda tokens: written.append(tokens.flatten().tolist()))
    torch.manual_seed(seed)  # transformers draws from the global generator only
    try:
        for one in models:  # settings that a call does not give are taken from here
            one.generation_config = copy.deepcopy(config)
        with quiet():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit,
                           streamer=streamer, **how)
    finally:
        hook.remove()
        for one, kept in zip(models, own, strict=True):
            one.generation_config = kept
    widths[0] -= len(ids) - 1  # a pass reads one token and the proposals; the first pass reads the whole prompt
    return [Round(proposals=[-1] * (width - 1), accepted=len(tokens) - 1, emitted=tokens)
            for width, tokens in zip(widths, written[1:], strict=True)]
