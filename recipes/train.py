"""Train a model: resumable, on a GPU, on one core or in several processes.

    python -m recipes.train --from FOLDER --work WORK --tokens 8e6 --processes 2

`--from` is a model folder (config, weights, tokenizer). WORK/state.safetensors holds the weights, the state of both optimizers
and the place in the data; a run that finds this file continues from it. The rate is warmed up and then constant; `--decay
TOKENS` lets it fall to zero over that many tokens, from the same checkpoint, in WORK/decayed, and exports the model there. A
separate process generates the examples in chunks, just before they are used: so a run uses improved generators from the next
chunk on.

Muon for the matrices, AdamW for the rest. Products are in bf16 if the processor has it (a gradient then differs by 2 to 3 %,
as long as the matrices decay, which bounds the residual stream); on a GPU they are in tf32. Several processes take small
batches from a shared counter until an update has enough: a process that other work slows down takes fewer. Then the gradients
are added up, and each process orthogonalises its share of Muon's updates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

BATCH_ROWS = 24  # rows of an update, if not said otherwise
SMALL_BATCH = 4  # rows that are computed at once
MATRIX_RATE, OTHER_RATE = 0.015, 0.002
MATRIX_DECAY = 0.1  # of each matrix, times its rate: bounds the matrices, and with them the residual stream
WARMUP = 30  # updates
SAVE_EVERY = 300  # seconds


def has_bf16() -> bool:
    """Whether the processor has instructions that multiply bf16 numbers."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


