"""Measure a pair of published models on your machine; `python docs/notebooks.py --plain` makes a notebook of it."""
# ruff: noqa: E402

# %% [markdown]
# # One drafter, another tokenizer: figures from your machine
#
# This notebook pairs a small published model with a large one that has a different tokenizer. It completes the same prompts
# with transformers' plain generation, its assisted generation and omnidraft, at temperatures 0 and 1. Then the drafter
# learns from 200 prompts, and it measures again. Any CUDA machine will do (Colab: a T4, "Runtime", "Change runtime type";
# about half an hour). The result is one table and a file `real_pair.json`. To contribute it, attach it to a GitHub issue.

# %%
import importlib.util
import subprocess
import sys

REPOSITORY = "https://github.com/omnidraft/omnidraft"
if importlib.util.find_spec("omnidraft") is None:
    wanted = f"omnidraft[torch] @ git+{REPOSITORY}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wanted], check=True)

# %% [markdown]
# What to measure: hub ids or folders. A 3B target fits on a T4 (16 GB) in float16; an 8B target needs 24 GB.

# %%
import os


def setting(name, default):
    """A parameter, unless the environment overrides it."""
    return type(default)(os.environ.get(f"REAL_PAIR_{name}", default))


DRAFT = setting("DRAFT", "HuggingFaceTB/SmolLM2-135M-Instruct")
TARGET = setting("TARGET", "Qwen/Qwen2.5-3B-Instruct")
PROMPTS = setting("PROMPTS", "math,code,text")  # prompt sets shipped with omnidraft, or a file of lines or JSON objects
COUNT = setting("COUNT", 12)  # prompts to measure
LEARN = setting("LEARN", 200)  # other prompts, to learn from
TOKENS = setting("TOKENS", 64)  # new tokens per text
OUT = setting("OUT", "real_pair.json")

# %%
import copy
import json
import random
import tempfile
from time import perf_counter

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, GenerationConfig

import omnidraft
from omnidraft.cli.inspect import machine
from omnidraft.cli.prompts import read_prompts
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe
from omnidraft.metrics import summarize

gpu = torch.cuda.is_available()
number = ("bfloat16" if torch.cuda.get_device_capability()[0] >= 8 else "float16") if gpu else "float32"
draft = omnidraft.load(DRAFT, backend="torch", dtype="float32")  # it learns
target = omnidraft.load(TARGET, backend="torch", dtype=number)
pair = omnidraft.pair(draft, target)
known = [*dict.fromkeys(prompt for source in PROMPTS.split(",") for prompt in read_prompts(source)[0])]
random.Random(0).shuffle(known)
held_out, stream = known[:COUNT], known[COUNT:COUNT + LEARN]
print(target.name, "on", target.kernel, "|", draft.name, "|", len(held_out), "prompts,", len(stream), "to learn from")

# %% [markdown]
# Plain generation is transformers' own `generate`. omnidraft runs inside it (`custom_generate`) and on its own, and all
# methods take turns on each prompt. Penalties and filters from a model's folder are left out, so that all methods have the
# same distribution.

# %%
speaks = {"tokenizer": AutoTokenizer.from_pretrained(target.folder),
          "assistant_tokenizer": AutoTokenizer.from_pretrained(draft.folder)}
for one in (draft, target):
    ends = list(one.eos_ids)
    one.model.generation_config = GenerationConfig(eos_token_id=ends or None, pad_token_id=[*ends, 0][0])


def methods(temperature, learned=False):
    """Name -> function from the prompt's ids to the new ids and the number of target passes, if known."""
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {"do_sample": False}

    def generate(**more):
        def run(ids):
            ids = torch.tensor([ids], device=target.device)
            made = target.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, **how, **more)
            return made[0, ids.shape[1]:].tolist(), None
        return run

    def ours(ids):
        made = pair.generate(ids, max_new_tokens=TOKENS, temperature=temperature, seed=len(ids))
        return made.tokens, len(made.rounds)

    if learned:  # plain again, so that both see the machine in the same state
        return {"transformers plain": generate(), "omnidraft, adapted": ours}
    assistant = copy.deepcopy(draft.model) if temperature else draft.model  # sampling changes the assistant's layers for good
    return {"transformers plain": generate(), "transformers assisted": generate(assistant_model=assistant, **speaks),
            "omnidraft in generate": generate(custom_generate=pair.decoder()), "omnidraft": ours}


