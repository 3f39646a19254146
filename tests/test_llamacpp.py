"""llama.cpp as a target: the logits of the NumPy engine, rewound and shared without trace, and the text of its own plain
decoding. `make test-llamacpp` brings llama-cpp-python; without it, only what is said then is tested."""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from pathlib import Path

import ggufs
import numpy as np
import pytest
from test_gguf import MODELS
from typer.testing import CliRunner

import omnidraft
from omnidraft import Options, plain
from omnidraft.cli import app
from omnidraft.engine import loading
from omnidraft.sampling import Uniforms
from omnidraft.serving.prompts import ids_of
from omnidraft.text.errors import OmnidraftError
from omnidraft.verification import RULES

needs_it = pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="no llama-cpp-python here")
IDS = [3, 100, 7, 42, 9, 11, 3, 8]


@pytest.fixture
def tiny(tmp_path) -> Path:
    ggufs.tiny(path := tmp_path / "tiny.gguf")
    return path


def in_llamacpp(path):
    return omnidraft.load(path, backend="llamacpp")


def beside_plain(pair, prompt, options: Options) -> tuple[float, int]:
    """Where the text parts from plain decoding's, how far apart the logits of the two tokens are in a pass of its own
    (0.0: it is the same text), and how many drafted tokens it has."""
    ids, _ = ids_of(pair, prompt)
    found = pair.generate(prompt, options=options)
    text, alone = written(found.rounds), written(plain(pair.target, ids, options, Uniforms(np.random.default_rng(0))))
    kept = sum(one.draft_kept for one in found.rounds)
    if text == alone:
        return 0.0, kept
    same = next(place for place, (one, other) in enumerate(zip(text, alone, strict=False)) if one != other)
    [logits] = pair.target.forward([*ids, *text[:same]], pair.target.new_cache())
    return abs(float(logits[text[same]] - logits[alone[same]])), kept


def written(rounds) -> list[int]:
    return [token for one in rounds for token in one.emitted]


# ------------------------------------------------------------------------------------------------------- without it

