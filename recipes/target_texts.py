"""A drafter's training texts, written by its target: many texts at once, in PyTorch, on a GPU or a CPU.

    python -m recipes.target_texts smollm2 TEXTS.jsonl --prompts PROMPTS.jsonl --openings 70000 --slots 3072 --seconds 250

Continuous batching with fixed shapes: every slot of the batch has its own text and its own position in it. A slot feeds its
prompt one token a step, then what it has drawn; when its text ends, it takes the next prompt. All slots share the key-value
entries of the same first tokens (the chat template's beginning), which are computed once. On a GPU the step is one CUDA graph.

Three kinds of texts: requests that the model writes by itself when the user's turn is open, or begun with a few words
(`--openings`; the method of Magpie, arXiv 2406.08464); answers to these and to the given prompts, half of them greedy, half
at temperature 1; and texts without a chat. Resumable: rows are appended as they end, and prompts with a row are skipped.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import omnidraft
from omnidraft.engine.config import ModelConfig
from omnidraft.pairs.conversation import View

Job = dict  # source, prompt, temperature, and from the model: response, ended
CHECK_EVERY = 32  # steps between two looks at what has ended


class Net:
    """A Llama model's forward pass for one token in each of B slots.

    `cache` (layers, 2, B, KV heads, T, head size) holds keys and values; slot b writes at its own position.
    """

    def __init__(self, config: ModelConfig, tensors: dict[str, np.ndarray], device: str, slots: int, length: int) -> None:
        self.config, self.device, self.slots, self.length = config, device, slots, length
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.weights = {name: torch.from_numpy(np.ascontiguousarray(tensor)).to(device, self.dtype)
                        for name, tensor in tensors.items()}
        self.heads, self.kv_heads, self.size = config.heads, config.kv_heads, config.head_dim
        shape = (config.layers, 2, slots, self.kv_heads, length, self.size)
        self.cache = torch.zeros(shape, device=device, dtype=self.dtype)
        turns = config.rope["rope_theta"] ** (-torch.arange(0, self.size, 2, device=device).float() / self.size)
        angles = torch.arange(length, device=device).float()[:, None] * torch.cat([turns, turns])
        self.cos, self.sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)  # (T, head size)
        self.slot, self.place = torch.arange(slots, device=device), torch.arange(length, device=device)
        self.kv_head = torch.arange(self.kv_heads, device=device)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.config.eps)
        return (y * self.weights[f"{name}.weight"].float()).to(x.dtype)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"])

    def _turn(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cos[position][:, None] + torch.cat([-right, left], -1) * self.sin[position][:, None]

    def logits(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) after `token` (B,) at `position` (B,) of each slot."""
        x = F.embedding(token, self.weights["model.embed_tokens.weight"])  # (B, width)
        hidden = torch.where(self.place[None] <= position[:, None], 0.0, -torch.inf)[:, None, None]  # (B, 1, 1, T)
        where = (self.slot[:, None], self.kv_head[None], position[:, None])
        group = self.heads // self.kv_heads
        for layer in range(self.config.layers):
            name = f"model.layers.{layer}"
            y = self._norm(x, f"{name}.input_layernorm")
            q, k, v = (self._linear(y, f"{name}.self_attn.{part}_proj").unflatten(-1, (-1, self.size)) for part in "qkv")
            keys, values = self.cache[layer]
            keys.index_put_(where, self._turn(k, position))
            values.index_put_(where, v)
            # the query heads that share a key-value head are rows of one product: (B KV, group, size) x (B KV, size, T)
            q = (self._turn(q, position) * self.size**-0.5).reshape(-1, group, self.size)
            scores = torch.bmm(q, keys.flatten(0, 1).transpose(1, 2)).unflatten(0, (self.slots, self.kv_heads))
            shares = (scores.float() + hidden).softmax(-1).to(self.dtype)
            y = torch.bmm(shares.flatten(0, 1), values.flatten(0, 1)).reshape(self.slots, -1)
            x = x + self._linear(y, f"{name}.self_attn.o_proj")
            y = self._norm(x, f"{name}.post_attention_layernorm")
            y = F.silu(self._linear(y, f"{name}.mlp.gate_proj")) * self._linear(y, f"{name}.mlp.up_proj")
            x = x + self._linear(y, f"{name}.mlp.down_proj")
        head = "lm_head" if "lm_head.weight" in self.weights else "model.embed_tokens"
        return self._linear(self._norm(x, "model.norm"), head).float()


