"""What a round costs apart from its two models, from Llama-2's 32,000 tokens to Qwen2's 151,646.

    python -m benchmarks.overhead --json
    python -m benchmarks.overhead --draft draft-smol --target gemma3.gguf

Both models answer with stored logits of their full width (Qwen2's is 152,064); the time this takes
is not counted. Both give the next word of one text the share `--favoured` of their probability, so
that a round keeps some drafted tokens and rejects others. After each round the rows that it asked
for (m + 1 of the target, k of the drafter) are measured alone: their softmax in float32 (T = 1) or
their argmax (T = 0), by the same library. A turn's figure is the median CPU time of one thread over
its rounds, so that other work on the machine has little effect. Of `--turns` turns (all rules, then
all again) the one with the median ratio counts. The tokenizers are those of $OMNIDRAFT_REAL_DATA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from statistics import median, median_low
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.common import REAL, arguments, chosen, save, skip, start
from benchmarks.writing import draws
from omnidraft import Options, Pair, Tokenizer, speculative
from omnidraft.engine.load import tokenizer_of
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES

ROWS = 64
WIDTHS = {"qwen2-151k": 152_064}  # logits of a model, where it has more than its tokenizer has ids
TEXT = "Question: Ann has 3 boxes of 12 pens and gives 7 away. How many are left?\nAnswer:"


class Stored:
    """A model that answers each token at once with a stored row; `seconds` went into that, `given` are its answers.

    The row after one of the `words` gives the next of them the share `favoured` of its probability. `device`: None for
    arrays, else where the tensors are. `clock`: what measures the seconds.
    """

    context_size, eos_ids = 1 << 20, ()

    def __init__(self, tokenizer: Tokenizer, width: int, words: Sequence[int], favoured: float = 0.8, device: Any = None,
                 clock: Callable[[], float] = thread_time) -> None:
        self.tokenizer, self.name, self.vocab_size = tokenizer, tokenizer.name, width
        self.device, self.clock, self.seconds, self.given = device, clock, 0.0, []
        rows = 3 * np.random.default_rng(width).standard_normal((ROWS, width), np.float32)
        if favoured:
            rows[range(ROWS), words] = np.log(np.exp(rows).sum(-1)) + np.log(favoured / (1 - favoured))
        after = np.arange(width) % ROWS  # the row that follows each token
        after[list(words)] = (np.arange(ROWS) + 1) % ROWS
        self.rows, self.after = rows, after
        if device is not None:
            import torch

            from omnidraft import sampling_torch

            self.rows, self.after = torch.from_numpy(rows).to(device), torch.from_numpy(after).to(device)
            self.sampler = sampling_torch.CpuSampler if self.rows.device.type == "cpu" else sampling_torch.Sampler

    def new_cache(self, on_device: bool = False) -> Any:
        """A cache that is only a length, and says whether tensors stay tensors."""
        cache = SimpleNamespace(length=0, on_device=on_device)
        cache.rewind = lambda length: setattr(cache, "length", length)
        return cache

    def forward(self, ids: list, cache: Any, rows: int = 1) -> Any:
        """A copy of the rows that follow the last ids."""
        began = self.clock()
        cache.length += len(ids)
        if self.device is None:
            made = self.rows[self.after[ids[-rows:]]]
        else:
            import torch

            tensors = [torch.as_tensor(i, device=self.device).reshape(1) for i in ids[-rows:]]
            made = self.rows[self.after[torch.cat(tensors)]]
        self.given.append(made)
        made = made if cache.on_device or self.device is None else made.numpy()
        self.seconds += self.clock() - began
        return made


def shared_words(draft: Tokenizer, target: Tokenizer) -> list[tuple[int, int]]:
    """(draft token, target token) of words with a space before them that are one token in both, in random order."""
    found = []
    for token, data in enumerate(draft.token_bytes):
        if data and len(data) > 3 and data[:1] == b" " and data[1:].isalpha() and data.isascii():
            text = data.decode()
            ids = target.encode_continuation(text)
            if len(ids) == 1 and draft.encode_continuation(text) == [token]:
                found.append((token, ids[0]))
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


def stored_pair(draft: Tokenizer, target: Tokenizer, widths: Sequence[int], **how: Any) -> Pair:
    """Two such models with logits of these widths, which favour the words of one text."""
    words = (shared_words(draft, target) * ROWS)[:ROWS]
    sides = zip((draft, target), widths, zip(*words, strict=True), strict=True)
    return Pair(*(Stored(tokenizer, width, ids, **how) for tokenizer, width, ids in sides))


def width_of(tokenizer: Tokenizer) -> int:
    """The width of a model's logits."""
    return WIDTHS.get(tokenizer.name, tokenizer.size)


