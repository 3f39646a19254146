"""What a round costs beside its two models, for vocabularies of 32,000 and 151,646 entries: Llama-2's drafts for Qwen2's.

    python -m benchmarks.overhead --json benchmarks/results/overhead.json

Both models answer with stored logits of their full width (Qwen2's is 152,064), and the time that takes is left out. Both favour
the next word of one text with `--favoured` of their probability, so that a round keeps some drafted tokens and refuses others.
After each round the rows that it asked for (m + 1 of the target, k of the drafter) are measured alone: their softmax in float32
(T = 1) or their argmax (T = 0), by the same library. Medians of the processor time of one thread over all rounds of a turn, so
that what else the machine does counts little; of `--turns` turns (all rules, then all again) the one with the median ratio.
The tokenizers are looked for in $OMNIDRAFT_REAL_DATA/tokenizers (../shared/real unless it is set).
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import median, median_low
from time import thread_time
from types import SimpleNamespace
from typing import Any

from omnidraft.engine.cpu import prepare_blas

prepare_blas()

import numpy as np  # noqa: E402

from benchmarks.common import write_json  # noqa: E402
from benchmarks.latency import REAL, TEXT  # noqa: E402
from omnidraft import Options, Pair, Tokenizer, Uniforms, speculative  # noqa: E402
from omnidraft.cli.machine import machine  # noqa: E402
from omnidraft.stopping import FixedLength  # noqa: E402
from omnidraft.verification import RULES  # noqa: E402

ROWS = 64


class Stored:
    """A model whose logits after a token are one of its stored rows; it keeps the seconds that it took and the rows it gave."""

    context_size, eos_ids, device = 1 << 20, (), "cpu"

    def __init__(self, tokenizer: Tokenizer, rows: np.ndarray, favourites: list[int], backend: str) -> None:
        self.tokenizer, self.name, self.vocab_size = tokenizer, tokenizer.name, rows.shape[1]
        self.places = {token: place for place, token in enumerate(favourites, 1)}  # after each the row of the next
        self.rows, self.ops = rows, "ops"
        if backend == "torch":
            import torch

            self.rows, self.ops = torch.from_numpy(rows), "ops_torch"
        self.seconds, self.given = 0.0, []

    def new_cache(self, on_device: bool = False) -> Any:
        """Only a length."""
        cache = SimpleNamespace(length=0)
        cache.rewind = lambda length: setattr(cache, "length", length)
        return cache

    def forward(self, ids: list, cache: Any, rows: int = 1) -> Any:
        """A copy of the rows that belong to the last `rows` of the ids."""
        began = thread_time()
        cache.length += len(ids)
        self.given.append(self.rows[[self.places.get(int(token), int(token)) % ROWS for token in ids[-rows:]]])
        self.seconds += thread_time() - began
        return self.given[-1]


def stored_pair(draft: Tokenizer, target: Tokenizer, favoured: float) -> dict[str, Pair]:
    """The pair per backend: random rows, in which the next word of one text has `favoured` of the probability."""
    rng, host = np.random.default_rng(0), None
    words = [t for t, data in enumerate(draft.token_bytes)
             if data and len(data) > 4 and data[:1] == b" " and data[1:].isalpha()]
    words = [(word, *ids) for word in words if len(ids := target.encode_continuation(draft.decode_bytes([word]).decode())) == 1]
    text = rng.permutation(words)[:ROWS].T.tolist()  # in the ids of both
    rows = [3 * rng.standard_normal((ROWS, size), np.float32) for size in (32_000, 152_064)]
    for some, ids in zip(rows, text, strict=True):
        others = np.log(np.exp(some).sum(-1))
        some[range(ROWS), ids] = others + np.log(favoured / (1 - favoured)) if favoured else some[range(ROWS), ids]
    pairs = {}
    for backend in ("numpy", "torch"):
        models = (Stored(*each, backend) for each in zip((draft, target), rows, text, strict=True))
        pairs[backend] = Pair(*models, host and host.cache, prefill=host is None)
        host = host or pairs[backend]
        pairs[backend]._lifting, pairs[backend]._lifted_version = host.lifting, host.cache.version
    return pairs


def alone(backend: str, temperature: float) -> Any:
    """The softmax or argmax that the rows of a round need in any case, in float32."""
    if backend == "torch":
        return (lambda rows: rows.softmax(-1)) if temperature else (lambda rows: rows.argmax(-1))

    def softmax(rows: np.ndarray) -> np.ndarray:
        made = np.exp(rows - rows.max(-1, keepdims=True))
        made /= made.sum(-1, keepdims=True)
        return made

    return softmax if temperature else (lambda rows: rows.argmax(-1))


def overhead(pair: Pair, k: int, options: Options, backend: str, repeats: int) -> dict[str, float]:
    """Median milliseconds of a round less its models, and of its rows' softmax or argmax measured in turns with it."""
    models, needed = (pair.draft, pair.target), alone(backend, options.temperature)
    rounds, own, floor, kept, rows = speculative(pair, TEXT, options, Uniforms(np.random.default_rng(1))), [], [], [], []
    for _ in range(repeats + 10):
        for model in models:
            model.seconds, model.given = 0.0, []
        began = thread_time()
        record = next(rounds)
        own.append(1000 * (thread_time() - began - sum(model.seconds for model in models)))
        given = [pair.target.given[-1], *pair.draft.given[-k:]]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", type=int, default=4, help="drafted tokens per round")
    parser.add_argument("--favoured", type=float, default=0.8, help="0: both models draw from unrelated random rows")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--backend", choices=("numpy", "torch"), help="one of the two only")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not find_spec("torch"):
        print("overhead is not measured: pip install 'omnidraft[torch]'", file=sys.stderr)
        return  # `make bench` goes on
    if not REAL.is_dir():
        print(f"overhead is not measured: no tokenizers in {REAL} (set OMNIDRAFT_REAL_DATA)", file=sys.stderr)
        return
    import torch

    torch.set_num_threads(1)
    pairs = stored_pair(*(Tokenizer.load(REAL / name) for name in ("llama2-32k", "qwen2-151k")), args.favoured)
    found = {"machine": machine() | {"torch": torch.__version__, "torch_threads": 1},
             "settings": {name: getattr(args, name) for name in ("k", "favoured", "repeats", "turns")}, "backends": {}}
    turns: dict[tuple, list[dict[str, float]]] = {}
    for _ in range(args.turns):
        for (backend, pair), rule, at in product(pairs.items(), RULES, (0, 1)):
            if args.backend in (None, backend):
                options = Options(verify=rule, stop=FixedLength(args.k), temperature=at, max_new_tokens=1 << 19)
                turns.setdefault((backend, rule, at), []).append(overhead(pair, args.k, options, backend, args.repeats))
    for (backend, rule, at), made in turns.items():
        ratios = sorted(turn["ratio"] for turn in made)
        made = next(turn for turn in made if turn["ratio"] == median_low(ratios))
        found["backends"].setdefault(backend, {}).setdefault(rule, {})[f"T={at}"] = made | {"ratios": ratios}
        print(f"{backend} {rule:9} T={at}: {made['own_ms']:.2f} ms, {'softmax' if at else 'argmax'} alone "
              f"{made['alone_ms']:.2f}: {made['ratio']:.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f}), {made['beyond_ms']:+.2f} ms; "
              f"{made['target_rows']:.1f} rows, {made['tokens_per_round']:.1f} tokens", flush=True)
    if args.json:
        write_json(args.json, found)


if __name__ == "__main__":
    main()
