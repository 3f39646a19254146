"""A drafter's training texts: many slots at once write what each prompt alone would get."""

import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import omnidraft  # noqa: E402
from recipes import requests, target_texts  # noqa: E402

PROMPTS = ["Once upon a time", "Tom has 3 pens.", "def add(a, b):", "A story about a fox.", "5 + 4 =", "Write", "Ann has"]


@pytest.fixture(scope="module")
def model():
    return omnidraft.load("draft-tasks")


def test_slots_write_what_plain_decoding_writes(model):
    """Seven prompts in three slots, greedy, behind a shared beginning: the same tokens as one by one."""
    torch.set_grad_enabled(False)
    begin = model.tokenizer.encode("Question: ", bos=True)
    net = target_texts.Net(*model.stored(), "cpu", 3, 64)
    prompts = [model.tokenizer.encode_continuation(text) for text in PROMPTS]
    writer = target_texts.Writer(net, begin, prompts, [0.0] * 7, 24, model.eos_ids[0])
    texts = dict(writer.run(60))
    torch.set_grad_enabled(True)
    options = omnidraft.Options(max_new_tokens=24, temperature=0.0)
    for number, prompt in enumerate(prompts):
        rounds = omnidraft.plain(model, begin + prompt, options, omnidraft.Uniforms(np.random.default_rng(0)))
        assert texts[number] == [token for record in rounds for token in record.emitted], PROMPTS[number]


def test_rows_are_appended_and_not_written_again(model, tmp_path, monkeypatch, capsys):
    """The command writes requests, answers and plain texts, and a second run adds only what is missing."""
    asked, out = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    rows = [{"source": "request", "prompt": text} for text in PROMPTS]
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = ["target_texts", "draft-tasks", str(out), "--prompts", str(asked), "--slots", "4", "--most", "12",
                 "--length", "120", "--openings", "5", "--plain", "3", "--seconds", "600"]
    monkeypatch.setattr(sys, "argv", arguments)
    target_texts.main()
    first = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {row["kind"] for row in first} == {"request", "answer", "plain"}
    assert {row["prompt"] for row in first if row["kind"] == "answer"} >= set(PROMPTS)
    target_texts.main()
    torch.set_grad_enabled(True)
    again = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert again[:len(first)] == first
    assert all(row["kind"] == "plain" for row in again[len(first):])


def test_requests_follow_their_schema():
    """Every list that a form names exists, and drawn requests leave no bracket open."""
    import random
    schema, rng = requests.Requests.read(), random.Random(0)
    drawn = {schema.draw(rng) for _ in range(3000)}
    assert len(drawn) > 1500
    assert not [text for text in drawn if set(text) & set("{}[]|")]


def test_a_drafter_is_made_and_trained(tmp_path):
    """Texts become a folder that loads and a stream of rows; a few updates lower the loss."""
    import subprocess
    texts, folder, work = tmp_path / "texts.jsonl", tmp_path / "drafter", tmp_path / "work"
    rows = [{"kind": "plain" if number % 4 == 0 else "answer", "source": "own", "temperature": 0.0, "ended": number % 3 > 0,
             "prompt": f"What is {number}?", "response": f"{number} is a number, and after it comes {number + 1}."}
            for number in range(400)]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    made = [sys.executable, "-m", "recipes.chat_drafter", str(texts), "--folder", str(folder), "--work", str(work),
            "--entries", "400", "--length", "64"]
    assert "400 texts" in subprocess.run(made, capture_output=True, text=True, check=True).stdout
    drafter = omnidraft.load(folder)
    assert drafter.tokenizer.decode(drafter.tokenizer.encode("What is 17?")) == "What is 17?"
    train = [sys.executable, "-m", "recipes.train", "--corpus", "chunks", "--from", str(folder), "--work", str(work),
             "--rows", "6", "--small-batch", "5", "--tokens", str(6 * 64 * 20)]
    lines = subprocess.run(train, capture_output=True, text=True, check=True).stdout.splitlines()
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[1] < losses[0] - 0.1
    assert omnidraft.load(work / "model").tokenizer.size == drafter.tokenizer.size
