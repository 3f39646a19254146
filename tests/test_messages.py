"""Messages that lead on: names of other libraries, chats in parts, commands that can be pasted."""

from __future__ import annotations

import re

import pytest
from fakes import byte_level
from test_cli import embedded
from typer.testing import CliRunner

import omnidraft
from omnidraft import OmnidraftError
from omnidraft.cli import app
from omnidraft.engine.llama import Llama


@embedded
@pytest.mark.parametrize(("name", "value", "advice"), [
    ("max_tokens", 8, "max_new_tokens"), ("max_length", 8, "max_new_tokens"),
    ("num_beams", 2, "generate(custom_generate=pair.decoder())"), ("tools", [], "generate(custom_generate=pair.decoder())"),
    ("stop", ["."], "stop_strings"), ("gamma", 4, "draft_length"), ("stop_string", ".", "stop_strings")])
def test_names_of_other_libraries_are_answered_with_the_name_here(name, value, advice):
    with pytest.raises(OmnidraftError, match=re.escape(advice)):
        omnidraft.pair().generate("Once", **{name: value})


@embedded
def test_a_chat_in_parts_is_that_chat():
    parts = [{"type": "text", "text": "Ann has 3 boxes of 12 pens. "}, {"type": "text", "text": "How many pens does she have?"}]
    whole = [{"role": "user", "content": "".join(part["text"] for part in parts)}]
    chat, pair = [{"role": "user", "content": parts}], omnidraft.pair()
    assert pair.generate(chat, max_new_tokens=8).sequences == pair.generate(whole, max_new_tokens=8).sequences
    assert chat[0]["content"] is parts
    with pytest.raises(OmnidraftError, match="part of type 'image': these models read text only"):
        pair.generate([{"role": "user", "content": [*parts, {"type": "image", "url": "a.png"}]}])
    for wrong in ([[1, [2]]], [{"role": "user", "content": 5}]):
        with pytest.raises(OmnidraftError, match="is not a prompt|must be one or more ids"):
            pair.generate(wrong)


@embedded
def test_info_says_how_a_model_runs_without_its_weights(monkeypatch):
    done = CliRunner().invoke(app, ["info", "draft-tasks"])
    assert done.exit_code == 0 and re.search(r"^runs +\S", done.stdout, re.M) and re.search(r"^numpy +2", done.stdout, re.M)
    reads = []
    monkeypatch.setattr(Llama, "load", reads.append)
    assert CliRunner().invoke(app, ["info", "draft-tasks"]).stdout == done.stdout and not reads  # no weights
    assert CliRunner().invoke(app, ["info"]).exit_code == 0
    assert CliRunner().invoke(app, ["info", "nothing"]).exit_code == 1


def test_with_pytorch_it_says_how_many_threads_run(tmp_path, monkeypatch):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = byte_level([("a", "b")], "abcdef")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=tokenizer.size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64)).save_pretrained(tmp_path)
    tokenizer.raw.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    for chosen in (True, False):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        if not chosen:
            monkeypatch.delenv("OMP_NUM_THREADS")
        models = ["-d", str(tmp_path), "-t", str(tmp_path), "--backend", "torch"]
        done = CliRunner().invoke(app, ["generate", "ab", *models, "-n", "2"])
        assert done.exit_code == 0, done.output
        assert ("PyTorch uses 7 threads: beside other work it may be faster with --threads 1" in done.stderr) != chosen
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    done = CliRunner().invoke(app, ["generate", "ab", *models, "-n", "2", "--threads", "3"])
    assert done.exit_code == 0 and given == [3] and "PyTorch uses" not in done.stderr


def test_threads_are_for_pytorch():
    done = CliRunner().invoke(app, ["generate", "ab", "-n", "2", "--threads", "3"])
    assert done.exit_code == 1 and done.stderr.startswith("error: --threads is for --backend torch; ")
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_info_says_why_a_model_is_read_again(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = byte_level([("a", "b")], "abcdef")
    torch.manual_seed(0)
    transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(
        vocab_size=tokenizer.size, n_embd=16, n_layer=1, n_head=2, n_positions=64)).save_pretrained(tmp_path)
    tokenizer.raw.save(str(tmp_path / "tokenizer.json"))
    done = CliRunner().invoke(app, ["info", str(tmp_path), "--backend", "torch"])
    why = "its forward takes no cache"
    assert done.exit_code == 0 and re.search(f"^runs .*none, all is read every time: {why}", done.stdout, re.M)
    assert f"reads the whole text again in every pass, which is slow: {why}" in done.stderr