def test_without_the_package_one_line_says_how_to_get_it(tiny, monkeypatch):
    usual = builtins.__import__

    def refuse(name, *args, **more):
        if name.startswith("llama_cpp"):
            raise ImportError("No module named 'llama_cpp'")
        return usual(name, *args, **more)

    monkeypatch.delitem(sys.modules, "omnidraft.engine.llamacpp", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    shown = CliRunner().invoke(app, ["generate", "hello", "--backend", "llamacpp", "--target", str(tiny)])
    assert shown.exit_code == 1 and shown.stderr.count("\n") == 1
    assert "--backend llamacpp needs llama-cpp-python (No module named 'llama_cpp')" in shown.stderr


@pytest.mark.parametrize(("more", "says"), [
    ({"name": "qwen-like"}, "runs GGUF files, and qwen-like is a folder"),
    ({"dtype": "float64"}, "llama.cpp here has no float64 numbers; use --backend torch"),
    ({"device": "cuda"}, "llama.cpp here has no device cuda; use --backend torch"),
    ({"backend": "ggml"}, "unknown backend 'ggml': choose numpy, torch or llamacpp")])
def test_what_it_cannot_run_is_one_line(tiny, more, says):
    with pytest.raises(OmnidraftError, match=says) as caught:
        loading.load(**({"name": tiny, "backend": "llamacpp"} | more))
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ with it

@needs_it
@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_the_logits_are_those_of_the_numpy_engine(tmp_path, kind):
    ggufs.tiny(path := tmp_path / "tiny.gguf", kind)
    ours, theirs = omnidraft.load(path), in_llamacpp(path)
    wanted, found = (one.forward(IDS, one.new_cache(), len(IDS)) for one in (ours, theirs))
    assert np.linalg.norm(found - wanted) < 5e-3 * np.linalg.norm(wanted)  # it keeps keys and values in 16 bits
    assert (theirs.eos_ids, theirs.vocab_size, theirs.context_size) == (ours.eos_ids, ours.vocab_size, ours.context_size)
    assert theirs.tokenizer.key == ours.tokenizer.key and theirs.parameters == ours.parameters


@needs_it
def test_rewinding_and_other_texts_in_between_leave_no_trace(tiny):
    model = in_llamacpp(tiny)
    whole = model.forward(IDS, model.new_cache(), len(IDS))
    one, other = model.new_cache(), model.new_cache()
    model.forward([*IDS[:4], 5, 6, 7], one, 7)
    model.forward([8, 9, *IDS], other, 2)
    one.rewind(4)
    np.testing.assert_allclose(model.forward(IDS[4:], one, 3), whole[-3:], atol=1e-4)
    one.rewind(0)
    np.testing.assert_allclose(model.forward(IDS, one, len(IDS)), whole, atol=1e-4)
    assert (one.length, other.length) == (len(IDS), len(IDS) + 2)
    with pytest.raises(OmnidraftError, match="cannot rewind a cache of 8 tokens to 9"):
        one.rewind(9)


@needs_it
def test_a_long_prompt_is_read_in_pieces(tiny, monkeypatch):
    model = in_llamacpp(tiny)
    text = (10 * IDS)[:70]
    whole = model.forward(text, model.new_cache(), 50)
    monkeypatch.setattr("omnidraft.engine.llamacpp.LONGEST_PASS", 16)
    other = in_llamacpp(tiny)
    np.testing.assert_allclose(other.forward(text, other.new_cache(), 50), whole, atol=2e-2)
    with pytest.raises(OmnidraftError, match="context holds 128"):
        model.forward(2 * text, model.new_cache())


@needs_it
@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_that_of_its_own_plain_decoding(rule, tmp_path):
    path = ggufs.exported(tmp_path / "model.gguf", omnidraft.load("qwen-like"))
    pair = omnidraft.pair("draft-tasks", path, backend="llamacpp")
    assert type(pair.target).__name__ == "LlamaCpp" and type(pair.draft).__name__ == "Llama"
    options = Options(max_new_tokens=48, verify=rule, adaptive=False, heal=False)
    prompts = "Ann has 3 boxes of 12 pens. How many pens does she have?", "Once upon a time"
    gaps, kept = zip(*(beside_plain(pair, prompt, options) for prompt in prompts), strict=True)
    assert gaps == (0.0, 0.0) and sum(kept) > 20


@needs_it
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_published_model_writes_what_it_writes_alone(name):
    path = MODELS / f"{name}.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is not here (run `make smollm2`, or set OMNIDRAFT_MODELS)")
    pair, options = omnidraft.pair(target=path, backend="llamacpp"), Options(max_new_tokens=32, adaptive=False)
    asked = "What is the capital of France?", "Ann has 3 boxes of 12 pens. How many pens does she have?"
    chats = [[{"role": "user", "content": ask}] for ask in asked]
    gaps, kept = zip(*(beside_plain(pair, chat, options) for chat in chats), strict=True)
    # a quantized product depends on the length of the pass: texts may part at a near tie
    assert max(gaps) < 0.5 and sum(kept) > 4


@needs_it
@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("4,2", os.cpu_count()), ("0", os.cpu_count()), ("", os.cpu_count())])
def test_threads_are_those_of_openmp(tiny, monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert f", {threads} thread" in in_llamacpp(tiny).kernel


@needs_it
def test_a_vocabulary_that_is_refused_never_reaches_llama_cpp(tiny, monkeypatch):
    from omnidraft.engine import llamacpp
    monkeypatch.setattr(llamacpp.library, "llama_model_load_from_file", None)
    ggufs.tiny(tiny, settings={"tokenizer.ggml.model": "bert"})
    with pytest.raises(OmnidraftError, match="bert"):
        in_llamacpp(tiny)


@needs_it
def test_a_file_that_llama_cpp_does_not_know_is_one_line(tmp_path):
    ggufs.tiny(path := tmp_path / "odd.gguf", settings={"general.architecture": "nothing"})
    with pytest.raises(OmnidraftError, match="llama.cpp cannot run it"):
        in_llamacpp(path)