def measure(some):
    """Name -> tokens per second, tokens per pass and texts on the held-out prompts, after one warm-up prompt."""
    found = {name: {"seconds": 0.0, "passes": 0, "texts": []} for name in some}
    for number, prompt in enumerate([stream[0], *held_out]):
        ids = target.tokenizer.encode(prompt, bos=True)
        for name, run in some.items():
            if "fails" in found[name]:
                continue
            torch.manual_seed(number)
            began = perf_counter()
            try:
                tokens, passes = run(ids)
            except Exception as error:  # what a library cannot do with this pair is a result too
                found[name]["fails"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                continue
            if gpu:
                torch.cuda.synchronize()
            if number:
                found[name]["seconds"] += perf_counter() - began
                found[name]["passes"] += passes or 0
                found[name]["texts"].append(tokens)
    for one in found.values():
        one["tokens"] = sum(map(len, one["texts"]))
        one["tokens_per_second"] = one["tokens"] / (one["seconds"] or 1)
        one["ratio"] = one["tokens_per_second"] / found["transformers plain"]["tokens_per_second"]
    return found


runs = {f"T = {temperature}": measure(methods(float(temperature))) for temperature in (0, 1)}

# %% [markdown]
# The drafter learns from its target while it serves the stream, as `omnidraft adapt` lets it. Nothing is kept on disk.

# %%
rng = np.random.default_rng(0)
store, began = omnidraft.Adapters(tempfile.mkdtemp()), perf_counter()
learner = store.resume(pair, Recipe(), Schedule(every=2, replay=6), rng)
options = omnidraft.Options.of(max_new_tokens=TOKENS, temperature=1.0)
learned = [one for one in omnidraft.learn(learner, stream, options, omnidraft.Uniforms(rng)) if one.rounds]
learner.close()
quarter = max(1, len(learned) // 4)
taus = [summarize(r for one in part for r in one.rounds).block_efficiency for part in (learned[:quarter], learned[-quarter:])]
learning = {"prompts": len(learned), "updates": learner.statistics.updates, "rollbacks": learner.rollbacks,
            "skipped": learner.skipped, "seconds": perf_counter() - began, "first_quarter": taus[0], "last_quarter": taus[1]}
print(learning)
for temperature in (0, 1):
    again = measure(methods(float(temperature), learned=True))
    runs[f"T = {temperature}"] |= {"omnidraft, adapted": again["omnidraft, adapted"]}

# %% [markdown]
# The table and the file. "Same text" counts the texts identical to plain generation at temperature 0. In half precision,
# passes over several tokens round differently from passes over one, so a few texts can differ after a tie.

# %%
rows = []
for at, found in runs.items():
    wanted = found["transformers plain"]["texts"]
    for name, one in found.items():
        texts = one.pop("texts")
        one["block_efficiency"] = one["tokens"] / one["passes"] if one["passes"] else None
        one["same_text"] = sum(map(list.__eq__, texts, wanted)) if at == "T = 0" else None
        shown = [at, name, f"{one['tokens_per_second']:.1f}", f"{one['ratio']:.2f}×",
                 f"{one['block_efficiency']:.2f}" if one["passes"] else "", "" if one["same_text"] is None else
                 f"{one['same_text']}/{len(held_out)}"]
        rows.append(shown if "fails" not in one else [at, name, one["fails"], "", "", ""])
for row in [["", "method", "tokens/s", "over plain", "tokens per pass", "same text"], ["---"] * 6, *rows]:
    print("|", " | ".join(row), "|")

# %%
where = machine() | {"gpu": torch.cuda.get_device_name() if gpu else None, "torch": torch.__version__,
                     "transformers": transformers.__version__, "omnidraft": omnidraft.__version__}
settings = {"draft": draft.name, "target": target.name, "dtype": number, "prompts": len(held_out), "tokens": TOKENS}
result = {"machine": where, "settings": settings, "runs": runs, "learning": learning}
with open(OUT, "w", encoding="utf-8") as file:
    json.dump(result, file, indent=1)
print("wrote", OUT)
