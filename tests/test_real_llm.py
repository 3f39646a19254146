"""The benchmark of real language models, on models of the package and data made here."""

import json
from argparse import Namespace

import numpy as np
import pytest

from benchmarks import real_llm
from omnidraft import Pair
from omnidraft.engine.load import load
from omnidraft.learning.adapters import SHIPPED
from recipes.requests import SPLITS


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of GSM8K and Alpaca with numbered rows."""
    (tmp_path / "data").mkdir()
    for name in ("gsm8k_train1000", "alpaca_train1000"):
        rows = [{"prompt": f"Tom has {n} pens and buys 3 more. How many pens does he have?", "instruction": f"Add {n}.",
                 "input": ""} for n in range(1000)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "data" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    monkeypatch.setattr(real_llm, "REAL", tmp_path)


def test_rows_that_train_a_drafter_are_neither_served_nor_held_out(data):
    stream, held_out = map(set, real_llm.requests_of("gsm8k"))
    first, last = SPLITS["gsm8k_train1000"]
    assert (len(stream), len(held_out)) == (last - first, 1000 - last)
    assert not stream & held_out
    assert "Tom has 0 pens and buys 3 more. How many pens does he have?" not in stream | held_out
    assert {"Add 0.", "Add 999."} <= set().union(*real_llm.requests_of("alpaca"))


@pytest.mark.parametrize("method", ["lifted", "head"])
def test_a_cell_learns_and_has_all_figures(data, tmp_path, method):
    args = Namespace(draft="draft-general", backend="numpy", temperatures=[0.0, 1.0], stream=4, held_out=3, timed=2,
                     repeats=1, tokens=8, work=tmp_path)
    found = real_llm.cell("qwen-like", "gsm8k", method, 0, args)
    assert found["learned"]["prompts"] == 4 and found["learned"]["updates"] == 2
    assert found["T=0"]["same_text"] == "2 of 2" and "same_text" not in found["T=1"]
    assert found["T=0"]["prompts"] == 3 and found["T=0"]["block_efficiency"] >= 1
    assert ("k = 4, T=0" in found) == (method == "lifted")
    again = real_llm.cell("qwen-like", "gsm8k", method, 0, args)  # what was learned is there: nothing is served
    assert again["learned"] == found["learned"]
    assert again["T=1"]["block_efficiency"] == found["T=1"]["block_efficiency"]
    assert found["cache"]["bytes"] >= 12 * found["cache"]["n-grams"] > 0


def test_only_the_head_learns_and_it_decides_in_the_cell(data, tmp_path, monkeypatch):
    pair = Pair(load("draft-general"), load("qwen-like"))
    before = pair.draft.embedding.copy()
    stream, _ = real_llm.requests_of("gsm8k")
    _, head = real_llm.served(pair, real_llm.Recipe(), real_llm.HEAD_ONLY, stream[:4], 0, 8, tmp_path)
    assert (head.parameters["out.weight"][:-1] != 0).any()
    np.testing.assert_array_equal(pair.draft.embedding, before)
    head.parameters["out.bias"][:] = -50  # never accepted: no round drafts
    monkeypatch.setattr(real_llm, "served", lambda *_: ({}, head))
    args = Namespace(draft="draft-general", backend="numpy", temperatures=[0.0], stream=4, held_out=2, timed=1,
                     repeats=1, tokens=8, work=tmp_path)
    assert real_llm.cell("qwen-like", "gsm8k", "head", 0, args)["T=0"]["block_efficiency"] == 1


def test_a_cell_with_the_packages_adapter(data, tmp_path):
    args = Namespace(draft="draft-general", backend="numpy", temperatures=[0.0], stream=0, held_out=4, timed=1, repeats=1,
                     tokens=24, work=tmp_path)
    before, after = (real_llm.cell("qwen-like", "gsm8k", method, 0, args)["T=0"] for method in ("before", "adapter"))
    assert after["block_efficiency"] > 1.2 * before["block_efficiency"] and after["same_text"] == "1 of 1"
    args.adapters = SHIPPED
    assert real_llm.cell("qwen-like", "gsm8k", "recipe", 0, args)["T=0"]["block_efficiency"] == after["block_efficiency"]
    args.draft = "draft-tasks"  # for which there is none
    with pytest.raises(SystemExit, match="has no adapter of draft-tasks for qwen-like"):
        real_llm.cell("qwen-like", "gsm8k", "adapter", 0, args)


def test_jackknife_is_the_error_of_a_mean():
    mean, error = real_llm.jackknife(lambda some: sum(some) / len(some), [1.0, 2.0, 6.0])
    assert (mean, error) == (3.0, 1.528)  # standard deviation / sqrt(n)
