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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..text.errors import OmnidraftError
from ..text.files import check_readable
from ..text.tokenizer import Tokenizer
from .config import ModelConfig, frequencies
from .gguf_tokenizer import build, end_ids

if TYPE_CHECKING:
    from .quantized import Quantized

VERSIONS = (2, 3)
LONGEST_NAME = 2**16  # bytes
LONGEST_TEXT = 2**24  # bytes
LONGEST_HEADER = 2**26  # bytes (Gemma 3: 6.5 million)
MOST_ENTRIES = 2**22  # of a list
MOST_NAMES = 2**16  # settings, or tensors
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
           10: "<Q", 11: "<q", 12: "<d"}
TEXT = 8
LIST = 9
SETTINGS = {  # config.json's name: GGUF's, after the architecture's
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length", "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon"}
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
PARTS |= {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA = PARTS | {"ffn_norm": "pre_feedforward_layernorm",
                 "post_attention_norm": "post_attention_layernorm",
                 "post_ffw_norm": "post_feedforward_layernorm"}
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1: what slows down each rotation
FOLDER = "use the Hugging Face folder of this model with --backend torch"


@dataclass(frozen=True)
class Stored:
    """How GGUF files hold a family of models."""

    family: str  # in config.FAMILIES
    parts: dict[str, str] = field(default_factory=lambda: PARTS)  # of a layer: Hugging Face's names
    paired: bool = False  # the numbers of q and k that rotate together are side by side
    offset: float = 0  # from the gains of norms in the file to those in a folder


# by the architecture that a file names; another way to cut words goes to gguf_tokenizer.PATTERNS
STORED = {"llama": Stored("llama", paired=True),  # Mistral, too
          "qwen2": Stored("qwen2"),
          "qwen3": Stored("qwen3"),
          "gemma3": Stored("gemma3_text", GEMMA, offset=-1)}
LAYERS_27B = 62  # of the only Gemma 3 whose scores are not scaled by the root of head_dim


def is_gguf(path: Path) -> bool:
    """Is this a GGUF file, by its name?"""
    return path.suffix == ".gguf" and path.is_file()


class Reader:
    """Reads a file's bytes in order; anything that does not fit the file is a ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = 0
        self.end = min(len(data), LONGEST_HEADER)

    def take(self, size: int) -> int:
        """Go on by `size` bytes, which must be there; returns where they begin."""
        start = self.place
        self.place += size
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

    def texts(self, count: int) -> list[str]:
        """So many texts; the same as `text` for each, in a quarter of the time."""
        length = struct.Struct("<Q").unpack_from
        found = []
        place = self.place
        for _ in range(count):
            start = place + 8
            size = length(self.data, place)[0] if start <= self.end else LONGEST_TEXT
            place = start + size
            if size > LONGEST_TEXT or place > self.end:
                raise ValueError("it ends too early, or its header is too long")
            found.append(self.data[start:place].decode())
        self.place = place
        return found

    def value(self, kind: int) -> Any:
        """A number, a text, or a list of either (of numbers: an array)."""
        if kind == TEXT:
            return self.text()
        if kind != LIST:
            return self.number(kind)
        kind = self.number(4)
        count = self.number(10)
        if count > MOST_ENTRIES:
            raise ValueError(f"a list of {count:,} entries")
        if kind == TEXT:
            return self.texts(count)
        numbers = np.dtype(SCALARS[kind])  # subtle: a list of lists is refused here
        return np.frombuffer(self.data, numbers, count, self.take(count * numbers.itemsize)).copy()

    def setting(self) -> Any:
        """The kind of a value, and the value."""
        return self.value(self.number(4))

    def entry(self) -> "Entry":
        """What is said about a tensor."""
        dimensions = self.number(4)
        if dimensions > 4:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        sizes = [self.number(10) for _ in range(dimensions)]
        return Entry(tuple(sizes[::-1]), self.number(4), self.number(10))

    def named(self, count: int, read: Callable[[], Any]) -> dict[str, Any]:
        """So many names, each followed by what `read` reads."""
        found: dict[str, Any] = {}
        for _ in range(count):
            name = self.text(LONGEST_NAME)
            if name in found:
                raise ValueError(f"{name[:40]} twice")
            found[name] = read()
        return found


class Entry(NamedTuple):
    """What a file says about a tensor."""

    shape: tuple[int, ...]  # outer size first
    kind: int  # the number of its format
    offset: int  # bytes after where the tensors begin


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
        parts = self.setting("split.count", int, 1)
        if parts > 1:
            part = self.setting("split.no", int, 0) + 1
            raise OmnidraftError(f"{self.path} is part {part:,} of {parts:,} of a split file: join "
                                 "them with llama.cpp's llama-gguf-split --merge")

    def _read(self, reader: Reader) -> None:
        """Read everything but the tensors' numbers."""
        magic = reader.data[reader.take(4):4]
        version = reader.number(4)
        if magic != b"GGUF" or version not in VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}")
        tensors = reader.number(10)
        settings = reader.number(10)
        if max(tensors, settings) > MOST_NAMES:
            raise ValueError(f"{tensors:,} tensors, {settings:,} settings")
        self.settings: dict[str, Any] = reader.named(settings, reader.setting)
        self.tensors = self._tensors(reader, reader.named(tensors, reader.entry))

    def _tensors(self, reader: Reader, entries: dict[str, Entry]) -> dict[str, "Quantized"]:
        """The tensors as blocks of bytes in the file, none of which overlap."""
        from .quantized import Quantized, block_of  # imports the package gguf
        align = self.settings.get("general.alignment", 32)
        if type(align) is not int or not 1 <= align <= 2**16:
            raise ValueError(f"an alignment of {str(align)[:40]}")
        begin = reader.place + -reader.place % align
        reader.end = len(reader.data)
        used = 0
        made = {}
        for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
            weights, size = block_of(entry.kind)
            numbers = math.prod(entry.shape)
            if not entry.shape or numbers < 1 or entry.shape[-1] % weights:
                raise ValueError(f"{name[:40]} has the shape {entry.shape}")
            if entry.offset < used:
                raise ValueError(f"{name[:40]} begins inside another tensor")
            count = numbers // weights
            reader.place = begin + entry.offset
            start = reader.take(count * size)
            used = reader.place - begin
            made[name] = Quantized(self.path, start, entry.kind, entry.shape)
        return made

    def setting(self, name: str, kind: type, default: Any) -> Any:
        """A setting of this type, `default` without one; OmnidraftError for another type."""
        value = self.settings.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise OmnidraftError(f"{self.path}: {name} is {str(value)[:40]!r}, of the wrong kind: "
                                 "download it again")
        return value

    @property
    def family(self) -> str:
        """The architecture, as llama.cpp calls it; OmnidraftError if it is no text."""
        return self.setting("general.architecture", str, "")

    @property
    def layers(self) -> int:
        """The number of layers; OmnidraftError if it is no number."""
        return self.setting(f"{self.family}.block_count", int, 0)

    def config(self) -> ModelConfig:
        """The model's sizes; raises OmnidraftError for what the NumPy engine does not run."""
        if self.family not in STORED:
            raise OmnidraftError(f"{self.path}: the NumPy engine does not run "
                                 f"{self.family or 'it'!r} (only {', '.join(STORED)}); "
                                 "use --backend torch")
        config = ModelConfig.parse(self._as_config_json(), str(self.path))
        config = replace(config, qkv_bias="blk.0.attn_q.bias" in self.tensors,
                         out_bias="blk.0.attn_output.bias" in self.tensors,
                         mlp_bias="blk.0.ffn_up.bias" in self.tensors)
        for name, expected in (("attention.value_length", config.head_dim), ("expert_count", 0),
                               ("rope.dimension_count", config.head_dim)):
            value = self.settings.get(f"{self.family}.{name}", expected)
            if type(value) is not int or value != expected:
                raise OmnidraftError(f"{self.path}: {name} is {str(value)[:40]}, but the NumPy "
                                     f"engine needs {expected}; use --backend torch")
        return self._slowed_down(config)

    def _as_config_json(self) -> dict[str, Any]:
        """The settings as a Hugging Face config.json has them."""
        family = self.family
        config: dict[str, Any] = {}
        for name, its in SETTINGS.items():
            value = self.settings.get(f"{family}.{its}")
            if isinstance(value, np.ndarray):
                raise OmnidraftError(f"{self.path}: it has a list as {its}, one for each layer, "
                                     f"but the NumPy engine needs one for all; {FOLDER}")
            if value is not None:
                config[name] = value
            elif name in NEEDED:
                raise OmnidraftError(f"{self.path}: it has no {family}.{its}: download it again")
        embedding = self.tensors.get("token_embd.weight")
        config["model_type"] = STORED[family].family
        config["vocab_size"] = 0 if embedding is None else embedding.shape[0]
        config["tie_word_embeddings"] = "output.weight" not in self.tensors
        config["eos_token_id"] = end_ids(self.settings)
        config["rope_scaling"] = self._scaling()
        return config | self._of_gemma(config) if family == "gemma3" else config

    def _of_gemma(self, config: dict[str, Any]) -> dict[str, Any]:
        """What config.json has for Gemma besides, of which the file states only the window."""
        found = {"query_pre_attn_scalar": config.get("head_dim", 256)}
        if config["num_hidden_layers"] == LAYERS_27B:
            found["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"]
        for name, its in (("sliding_window", "attention.sliding_window"),
                          ("rope_local_base_freq", "rope.freq_base_swa")):
            value = self.settings.get(f"gemma3.{its}")
            if value is not None:
                found[name] = value
        return found

    def _scaling(self) -> dict[str, Any]:
        """How all rotations are slowed down: {} if they are not.

        Subtle: a factor alone means "linear", and in old files it has another name.
        """
        rope = f"{self.family}.rope"
        old = self.settings.get(f"{rope}.scale_linear")
        factor = self.settings.get(f"{rope}.scaling.factor", old)
        kind = self.setting(f"{rope}.scaling.type", str, "none" if factor is None else "linear")
        if kind == "none":
            return {}
        if kind != "linear":
            raise OmnidraftError(f"{self.path}: the NumPy engine does not run its RoPE, scaled by "
                                 f"{kind[:40]!r}; {FOLDER}")
        return {"rope_type": kind, "factor": factor}

    def _slowed_down(self, config: ModelConfig) -> ModelConfig:
        """The configuration with the rotations that the file slows down one by one, if it does."""
        factors = self.tensors.get(ROPE_FACTORS)
        if factors is None or factors.shape != (config.head_dim // 2,):
            return config
        factors = factors.astype(np.float64)
        if not np.all((factors > 1e-9) & (factors < 1e9)):
            raise OmnidraftError(f"{self.path}: {ROPE_FACTORS} has numbers that make no sense: "
                                 "download it again")
        each = tuple((frequencies(config) / factors).tolist())
        rope = config.rope | {"rope_type": "frequencies", "frequencies": each}
        return replace(config, rope=rope)

    def weights(self, config: ModelConfig) -> dict[str, "Quantized"]:
        """The tensors by Hugging Face name; OmnidraftError for one that the engine would not use.

        Subtle: llama files have the rows of q and k in another order, numbers that rotate together
        side by side; here they get back their place half a head apart.
        """
        stored = STORED[self.family]
        found = {}
        for name, tensor in self.tensors.items():
            if name != ROPE_FACTORS or config.rope["rope_type"] != "frequencies":
                found[_spelled(name, stored.parts)] = tensor
        unknown = found.keys() - config.tensor_shapes().keys()
        if unknown:
            raise OmnidraftError(f"{self.path}: the NumPy engine does not know the tensor "
                                 f"{min(unknown)[:60]}; use --backend torch")
        if stored.paired:
            for name, tensor in found.items():
                part = name.split(".")[-2]
                heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(part)
                if heads and tensor.shape[0] == heads * config.head_dim:
                    found[name] = replace(tensor, paired=config.head_dim)
        if stored.offset:
            for name, tensor in found.items():
                if name.endswith("norm.weight"):
                    found[name] = replace(tensor, offset=stored.offset)
        return found

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, special tokens and chat template of the file."""
        return build(self.settings, self.path.stem)


def _spelled(name: str, parts: dict[str, str]) -> str:
    """A tensor's name as Hugging Face spells it; one that is not known stays as it is.

    >>> _spelled("blk.3.attn_q.weight", PARTS)
    'model.layers.3.self_attn.q_proj.weight'
    """
    path, _, kind = name.rpartition(".")
    if path in TENSORS:
        return f"{TENSORS[path]}.{kind}"
    steps = path.split(".")
    if len(steps) == 3 and steps[0] == "blk" and steps[2] in parts:
        return f"model.layers.{steps[1]}.{parts[steps[2]]}.{kind}"
    return name
