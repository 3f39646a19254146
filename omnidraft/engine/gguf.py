"""GGUF: one file with a model's settings, tokenizer and (quantized) weights, as llama.cpp has it.

    magic, version, number of tensors, number of settings
    the settings: name, kind, value        (the tokenizer and its chat template are among them)
    the tensors: name, sizes, format, offset
    padding, then the numbers of all tensors

The file may come from anybody: every count, length and offset is compared with what is left of the
file before anything is allocated. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..text.errors import OmnidraftError
from ..text.files import check_readable
from ..text.tokenizer import Tokenizer
from .config import ModelConfig, frequencies
from .gguf_tokenizer import build

if TYPE_CHECKING:
    from .quantized import Quantized

VERSIONS = (2, 3)
LONGEST_NAME, LONGEST_TEXT, MOST_ENTRIES = 2**16, 2**24, 2**22  # bytes, bytes, entries of a list
LONGEST_HEADER, MOST_NAMES = 2**26, 2**16  # bytes (Gemma 3: 6.5 million); settings, or tensors
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
           10: "<Q", 11: "<q", 12: "<d"}
TEXT, LIST = 8, 9
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}  # Mistral is stored as llama
SETTINGS = {  # config.json's name: GGUF's, after the family's
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length", "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon"}
NEEDED = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1: what slows down each rotation


def is_gguf(path: Path) -> bool:
    """Is this a GGUF file, by its name?"""
    return path.suffix == ".gguf" and path.is_file()


class Reader:
    """Reads a file's bytes in order; anything that does not fit the file is a ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place, self.end = data, 0, min(len(data), LONGEST_HEADER)

    def take(self, size: int) -> int:
        """Go on by `size` bytes, which must be there; returns where they begin."""
        start, self.place = self.place, self.place + size
        if self.place > self.end:
            raise ValueError("it ends too early, or its header is too long")
        return start

    def number(self, kind: int) -> Any:
        """One number of a kind in SCALARS."""
        form = SCALARS[kind]
        return struct.unpack_from(form, self.data, self.take(struct.calcsize(form)))[0]

    def text(self, longest: int = LONGEST_TEXT) -> str:
        """A length, and as many bytes of UTF-8."""
        size = self.number(10)
        if size > longest:
            raise ValueError(f"a text of {size:,} bytes")
        start = self.take(size)
        return self.data[start:start + size].decode()

    def value(self, kind: int) -> Any:
        """A number, a text, or a list of either (of numbers: an array)."""
        if kind != LIST:
            return self.text() if kind == TEXT else self.number(kind)
        kind, count = self.number(4), self.number(10)
        if count > MOST_ENTRIES:
            raise ValueError(f"a list of {count:,} entries")
        if kind == TEXT:
            return [self.text() for _ in range(count)]
        numbers = np.dtype(SCALARS[kind])  # subtle: a list of lists is refused here
        return np.frombuffer(self.data, numbers, count, self.take(count * numbers.itemsize)).copy()