class Writer:
    """Writes the texts of a queue of prompts: the state of all slots, as tensors of fixed shape.

    `prefix` are the ids all prompts begin with, `prompts` the ids after it (one or more each), `temperatures` one a prompt
    (0: greedy), `most` the longest text in tokens, `end` the token that ends one.
    """

    def __init__(self, net: Net, prefix: Sequence[int], prompts: Sequence[Sequence[int]],
                 temperatures: Sequence[float], most: int, end: int) -> None:
        self.net, self.most, self.end, self.count = net, most, end, len(prompts)
        longest = max(len(one) for one in prompts)
        if len(prefix) + longest + most > net.length + 1:
            raise ValueError(f"{len(prefix)} + {longest} + {most} tokens do not fit into {net.length}")
        self.first, device = len(prefix), net.device
        rows, sizes = np.zeros((self.count + 1, longest + 1), np.int64), np.ones(self.count + 1, np.int64)
        for row, size, one in zip(rows, range(self.count), prompts, strict=False):
            row[:len(one)], sizes[size] = one, len(one)
        self.prompts, self.sizes = torch.from_numpy(rows).to(device), torch.from_numpy(sizes).to(device)
        self.temperatures = torch.tensor([*temperatures, 0.0], device=device)
        self.texts = torch.zeros(self.count + 1, most + 1, dtype=torch.int32, device=device)
        self.done = torch.zeros(self.count + 1, dtype=torch.bool, device=device)
        self.token, self.position, self.row = (torch.zeros(net.slots, dtype=torch.long, device=device) for _ in range(3))
        self.next_row = torch.zeros((), dtype=torch.long, device=device)
        for place, token in enumerate(prefix):  # the same in every slot, and never written again
            net.logits(self.token.fill_(token), self.position.fill_(place))
        self.row.copy_(net.slot.clamp(max=self.count))  # row `count` is empty: what a slot without a prompt reads
        self.next_row.fill_(net.slots)
        self.token.copy_(self.prompts[self.row, 0])
        self.position.fill_(self.first)

    def step(self) -> None:
        """One token in every slot. Only tensor operations of fixed shape, so that it can be a CUDA graph."""
        logits = self.net.logits(self.token, self.position)
        noise = torch.empty_like(logits).exponential_().clamp_min_(1e-20).log_()  # - Gumbel
        drawn = (logits - self.temperatures[self.row][:, None] * noise).argmax(-1)
        place, size = self.position - self.first + 1, self.sizes[self.row]
        reading = place < size
        token = torch.where(reading, self.prompts[self.row, torch.minimum(place, size)], drawn)
        column = torch.where(reading, self.most, place - size)  # subtle: the last column takes what is no text
        self.texts.index_put_((self.row, column), token.int())
        ended = ~reading & ((token == self.end) | (place - size + 1 >= self.most))
        self.done.index_put_((torch.where(ended, self.row, self.count),), ended)
        row = torch.where(ended, (self.next_row + ended.long().cumsum(0) - 1).clamp(max=self.count), self.row)
        self.next_row.add_(ended.sum())
        self.position.copy_(torch.where(ended, self.first, self.position + 1))
        self.token.copy_(torch.where(ended, self.prompts[row, 0], token))
        self.row.copy_(row)

    def run(self, seconds: float) -> Iterator[tuple[int, list[int]]]:
        """(number of the prompt, its text's ids) as they end, until all have or the time is over."""
        began, step, seen = time.time(), self._graph(), torch.zeros_like(self.done)
        rows: list[int] = []
        texts: list[list[int]] = []
        while time.time() - began < seconds and not bool(self.done[:self.count].all()):
            for _ in range(CHECK_EVERY):
                step()
            # subtle: a GPU is still busy with these steps while the caller works on the texts that ended before them
            yield from zip(rows, map(self._until_end, texts), strict=True)
            ended = (self.done & ~seen)[:self.count].nonzero()[:, 0]
            seen = self.done.clone()
            rows, texts = ended.tolist(), self.texts[ended, :self.most].tolist()
        yield from zip(rows, map(self._until_end, texts), strict=True)

    def _until_end(self, ids: list[int]) -> list[int]:
        """A row of `texts` without what is behind its end token."""
        return ids[:ids.index(self.end) + 1] if self.end in ids else ids

    def _graph(self) -> Callable[[], None]:
        """The step; on a GPU, recorded once."""
        if self.net.device != "cuda":
            return self.step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # PyTorch wants a few steps before a graph is recorded
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


