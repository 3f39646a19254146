"""`omnidraft bench`: figures that follow from its own numbers, and one line for every bad input."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from test_cli import check_refused, ok, own_caches, run, write_model  # noqa: F401 (a fixture)
from vocabularies import byte_level, sentencepiece

import omnidraft as od
from omnidraft.cli import bench
from omnidraft.cli.options import load_pair

LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'\"()[]{}<>=+-*/_$%#@&`|~^\\\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Two random models with different tokenizers, and a target with little room."""
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
    first = next(iter(found["methods"].values()))
    for name, row in found["methods"].items():
        line = next(line for line in shown.splitlines() if line.startswith(f"{name}  "))
        assert len(row["each"]) == repeats and row["tokens_per_second"] == median(row["each"])
        assert row["ratio"] == median(one / other for one, other in zip(row["each"], first["each"], strict=True))
        assert row["block_efficiency"] == row["tokens"] / row["target_passes"] >= 1
        assert f"{row['ratio']:.2f}x" in line and f"{row['block_efficiency']:.2f}" in line
    assert first["target_passes"] == first["tokens"] and first["ratio"] == 1
    assert found["machine"]["cpu"] and found["settings"]["draft"] == folders["draft"]
    return found


def test_plain_against_speculative(folders, prompts):
    found = figures(folders, prompts, "--threshold", "0")  # made-up models are never sure
    slow, fast = found["methods"]["plain"], found["methods"]["speculative"]
    assert slow["tokens"] == fast["tokens"] == 3 * 2 * 12 and slow["same_text"] == slow["prompts"] == 3
    assert fast["same_text"] + fast["ties"] == 3 and 0 <= fast["acceptance_draft"] <= 1 and slow["acceptance_draft"] is None
    assert found["settings"]["count"] == 3 and "torch" not in found["machine"]


def test_prompts_come_from_a_task_a_text_file_or_a_pipe(folders, tmp_path):
    (tmp_path / "lines.txt").write_text("the\nin\nou\n")
    pair = ["-d", folders["draft"], "-t", folders["target"], "-n", "4", "--repeats", "1", "--count", "2"]
    for more, input in ((["--task", "code"], None), (["--prompts", "lines.txt"], None), (["--prompts", "-"], "the\nin\nou\n")):
        assert "2/2" in ok("bench", *pair, *more, input=input).stdout


def test_a_method_without_rounds_is_a_row_that_failed(folders):
    pair, options = load_pair(folders["draft"], folders["target"], stored=False), od.Options(max_new_tokens=5)
    methods = bench.ours(pair, options)
    rows, _ = bench.compare(methods | {"broken": lambda *_: []}, ["the thing"], pair.target, options, repeats=1)
    assert rows["broken"] == {} and rows["speculative"]["same_text"] == 1
    assert "broken       failed" in bench.table(rows, "")
    with pytest.raises(od.OmnidraftError, match="prompt is empty"):
        bench.compare(methods, ["the thing", ""], pair.target, options, repeats=1)


def test_bench_drafts_with_an_adapter_if_asked(folders, prompts):
    assert ok("adapt", prompts, "-d", folders["draft"], "-t", folders["target"], "-n", "8", "--rank", "4", "--every", "1")
    found = figures(folders, prompts, "--adapter")
    assert found["settings"]["adapter"] is True and found["methods"]["speculative"]["same_text"] == 3


def test_methods_take_turns_and_a_repeat_has_its_own_draws():
    """One warm-up, then every prompt by every method, each beginning as often as the other; the least of them is not timed."""
    calls = []

    def method(name):
        def write(prompt, ids, limit, seed):
            calls.append((name, prompt, seed))
            assert (ids, limit) == ([1, 1, 1], 5)
            return [od.Round(emitted=[7], seconds={"target": 2.0 if name == "a" else 0.5})] * 2
        return write

    target = SimpleNamespace(name="fake", context_size=8, tokenizer=SimpleNamespace(encode=lambda text, bos: [1, 1, 1]))
    rows, _ = bench.compare({name: method(name) for name in "ab"}, ["x", "y"], target, od.Options(), repeats=2, seed=3)
    assert calls == [("a", "x", 3), ("b", "x", 3), ("b", "x", 5), ("a", "x", 5), ("a", "y", 6), ("b", "y", 6),
                     ("a", "x", 7), ("b", "x", 7), ("b", "y", 8), ("a", "y", 8)]
    assert rows["a"]["each"] == [0.5, 0.5] and rows["b"]["ratio"] == 4 and rows["b"]["tokens"] == 8


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--task", "chess"], "chess"), (["--prompts", "no/such.txt"], "no/such.txt"), (["--count", "0"], "--count is 0"),
    (["--repeats", "-1"], "--repeats is -1"), (["--temperature", "-1"], "temperature is -1"),
    (["--seed", "-1"], "seed is -1"), (["--json", "no/such/out.json"], "no/such/out.json"), (["--verify", "magic"], "magic"),
    (["-t", "gpt-5"], "gpt-5"), (["--backend", "jax"], "jax")])
def test_bad_input_is_one_line(arguments, expected, folders):
    check_refused(run("bench", "-d", folders["draft"], "-t", folders["target"], "-n", "4", *arguments), expected)
    assert not list(Path.cwd().iterdir())


def test_a_prompt_too_long_is_one_line(folders):
    Path("long.txt").write_text("the\n" + "word " * 60)
    result = run("bench", "-d", folders["draft"], "-t", folders["short"], "--prompts", "long.txt", "-n", "4")
    assert result.exit_code == 1 and "the prompt has" in result.stderr.splitlines()[-1] and not result.stdout


def test_help_ends_with_examples():
    assert "omnidraft bench --task code" in ok("bench", "-h").output.split("Examples:")[1]
