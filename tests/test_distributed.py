"""A target spread over several devices writes the same text as on one device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_transformers_model import BYTES, PIECES, SIZES, random_model, saved  # noqa: E402

import omnidraft  # noqa: E402
from omnidraft.pairs.pair import load_two  # noqa: E402

PROMPT = "the king and the thing"
SETTINGS = [{"max_new_tokens": 24}, {"max_new_tokens": 24, "draft_length": 3, "do_sample": True, "seed": 1},
            {"max_new_tokens": 20, "verify": "omnidraft", "threshold": 0.0, "draft_length": 6}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    base = tmp_path_factory.mktemp("pair")
    return str(saved(base / "draft", PIECES, seed=1)), str(saved(base / "target", BYTES, seed=2))


@pytest.fixture(scope="module")
def expected(folders) -> list[str]:
    return texts(omnidraft.pair(*folders, backend="torch", dtype="float64", device="cpu"))


def texts(pair: omnidraft.Pair) -> list[str]:
    return [pair.generate(PROMPT, **settings).text for settings in SETTINGS]


@pytest.mark.parametrize("where", ["auto", "cpu", "parts offloaded"])
def test_a_device_map_leaves_the_text(folders, expected, where: str):
    pytest.importorskip("accelerate")
    parts = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "disk", "lm_head": "cpu"} | {
        f"model.layers.{i}": ("cpu", "disk")[i % 2] for i in range(SIZES["num_hidden_layers"])}
    how = {"auto": {"device_map": "auto"}, "cpu": {"device_map": {"": "cpu"}},
           "parts offloaded": {"device_map": parts}}[where]
    pair = omnidraft.pair(*folders, backend="torch", draft_backend="torch", dtype="float64", **how)
    assert texts(pair) == expected and "by device_map" in pair.target.kernel
    assert pair.draft.device == pair.target.device == torch.device("cpu") and "by device_map" not in pair.draft.kernel
    if where == "parts offloaded":
        assert pair.target.model.model.layers[1].mlp.up_proj.weight.is_meta


def test_ids_go_to_the_first_device_that_computes():
    model = random_model("LlamaForCausalLM", SIZES, 67)
    model.hf_device_map = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": torch.device("cpu", 0)}
    assert omnidraft.engine.transformers_model.TransformersModel(model, PIECES).device == torch.device("cpu", 0)


def test_the_map_is_the_targets(monkeypatch, folders):
    asked, own = [], omnidraft.engine.load.load
    model = own(folders[0], backend="torch", device="cpu")
    monkeypatch.setattr(omnidraft.pairs.pair, "load", lambda name, **how: asked.append(how) or model)
    for more, device in (({}, "cpu"), ({"device": "mps"}, "mps")):
        asked.clear()
        load_two(*folders, backend="torch", draft_backend="torch", device_map="auto", **more)
        assert asked == [{"backend": "torch", "device": "auto", "device_map": "auto"},
                         {"backend": "torch", "device": device}]
    asked.clear()
    load_two(*folders, backend="torch", draft_backend="torch", device_map=None, device="cpu")
    assert asked == 2 * [{"backend": "torch", "device": "cpu"}]