class Texts:
    """The target, and a file to which its texts are appended."""

    def __init__(self, name: str, out: Path, device: str, slots: int, length: int, most: int) -> None:
        self.model, self.out, self.most = omnidraft.load(name), out, most
        config, tensors = self.model.stored()
        if config.qkv_bias or config.rope["rope_type"] != "default":
            raise SystemExit(f"{name} is no plain Llama model: it has biases or scaled rotations")
        self.net = Net(config, tensors, device, slots, length)
        self.view = View(self.model)
        mark = "\ufdef"
        before, self.after = self.view.read([{"role": "user", "content": mark}])[0].split(mark)
        self.before = before

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens may stand."""
        return self.model.tokenizer.encode(text, specials=True)

    def write(self, kind: str, begin: str, jobs: list[Job], middle: Callable[[Job], str], end: int,
              seconds: float) -> list[Job]:
        """Texts that continue begin + middle(job), appended to the file; returns them."""
        prefix = self.encode(begin) if begin else []
        ids = [self.encode(begin + middle(job))[len(prefix):] for job in jobs]
        fits = [i for i, one in enumerate(ids) if one and len(prefix) + len(one) + self.most <= self.net.length]
        if not fits:
            return []
        writer = Writer(self.net, prefix, [ids[i] for i in fits], [jobs[i]["temperature"] for i in fits], self.most, end)
        made, began = [], time.time()
        with self.out.open("a", encoding="utf-8") as file:
            for row, text in writer.run(seconds):
                ended = text[-1] == end
                response = self.model.tokenizer.decode(text[:-1] if ended else text)
                made.append(jobs[fits[row]] | {"kind": kind, "response": response, "ended": ended})
                file.write(json.dumps(made[-1], ensure_ascii=False) + "\n")
                if len(made) % 1000 == 0:
                    file.flush()
                    print(f"{kind}: {len(made)} of {len(fits)} texts, {time.time() - began:.0f} s", flush=True)
        print(f"{kind}: {len(made)} of {len(fits)} texts, {time.time() - began:.0f} s", flush=True)
        return made


def openings(prompts: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """How the model's own requests begin: nothing, or the first words of a prompt."""
    begun = [" ".join(rng.choice(prompts).split()[:rng.randint(1, 6)]) for _ in range(3 * count // 5)]
    return begun + [""] * (count - len(begun))


def main() -> None:
    """Write the three kinds of texts, each for its share of the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a Llama model with a chat template: a folder, or a GGUF file")
    parser.add_argument("out", type=Path, help="JSON lines, appended to")
    parser.add_argument("--prompts", type=Path, required=True, help="from recipes.requests")
    parser.add_argument("--openings", type=int, default=0, help="requests that the model writes by itself")
    parser.add_argument("--plain", type=int, default=0, help="texts without a chat")
    parser.add_argument("--repeats", type=int, default=1, help="texts for each prompt of a public task")
    parser.add_argument("--slots", type=int, default=2048, help="texts written at once (a CPU: 40)")
    parser.add_argument("--length", type=int, default=448, help="most tokens of prompt and text")
    parser.add_argument("--most", type=int, default=230, help="most tokens of a text")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_grad_enabled(False)
    rng = random.Random(args.seed)
    texts = Texts(args.model, args.out, "cuda" if torch.cuda.is_available() else "cpu", args.slots, args.length, args.most)
    [end] = texts.encode(texts.after)[:1]
    plain_end = (texts.model.tokenizer.roles["unk"] or texts.model.tokenizer.roles["bos"] or (end,))[0]
    rows = [json.loads(line) for line in args.prompts.read_text(encoding="utf-8").splitlines()]
    known = [json.loads(line) for line in args.out.read_text(encoding="utf-8").splitlines()] if args.out.exists() else []
    begun = openings([row["prompt"] for row in rows], args.openings, rng)
    own = [{"source": "own", "prompt": one, "temperature": 1.0} for one in begun]
    made = [one for one in known if one["kind"] == "request"] or texts.write(
        "request", texts.before, own, lambda job: job["prompt"], end, 0.14 * args.seconds)
    asked = {(one["prompt"] + one["response"]).strip() for one in made if one["ended"]}
    jobs = []
    for row in rows + [{"source": "own", "prompt": one} for one in sorted(asked) if len(one) > 8]:
        repeats = args.repeats if "_" in row["source"] else 1
        jobs += [row | {"temperature": 0.0 if n == 0 and rng.random() < 0.5 else 1.0, "number": n} for n in range(repeats)]
    rng.shuffle(jobs)
    have = {(one["prompt"], one.get("number")) for one in known if one["kind"] == "answer"}
    jobs = [job for job in jobs if (job["prompt"], job["number"]) not in have]
    texts.write("answer", texts.before, jobs, lambda job: job["prompt"] + texts.after, end, 0.72 * args.seconds)
    free = [{"source": "plain", "prompt": rng.choice(rows)["prompt"] + rng.choice(["\n", "\n\n", " "]), "temperature": 1.0}
            for _ in range(args.plain)]
    texts.write("plain", "", free, lambda job: job["prompt"], plain_end, 0.14 * args.seconds)


if __name__ == "__main__":
    main()
