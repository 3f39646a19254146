"""Every causal language model that transformers can build small: its greedy text with a drafter against its own `generate`.

    python tests/families.py [NAME ...]      (some minutes, needs PyTorch; prints a line for each, and the counts)

A family that differs from transformers is named, and the exit status is 1. One that transformers itself cannot build, or
cannot continue, from these sizes alone is left out and counted.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vocabularies import byte_level, sentencepiece

from omnidraft import OmnidraftError
from omnidraft.engine.transformers_model import TransformersModel
from omnidraft.pairs.pair import Pair

BYTES = byte_level("Ġ t, h e", name="bytes")
PIECES = sentencepiece("▁abcdefghijklmnopqrstuvwxyz.,", "▁ t, h e, ▁t he, i n", name="pieces")
TOKENS = 24
PROMPT = "the king of the castle"
SIZES = {"hidden_size": 32, "n_embd": 32, "d_model": 32, "dim": 32, "word_embed_proj_dim": 32,
         "intermediate_size": 48, "ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_ffn_dim": 48, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 16, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
         "decoder_layers": 2, "encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
         "decoder_attention_heads": 4, "encoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256, "num_local_experts": 4, "num_experts": 4,
         "n_routed_experts": 4, "num_experts_per_tok": 2, "is_decoder": True, "is_encoder_decoder": False,
         "pad_token_id": None, "use_mamba_kernels": False}


def tiny(kind: str, vocab_size: int, seed: int):
    """A small random model of one kind, in float64; None if transformers cannot build it from `SIZES`."""
    config_class = transformers.CONFIG_MAPPING[kind]
    known = vars(config_class()).keys() | set(getattr(config_class, "attribute_map", {}))
    config = config_class(vocab_size=vocab_size, **{name: value for name, value in SIZES.items() if name in known})
    if config.get_text_config() is not config:
        raise ValueError("a model of several parts")
    with torch.device("meta"):  # without memory
        sizes = [parameter.numel() for parameter in transformers.AutoModelForCausalLM.from_config(config).parameters()]
    if sum(sizes) > 3_000_000:
        raise ValueError("not small")
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape) * 0.15)
    return model


def compare(kind: str) -> str:
    """Build, write, compare: "equal", "refused" in one line, "left out", or what differs."""
    try:
        model = tiny(kind, BYTES.size, 0)
        model.generation_config.forced_eos_token_id = None  # of summaries: not a matter of decoding
        ids = torch.tensor([BYTES.encode(PROMPT)])
        theirs = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
        theirs = theirs[0, ids.shape[1]:].tolist()
    except Exception as error:  # noqa: BLE001 (whatever transformers raises)
        return f"left out: {type(error).__name__}"
    drafter = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=PIECES.size, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256)).eval().double()
    try:
        target = TransformersModel(model, BYTES, name=kind)
        target.eos_ids = ()
        pair = Pair(TransformersModel(drafter, PIECES, name="drafter"), target)
        ours = pair.generate(PROMPT, max_new_tokens=TOKENS, adaptive=False, draft_length=3).tokens
    except OmnidraftError as error:
        return f"refused: {error}"
    if ours == theirs:
        return "equal"
    at = next(place for place, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    return f"DIFFERS at token {at}, {target.choice.rereads or 'cut'}"


def main() -> None:
    """Compare the families that are named, or all."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    found = Counter()
    for kind in sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        said = compare(kind)
        found[said.partition(":")[0].partition(" at ")[0]] += 1
        print(f"{kind:32} {said}", flush=True)
    print(dict(found))
    sys.exit(found["DIFFERS"] > 0)


if __name__ == "__main__":
    main()
