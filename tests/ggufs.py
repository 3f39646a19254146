"""Small GGUF files for tests, written by hand: settings, a tokenizer of either kind, weights in every format."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np

from omnidraft.engine import load as loading
from omnidraft.engine.config import ModelConfig
from omnidraft.engine.gguf import STORED
from omnidraft.engine.llama import Llama
from omnidraft.text.tokenizer import BYTE_TO_CHARACTER

FORMATS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
           "BF16": 30}
BYTES = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
         "Q5_1": (32, 24), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128}
CHAT = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n")


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def setting(value: object) -> bytes:
    """The kind and the content of a setting."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    kind, form = (5, "<i4") if isinstance(value[0], int) else (6, "<f4")
    return struct.pack("<IIQ", 9, kind, len(value)) + np.array(value, form).tobytes()


def write(path: Path, settings: dict, tensors: dict[str, tuple[tuple[int, ...], int, bytes]], version: int = 3,
          align: int = 32) -> Path:
    """Write a GGUF; tensors: name -> (shape, outer first; number of the format; bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(settings))
    head += b"".join(text(name) + setting(value) for name, value in settings.items())
    data = b""
    for name, (shape, kind, content) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % align)
    path.write_bytes(head + bytes(-len(head) % align) + data)
    return path


def byte_level(pre: str = "gpt-2") -> dict:
    """Settings of a byte-level tokenizer: control tokens, bytes, merges, a token of the user's own, an unused one."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ Ġ", "Ġ hello", "1 2", "12 3", "Ġ 1", "ĠĠ ĠĠ"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTE_TO_CHARACTER, *(m.replace(" ", "") for m in merges),
              "<think>", "[PAD270]"]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * 3 + [1] * (256 + len(merges)) + [4, 5], "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": CHAT}


def sentencepiece(dummy: bool | None = None) -> dict:
    """Settings of a SentencePiece tokenizer with byte fallback."""
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁▁", *"▁helo12,"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, "<|im_end|>"]
    made = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [3],
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(pieces) + 1)],
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
    return made if dummy is None else made | {"tokenizer.ggml.add_space_prefix": dummy}


