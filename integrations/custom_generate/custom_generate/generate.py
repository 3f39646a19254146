"""Assisted generation with any tokenizer, lossless at any temperature, by the package omnidraft.

`model.generate(..., custom_generate=FOLDER, trust_remote_code=True, tokenizer=..., assistant_model=...,
assistant_tokenizer=...)` calls `generate` here; what it does is `omnidraft.pair(...).decoder()`.
"""

import torch
from transformers import StoppingCriteriaList, StopStringCriteria

import omnidraft

NEEDED = {"assistant_model": ("generation_config", "a causal language model of transformers"),
          "assistant_tokenizer": ("backend_tokenizer", "a fast tokenizer"),
          "tokenizer": ("backend_tokenizer", "a fast tokenizer")}


def generate(model, *args, tokenizer=None, assistant_model=None, assistant_tokenizer=None, streamer=None,
             generator=None, stop_strings=None, stopping_criteria=None, **kwargs):
    """`model.generate` with drafts of `assistant_model`, also with a `generator`.

    Raises ValueError if a part is missing or of the wrong kind, or for what is not supported.
    """
    given = {"assistant_model": assistant_model, "assistant_tokenizer": assistant_tokenizer, "tokenizer": tokenizer}
    for name, (attribute, kind) in NEEDED.items():
        if given[name] is None:
            raise ValueError(f"{name} is missing: drafting needs both models and their tokenizers")
        check(name, given[name], hasattr(given[name], attribute), kind)
    check("generator", generator, generator is None or isinstance(generator, torch.Generator), "a torch.Generator")
    criteria = StoppingCriteriaList(stopping_criteria or [])
    if stop_strings is not None:
        texts = stop_strings if isinstance(stop_strings, (list, tuple)) else [stop_strings]
        check("stop_strings", stop_strings, all(isinstance(text, str) for text in texts), "text or a list of it")
        criteria.append(StopStringCriteria(tokenizer, stop_strings))

    limits = {"draft_length": kwargs.get("num_assistant_tokens"), "threshold": kwargs.get("assistant_confidence_threshold")}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    pair = pair_of(model, tokenizer, assistant_model, assistant_tokenizer)
    decoder = pair.decoder(streamer=streamer, generator=generator, **limits)
    return model.generate(*args, custom_generate=decoder, stopping_criteria=criteria, **kwargs)


class Kept(tuple):
    """The parts of a pair, and the pair, kept with its target; copies of the target do not have it."""
    def __reduce__(self):
        return tuple, ()


def pair_of(model, tokenizer, *assistant):
    """The pair of two models with their tokenizers, kept with the model: to relate two vocabularies takes a while."""
    parts, pair = getattr(model, "omnidraft_pair", ()) or ((), None)
    if len(parts) != 3 or any(one is not other for one, other in zip(parts, (tokenizer, *assistant), strict=True)):
        pair = omnidraft.pair(draft=assistant, target=(model, tokenizer))
        model.omnidraft_pair = Kept(((tokenizer, *assistant), pair))
    return pair


def check(name, value, is_right, needed):
    """Raise ValueError, in one short line, for an argument of the wrong kind."""
    if not is_right:
        raise ValueError(f"{name} is {' '.join(repr(value).split())[:60]}, but must be {needed}")
