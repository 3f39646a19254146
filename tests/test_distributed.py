"""A target spread over several devices or processes writes the text that it writes alone; errors end every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_transformers_model import BYTES, KINDS, PIECES, SIZES, complaint, load, random_model, saved  # noqa: E402

import omnidraft  # noqa: E402
from omnidraft.cli import app  # noqa: E402
from omnidraft.engine.loading import load_two  # noqa: E402

ROOT = Path(__file__).parents[1]
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


# ---- several devices ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["auto", "cpu", "parts offloaded"])
def test_a_device_map_leaves_the_text(folders, expected, where: str, tmp_path: Path):
    pytest.importorskip("accelerate")
    parts = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "disk", "lm_head": "cpu"} | {
        f"model.layers.{i}": ("cpu", "disk")[i % 2] for i in range(SIZES["num_hidden_layers"])}
    how = {"auto": {"device_map": "auto", "max_memory": {"cpu": "1GiB"}}, "cpu": {"device_map": {"": "cpu"}},
           "parts offloaded": {"device_map": parts, "offload_folder": str(tmp_path)}}[where]
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
    asked, own = [], omnidraft.engine.loading.load
    model = own(folders[0], backend="torch", device="cpu")
    monkeypatch.setattr(omnidraft.engine.loading, "load", lambda name, **how: asked.append(how) or model)
    for more, device in (({}, "cpu"), ({"device": "mps"}, "mps")):
        asked.clear()
        load_two(*folders, backend="torch", draft_backend="torch", device_map="auto", **more)
        assert asked == [{"backend": "torch", "device": "auto", "device_map": "auto"},
                         {"backend": "torch", "device": device}]
    asked.clear()
    load_two(*folders, backend="torch", draft_backend="torch", device_map=None, tensor_parallel=False, device="cpu")
    assert asked == 2 * [{"backend": "torch", "device": "cpu"}]


def test_device_map_on_the_command_line(folders, expected):
    both = ["generate", PROMPT, "-d", folders[0], "-t", folders[1], "-n", "24", "--device-map", "auto"]
    line = CliRunner().invoke(app, both)
    assert line.exit_code == 1 and "the NumPy engine has no device_map" in line.stderr and line.stderr.count("\n") == 1
    pytest.importorskip("accelerate")
    done = CliRunner().invoke(app, [*both, "--backend", "torch", "--dtype", "float64"])
    assert done.exit_code == 0 and done.stdout == expected[0] + "\n", done.output
    line = CliRunner().invoke(app, [*both, "--backend", "torch", "--device-map", "everywhere"])
    assert line.exit_code == 1 and line.stderr.startswith("error: ") and line.stderr.count("\n") == 1


# ---- several processes -------------------------------------------------------------------------------------------------
def torchrun(*arguments: str, text: str = "") -> tuple[subprocess.CompletedProcess, float]:
    """Two processes on the CPU, and the seconds they took."""
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, input=text, cwd=ROOT, timeout=240, check=False,
                          env=os.environ | own)
    return done, time.perf_counter() - began


def test_tensor_parallel_command_line(folders, expected):
    pytest.importorskip("accelerate")
    done, _ = torchrun("cli.py", "generate", "--backend", "torch", "--tensor-parallel", "-n", "24", "--dtype", "float64",
                       "-d", folders[0], "-t", folders[1], text=PROMPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected[0] + "\n" and "24 tokens in" in done.stderr  # printed by one of the two


def test_tensor_parallel_text_and_an_error_that_ends_all(folders, expected, tmp_path: Path):
    pytest.importorskip("accelerate")
    script = tmp_path / "script.py"
    script.write_text(f"""
import json, time, omnidraft
pair = omnidraft.pair({folders[0]!r}, {folders[1]!r}, backend="torch", draft_backend="torch", dtype="float64",
                      tensor_parallel=True)
texts = [pair.generate({PROMPT!r}, **settings).text for settings in {SETTINGS!r}]
part = pair.target.model.model.layers[0].self_attn.q_proj.weight
print(json.dumps([texts, part.to_local().numel() / part.numel(), time.time()]), flush=True)
pair.generate("")  # raises, on rank 0 only
""")
    done, _ = torchrun(str(script))
    ended = time.time()
    written, share, raised = json.loads(done.stdout)
    assert written == expected and share == 0.5
    assert done.returncode != 0 and done.stderr.count("OmnidraftError: the prompt is empty") == 1 and ended - raised < 30


def test_what_cannot_be_shared_is_told(monkeypatch, folders):
    assert "start this with torchrun" in complaint(lambda: load(folders[1], tensor_parallel=True))
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert "leave out device" in complaint(lambda: load(folders[1], tensor_parallel=True, device_map="auto"))
    from omnidraft.engine.distributed_torch import DistributedModel

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    llama = random_model("LlamaForCausalLM", SIZES, 67)
    assert "cannot share its 4 heads evenly" in complaint(lambda: DistributedModel(llama, PIECES))
    gpt2 = random_model("GPT2LMHeadModel", KINDS["gpt-2"][1], 67)
    assert "no tensor parallel plan" in complaint(lambda: DistributedModel(gpt2, PIECES))
