"""A drafter for real text, before its training: tokenizer, configuration, first weights, and rows of its target's texts.

    python -m recipes.chat_drafter TEXTS.jsonl --folder FOLDER --work WORK          # TEXTS: from recipes.target_texts
    python -m recipes.train --corpus chunks --from FOLDER --work WORK --rows 128 --small-batch 64 --tokens 100e6
    python -m recipes.train --corpus chunks --from FOLDER --work WORK --rows 128 --small-batch 64 --decay 132e6

The tokenizer is a byte-level byte pair encoding with single digits, trained on the texts. The drafter reads chats in a
template of its own, without a system message: `<|im_start|>user ... <|im_end|>`. Texts without a chat begin with
`<|endoftext|>`. An answer's tokens have ten times the weight of its request's, and a plain text's five times.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from omnidraft.engine.config import ModelConfig

from .rows import pack

ENTRIES, LENGTH, CHUNK_ROWS = 8192, 512, 4096
SPECIAL = TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
WEIGHTS = {"answer": (1, 10), "plain": (5, 5)}  # of the tokens of a prompt, and of a text
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False, "hidden_size": 320, "intermediate_size": 960, "num_hidden_layers": 4, "num_attention_heads": 5,
    "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": [2], "dtype": "float32"}


def train_tokenizer(texts: Iterator[str], entries: int) -> Tokenizer:
    """A byte-level byte pair encoding whose first entries are the special tokens and all bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=entries, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{TEXT} $A", pair=f"{TEXT} $A $B", special_tokens=[(TEXT, tokenizer.token_to_id(TEXT))])
    return tokenizer


def first_weights(config: ModelConfig, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random matrices whose outputs have about the variance of their inputs; what is added to the stream is smaller."""
    tensors = {}
    for name, shape in config.tensor_shapes().items():
        if len(shape) == 1:
            tensors[name] = np.ones(shape, np.float16)
            continue
        scale = 0.02 if "embed" in name else shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale *= 0.3
        tensors[name] = (rng.standard_normal(shape) * scale).astype(np.float16)
    return tensors


def parts(row: dict) -> tuple[str, str]:
    """The prompt and the text of a row, with the special tokens around them."""
    if row["kind"] == "plain":
        return TEXT + row["prompt"], row["response"] + TEXT * row["ended"]
    return f"{START}user\n{row['prompt']}{END}\n{START}assistant\n", row["response"] + END * row["ended"]


def encoded(rows: list[dict], tokenizer: Tokenizer, length: int) -> Iterator[tuple[list[int], list[int]]]:
    """Ids and loss weights of each row of at most `length` tokens."""
    for at in range(0, len(rows), 4096):
        some = rows[at:at + 4096]
        prompts, texts = (tokenizer.encode_batch_fast(part, add_special_tokens=False)
                          for part in zip(*map(parts, some), strict=True))
        for row, prompt, text in zip(some, prompts, texts, strict=True):
            few, many = WEIGHTS[row["kind"]]
            ids = prompt.ids + text.ids
            if text.ids and len(ids) <= length:
                yield ids, [0] + [few] * (len(prompt.ids) - 1) + [many] * len(text.ids)


def main() -> None:
    """Make the folder, and the rows in WORK/chunks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--folder", type=Path, required=True, help="of the drafter: tokenizer.json is kept if it is there")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    args = parser.parse_args()
    rng = random.Random(0)
    rows = [json.loads(line) for path in args.texts for line in path.read_text(encoding="utf-8").split("\n") if line]
    rows = [row for row in rows if row["kind"] in WEIGHTS]
    rng.shuffle(rows)
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "tokenizer.json"
    if not path.exists():
        some = rows[:25_000]
        train_tokenizer((f"{row['prompt']}\n{row['response']}" for row in some), args.entries).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    config = CONFIG | {"vocab_size": tokenizer.get_vocab_size()}
    special = {"bos_token": TEXT, "eos_token": END, "unk_token": TEXT}
    files = {"config.json": config, "generation_config.json": {"bos_token_id": 0, "eos_token_id": [2]},
             "tokenizer_config.json": special | {
                 "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"],
                 "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE}}
    for name, content in files.items():
        (args.folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if not (args.folder / "model.safetensors").exists():
        save_file(first_weights(ModelConfig.parse(config), np.random.default_rng(0)), args.folder / "model.safetensors",
                  metadata={"format": "pt"})
    packed = pack(encoded(rows, tokenizer, args.length), args.length, rng)
    chunks = args.work / "chunks"
    chunks.mkdir(parents=True, exist_ok=True)
    for number in range(-(-len(packed["ids"]) // CHUNK_ROWS)):
        here = slice(number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS)
        np.savez(chunks / f"chunk_{number:05}.npz", **{name: array[here] for name, array in packed.items()})
    used = int((packed["group"] > 0).sum())
    print(f"{len(rows)} texts, {used} tokens in {len(packed['ids'])} rows ({used / packed['group'].size:.0%} filled)")


if __name__ == "__main__":
    main()
