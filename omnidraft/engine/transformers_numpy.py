"""One model for both engines: a GGUF's tensors for transformers, a model of transformers for NumPy.

For the families that both engines run. transformers converts a GGUF itself, but drops
scaled rotations and biases without a word, so that the text is wrong.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers

from ..text.errors import OmnidraftError
from .config import FAMILIES, FULL, LOCAL, ModelConfig, frequencies
from .gguf import Gguf
from .llama import Llama

CLASSES = [getattr(transformers, family.architecture, None) for family in FAMILIES.values()]
UNSCALED = ("none", "1", "1.0", "False")  # settings of rotations that change nothing
NEAR = 2e-5  # of the logits' norm: the largest difference between two engines


def from_gguf(file: Gguf, device: str, dtype: Any, **more: Any) -> Any:
    """A model of transformers from our tensors and configuration; None if we do not read the file.

    `more` is for its configuration (attn_implementation). Raises OmnidraftError if weights lack.
    """
    try:
        config = file.config()
        tensors = file.weights(config)
    except OmnidraftError:
        return None
    config.check(tensors, file.path.name)
    if dtype == "auto":
        dtype = torch.float32
    with torch.device("meta"):  # no memory, and no random numbers, for what is then replaced
        model = transformers.AutoModelForCausalLM.from_config(
            theirs(config), dtype=dtype, **more)
    state = {}
    for name, tensor in tensors.items():
        numbers = torch.from_numpy(tensor.astype(np.float32))
        state[name] = numbers.to(device, dtype)
    for name, one in model.state_dict().items():  # a file may have biases of q, k and v alone
        if name.endswith(".bias") and name not in state:
            state[name] = torch.zeros(one.shape, device=device, dtype=dtype)
    model.load_state_dict(state, strict=False, assign=True)  # a tied head is the embedding
    model.tie_weights()
    # subtle: one by one, as a file may state them so (rope_freqs), which no configuration can
    rotary = model.model.rotary_emb
    kinds = {"": False}
    if config.gemma:
        scale = torch.tensor(config.width ** 0.5, device=device)
        model.model.embed_tokens.embed_scale = scale
        kinds = {f"{FULL}_": False, f"{LOCAL}_": True}
    for kind, local in kinds.items():
        turns = torch.tensor(frequencies(config, local), dtype=torch.float32, device=device)
        setattr(rotary, f"{kind}inv_freq", turns)
        setattr(rotary, f"{kind}original_inv_freq", turns.clone())
    return model.eval()


def theirs(config: ModelConfig) -> Any:
    """Our configuration as transformers writes it, without the rotations."""
    more = {}
    if config.gemma:
        more = {"query_pre_attn_scalar": int(config.scalar), "sliding_window": config.window,
                "layer_types": [LOCAL if i in config.local else FULL
                                for i in range(config.layers)]}
    return transformers.AutoConfig.for_model(
        config.family, vocab_size=config.vocab_size, hidden_size=config.width,
        intermediate_size=config.hidden, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim, max_position_embeddings=config.context_size,
        rms_norm_eps=config.eps, attention_bias=config.qkv_bias, mlp_bias=config.mlp_bias,
        tie_word_embeddings=config.tied, eos_token_id=list(config.eos_ids), **more)


def check_conversion(file: Gguf, model: Any) -> None:
    """Raise OmnidraftError for what transformers' own conversion to `model` has dropped."""
    scaled = [name for name, value in file.settings.items()
              if ".rope.scal" in name and str(value) not in UNSCALED]
    factors = [name for name in file.tensors if name.startswith("rope_f")]
    biases = [name for name in file.tensors if name.endswith(".bias")]
    kept = [name for name, _ in model.named_parameters() if name.endswith(".bias")]
    lost = scaled + factors
    if len(biases) > len(kept):
        lost += sorted(biases)
    if lost:
        raise OmnidraftError(f"{file.path}: it has {lost[0][:60]}, which transformers drops from a "
                             "GGUF: use the Hugging Face folder of this model")


def in_numpy(made: Any) -> Llama | None:
    """The model of a `TransformersModel` in the NumPy engine, faster on a CPU; None if it differs.

    It reads the same tensors, and computes with a copy of them in its own layout: what is changed
    in the model later has no effect. `original` is `made`.
    """
    model = made.model
    parameters = dict(model.named_parameters())
    plain = {(one.dtype, one.device.type) for one in parameters.values()}
    if type(model) not in CLASSES or plain != {(torch.float32, "cpu")} or is_hooked(model):
        return None
    with suppress(OmnidraftError, MemoryError):  # raised for what only transformers runs
        settings = model.config.to_dict()
        config = ModelConfig.parse(settings | {"architectures": [type(model).__name__]})
        # subtle: a parameter that two parts share is listed once, so a wrong "tied" shows here
        if parameters.keys() != config.tensor_shapes().keys():
            return None
        if config.context_size != made.context_size:  # a sliding window
            return None
        tensors = {name: one.detach().numpy() for name, one in parameters.items()}
        config = replace(config, eos_ids=made.eos_ids)
        llama = Llama(config, tensors, name=made.name, tokenizer=made.tokenizer,
                      reread=lambda: tensors)
        ids = made.trial_ids[0].tolist()
        found = llama.forward(ids, llama.new_cache(), len(ids))
        wanted = made.forward(ids, made.new_cache(), len(ids))
        if np.linalg.norm(found - wanted) < NEAR * np.linalg.norm(wanted):
            llama.original = made
            llama.speaks = made.speaks
            return llama
    return None


def is_hooked(model: Any) -> bool:
    """Does somebody else's code run in the passes of this model?"""
    for part in model.modules():
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
            return True
    return False