class Net:
    """Forward pass of a Llama or Qwen2 model over packed rows, from a dictionary of its weights."""

    def __init__(self, config: dict, weights: dict[str, torch.Tensor], device: str, bf16: bool) -> None:
        self.config, self.device, self.bf16 = config, device, bf16
        self.weights = {k: v.float().to(device).requires_grad_() for k, v in weights.items()}
        self.heads = config["num_attention_heads"]
        self.head_size = config.get("head_dim") or config["hidden_size"] // self.heads
        turns = config["rope_parameters"]["rope_theta"] ** (-torch.arange(0, self.head_size, 2) / self.head_size)
        self.turns = torch.cat([turns, turns]).to(device)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.config["rms_norm_eps"])

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    def loss(self, ids: torch.Tensor, weight: torch.Tensor, group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the weighted losses, and sum of the weights; no example attends to another one in its row."""
        length = ids.shape[1]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            before = torch.ones(length, length, dtype=torch.bool, device=self.device).tril()
            mask = ((group[:, :, None] == group[:, None, :]) & before)[:, None]
            kind, scale = torch.bfloat16 if self.bf16 else torch.float32, self.head_size**-0.5
            hidden = torch.zeros(mask.shape, dtype=kind, device=self.device).masked_fill(~mask, -torch.inf)
            angles = torch.arange(length, device=self.device)[:, None] * self.turns
            cos, sin = angles.cos().to(kind), angles.sin().to(kind)
            x = F.embedding(ids, self.weights["model.embed_tokens.weight"])
            for i in range(self.config["num_hidden_layers"]):
                layer = f"model.layers.{i}."
                y = self._norm(x, layer + "input_layernorm")
                q, k, v = (self._linear(y, f"{layer}self_attn.{part}_proj").unflatten(-1, (-1, self.head_size))
                           .transpose(1, 2) for part in "qkv")
                scores = (self._rotate(q, cos, sin) * scale) @ self._rotate(k, cos, sin).transpose(2, 3)
                y = (scores + hidden).softmax(-1, dtype=scores.dtype) @ v  # in bf16 three times as fast as PyTorch's own
                x = x + self._linear(y.transpose(1, 2).flatten(2), layer + "self_attn.o_proj")
                y = self._norm(x, layer + "post_attention_layernorm")
                y = F.silu(self._linear(y, layer + "mlp.gate_proj")) * self._linear(y, layer + "mlp.up_proj")
                x = x + self._linear(y, layer + "mlp.down_proj")
            x = self._norm(x, "model.norm")
            # position t predicts token t + 1, if that belongs to the same example and to a response
            wanted = weight[:, 1:] * (group[:, 1:] == group[:, :-1])
            chosen = wanted > 0
            logits = F.linear(x[:, :-1][chosen], self.weights["model.embed_tokens.weight"])
        losses = F.cross_entropy(logits.float(), ids[:, 1:][chosen], reduction="none")
        return (losses * wanted[chosen]).sum(), wanted.sum().float()


class Muon:
    """Momentum whose matrix updates are orthogonalised by five Newton-Schulz steps, in bf16 if asked (Jordan et al. 2024)."""

    def __init__(self, matrices: dict[str, torch.Tensor], rank: int, world: int, bf16: bool, momentum: float = 0.95) -> None:
        self.matrices, self.rank, self.world, self.momentum = matrices, rank, world, momentum
        self.dtype = torch.bfloat16 if bf16 else torch.float32
        self.memory = {name: torch.zeros_like(m) for name, m in matrices.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update of every matrix; each process computes its share and sends it to the others."""
        names = list(self.matrices)
        for name in names:
            self.memory[name].lerp_(self.matrices[name].grad, 1 - self.momentum)
        for name in names[self.rank::self.world]:
            matrix = self.matrices[name]
            update = matrix.grad.lerp(self.memory[name], self.momentum)
            tall = update.shape[0] > update.shape[1]
            x = ((update.T if tall else update) / (update.norm() + 1e-7)).to(self.dtype)
            for _ in range(5):
                a = x @ x.T
                x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            matrix.mul_(1 - rate * MATRIX_DECAY)
            matrix.add_(x.T if tall else x, alpha=-rate * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5)
        for owner in range(self.world if self.world > 1 else 0):
            shares = [self.matrices[name] for name in names[owner::self.world]]
            flat = torch.cat([m.flatten() for m in shares])
            dist.broadcast(flat, owner)
            for m, part in zip(shares, flat.split([m.numel() for m in shares]), strict=True):
                m.copy_(part.view_as(m))


class Chunks:
    """Chunks of rows in a folder; a separate process makes the next one while the current one is used."""

    def __init__(self, folder: Path, tokenizer: Path, tokens: int, corpus: str) -> None:
        self.folder, self.tokenizer, self.tokens, self.corpus, self.maker = folder, tokenizer, tokens, corpus, None
        folder.mkdir(parents=True, exist_ok=True)

    def ask(self, number: int) -> None:
        """Begin to make chunk `number`, unless it exists."""
        path = self.folder / f"chunk_{number:05}.npz"
        if not path.exists() and (self.maker is None or self.maker.poll() is not None):
            self.maker = subprocess.Popen([sys.executable, "-m", f"{__package__}.rows", str(self.tokenizer), str(number),
                                           str(self.tokens), str(path), self.corpus])

    def load(self, number: int, makes: bool) -> dict[str, np.ndarray]:
        """Wait for chunk `number` and return it; only one of several processes makes it."""
        path = self.folder / f"chunk_{number:05}.npz"
        while not path.exists():
            if makes:
                self.ask(number)
            time.sleep(1)
        if makes:
            self.ask(number + 1)
            (self.folder / f"chunk_{number - 3:05}.npz").unlink(missing_ok=True)
        return dict(np.load(path))


class StoredChunks:
    """Chunks that another script has made: all of them again and again, in a new order of their rows each time."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("chunk_*.npz"))
        if not self.paths:
            raise SystemExit(f"no chunk_*.npz in {folder}: make them with recipes.chat_drafter")

    def load(self, number: int, makes: bool) -> dict[str, np.ndarray]:
        """Chunk `number`, counted on after the last one."""
        data = np.load(self.paths[number % len(self.paths)])
        order = np.random.default_rng(number).permutation(len(data["ids"]))
        return {name: data[name][order] for name in data}


def save(folder: Path, net: Net, muon: Muon, adam: torch.optim.AdamW, state: dict) -> None:
    """Write everything that is needed to continue, first under a temporary name."""
    tensors = {f"model.{k}": v for k, v in net.weights.items()} | {f"muon.{k}": v for k, v in muon.memory.items()}
    for i, moments in adam.state_dict()["state"].items():
        tensors |= {f"adam.{i}.{k}": torch.as_tensor(v) for k, v in moments.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, folder / "state.part",
              metadata={"state": json.dumps(state)})
    os.replace(folder / "state.part", folder / "state.safetensors")


def restore(path: Path, net: Net, muon: Muon, adam: torch.optim.AdamW) -> dict:
    """Restore a checkpoint; returns its record of the run."""
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    moments: dict[int, dict] = {}
    with torch.no_grad():
        for key, value in load_file(path).items():
            kind, name = key.split(".", 1)
            if kind == "adam":
                number, name = name.split(".")
                moments.setdefault(int(number), {})[name] = value
            else:
                (net.weights if kind == "model" else muon.memory)[name].copy_(value)
    adam.load_state_dict({"state": moments, "param_groups": adam.state_dict()["param_groups"]})
    return state


def export(net: Net, source: Path, folder: Path) -> None:
    """Write the model as an ordinary folder in half precision, with the other files of `source`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    weights = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in net.weights.items()}
    save_file(weights, folder / "model.part", metadata={"format": "pt"})
    os.replace(folder / "model.part", folder / "model.safetensors")


