"""What a round costs apart from its two models, from Llama-2's 32,000 tokens to Qwen2's 151,646.

    python -m benchmarks.overhead --json
    python -m benchmarks.overhead --draft draft-smol --target gemma3.gguf
    python -m benchmarks.overhead --before ../other-checkout

Both models answer with stored logits of their full width (Qwen2's is 152,064); the time this takes
is not counted. Both give the next word of one text the share `--favoured` of their probability, so
that a round keeps some drafted tokens and rejects others. After each round the rows that it asked
for (m + 1 of the target, k of the drafter) are measured alone: their softmax in float32 (T = 1) or
their argmax (T = 0), by the same library. A turn's figure is the median CPU time of one thread over
its rounds, so that other work on the machine has little effect. Of `--turns` turns (all rules, then
all again) the one with the median ratio counts. The tokenizers are those of $OMNIDRAFT_REAL_DATA.
--before compares with another checkout instead.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median, median_low
from time import thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.common import REAL, arguments, chosen, compare_checkouts, save, skip, start
from benchmarks.writing import draws
from omnidraft import Options, Pair, Tokenizer, speculative
from omnidraft.engine.load import tokenizer_of
from omnidraft.stopping import FixedLength
from omnidraft.verification import RULES

ROWS = 64
WIDTHS = {"qwen2-151k": 152_064}  # logits of a model, where it has more than its tokenizer has ids
TEXT = "Question: Ann has 3 boxes of 12 pens and gives 7 away. How many are left?\nAnswer:"


class Stored:
    """A model that answers at once with the next of its stored rows of logits."""

    context_size, eos_ids = 1 << 20, ()

    def __init__(self, tokenizer: Tokenizer, rows: Any, device: Any = "cpu") -> None:
        self.tokenizer, self.name, self.vocab_size = tokenizer, tokenizer.name, rows.shape[1]
        self.rows, self.at, self.device = rows, 0, device
        if not isinstance(rows, np.ndarray):

            from omnidraft import sampling_torch

            on_cpu = rows.device.type == "cpu"
            self.sampler = sampling_torch.CpuSampler if on_cpu else sampling_torch.Sampler

    def new_cache(self, on_device: bool = False) -> Any:
        """A cache that is only a length, and says whether tensors stay tensors."""
        cache = SimpleNamespace(length=0, on_device=on_device)
        cache.rewind = lambda length: setattr(cache, "length", length)
        return cache

    def forward(self, ids: list, cache: Any, rows: int = 1) -> Any:
        """The next `rows` rows."""
        cache.length += len(ids)
        self.at = (self.at + rows) % (len(self.rows) - 16)
        return self.rows[self.at:self.at + rows]


class Favouring(Stored):
    """After a favoured token it returns the next one's row; keeps its seconds and the rows it returned."""

    def __init__(self, tokenizer: Tokenizer, rows: Any, favourites: list[int]) -> None:
        super().__init__(tokenizer, rows)
        self.places = {token: place for place, token in enumerate(favourites, 1)}
        self.seconds, self.given = 0.0, []

    def forward(self, ids: list, cache: Any, rows: int = 1) -> Any:
        """A copy of the rows that belong to the last `rows` of the ids."""
        began = thread_time()
        cache.length += len(ids)
        places = [self.places.get(int(token), int(token)) % ROWS for token in ids[-rows:]]
        self.given.append(self.rows[places])
        self.seconds += thread_time() - began
        given = self.given[-1]
        return given if cache.on_device or isinstance(given, np.ndarray) else given.numpy()


def stored_pair(draft: Tokenizer, target: Tokenizer, favoured: float, backend: str) -> Pair:
    """Random rows, in which the next word of one text has `favoured` of the probability."""
    rng, words, models = np.random.default_rng(0), [], []
    for token, data in enumerate(draft.token_bytes):
        if data and len(data) > 4 and data[:1] == b" " and data[1:].isalpha():
            ids = target.encode_continuation(draft.decode_bytes([token]).decode())
            words += [(token, *ids)] * (len(ids) == 1)
    text = rng.permutation(words)[:ROWS].T.tolist()  # in the ids of both vocabularies
    for tokenizer, ids in zip((draft, target), text, strict=True):
        size = WIDTHS.get(tokenizer.name, tokenizer.size)
        rows = 3 * rng.standard_normal((ROWS, size), np.float32)
        if favoured:
            odds = np.log(favoured / (1 - favoured))
            rows[range(ROWS), ids] = np.log(np.exp(rows).sum(-1)) + odds
        if backend == "torch":
            import torch

            rows = torch.from_numpy(rows)
        models.append(Favouring(tokenizer, rows, ids))
    return Pair(*models)


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


def against_checkout(before: Path, turns: int) -> None:
    """Print the milliseconds per round of this checkout and of another one."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for results in compare_checkouts("benchmarks.overhead", before, turns):
        old, new = ([(backend, rule, at, f["own_ms"]) for backend, rules in one["backends"].items()
                     for rule, row in rules.items() for at, f in row.items()] for one in results)
        for (*_, past), (*name, now) in zip(old, new, strict=True):  # a rule may have a new name
            found.setdefault(tuple(name), []).append((past, now))
    for (backend, rule, at), times in found.items():
        ratios = [past / now for past, now in times]
        past, now = map(median, zip(*times, strict=True))
        print(f"{backend} {rule:9} {at}: {past:.2f} -> {now:.2f} ms, {median(ratios):.2f} times as "
              f"fast ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    """Measure, print and write."""
    args = arguments(
        __doc__, "overhead", k=(4, "drafted tokens per round"), repeats=200, turns=3,
        draft=("llama2-32k", "whose tokenizer: a public one, a model of the package, a folder or a GGUF file"),
        target=("qwen2-151k", "likewise"),
        favoured=(0.8, "probability of the next word; 0: both models draw from unrelated random rows"),
        before=(Path, "another checkout to compare with"),
        backend={"choices": ("numpy", "torch"), "help": "measure only this one"})
    if not find_spec("torch"):
        skip("overhead", "pip install 'omnidraft[torch]'")
    if not REAL.is_dir():
        skip("overhead", "set OMNIDRAFT_REAL_DATA to a folder with the tokenizers")
    if args.before:
        return against_checkout(args.before, args.turns)
    import torch

    torch.set_num_threads(1)
    tokenizers = []
    for name in (args.draft, args.target):
        public = REAL / "tokenizers" / name
        tokenizers.append(Tokenizer.load(public) if public.is_dir() else tokenizer_of(name))
    pairs = {backend: stored_pair(*tokenizers, args.favoured, backend)
             for backend in ("numpy", "torch") if args.backend in (None, backend)}
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
