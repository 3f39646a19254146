"""What CONTRIBUTING.md says suffices: a rule is a record, and so is a family of models, in the files that it names."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import ggufs
import numpy as np
import pytest
from typer.testing import CliRunner

import omnidraft
from omnidraft.cli import app
from omnidraft.engine.config import FAMILIES
from omnidraft.engine.gguf import STORED, Gguf
from omnidraft.engine.llama import Llama
from omnidraft.engine.weights import save_tensors
from omnidraft.exactness import check
from omnidraft.learning.backward import run
from omnidraft.options import Options
from omnidraft.text.errors import OmnidraftError
from omnidraft.verification import RULES, Rule, Verdict, propose_direct, rejection_sampling

ROOT = Path(__file__).resolve().parent.parent
SECTION = {"rule": "## Add a verification rule", "family": "## Add a model family to the NumPy engine"}
FILES = {"rule": {"verification.py"},
         "family": {"engine/config.py", "engine/gguf.py", "engine/llama.py", "learning/backward.py"}}


@pytest.mark.parametrize("what", SECTION)
def test_the_list_of_files_is_true(what):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split(SECTION[what])[1].split("\n## ")[0]
    named = set(re.findall(r"\]\((?:omnidraft/)([^)]+)\)", section))
    assert named - {"cli/options.py", "engine/gguf_tokenizer.py"} == FILES[what]  # a help text; another way to cut words
    assert all((ROOT / "omnidraft" / name).is_file() for name in named)


# ---- a rule ----------------------------------------------------------------------------------------------------------
def first_only(proposals, target_probs, uniforms, limit) -> Verdict:
    """Judges one proposal, whatever else was drafted; exact, and slower than all others."""
    return rejection_sampling(proposals.tokens[:1], proposals.rows, target_probs, uniforms)


def keep_all(proposals, target_probs, uniforms, limit) -> Verdict:
    """Believes the drafter: not exact."""
    return Verdict([*proposals.tokens, uniforms.choose(target_probs[len(proposals.tokens)])], "bonus")


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setitem(RULES, "mine", Rule("mine", propose_direct, first_only, shared_only=True))


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_rule_of_ones_own_runs_in_the_loop(mine, temperature):
    pair = omnidraft.pair(draft="draft-tasks", target="qwen-like")
    made = pair.generate("Once upon a time", verify="mine", temperature=temperature, max_new_tokens=24, adaptive=False, seed=0)
    assert 0 < max(record.accepted for record in made.rounds)
    if temperature:
        assert max(record.accepted for record in made.rounds) == 1
    else:
        assert made.tokens == pair.generate("Once upon a time", max_new_tokens=24).tokens


def test_a_rule_of_ones_own_is_enumerated(mine, monkeypatch):
    assert check("mine", 40).worst < 1e-12
    invoke = partial(CliRunner().invoke, app)
    for rule in ("mine", "all"):
        done = invoke(["check", "exactness", "--worlds", "4", "--rule", rule])
        assert done.exit_code == 0 and re.search(r"mine\b.* exact", done.output)
    wrong = Rule("mine", propose_direct, keep_all, shared_only=True)
    monkeypatch.setitem(RULES, "mine", wrong)
    failed = invoke(["check", "exactness", "--worlds", "8", "--rule", "mine"])
    assert failed.exit_code == 1 and "not exact: mine" in failed.stderr
    monkeypatch.setitem(RULES, "mine", wrong._replace(exact=False))
    done = invoke(["check", "exactness", "--worlds", "8", "--rule", "mine"])
    assert done.exit_code == 0 and "biased" in done.output


def test_options_know_the_rules_there_are(mine):
    assert Options(verify="mine").rule.judge is first_only
    with pytest.raises(OmnidraftError, match="unknown rule 'other': choose one of .*tli, mine"):
        Options(verify="other")
    del RULES["mine"]
    with pytest.raises(OmnidraftError, match="unknown rule 'mine'"):
        Options(verify="mine")


# ---- a family of models ----------------------------------------------------------------------------------------------
@pytest.fixture
def toy(monkeypatch):
    """Llama by another name, with another context where config.json gives none."""
    monkeypatch.setitem(FAMILIES, "toy", replace(FAMILIES["llama"], architecture="ToyForCausalLM", context=96))
    monkeypatch.setitem(STORED, "toy", replace(STORED["llama"], family="toy"))


def folder_of(path: Path, gguf: Path, numbers: dict[str, np.ndarray], **config) -> Path:
    """A Hugging Face folder with the weights and the tokenizer of a GGUF file."""
    path.mkdir()
    sizes = {name: size for name, size in ggufs.SIZES.items() if name != "max_position_embeddings"}
    vocabulary = numbers["model.embed_tokens.weight"].shape[0]
    whole = {**sizes, "vocab_size": vocabulary, "rms_norm_eps": 2**-17, "eos_token_id": 2, **config}
    (path / "config.json").write_text(json.dumps(whole))
    save_tensors(path / "model.safetensors", numbers)
    Gguf(gguf).tokenizer().raw.save(str(path / "tokenizer.json"))
    return path


def test_a_family_of_ones_own_is_read_from_a_folder_and_a_gguf(toy, tmp_path):
    config, numbers = ggufs.tiny(tmp_path / "toy.gguf", family="toy")
    llama = Llama.load(folder_of(tmp_path / "llama", tmp_path / "toy.gguf", numbers, model_type="llama"), np.float64)
    folder = folder_of(tmp_path / "toy", tmp_path / "toy.gguf", numbers, architectures=["ToyForCausalLM"])
    assert Llama.load(folder).context_size == 96 and llama.context_size == 2048
    ids = [5, 3, 200, 17, 5]
    logits = llama.forward(ids, llama.new_cache(), len(ids))
    for path in (folder, tmp_path / "toy.gguf"):
        model = Llama.load(path, np.float64)
        assert model.config.family == "toy"
        assert np.allclose(model.forward(ids, model.new_cache(), len(ids)), logits, rtol=0, atol=1e-10)
    trained = run(config, {name: array.astype(np.float64) for name, array in numbers.items()}, ids)
    assert np.allclose(trained.logits, logits, rtol=0, atol=1e-10)  # what learning computes gradients of


def test_a_family_of_ones_own_writes_texts(toy, tmp_path):
    _, numbers = ggufs.tiny(tmp_path / "toy.gguf", family="toy")
    folder = folder_of(tmp_path / "toy", tmp_path / "toy.gguf", numbers, model_type="toy")
    pair = omnidraft.pair(draft=str(folder), target=str(tmp_path / "toy.gguf"))
    assert len(pair.generate("hello 12", max_new_tokens=9, eos_token_id=()).tokens) == 9


def test_without_its_record_a_family_is_refused_by_the_names_of_those_there_are(toy, tmp_path, monkeypatch):
    _, numbers = ggufs.tiny(tmp_path / "toy.gguf", family="toy")
    folder = folder_of(tmp_path / "toy", tmp_path / "toy.gguf", numbers, architectures=["ToyForCausalLM"])
    monkeypatch.delitem(FAMILIES, "toy")
    with pytest.raises(OmnidraftError, match="ToyForCausalLM is not supported .* runs Llama, Mistral, Qwen2"):
        Llama.load(folder)
    monkeypatch.delitem(STORED, "toy")
    with pytest.raises(OmnidraftError, match="does not run 'toy'"):
        Llama.load(tmp_path / "toy.gguf")