def run(rank: int, args: argparse.Namespace) -> None:
    """Train as process `rank` of `args.processes`."""
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")  # tf32 on a GPU: bf16 gradients are much less exact (README)
    world, device = args.processes, "cuda" if torch.cuda.is_available() else "cpu"
    if world > 1:
        store = dist.TCPStore("127.0.0.1", args.port, world, rank == 0, timeout=timedelta(days=2))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(days=2))
    net = Net(json.loads((args.source / "config.json").read_text()), load_file(args.source / "model.safetensors"), device,
              bf16=device == "cpu" and has_bf16())
    matrices = {k: v for k, v in net.weights.items() if v.ndim == 2 and "embed" not in k}
    others = [v for k, v in net.weights.items() if k not in matrices]
    muon = Muon(matrices, rank, world, net.bf16)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    parameters = [*matrices.values(), *others]
    state = {"tokens": 0, "updates": 0, "chunk": 0, "row": 0, "decay_from": None, "loss": None}
    folder = args.work / "decayed" if args.decay else args.work
    for found in (folder / "state.safetensors", args.work / "state.safetensors"):
        if found.exists():
            state = restore(found, net, muon, adam)
            break
    if args.decay and state["decay_from"] is None:
        state["decay_from"] = state["tokens"]
    end = state["decay_from"] + args.decay if args.decay else args.tokens
    folder_of_chunks = args.work / "chunks"
    chunks = (StoredChunks(folder_of_chunks) if args.corpus == "chunks" else
              Chunks(folder_of_chunks, args.source, args.chunk_tokens, args.corpus))
    data = chunks.load(state["chunk"], rank == 0)
    began, saved, first = time.time(), time.time(), state["tokens"]

    while state["tokens"] < end:
        if state["row"] + args.rows > len(data["ids"]):
            state["chunk"], state["row"] = state["chunk"] + 1, 0
            data = chunks.load(state["chunk"], rank == 0)
        total = torch.zeros(2, device=device)
        for p in parameters:
            p.grad = torch.zeros_like(p)
        todo = iter(range(-(-args.rows // args.small_batch)))
        while True:
            if world > 1:
                part = store.add(f"{state['updates']}", 1) - 1
            else:
                part = next(todo, args.rows)
            at = part * args.small_batch
            if at >= args.rows:
                break
            here = slice(state["row"] + at, state["row"] + min(at + args.small_batch, args.rows))
            loss, weight = net.loss(*(torch.from_numpy(data[k][here].astype(np.int64)).to(device)
                                      for k in ("ids", "weight", "group")))
            loss.backward()
            total += torch.stack([loss.detach(), weight])
        if world > 1:
            flat = torch.cat([total] + [p.grad.flatten() for p in parameters])
            dist.all_reduce(flat)
            total, *grads = flat.split([2] + [p.numel() for p in parameters])
            for p, grad in zip(parameters, grads, strict=True):
                p.grad.copy_(grad.view_as(p))
        for p in parameters:
            p.grad /= total[1]
        factor = min(1.0, (state["updates"] + 1) / WARMUP)
        if args.decay:
            factor *= max(0.0, (end - state["tokens"]) / args.decay)
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(factor * args.rate * MATRIX_RATE)
        for settings in adam.param_groups:
            settings["lr"] = factor * args.rate * OTHER_RATE
        adam.step()
        mean = float(total[0] / total[1])
        if not math.isfinite(mean):
            raise SystemExit("the loss is no number: go on from the last checkpoint with a smaller --rate")
        state["loss"] = mean if state["loss"] is None else 0.97 * state["loss"] + 0.03 * mean
        state["updates"] += 1
        state["row"] += args.rows
        state["tokens"] += args.rows * data["ids"].shape[1]
        if rank == 0 and state["updates"] % 10 == 0:
            rate = (state["tokens"] - first) / (time.time() - began)
            print(f"{time.strftime('%H:%M:%S')} {state['tokens'] / 1e6:.3f} M tokens, chunk {state['chunk']}, "
                  f"loss {state['loss']:.4f}, rate x{factor:.2f}, {rate:.0f} tokens/s", flush=True)
        if rank == 0 and (time.time() - saved > SAVE_EVERY or state["tokens"] >= end):
            saved = time.time()
            save(folder, net, muon, adam, state)
            export(net, args.source, folder / "model")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="model folder to start from")
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoints and chunks")
    parser.add_argument("--corpus", choices=["world", "general", "chunks"], default="world",
                        help="general: what draft-general reads; chunks: only those in WORK/chunks, again and again")
    parser.add_argument("--tokens", type=float, default=8e6, help="stop after this many tokens in total")
    parser.add_argument("--decay", type=float, default=0, help="let the rate fall to zero over this many tokens, and stop")
    parser.add_argument("--rate", type=float, default=1.0, help="multiple of the learning rates")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--rows", type=int, default=BATCH_ROWS, help="rows of an update")
    parser.add_argument("--small-batch", type=int, default=SMALL_BATCH, help="rows that are computed at once")
    parser.add_argument("--chunk-tokens", type=int, default=250_000)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            args.port = free.getsockname()[1]
    again = [sys.executable, "-m", f"{__package__}.train", *sys.argv[1:], "--port", str(args.port), "--rank"]
    others = [subprocess.Popen([*again, str(rank)]) for rank in range(1, args.processes) if args.rank == 0]
    try:
        run(args.rank, args)
    finally:
        for process in others:
            process.terminate()


if __name__ == "__main__":
    main()