class Gguf:
    """The content of a GGUF file: `settings` by name, and `tensors` that stay in the file.

    >>> Gguf("smollm2.gguf").settings["general.architecture"]  # doctest: +SKIP
    'llama'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_readable(self.path, 2**62)  # reading a pipe would wait
        try:
            with self.path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._read(Reader(data))
        except (ValueError, KeyError, struct.error, OverflowError) as error:
            reason = f"unknown kind {error}" if isinstance(error, KeyError) else error
            raise OmnidraftError(f"{self.path} is not a complete GGUF file ({reason}): "
                                 "download it again") from None

    def _read(self, reader: Reader) -> None:
        """Read everything but the tensors' numbers."""
        magic, version = reader.data[reader.take(4):4], reader.number(4)
        if magic != b"GGUF" or version not in VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}")
        tensors, settings = reader.number(10), reader.number(10)
        if max(tensors, settings) > MOST_NAMES:
            raise ValueError(f"{tensors:,} tensors, {settings:,} settings")
        self.settings: dict[str, Any] = {}
        for _ in range(settings):
            name = reader.text(LONGEST_NAME)
            if name in self.settings:
                raise ValueError(f"two settings {name[:40]}")
            self.settings[name] = reader.value(reader.number(4))
        entries = {}
        for _ in range(tensors):
            name = reader.text(LONGEST_NAME)
            if name in entries:
                raise ValueError(f"two tensors {name[:40]}")
            dimensions = reader.number(4)
            if dimensions > 4:
                raise ValueError(f"{name[:40]} has {dimensions} dimensions")
            sizes = [reader.number(10) for _ in range(dimensions)]
            entries[name] = sizes[::-1], reader.number(4), reader.number(10)  # shape: outer first
        self.tensors = self._tensors(reader, entries)

    def _tensors(self, reader: Reader, entries: dict[str, tuple]) -> dict[str, "Quantized"]:
        """The tensors as records in the file, none of which overlap."""
        from .quantized import Quantized, block_of  # needs the package gguf
        align = self.settings.get("general.alignment", 32)
        if type(align) is not int or not 1 <= align <= 2**16:
            raise ValueError(f"an alignment of {str(align)[:40]}")
        begin, used, made = reader.place + -reader.place % align, 0, {}
        reader.end = len(reader.data)
        for name, (shape, kind, offset) in sorted(entries.items(), key=lambda entry: entry[1][2]):
            (weights, size), count = block_of(kind), math.prod(shape)
            if not shape or count < 1 or shape[-1] % weights:
                raise ValueError(f"{name[:40]} has the shape {shape}")
            if offset < used:
                raise ValueError(f"{name[:40]} begins inside another tensor")
            count //= weights
            reader.place = begin + offset
            start = reader.take(count * size)
            used = reader.place - begin
            blocks = np.frombuffer(reader.data, np.uint8, count * size, start).reshape(count, size)
            made[name] = Quantized(blocks, kind, tuple(shape))
        return made

    def setting(self, name: str, kinds: Any, default: Any = None) -> Any:
        """A setting of one of these types, `default` without one; OmnidraftError for others."""
        value = self.settings.get(name)
        if value is not None and not isinstance(value, kinds):
            raise OmnidraftError(f"{self.path}: {name} is {str(value)[:40]!r}, of the wrong kind: "
                                 "download it again")
        return default if value is None else value

    @property
    def family(self) -> str:
        """The architecture, as llama.cpp calls it; OmnidraftError if there is none."""
        return self.setting("general.architecture", str, "")

    @property
    def layers(self) -> int:
        """The number of layers; OmnidraftError if it is no number."""
        return self.setting(f"{self.family}.block_count", int, 0)

    def config(self) -> ModelConfig:
        """The model's sizes; raises OmnidraftError for what the NumPy engine does not run."""
        family, tensors = self.family, self.tensors
        if family not in FAMILIES:
            raise OmnidraftError(f"{self.path}: the NumPy engine does not run {family or 'it'!r} "
                                 f"(only {', '.join(FAMILIES)}); use --backend torch")
        config = {name: self.settings.get(f"{family}.{its}") for name, its in SETTINGS.items()}
        config = {name: value for name, value in config.items() if value is not None}
        if missing := NEEDED - config.keys():
            raise OmnidraftError(f"{self.path}: it has no {family}.{SETTINGS[min(missing)]}: "
                                 "download it again")
        width = tensors["token_embd.weight"].shape if "token_embd.weight" in tensors else (0,)
        config |= {"architectures": [FAMILIES[family]], "vocab_size": width[0],
                   "attention_bias": "blk.0.attn_q.bias" in tensors,
                   "tie_word_embeddings": "output.weight" not in tensors,
                   "use_sliding_window": False, "eos_token_id": [*self.ends()]}
        scaling = self.settings.get(f"{family}.rope.scaling.type", "none")
        if scaling != "none":
            config["rope_scaling"] = {
                "rope_type": scaling, "factor": self.settings.get(f"{family}.rope.scaling.factor")}
        found = ModelConfig.parse(config, str(self.path))
        half = (found.head_dim // 2,)
        for name, expected in (("attention.value_length", found.head_dim), ("expert_count", 0),
                               ("rope.dimension_count", found.head_dim)):
            value = self.settings.get(f"{family}.{name}", expected)
            if type(value) is not int or value != expected:
                raise OmnidraftError(f"{self.path}: {name} is {str(value)[:40]}, but the NumPy "
                                     f"engine needs {expected}; use --backend torch")
        if ROPE_FACTORS in tensors and tensors[ROPE_FACTORS].shape == half:
            factors = tensors[ROPE_FACTORS].astype(np.float64)
            if not np.all((factors > 1e-9) & (factors < 1e9)):
                raise OmnidraftError(f"{self.path}: {ROPE_FACTORS} has numbers that make no sense: "
                                     "download it again")
            each = tuple((frequencies(found) / factors).tolist())
            found = replace(found, rope=found.rope | {"rope_type": "frequencies",
                                                      "frequencies": each})
        return found

    def ends(self) -> list[int]:
        """The ids that end a text: of a document, of a turn, of a message."""
        names = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
        return [self.settings[name] for name in names if name in self.settings]

    def weights(self, config: ModelConfig) -> dict[str, "Quantized"]:
        """The tensors by Hugging Face name; OmnidraftError for one that the engine would not use.

        Subtle: llama files have the rows of q and k in another order, numbers that rotate together
        side by side; here they get back their place half a head apart.
        """
        found = {}
        for name, tensor in self.tensors.items():
            part, _, kind = name.rpartition(".")
            layer = part.split(".") if part.startswith("blk.") else []
            if len(layer) == 3 and layer[2] in PARTS:
                found[f"model.layers.{layer[1]}.{PARTS[layer[2]]}.{kind}"] = tensor
            elif part in TENSORS:
                found[f"{TENSORS[part]}.{kind}"] = tensor
            elif name != ROPE_FACTORS or config.rope["rope_type"] != "frequencies":
                found[name] = tensor
        if unknown := found.keys() - config.tensor_shapes().keys():
            raise OmnidraftError(f"{self.path}: the NumPy engine does not know the tensor "
                                 f"{min(unknown)[:60]}; use --backend torch")
        for name, tensor in found.items() if self.family == "llama" else ():
            heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
            if heads and tensor.shape[0] == heads * config.head_dim:
                pairs = tensor.blocks.reshape(heads, config.head_dim // 2, 2, -1)
                blocks = pairs.swapaxes(1, 2).reshape(tensor.blocks.shape)
                found[name] = type(tensor)(blocks, tensor.kind, tensor.shape)
        return found

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, special tokens and chat template of the file."""
        return build(self.settings, self.path.stem)