def alone(backend: str, temperature: float) -> Callable[[Any], Any]:
    """The softmax or argmax, in float32, that the rows of a round always need."""
    if not temperature:
        return lambda rows: rows.argmax(-1)
    if backend == "torch":
        return lambda rows: rows.softmax(-1)

    def softmax(rows: np.ndarray) -> np.ndarray:
        made = np.exp(rows - rows.max(-1, keepdims=True))
        made /= made.sum(-1, keepdims=True)
        return made

    return softmax


def overhead(pair: Pair, options: Options, needed: Callable[[Any], Any],
             repeats: int) -> dict[str, float]:
    """Median milliseconds of a round without its models, and of the softmax or argmax of its rows, in turns."""
    rounds, own, floor, kept, rows = speculative(pair, TEXT, options, draws(1)), [], [], [], []
    for _ in range(repeats + 10):  # ten to warm up
        for model in (pair.draft, pair.target):
            model.seconds, model.given = 0.0, []
        began = thread_time()
        record = next(rounds)
        own.append(1000 * (thread_time() - began - pair.draft.seconds - pair.target.seconds))
        given = [pair.target.given[-1], *pair.draft.given[-options.stop.limit:]]
        began = thread_time()
        for some in given:
            needed(some)
        floor.append(1000 * (thread_time() - began))
        kept.append(len(record.emitted))
        rows.append(len(given[0]))
    own, floor = median(own[10:]), median(floor[10:])
    return {"own_ms": own, "alone_ms": floor, "ratio": own / floor, "beyond_ms": own - floor,
            "tokens_per_round": sum(kept) / len(kept), "target_rows": sum(rows) / len(rows)}


def main() -> None:
    """Measure, print and write."""
    args = arguments(
        __doc__, "overhead", k=(4, "drafted tokens per round"), repeats=200, turns=3,
        draft=("llama2-32k", "whose tokenizer: a public one, a model of the package, a folder or a GGUF file"),
        target=("qwen2-151k", "likewise"),
        favoured=(0.8, "probability of the next word; 0: both models draw from unrelated random rows"),
        backend={"choices": ("numpy", "torch"), "help": "measure only this one"})
    if not find_spec("torch"):
        skip("overhead", "pip install 'omnidraft[torch]'")
    if not REAL.is_dir():
        skip("overhead", "set OMNIDRAFT_REAL_DATA to a folder with the tokenizers")
    import torch

    torch.set_num_threads(1)
    tokenizers = []
    for name in (args.draft, args.target):
        public = REAL / "tokenizers" / name
        tokenizers.append(Tokenizer.load(public) if public.is_dir() else tokenizer_of(name))
    pairs = {backend: stored_pair(*tokenizers, [*map(width_of, tokenizers)], favoured=args.favoured, device=device)
             for backend, device in (("numpy", None), ("torch", "cpu")) if args.backend in (None, backend)}
    found = start(None, chosen(args, "draft", "target", "k", "favoured", "repeats", "turns"), backends={})
    found["machine"] |= {"torch": torch.__version__, "torch_threads": 1}
    turns: dict[tuple, list[dict[str, float]]] = {}
    for _, (backend, pair), rule, at in product(range(args.turns), pairs.items(), RULES, (0, 1)):
        options = Options(verify=rule, stop=FixedLength(args.k), temperature=at,
                          max_new_tokens=1 << 19)
        turn = overhead(pair, options, alone(backend, at), args.repeats)
        turns.setdefault((backend, rule, at), []).append(turn)
    for (backend, rule, at), made in turns.items():
        ratios = sorted(turn["ratio"] for turn in made)
        made = next(turn for turn in made if turn["ratio"] == median_low(ratios))
        made |= {"ratios": ratios}
        found["backends"].setdefault(backend, {}).setdefault(rule, {})[f"T={at}"] = made
        print(f"{backend} {rule:9} T={at}:", "{own_ms:.2f} ms, alone {alone_ms:.2f}: "
              "{ratio:.2f}x, {beyond_ms:+.2f} ms; {target_rows:.1f} rows, {tokens_per_round:.1f} "
              "tokens".format(**made))
    save(args.json, found)


if __name__ == "__main__":
    main()
