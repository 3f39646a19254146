"""vLLM with drafts from another tokenizer, next to plain vLLM: tokens per second for 1, 2, 4 and 8 streams.

    make test-vllm                                       # once: the environment .venv-vllm
    python -m benchmarks.vllm_streams --json --pairs draft-smol:FOLDER:float32

A pair is drafter:target:type; the target is a folder, the type that of its weights. The prompts are the last ones of
GSM8K in $OMNIDRAFT_REAL_DATA, through the target's chat template, greedy. For each target one process writes without
drafts and one with each drafter; all stay loaded, and they write the same texts in turns, so that a slow moment of the
machine meets all of them. The ratio is the median over the turns. Every process has one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.common import REAL, add, arguments, chosen, save, skip, start

QUIET = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
         "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1",
         "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MARK = "figures: "  # begins the lines of a worker that are for us


def work(target: str, kind: str, draft: str, tokens: int) -> None:
    """A process with an engine: for each line of prompts and a number of streams, writes the texts and times them."""
    from vllm import LLM, SamplingParams

    drafts: dict[str, Any] = {}
    if draft:
        drafts = {"speculative_config": {"method": "custom_class", "model": "omnidraft.vllm.Proposer",
                                         "num_speculative_tokens": 6},
                  "additional_config": {"omnidraft": {"draft": draft, "greedy": True}}}
    llm = LLM(target, dtype=kind, max_model_len=1024, max_num_seqs=8, enforce_eager=True, **drafts)
    sampling = SamplingParams(temperature=0, max_tokens=tokens)
    print(MARK + "{}", flush=True)
    for line in sys.stdin:
        prompts, streams = json.loads(line)
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        began, busy, texts = perf_counter(), process_time(), []
        for first in range(0, len(chats), streams):
            done = llm.chat(chats[first:first + streams], sampling, use_tqdm=False)
            texts += [list(one.outputs[0].token_ids) for one in done]
        found = {"wall": perf_counter() - began, "cpu": process_time() - busy, "texts": texts}
        print(MARK + json.dumps(found), flush=True)


class Worker:
    """Such a process, seen from outside."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "benchmarks.vllm_streams", "--worker", *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | QUIET)
        self.answer()

    def answer(self) -> dict:
        """The next figures; SystemExit if it ended."""
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit("a process with vLLM ended: see above")

    def write(self, prompts: list[str], streams: int) -> dict:
        """Texts with their wall clock and CPU time."""
        self.process.stdin.write(json.dumps([prompts, streams]) + "\n")
        self.process.stdin.flush()
        return self.answer()


def compare(workers: dict[str, Worker], prompts: list[str], streams: int, repeats: int) -> dict[str, dict]:
    """For each drafter (not "") its speed and that of plain vLLM, in turns."""
    turns = []
    for repeat in range(repeats):
        turn = repeat % len(workers)
        turns.append({name: workers[name].write(prompts, streams) for name in [*workers][turn:] + [*workers][:turn]})
    made = {}
    for name in [*workers][1:]:
        ratios = {clock: [each(turn[name], clock) / each(turn[""], clock) for turn in turns] for clock in ("wall", "cpu")}
        same = sum(map(list.__eq__, turns[0][""]["texts"], turns[0][name]["texts"]))
        made[name] = {"plain": round(median(each(turn[""], "wall") for turn in turns), 1),
                      "drafted": round(median(each(turn[name], "wall") for turn in turns), 1),
                      **{clock: round(median(found), 3) for clock, found in ratios.items()},
                      "turns": [round(ratio, 3) for ratio in ratios["wall"]], "same_texts": same, "texts": len(prompts)}
    return made


def each(found: dict, clock: str) -> float:
    """Tokens per second."""
    return sum(map(len, found["texts"])) / found[clock]


def called(path: str) -> str:
    """A model's name in the table: smollm2 for .../smollm2-hf and .../smollm2.gguf."""
    return Path(path).name.removesuffix(".gguf").removesuffix("-hf")


def main() -> None:
    """Measure, print and write."""
    args = arguments(__doc__, "vllm", pairs=["draft-smol:OMNIDRAFT_TARGET:float32"], streams=[1, 2, 4, 8], prompts=8,
                     tokens=64, repeats=3, worker={"nargs": 4, "default": (), "help": "one process (internal)"})
    if args.worker:
        target, kind, draft, tokens = args.worker
        work(target, kind, draft, int(tokens))
        return
    try:
        import vllm
    except ImportError:
        skip("vllm", "install it with `make test-vllm` and use .venv-vllm/bin/python")
    place = REAL / "data" / "gsm8k_train1000.jsonl"
    if not place.is_file():
        skip("vllm", "set OMNIDRAFT_REAL_DATA to a folder with data/gsm8k_train1000.jsonl")
    prompts = [json.loads(line)["prompt"] for line in place.read_text(encoding="utf-8").splitlines()[-args.prompts:]]
    results = start(args.json, chosen(args, "prompts", "tokens", "repeats") | {"vllm": vllm.__version__}, pairs={})
    settings = results["settings"]
    targets: dict[tuple[str, str], list[str]] = {}
    for pair in args.pairs:
        draft, target, kind = pair.rsplit(":", 2)
        targets.setdefault((target, kind), []).append(draft)
    for (target, kind), drafts in targets.items():
        workers = {draft: Worker(target, kind, draft, str(args.tokens)) for draft in ("", *drafts)}
        for worker in workers.values():
            worker.write(prompts[:2], 2)  # the first passes of a process take longer
        for streams in args.streams:
            for draft, found in compare(workers, prompts, streams, args.repeats).items():
                name = f"{called(draft)} -> {called(target)}, {kind}"
                add(results, ("pairs", name, str(streams)), found, settings)
                print(f"{name}, {streams} streams: {found}", flush=True)
                save(args.json, results)
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()


if __name__ == "__main__":
    main()
