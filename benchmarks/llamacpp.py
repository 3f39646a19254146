"""llama.cpp as the target: what a pass over several tokens costs in each format, and what drafting gains there.

    make test-llamacpp                                  # brings llama-cpp-python, compiled for this computer
    OMP_NUM_THREADS=1 python -m benchmarks.llamacpp --json

SmolLM2 as it was published (Q4_1), and its weights written in three other formats. A pass over m tokens after a text of
64 is timed (median of interleaved repeats). From this follows the break-even: what a round with k drafts costs, in passes
over one token, which is how many tokens it must give on average. Then held-out GSM8K requests are written by plain and by
speculative decoding in turns, with drafts of up to four tokens, and with `adaptive` drafting, the default: it drafts only
while that saves time. Both ways run in llama.cpp; its threads are $OMP_NUM_THREADS.
"""

from __future__ import annotations

import struct
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import REAL, arguments, run_all, skip, start
from benchmarks.real_llm import efficiency, in_turns, requests_of, write
from omnidraft import Options, Pair
from omnidraft.engine.gguf import Gguf, Reader
from omnidraft.engine.loading import folder, load
from omnidraft.metrics import summarize
from omnidraft.stopping import Confidence
from omnidraft.text.errors import OmnidraftError

TOKENS = (1, 2, 3, 4, 5, 8, 12)  # of the timed passes
DRAFTS = 4
KINDS = {"F32": 0, "F16": 1, "Q8_0": 8}  # llama.cpp's number for each format


def encoded(numbers: np.ndarray, kind: str) -> bytes:
    """Weights in a format; Q8_0 has a scale and 32 whole numbers in each block."""
    if kind != "Q8_0":
        return numbers.astype("<f4" if kind == "F32" else "<f2").tobytes()
    blocks = numbers.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
    whole = np.rint(blocks / np.maximum(scales.astype(np.float32), 1e-12)).astype(np.int8)
    return np.concatenate([scales.view(np.int8), whole], 1).tobytes()


def rewritten(source: Path, made: Path, kind: str) -> Path:
    """A GGUF file with the settings of `source` and its matrices in another format."""
    file, reader = Gguf(source), Reader(source.read_bytes())
    reader.take(8)
    count, settings = reader.number(10), reader.number(10)
    begin = reader.place
    for _ in range(settings):
        reader.text()
        reader.value(reader.number(4))
    head = [b"GGUF", struct.pack("<IQQ", 3, count, settings), reader.data[begin:reader.place]]
    data, place = [], 0
    for name, tensor in file.tensors.items():
        its = kind if len(tensor.shape) == 2 else "F32"
        content = encoded(tensor.astype(np.float32), its)
        head.append(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(tensor.shape)))
        head.append(struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape[::-1], KINDS[its], place))
        data.append(content + bytes(-len(content) % 32))
        place += len(data[-1])
    start_of_data = sum(map(len, head))
    made.write_bytes(b"".join([*head, bytes(-start_of_data % 32), *data]))
    return made


def costs(model: Any, ids: list[int], repeats: int) -> dict[str, float]:
    """Milliseconds of a pass over each number of tokens, after 64 others."""
    cache = model.new_cache()
    model.forward(ids[:64], cache)
    found: dict[int, list[float]] = {count: [] for count in TOKENS}
    for _, count in product(range(repeats), TOKENS):
        cache.rewind(64)
        began = perf_counter()
        model.forward(ids[64:64 + count], cache, count)
        found[count].append(perf_counter() - began)
    return {str(count): round(1e3 * median(times), 1) for count, times in found.items()}


def difference(model: Any, path: Path, ids: list[int]) -> float:
    """How far its logits are from those that the file's weights give in float32, as a share of these (norms)."""
    exact = load(path)
    wanted, found = (one.forward(ids, one.new_cache(), len(ids)) for one in (exact, model))
    return round(float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)), 5)


def measured(path: Path, draft: str, args: Any) -> dict[str, Any]:
    """One format: costs of passes, and the speed."""
    pair = Pair(load(draft), load(path, backend="llamacpp"))
    _, held_out = requests_of("gsm8k")
    ids = pair.target.tokenizer.encode(" ".join(held_out[:8]))
    found: dict[str, Any] = {"megabytes": path.stat().st_size >> 20, "difference": difference(pair.target, path, ids[:64]),
                             "milliseconds": costs(pair.target, ids, args.repeats)}
    options = Options(stop=Confidence(DRAFTS), max_new_tokens=args.tokens)
    sums = [summarize(write(pair, text, options, place)) for place, text in enumerate(held_out[:args.timed])]
    found["drafts of up to 4"] = efficiency(sums) | in_turns(pair, held_out[:args.timed], options, 1)
    return found


def main() -> None:
    """Measure, print and write after every format."""
    args = arguments(__doc__, "llamacpp", target="smollm2", draft="draft-smol", repeats=9, timed=(8, "texts"), tokens=64)
    try:
        source = folder(args.target)
        load(source, backend="llamacpp")
    except OmnidraftError as error:
        skip("llamacpp", str(error))
    if not (REAL / "data").is_dir():
        skip("llamacpp", "set OMNIDRAFT_REAL_DATA to a folder with the data")
    settings = {"draft": args.draft, "repeats": args.repeats, "timed": args.timed, "tokens": args.tokens,
                "llama-cpp-python": version("llama-cpp-python")}
    with TemporaryDirectory() as place:
        def job(kind: str) -> dict[str, Any]:
            path = source if kind == "as published" else rewritten(source, Path(place, f"{kind}.gguf"), kind)
            return measured(path, args.draft, args)

        kinds = ["as published", *reversed(KINDS)]
        jobs = {("formats", f"{args.target}, {kind}"): partial(job, kind) for kind in kinds}
        run_all(args.json, start(args.json, settings, formats={}), jobs, settings)


if __name__ == "__main__":
    main()
