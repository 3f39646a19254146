"""`omnidraft bench`: figures that agree with its own numbers, and one line for every bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from test_cli import check_refused, ok, own_caches, run, write_model  # noqa: F401 (a fixture)
from vocabularies import byte_level, sentencepiece

import omnidraft as od
from omnidraft.cli import bench

LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'\"()[]{}<>=+-*/_$%#@&`|~^\\\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Two random models with different tokenizers, and a target with a short context."""
    base = tmp_path_factory.mktemp("models")
    more = {"model_type": "llama", "num_key_value_heads": 2, "eos_token_id": None}  # Llama's default would be 2
    pieces = sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft")
    data = byte_level("Ġ t, h e, Ġt he, i n, in g, Ġ a", name="target")
    return {"draft": str(write_model(base / "tiny-draft", pieces, 1, **more)),
            "target": str(write_model(base / "tiny-target", data, 2, **more)),
            "short": str(write_model(base / "short", data, 3, **more | {"max_position_embeddings": 24}))}


@pytest.fixture
def prompts(tmp_path) -> str:
    lines = ["the thing in the house", "a thing ou the ing in the thing", "ou in"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines))
    return str(tmp_path / "prompts.jsonl")


def figures(folders, prompts, *more: str, target: str = "target", repeats: int = 2) -> dict:
    """The JSON of a run, checked for what holds in every run."""
    shown = ok("bench", "-d", folders["draft"], "-t", folders[target], "--prompts", prompts, "-n", "12", "--repeats", repeats,
               "--json", "out.json", *more).stdout
    found = json.loads(Path("out.json").read_text())
    [row] = found["tasks"]
    assert len(row["each"]) == repeats and row["speedup"] == median(row["each"])
    assert f"{min(row['each']):.2f}-{max(row['each']):.2f}" in shown
    assert f"{row['speedup']:.2f}x" in shown and f"{row['speculative']['block_efficiency']:.2f}" in shown
    assert row["plain"]["rounds"] == row["plain"]["tokens"] and row["plain"]["drafted"] == 0
    assert found["machine"]["cpu"] and found["settings"]["draft"] == Path(folders["draft"]).name + (
        " with its adapter" * ("--adapter" in more))
    return found


def test_plain_against_speculative(folders, prompts):
    found = figures(folders, prompts, "--no-adaptive", "--threshold", "0")  # random models are never confident
    slow, fast = found["tasks"][0]["plain"], found["tasks"][0]["speculative"]
    assert slow["tokens"] == fast["tokens"] == 3 * 2 * 12 and (found["tasks"][0]["same_text"] or found["tasks"][0]["tie"])
    assert 0 <= fast["acceptance_draft"] <= 1 and fast["drafted"] > 0
    assert found["settings"]["count"] == 3
    assert ("torch" in found["machine"]) == ("torch" in sys.modules)  # other tests of this process may have loaded it


def test_bench_says_when_drafting_was_paused(folders, prompts):
    said = "of the rounds drafted nothing: drafting did not pay"
    run = ("bench", "-d", folders["draft"], "-t", folders["target"], "--prompts", prompts, "-n", "12", "--repeats", "1")
    assert f"92% {said}" in ok(*run, "-k", "0").stdout
    assert said not in ok(*run, "--no-adaptive", "--threshold", "0").stdout


def test_prompts_come_from_a_task_a_text_file_or_a_pipe(folders, tmp_path):
    (tmp_path / "lines.txt").write_text("the\nin\nou\n")
    pair = ["-d", folders["draft"], "-t", folders["target"], "-n", "4", "--repeats", "1", "--count", "2", "--json", "out.json"]
    for more, input in ((["--task", "code"], None), (["--prompts", "lines.txt"], None), (["--prompts", "-"], "the\nin\nou\n")):
        assert "yes" in ok("bench", *pair, *more, input=input).stdout
        assert json.loads(Path("out.json").read_text())["settings"]["count"] == 2
    ok("bench", *pair, "--prompts", "lines.txt", "--count", 10**20)  # more than there are, and than an index may be
    assert json.loads(Path("out.json").read_text())["settings"]["count"] == 3


def test_bench_drafts_with_an_adapter_if_asked(folders, prompts):
    assert ok("adapt", prompts, "-d", folders["draft"], "-t", folders["target"], "-n", "8", "--rank", "4", "--every", "1")
    found = figures(folders, prompts, "--adapter", "auto")
    assert found["settings"]["adapter"] == "auto" and found["tasks"][0]["same_text"]


def test_methods_take_turns_and_a_repeat_has_its_own_draws(monkeypatch):
    calls, draws = [], []

    def method(name, seconds):
        def write(models, prompt, how, uniforms):
            calls.append((name, prompt))
            yield from [od.Round(emitted=[7], seconds={"target": seconds})] * 2
        return write

    target = SimpleNamespace(name="fake", context_size=8, tokenizer=SimpleNamespace(
        encode=lambda text, bos: [1, 1, 1], longest=1))
    monkeypatch.setattr(bench, "plain", method("plain", 2.0))
    monkeypatch.setattr(bench, "paced", method("fast", 0.5))
    monkeypatch.setattr(bench, "uniforms_of", draws.append)
    asked = [(prompt, prompt) for prompt in "wxyz"]
    row = bench.measure(SimpleNamespace(target=target), asked, od.Options(), repeats=2, seed=3)
    turns = [("plain", "fast"), ("fast", "plain")]
    assert calls == [(name, prompt if name == "plain" else (prompt, prompt))
                     for repeat, prompts in enumerate(["wxy", "wxyz", "wxyz"])  # three to warm up
                     for place, prompt in enumerate(prompts) for name in turns[(repeat + place) % 2]]
    assert draws[::2] == draws[1::2] == [3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14]
    assert row["each"] == [4, 4] and row["speedup"] == 4 and row["speculative"]["tokens"] == 16


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--task", "chess"], "chess"), (["--prompts", "no/such.txt"], "no/such.txt"), (["--count", "0"], "--count is 0"),
    (["--repeats", "-1"], "--repeats is -1"), (["--temperature", "-1"], "temperature is -1"),
    (["--seed", "-1"], "seed is -1"), (["--json", "no/such/out.json"], "no/such/out.json"), (["--verify", "magic"], "magic"),
    (["-t", "gpt-5"], "gpt-5"), (["--backend", "jax"], "jax")])
def test_bad_input_is_one_line(arguments, expected, folders):
    check_refused(run("bench", "-d", folders["draft"], "-t", folders["target"], "-n", "4", *arguments), expected)
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("command", [["bench", "-d", "draft-tasks", "--prompts"], ["adapt"],
                                     ["check", "draft-tasks", "qwen-like", "--text"]])
def test_an_empty_stdin_is_one_line_before_models_are_loaded(command):
    check_refused(run(*command, "-", input="\n \n"), "stdin is empty: give at least one prompt")


def test_a_prompt_too_long_is_one_line(folders):
    Path("long.txt").write_text("the\n" + "word " * 60)
    result = run("bench", "-d", folders["draft"], "-t", folders["short"], "--prompts", "long.txt", "-n", "4")
    assert result.exit_code == 1 and "the prompt has" in result.stderr.splitlines()[-1] and not result.stdout


def test_help_ends_with_examples():
    assert "omnidraft bench --task code" in ok("bench", "-h").output.split("Examples:")[1]
