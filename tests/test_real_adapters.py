"""The recipe of the adapters for published models, on models of the package."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from omnidraft import Adapters, Pair, load
from recipes import adapters as embedded
from recipes import real_adapters


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Run the recipe for a target, with a package's folder of its own; returns that folder."""
    prompts = [json.dumps({"prompt": prompt}) + "\n" for prompt in [*embedded.fresh_prompts(22, 0), "a " * 300]]
    (tmp_path / "prompts.jsonl").write_text("".join(prompts), encoding="utf-8")
    monkeypatch.setattr(real_adapters, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(real_adapters, "HELD_OUT", 6)

    def run(target: str, *more: str):
        words = [target, str(tmp_path / "texts"), "--prompts", str(tmp_path / "prompts.jsonl"), "--draft", "draft-general",
                 "--rank", "4", "--tokens", "16", "--length", "240", "--epochs", "4", *more]
        monkeypatch.setattr(sys, "argv", ["real_adapters", *words])
        real_adapters.main()
        return tmp_path / "shipped"

    return run


def kept(shown: str) -> list[float]:
    return [float(line.split()[-2]) for line in shown.splitlines() if line.endswith(" kept")]


def test_a_drafter_learns_what_a_target_wrote_and_the_adapter_is_found_by_its_weights(recipe, tmp_path, capsys):
    """A second run writes only what is missing, and may begin with an adapter."""
    store = Adapters(recipe("qwen-like", "--rate", "0.02"))
    before, *_, after = kept(capsys.readouterr().out)
    assert after > before + 0.02
    pair = Pair(load("draft-general"), load("qwen-like"))
    pair.target.name = "renamed"
    adapter = store.load(pair)
    assert adapter.lora.rank == 4 and adapter.statistics.held_out == 6 and adapter.statistics.updates == 8
    assert adapter.statistics.learned_tokens == 0  # no user's time is saved yet
    assert all(np.isfinite(array).all() for array in adapter.lora.parameters.values())
    assert adapter.statistics.rate_share == 1 / 16 and not adapter.states
    texts = tmp_path / "texts"
    assert sorted(path.stem for path in texts.iterdir()) == sorted(map(str, range(22)))  # one prompt is too long

    (texts / "7.npz").unlink()
    others = {path: path.stat().st_mtime_ns for path in texts.iterdir()}
    recipe("qwen-like", "--rate", "1e-9", "--start", "draft-general--qwen-like", "--epochs", "1")
    begun, *_, ended = kept(capsys.readouterr().out)
    assert {path: path.stat().st_mtime_ns for path in others} == others and (texts / "7.npz").exists()
    assert begun > before + 0.02 and begun == pytest.approx(ended, abs=2e-3)  # the package's adapter knows this target