def encoded(numbers: np.ndarray, kind: str) -> tuple[np.ndarray, bytes]:
    """The numbers nearest to float32 `numbers` that a plain format can hold, and their bytes; for a format with
    blocks, random blocks instead, and what they stand for by `decoded`."""
    if kind in ("F32", "F16"):
        stored = numbers.astype(f"<f{4 if kind == 'F32' else 2}")
        return stored.astype(np.float32), stored.tobytes()
    if kind == "BF16":
        upper = (numbers.astype("<f4").view("<u4") >> 16).astype("<u2")
        return (upper.astype("<u4") << 16).view("<f4"), upper.tobytes()
    weights, size = BYTES[kind]
    rng = np.random.default_rng(numbers.size)
    blocks = rng.integers(0, 256, (numbers.size // weights, size), dtype=np.uint8)
    scales = rng.uniform(1e-3, 2e-3, (len(blocks), 2)).astype("<f2").view(np.uint8)
    if kind == "Q6_K":
        blocks[:, -2:] = scales[:, :2]
        blocks[:, 192:208] &= 0x83  # small scales, of both signs
    else:
        both = 4 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 2
        blocks[:, :both] = scales[:, :both]
    made = [number for block in blocks for number in decoded(block.tolist(), kind)]
    return np.array(made, np.float32).reshape(numbers.shape), blocks.tobytes()


def half(block: list[int], place: int) -> float:
    return float(np.array(block[place:place + 2], np.uint8).view("<f2")[0])


def decoded(block: list[int], kind: str) -> list[float]:
    """The weights of one block, one after the other, as the format's definition says."""
    d, m = half(block, 0), half(block, 2)
    if kind == "Q8_0":
        return [d * (q - 256 * (q > 127)) for q in block[2:]]
    if kind in ("Q4_0", "Q4_1"):
        q = block[-16:]
        q = [byte & 15 for byte in q] + [byte >> 4 for byte in q]
        return [d * (each - 8) if kind == "Q4_0" else d * each + m for each in q]
    if kind in ("Q5_0", "Q5_1"):
        q = block[-16:]
        high = int.from_bytes(bytes(block[-20:-16]), "little")
        q = [byte & 15 for byte in q] + [byte >> 4 for byte in q]
        q = [each + 16 * (high >> i & 1) for i, each in enumerate(q)]
        return [d * (each - 16) if kind == "Q5_0" else d * each + m for each in q]
    made = []
    if kind == "Q6_K":
        d = half(block, 208)
        for i in range(256):
            part, place = divmod(i, 128)  # halves of the block; four times 32 weights in each
            quarter, column = divmod(place, 32)
            low = block[64 * part + 32 * (quarter % 2) + column]
            low = low >> 4 if quarter > 1 else low & 15
            high = block[128 + 32 * part + column] >> 2 * quarter & 3
            scale = block[192 + i // 16]
            made.append(d * (scale - 256 * (scale > 127)) * (low + 16 * high - 32))
        return made
    packed, quants = block[4:16], block[-128:]
    for i in range(256):
        part, column = divmod(i, 32)
        if part < 4:
            scale, least = packed[part] & 63, packed[part + 4] & 63
        else:
            scale = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4
            least = packed[part + 4] >> 4 | packed[part] >> 6 << 4
        byte = quants[32 * (part // 2) + column]
        q = byte >> 4 if part % 2 else byte & 15
        if kind == "Q5_K":
            q += 16 * (block[16 + column] >> part & 1)
        made.append(d * scale * q - m * least)
    return made


def tiny(path: Path, kind: str = "F32", tokenizer: dict | None = None, family: str = "llama", settings: dict | None = None,
         **sizes) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Write a random model with matrices of a format; returns what the engine should read, under Hugging Face names."""
    tokenizer = byte_level() if tokenizer is None else tokenizer
    sizes = SIZES | sizes
    config = ModelConfig.parse({"model_type": STORED[family].family, "rms_norm_eps": 2**-17,
                                "vocab_size": len(tokenizer["tokenizer.ggml.tokens"]),
                                "eos_token_id": tokenizer["tokenizer.ggml.eos_token_id"], **sizes})
    rng, numbers, tensors = np.random.default_rng(0), {}, {}
    for name, shape in config.tensor_shapes().items():
        made = (rng.standard_normal(shape) / 8 + ("norm" in name)).astype(np.float32)
        its = kind if len(shape) == 2 else "F32"
        gain = int(family == "gemma3" and name.endswith("norm.weight"))  # llama.cpp's files have Gemma's gains plus 1
        numbers[name], data = encoded(made + gain, its)
        numbers[name] -= np.float32(gain)
        tensors[spelled(name, family)] = shape, FORMATS[its], data
    if STORED[family].paired:  # the file has the rows of q and k so that numbers that rotate together are neighbours
        for name, (shape, its, data) in tensors.items():
            if ".attn_q." in name or ".attn_k." in name:
                rows = np.frombuffer(data, np.uint8).reshape(shape[0], -1)
                d = config.head_dim
                order = [head * d + i // 2 + i % 2 * (d // 2) for head in range(shape[0] // d) for i in range(d)]
                tensors[name] = shape, its, rows[order].tobytes()
    own = {"block_count": config.layers, "embedding_length": config.width, "feed_forward_length": config.hidden,
           "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
           "context_length": config.context_size, "attention.layer_norm_rms_epsilon": 2**-17,
           "attention.key_length": config.head_dim}
    if config.gemma:
        own["attention.sliding_window"] = config.window
    write(path, {"general.architecture": family} | {f"{family}.{k}": v for k, v in own.items()} | tokenizer
          | (settings or {}), tensors)
    return config, numbers


def exported(path: Path, model: Llama) -> Path:
    """Write an embedded model of the Qwen2 kind, with its byte-level tokenizer, as numbers of four bytes."""
    config, tensors = model.stored()
    bpe = json.loads(model.tokenizer.raw.to_str())["model"]
    ids = {**bpe["vocab"], **{token.content: id for id, token in model.tokenizer.raw.get_added_tokens_decoder().items()}}
    tokens = sorted(ids, key=ids.get)
    control = set(model.tokenizer.raw.get_added_tokens_decoder())
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    own = {"block_count": config.layers, "embedding_length": config.width, "feed_forward_length": config.hidden,
           "attention.head_count": config.heads, "attention.head_count_kv": config.kv_heads,
           "context_length": config.context_size, "attention.layer_norm_rms_epsilon": config.eps,
           "rope.freq_base": float(config.rope["rope_theta"])}
    settings = {"general.architecture": "qwen2", **{f"qwen2.{name}": value for name, value in own.items()},
                "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": [3 if ids[token] in control else 1 for token in tokens],
                "tokenizer.ggml.merges": merges, "tokenizer.ggml.eos_token_id": model.eos_ids[0]}
    return write(path, settings, {spelled(name): (tensor.shape, FORMATS["F32"], tensor.astype("<f4").tobytes())
                                  for name, tensor in tensors.items()})


def spelled(name: str, family: str = "llama") -> str:
    """A Hugging Face name as GGUF spells it."""
    gemma = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
             "post_feedforward_layernorm": "post_ffw_norm"} if family == "gemma3" else {}
    for theirs, ours in gemma.items():
        name = name.replace(theirs, ours)
    for theirs, ours in {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
                         "model.layers.": "blk.", "self_attn.o_proj": "attn_output", "self_attn.": "attn_", "_proj": "",
                         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.": "ffn_"}.items():
        name = name.replace(theirs, ours)
    return name


def install(folder: Path, monkeypatch) -> bytes:
    """A tiny model in place of the published "smollm2"; returns its content."""
    tiny(folder / "smollm2.gguf", settings={"llama.context_length": 512})
    content = (folder / "smollm2.gguf").read_bytes()
    monkeypatch.setenv("OMNIDRAFT_MODELS", str(folder))
    monkeypatch.setitem(loading.PUBLISHED, "smollm2", loading.Published(
        "a tiny model", "tiny==1.0", "tiny.gguf", len(content), hashlib.sha256(content).hexdigest()))
    return content
