"""Train one embedded model: Muon for the matrices, AdamW for the rest, warm-up, constant rate, linear decay.

A run is resumable at any checkpoint (safetensors and JSON, written to a temporary name and then renamed). The checkpoint
at the end of the constant rate is kept as `stable`, so that a larger token budget later goes on from there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from omnidraft.tokenizer import Tokenizer

from .corpus import Corpus, rows

LENGTH = 512  # tokens in a row, and the models' context


@dataclass(frozen=True)
class Shape:
    """Shape of one embedded model; `tokenizer` names the tokenizer it speaks."""

    tokenizer: str
    layers: int
    width: int
    ffn: int
    heads: int
    qwen: bool = False


SHAPES = {
    "draft-general": Shape("drafter", 2, 128, 352, 4),
    "draft-tasks": Shape("drafter", 2, 128, 352, 4),
    "sibling": Shape("drafter", 3, 320, 864, 5),
    "trunk": Shape("qwen-like", 4, 320, 864, 5, qwen=True),  # what the three targets grow from; not shipped
    "qwen-like": Shape("qwen-like", 6, 320, 864, 5, qwen=True),
    "llama3-like": Shape("llama3-like", 4, 320, 864, 5),
}


def build(shape: Shape, tokenizer: Tokenizer) -> torch.nn.Module:
    """A randomly initialised transformers model of `shape` (tied embeddings)."""
    roles = tokenizer.roles
    common = dict(
        vocab_size=tokenizer.size, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads, max_position_embeddings=LENGTH,
        tie_word_embeddings=True, rms_norm_eps=1e-5, attn_implementation="sdpa",
        bos_token_id=roles["bos"][0] if roles.get("bos") else None, eos_token_id=list(roles["eos"]),
    )
    if shape.qwen:
        return Qwen2ForCausalLM(Qwen2Config(**common))
    return LlamaForCausalLM(LlamaConfig(head_dim=shape.width // shape.heads, **common))


class Muon:
    """Momentum whose matrix updates are orthogonalised by five Newton-Schulz steps (Jordan et al. 2024)."""

    def __init__(self, params: list[torch.Tensor], momentum: float = 0.95):
        self.params, self.momentum = params, momentum
        self.buffers = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every matrix at learning rate `rate`."""
        for param, buffer in zip(self.params, self.buffers, strict=True):
            buffer.lerp_(param.grad, 1 - self.momentum)
            update = param.grad.lerp(buffer, self.momentum)
            tall = update.shape[0] > update.shape[1]
            x = (update.T if tall else update) / (update.norm() + 1e-7)
            for _ in range(5):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            param.add_(x.T if tall else x, alpha=-rate * max(1, param.shape[0] / param.shape[1]) ** 0.5)


@dataclass
class Budget:
    """How long and how fast: tokens in all, tokens per update, learning rates, share of tokens in the final decay."""

    tokens: int
    batch_rows: int = 8
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup: int = 40
    decay: float = 0.3

    def factor(self, seen: int) -> float:
        """Multiple of the learning rate after `seen` tokens."""
        updates = seen / (self.batch_rows * LENGTH)
        return min(1.0, (updates + 1) / self.warmup) * min(1.0, max(0.0, self.tokens - seen) / (self.decay * self.tokens))


def _checkpoint(folder: Path, model: torch.nn.Module, muon: Muon, adam: torch.optim.AdamW, state: dict) -> None:
    tensors = {f"model.{k}": v.contiguous() for k, v in model.named_parameters()}
    tensors |= {f"muon.{i}": b for i, b in enumerate(muon.buffers)}
    for i, moments in adam.state_dict()["state"].items():
        tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for k, v in moments.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().cpu().clone() for k, v in tensors.items()}, folder / "state.part",
              metadata={"state": json.dumps(state)})
    os.replace(folder / "state.part", folder / "state.safetensors")


def _restore(folder: Path, model: torch.nn.Module, muon: Muon, adam: torch.optim.AdamW) -> dict:
    from safetensors import safe_open

    path = folder / "state.safetensors"
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    tensors = load_file(path)
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(tensors[f"model.{name}"])
        for i, buffer in enumerate(muon.buffers):
            buffer.copy_(tensors[f"muon.{i}"])
    moments: dict[int, dict] = {}
    for key, value in tensors.items():
        if key.startswith("adam."):
            _, i, name = key.split(".", 2)
            moments.setdefault(int(i), {})[name] = value
    adam.load_state_dict({"state": moments, "param_groups": adam.state_dict()["param_groups"]})
    return state


def train(name: str, corpus: Corpus, tokenizer: Tokenizer, folder: Path, budget: Budget, threads: int = 1,
          start: Callable[[torch.nn.Module], None] | None = None, say: Callable[[str], None] = print) -> torch.nn.Module:
    """Train model `name` to its budget, going on from `folder`'s checkpoint; `start` may fill a fresh model's weights."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(SHAPES[name], tokenizer)
    if start is not None:
        start(model)
    model.to(device).train()
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    state = {"seen": 0, "example": 0, "log": []}
    for place in (folder / "latest", folder / "stable"):
        if (place / "state.safetensors").exists():
            found = _restore(place, model, muon, adam)
            if found["seen"] <= (1 - budget.decay) * budget.tokens or found.get("budget") == budget.tokens:
                state = found  # a checkpoint inside the decay of a smaller budget is passed over for `stable`
                break
    stream = rows(corpus, tokenizer, LENGTH, state["example"])
    began, saved, first = time.time(), time.time(), state["seen"]
    running = None
    while state["seen"] < budget.tokens:
        batch = [next(stream) for _ in range(budget.batch_rows)]
        ids = torch.from_numpy(np.stack([row[0] for row in batch])).to(device)
        weights = torch.from_numpy(np.stack([row[1] for row in batch])).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(ids[:, :-1], use_cache=False).logits
        losses = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        loss.backward()
        factor = budget.factor(state["seen"])
        muon.step(factor * budget.matrix_rate)
        for group in adam.param_groups:
            group["lr"] = factor * budget.other_rate
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        adam.step()
        model.zero_grad(set_to_none=True)
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        was_stable = state["seen"] <= (1 - budget.decay) * budget.tokens
        state["seen"] += ids[:, 1:].numel()
        state["example"] = batch[-1][2]
        state["budget"] = budget.tokens
        leaves_stable = was_stable and state["seen"] > (1 - budget.decay) * budget.tokens
        if time.time() - saved > 120 or leaves_stable or state["seen"] >= budget.tokens:
            saved = time.time()
            state["log"].append([state["seen"], round(running, 4)])
            _checkpoint(folder / "latest", model, muon, adam, state)
            if leaves_stable:
                _checkpoint(folder / "stable", model, muon, adam, state)
            rate = (state["seen"] - first) / (time.time() - began)
            say(f"{name}: {state['seen'] / 1e6:.2f} M tokens, loss {running:.3f}, {rate:,.0f} tokens/s")
    return model


def export(name: str, model: torch.nn.Module, tokenizer_folder: Path, folder: Path) -> None:
    """Write `model` as an ordinary Hugging Face folder in f16 with its tokenizer, by way of a temporary folder."""
    part = folder.with_name(folder.name + ".part")
    model.to(device="cpu", dtype=torch.float16).save_pretrained(part)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (part / file).write_bytes((tokenizer_folder / file).read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(part.iterdir()):
        os.replace(file, folder / file.name)
    part.rmdir()
