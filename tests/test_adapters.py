"""`omnidraft adapters`: list, show, delete and export, and the same names for `--adapter` everywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_cli import LETTERS, ROOT, check_refused, embedded, ok, own_caches, run, write_model  # noqa: F401 (a fixture)
from test_learning import PROMPTS, REAL
from vocabularies import byte_level, sentencepiece

import omnidraft
from omnidraft import Adapters, Learner, Options, Pair, Round, load
from omnidraft.learning import export
from omnidraft.learning.adapters import SHIPPED, identity
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe

TIED = {"model_type": "llama", "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2, "eos_token_id": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    pieces = sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft")
    data = byte_level("Ġ t, h e, Ġt he, i n, in g, Ġ a", name="target")
    made = {"draft": write_model(base / "tiny-draft", pieces, 1, **TIED),
            "qwen": write_model(base / "tiny-qwen", pieces, 2, **QWEN), "target": write_model(base / "tiny-target", data, 2),
            "second": write_model(base / "second", data, 3)}
    (base / "tiny-draft" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (base / "tiny-draft" / "notes.bin").write_bytes(b"no weights of a model")
    return {name: str(folder) for name, folder in made.items()}


def learned(folders, root="kept", draft="draft", target="target", count=4, rank=4) -> tuple[Path, Learner]:
    """A saved adapter that changes everything that an adapter can change."""
    pair = Pair(load(folders[draft]), load(folders[target]))
    store, rng = Adapters(root), np.random.default_rng(0)
    learner = store.resume(pair, Recipe(rank=rank, rate=0.05), Schedule(every=1, guard=0), rng)
    list(omnidraft.learn(learner, PROMPTS[:count], Options(temperature=1.0, max_new_tokens=12), omnidraft.Uniforms(rng)))
    return store.keep(learner), learner


def logits(model, text="the thing and the house") -> np.ndarray:
    ids = model.tokenizer.encode(text, bos=True)
    return model.forward(ids, model.new_cache(), len(ids))


def kept(*arguments, **more):
    return ok("adapters", *arguments, "--adapters", "kept", **more)


# ------------------------------------------------------------------------------------------------------ list, show, delete

@embedded
def test_list_has_all_drafters_adapters_that_ship_or_were_learned(folders):
    learned(folders)
    learned(folders, draft="qwen", count=2)
    (Path("kept") / "tiny-qwen--tiny-target" / "current.json").write_text("{")
    lines = kept("list").stdout.splitlines()
    own = next(line.split() for line in lines if line.startswith("tiny-draft--tiny-target"))
    found = Adapters("kept").all()["tiny-draft--tiny-target"]
    assert own[1:6] == ["tiny-draft", "tiny-target", "4", "4", "1"] and own[7] == found["fingerprint"][:8]
    assert any("tiny-qwen--tiny-target" in line and "damaged" in line for line in lines)
    assert sum("(shipped)" in line for line in lines) == 4
    rows = {row["in"]: row for row in map(json.loads, kept("list", "--json").stdout.splitlines())}
    assert len(rows) == 6 and "error" in rows["kept/tiny-qwen--tiny-target"]
    row = rows["kept/tiny-draft--tiny-target"]
    assert row["statistics"]["tokens"] == found["statistics"]["tokens"] and row["rank"] == 4 and not row["shipped"]
    assert row["bytes"] == sum(path.stat().st_size for path in Path(row["in"]).rglob("*") if path.is_file())
    assert rows[str(SHIPPED / "draft-general--qwen-like")]["shipped"]


def test_show_says_all_and_whether_it_paid(folders):
    place, _ = learned(folders, count=8)
    shown = kept("show", place.name).stdout
    found = Adapters("kept").all()[place.name]
    for word in (found["fingerprint"], found["draft"]["weights"], found["target"]["tokenizer"], "rank",
                 "version", "held-out prompts", "paid off compared with the original drafter:"):
        assert word in shown, word
    assert json.loads(kept("show", found["fingerprint"][:6], "--json").stdout)["rank"] == 4
    assert "paid off" not in kept("show", "draft-general--qwen-like").stdout  # most of its learning was before those 48 prompts
    for word in ("nothing-here", "abc", found["fingerprint"][:3]):  # three digits are too few
        check_refused(run("adapters", "show", word, "--adapters", "kept"), "no adapter ")


def test_show_draws_tokens_per_pass_over_the_held_out_prompts(folders):
    """Each line twice as many prompts as the one before: the third has 4-7, of which there are two yet."""
    place, learner = learned(folders)
    slow, fast = ([Round(emitted=[1] * size)] for size in (1, 2))
    for now in (slow, slow, slow, fast, fast):
        learner.statistics.count(now, slow, changed=True)
    Adapters("kept").keep(learner)
    rows = [line.split() for line in kept("show", place.name).stdout.splitlines()]
    at = rows.index(["held-out", "prompts", "tokens", "per", "pass", "before", "after", "learning"])
    equal = ["1.00", "1.00", "█" * 8]
    assert rows[at + 1:at + 4] == [["1-1", *equal], ["2-3", *equal], ["4-7", "1.00", "2.00", "█" * 16]]


def test_delete_asks_and_leaves_nothing(folders):
    place, learner = learned(folders)
    other, _ = learned(folders, target="second")
    for answer in ("n\n", "\n", ""):
        result = run("adapters", "delete", place.name, "--adapters", "kept", input=answer)
        assert result.exit_code == 1 and place.exists()
    kept("delete", place.name, input="y\n")
    kept("delete", Adapters("kept").all()[other.name]["fingerprint"][:8], "--yes")
    assert not [*Path("kept").iterdir()]
    learner.follows = ""
    Adapters("kept").keep(learner)
    (place / "current.json").write_text("{")  # a damaged adapter can also be deleted; it names no folders
    [version] = place.glob("v*")
    assert f"not what else is there: {version.name}" in kept("delete", place.name, "--yes").stderr
    assert not Adapters("kept").all()
    learner.follows = ""
    Adapters("kept").keep(learner)
    kept("delete", place.name, "--yes")
    assert not place.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_delete_of_a_link_leaves_what_it_leads_to(folders):
    place, _ = learned(folders)
    elsewhere = place.rename("elsewhere")
    place.symlink_to(elsewhere.resolve(), target_is_directory=True)
    content = {path.name for path in elsewhere.rglob("*")}
    kept("delete", place.name, "--yes")
    assert not place.is_symlink() and not [*Path("kept").iterdir()]
    assert {path.name for path in elsewhere.rglob("*")} == content and (elsewhere / "current.json").exists()


@embedded
def test_what_ships_is_never_changed(folders, tmp_path):
    before = sorted(path.stat().st_mtime_ns for path in SHIPPED.rglob("*"))
    copied = shutil.copytree(SHIPPED / "draft-general--qwen-like", tmp_path / "elsewhere" / "copied")
    for word, where in (("draft-general--qwen-like", "kept"), ("draft-general--qwen-like", SHIPPED), (str(copied), "kept")):
        check_refused(run("adapters", "delete", word, "--yes", "--adapters", where), "not one of your own")
    assert sorted(path.stat().st_mtime_ns for path in SHIPPED.rglob("*")) == before and copied.exists()


def test_an_adapter_that_something_learns_into_stays(folders):
    place, _ = learned(folders)
    arguments = ["adapters", "delete", place.name, "--yes", "--adapters", "kept"]
    code = ("import sys; from omnidraft.learning.adapters import locked; from pathlib import Path\n"
            "with locked(Path(sys.argv[1])): print(1, flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code, str(place)], env=os.environ | {"PYTHONPATH": str(ROOT)},
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"1\n"
        check_refused(run(*arguments), "another process is learning")
        assert [*Adapters("kept").all()] == [place.name]
        other.send_signal(signal.SIGKILL)
    ok(*arguments)


def test_an_interrupt_after_a_save_does_not_look_like_another_process(folders, monkeypatch):
    _, learner = learned(folders)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("omnidraft.learning.adapters.shutil.rmtree", interrupt)  # of the older version
        Adapters("kept").keep(learner)
    place = Adapters("kept").keep(learner)
    assert Adapters("kept").all()[place.name]["version"] == 3
    assert [*Adapters("kept").root.parent.glob("kept-rescued*")] == []


def test_a_target_with_other_weights_anywhere_has_another_fingerprint(folders, tmp_path):
    pair, seen = Pair(load(folders["draft"]), load(folders["target"])), set()
    path = Path(folders["target"]) / "model.safetensors"
    tensors = load_file(path)
    for changed in (None, *(name for name, array in tensors.items() if array.ndim == 2)):
        other = tmp_path / f"other-{changed}" / "tiny-target"
        shutil.copytree(folders["target"], other)
        if changed:
            save_file(tensors | {changed: tensors[changed] * 1.1}, other / "model.safetensors", metadata={"format": "pt"})
        pair.target = load(other)
        seen.add(identity(pair)["fingerprint"])
    assert len(seen) == 1 + sum(array.ndim == 2 for array in tensors.values()) > 3


def test_a_learner_without_the_lock_loses_nothing_to_a_delete(folders):
    place, learner = learned(folders)
    kept("delete", place.name, "--yes")
    with pytest.raises(omnidraft.OmnidraftError, match="what was learned is in (.*): continue") as caught:
        Adapters("kept").keep(learner)
    rescued = Adapters(str(caught.value).rsplit(" ", 1)[1])
    found = rescued.load(Pair(learner.trainer.base, learner.pair.target)).lora.parameters
    assert all((found[name] == array).all() for name, array in learner.trainer.served.items())


@pytest.mark.parametrize("step", ["current.json", "rmtree"])
def test_a_crash_within_a_delete_leaves_all_or_nothing(folders, monkeypatch, step):
    place, learner = learned(folders)

    def die(*_, **__):
        raise KeyboardInterrupt

    usual = Path.iterdir
    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "unlink", die) if step == "current.json" else (shutil, "rmtree", die)))
        patch.setattr(Path, "iterdir", lambda folder: sorted(usual(folder)))  # the record before the versions
        assert run("adapters", "delete", place.name, "--yes", "--adapters", "kept").exit_code == 130
    base = Pair(learner.trainer.base, learner.pair.target)
    assert (Adapters("kept").load(base) is None) == (step == "rmtree")
    place, _ = learned(folders)
    assert Adapters("kept").load(base).folder == place and len([*place.glob("v*")]) == 1


# --------------------------------------------------------------------------------------------------------- the same names

def test_the_same_words_everywhere(folders, tmp_path):
    place, _ = learned(folders)
    copied = shutil.copytree(place, tmp_path / "elsewhere" / "copied")
    words = ["auto", place.name, Adapters("kept").all()[place.name]["fingerprint"][:7], str(copied)]
    models = ["-d", folders["draft"], "-t", folders["target"], "-n", "8", "--adapters", "kept"]
    prompts = Path(tmp_path / "prompts.txt")
    prompts.write_text("the thing\n")
    commands = (["generate", "the thing"], ["chat"], ["demo", "--task", "math"],
                ["bench", "--prompts", str(prompts), "--count", "1", "--repeats", "1"])
    for arguments in commands:
        bare = ok(*arguments, *models, "--adapter", "none", input="the thing\n")
        assert "adapter" not in bare.stderr
        for word in words:
            found = ok(*arguments, *models, "--adapter", word, input="the thing\n")
            assert "tiny-draft drafts with your own adapter in " in found.stderr, (arguments, word)
        check_refused(run(*arguments, *models, "--adapter", "no-such", input="the thing\n"), "no adapter 'no-such'")
    other = ["-d", folders["draft"], "-t", folders["second"], "-n", "8", "--adapters", "kept"]
    check_refused(run("generate", "the thing", *other, "--adapter", place.name), "was learned with another target")
    for more, drafts in ((other, False), (models, True)):  # "auto" is the default, and may find nothing
        assert ("drafts with your own adapter" in ok("generate", "the thing", *more).stderr) == drafts


def test_no_word_for_an_adapter_stands_for_another_one(folders):
    """Only "auto" searches: not an empty word, as from an unset variable, nor a name that looks like a keyword."""
    place, _ = learned(folders)
    models = ["-d", folders["draft"], "-t", folders["target"], "-n", "4", "--adapters", "kept"]
    for word in ("", "any"):
        check_refused(run("generate", "the thing", *models, "--adapter", word), f"no adapter {word!r}")
    other, _ = learned(folders, target="second")
    other.rename(other.with_name("any"))
    check_refused(run("generate", "the thing", *models, "--adapter", "any"), "was learned with another target")


def test_ones_own_adapter_may_be_named_by_any_path_to_it(folders):
    place, _ = learned(folders)
    other, _ = learned(folders, target="second")
    kept("delete", str(Path("kept").resolve() / other.name), "--yes")
    ok("adapters", "delete", f"kept/../kept/{place.name}", "--yes", "--adapters", str(Path("kept").resolve()))
    assert not [*Path("kept").iterdir()]


# ----------------------------------------------------------------------------------------------------------------- export

@pytest.mark.parametrize(("draft", "rank"), [("draft", 4), ("draft", 0), ("qwen", 4)])
def test_an_exported_folder_is_the_adapted_drafter(folders, draft, rank):
    place, learner = learned(folders, draft=draft, rank=rank)
    next(place.glob("v1-*/optimizer.safetensors")).unlink()  # it is not needed
    Path("empty").mkdir()
    said = kept("export", place.name, "empty", "-d", folders[draft]).stderr
    exported, drafter = load("empty"), learner.pair.draft
    assert np.abs(logits(exported) - logits(drafter)).max() <= 1e-4 and "same logits as the adapted drafter, up to" in said
    assert np.abs(logits(exported) - logits(learner.trainer.base)).max() > 0.01  # it has learned
    names = {path.name for path in Path("empty").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert ("tokenizer_config.json" in names) == (draft == "draft") and not [name for name in names if "optimizer" in name]
    assert "notes.bin" not in names and [path.name for path in Path().iterdir() if path.name.startswith(".")] == []
    config, weights = json.loads(Path("empty/config.json").read_text()), load_file("empty/model.safetensors")
    assert config["tie_word_embeddings"] is (draft == "draft" and not rank)  # LoRA has changed the head, but not the embedding
    assert ("lm_head.weight" in weights) == (not config["tie_word_embeddings"])
    card = Path("empty/README.md").read_text()
    assert card.startswith("---\nbase_model: tiny-") and "{" not in card and "held-out prompts" in card
    again = ok("generate", "the thing", "-d", "empty", "-t", folders["target"], "-n", "12").stdout
    assert again == ok("generate", "the thing", "-d", folders[draft], "-t", folders["target"], "-n", "12").stdout


@pytest.mark.parametrize("missing", ["architectures", "model_type"])
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2"])
def test_an_exported_config_says_what_other_programs_read(tmp_path, folders, family, missing):
    """llama.cpp and vLLM look for `architectures`, transformers for `model_type`; either may be missing in the drafter's."""
    config = {"architectures": [f"{family}ForCausalLM"], "model_type": family.lower(), "num_key_value_heads": 2,
              "torch_dtype": "bfloat16", "eos_token_id": 2, "sliding_window": 64, "rope_theta": 500.0}
    base = write_model(tmp_path / "base", sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft"), 2, **config)
    config = json.loads((base / "config.json").read_text())
    del config[missing]
    (base / "config.json").write_text(json.dumps(config))
    for left_out in ("params", "adapter_config"):  # vLLM and transformers would look for weights that they describe
        (base / f"{left_out}.json").write_text("{}")
    place, _ = learned({"draft": str(base), "target": folders["target"]})
    kept("export", place.name, "out", "-d", str(base))
    said = json.loads(Path("out/config.json").read_text())
    assert said["architectures"] == [f"{family}ForCausalLM"] and said["model_type"] == family.lower()
    assert said["dtype"] == said["torch_dtype"] == "float32" and said["rope_theta"] == 500.0
    assert {str(array.dtype) for array in load_file("out/model.safetensors").values()} == {"float32"}
    assert not {path.name for path in Path("out").iterdir()} & {"params.json", "adapter_config.json"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_export_reads_files_only_and_writes_into_an_empty_folder_where_it_stands(folders, monkeypatch, tmp_path):
    place, _ = learned(folders)
    hostile = shutil.copytree(folders["draft"], tmp_path / "hostile")
    os.mkfifo(hostile / "tokens.json")  # a pipe, whose reader would wait for ever
    (hostile / "more.json").mkdir()
    store, here = Path("kept").resolve(), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = here.stat().st_ino
    ok("adapters", "export", place.name, ".", "-d", str(hostile), "--adapters", str(store))
    assert here.stat().st_ino == before and Path.cwd() == here  # a shell in this folder sees the files
    names = {path.name for path in here.iterdir()}
    assert "model.safetensors" in names and not names & {"tokens.json", "more.json"}


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_export_copies_only_the_files_of_a_tokenizer_and_none_from_elsewhere(folders, tmp_path):
    """A folder from others may hold links to anything that its user may read."""
    place, _ = learned(folders)
    (tmp_path / "secret").write_text("-----BEGIN PRIVATE KEY-----")
    hostile = shutil.copytree(folders["draft"], tmp_path / "hostile")
    for name in ("notes.txt", "key.json", "index.model"):
        (hostile / name).symlink_to(tmp_path / "secret")
    with open(hostile / "more.txt", "wb") as huge:
        huge.truncate(40 << 30)  # a sparse file
    kept("export", place.name, "out", "-d", str(hostile))
    assert {path.name for path in Path("out").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    before = {path.name for path in Path().iterdir()}
    for name in ("chat_template.jinja", "vocab.txt"):
        (hostile / name).symlink_to(tmp_path / "secret")
        check_refused(run("adapters", "export", place.name, "new", "-d", str(hostile), "--adapters", "kept"),
                      f"{name} is a link out of its folder")
        (hostile / name).unlink()
    with open(hostile / "merges.txt", "wb") as huge:
        huge.truncate(40 << 30)
    check_refused(run("adapters", "export", place.name, "new", "-d", str(hostile), "--adapters", "kept"),
                  "is it the right file?")
    assert {path.name for path in Path().iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_export_follows_the_links_of_the_hub_s_cache_and_of_nobody_else(folders, tmp_path):
    place, _ = learned(folders)
    cache = tmp_path / "models--a--tiny-draft"
    snapshot, blobs = cache / "snapshots" / "0a1b", cache / "blobs"
    shutil.copytree(folders["draft"], snapshot)
    blobs.mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(Path("../../blobs") / str(number))
    kept("export", place.name, "out", "-d", str(snapshot))
    assert Path("out/tokenizer.json").is_file() and not Path("out/tokenizer.json").is_symlink()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("-----BEGIN PRIVATE KEY-----")
    (blobs / "key").symlink_to(tmp_path / "secret" / "key")
    (snapshot / "vocab.txt").symlink_to("../../blobs/key")
    check_refused(run("adapters", "export", place.name, "new", "-d", str(snapshot), "--adapters", "kept"), "is a link out of")


def test_an_export_that_is_killed_leaves_no_hidden_folder(folders, monkeypatch):
    place, _ = learned(folders)
    monkeypatch.setattr(export.shutil, "rmtree", lambda *_, **__: None)  # as if it had not come to this
    ok("adapters", "export", place.name, "out", "-d", folders["draft"], "--adapters", "kept")
    monkeypatch.setattr(export, "load", lambda *a, real=export.load: real(*a) if "part" not in str(a[0]) else 1 / 0)
    assert run("adapters", "export", place.name, "new", "-d", folders["draft"], "--adapters", "kept").exit_code == 1
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []


def test_export_refuses_and_then_writes_nothing(folders, tmp_path, monkeypatch):
    place, _ = learned(folders)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for where, more, says in (("full", [], "already exists"), ("file", [], "already exists"),
                              ("new", ["-d", folders["qwen"]], "learned with another draft"),
                              ("new", ["-d", "gpt-5"], "unknown model"),
                              ("new", ["--backend", "x", "-d", folders["draft"]], "unknown backend"),
                              ("file/new", ["-d", folders["draft"]], "cannot write")):
        more = more or ["-d", folders["draft"]]
        check_refused(run("adapters", "export", place.name, where, *more, "--adapters", "kept"), says)
    check_refused(run("adapters", "export", place.name, "new", "--adapters", "kept"),
                  "its base drafter, tiny-draft, is not here: give its folder with --draft")
    real = export.save_tensors
    monkeypatch.setattr(export, "save_tensors", lambda path, tensors, dtype: real(
        path, {name: array + 0.01 * (name == "lm_head.weight") for name, array in tensors.items()}, dtype))
    refused = run("adapters", "export", place.name, "new", "-d", folders["draft"], "--adapters", "kept")
    check_refused(refused, "would change the logits")
    assert sorted(tmp_path.rglob("*")) == before


def torch_of(folder: str):
    transformers = pytest.importorskip("transformers")
    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = transformers.AutoTokenizer.from_pretrained(folder)("Once upon a time, there was", return_tensors="pt").input_ids
    with torch.no_grad():
        return model, ids[0].tolist(), model(ids).logits[0].numpy()


@pytest.mark.skipif(not (REAL / "models").is_dir(), reason="the real models are not here")
@pytest.mark.parametrize(("draft", "target"), [("babyllama-tok361", "stories260K"), ("stories260K", "babyllama-tok361")])
def test_transformers_loads_the_export_of_a_published_pair(draft, target):
    real = {name: str(REAL / "models" / name) for name in (draft, target)}
    place, learner = learned(real, draft=draft, target=target)
    kept("export", place.name, "out", "-d", real[draft])
    model, ids, rows = torch_of("out")
    assert not model.config.tie_word_embeddings and model.lm_head.weight is not model.model.embed_tokens.weight
    drafter = learner.pair.draft
    assert ids == drafter.tokenizer.encode("Once upon a time, there was", bos=ids[0] in drafter.tokenizer.roles.get("bos", ()))
    ours = drafter.forward(ids, drafter.new_cache(), len(ids))
    assert np.abs(ours - rows).max() <= 1e-4 < 0.01 < np.abs(ours - torch_of(real[draft])[2]).max()


@embedded
def test_transformers_loads_the_export_of_what_ships():
    ok("adapters", "export", "draft-general--qwen-like", "out")
    base = load("draft-general")
    drafter = Adapters(SHIPPED).load(Pair(base, load("qwen-like"))).drafter(base)
    assert np.abs(logits(load("out")) - logits(drafter)).max() <= 1e-4
    _, ids, rows = torch_of("out")
    assert np.abs(drafter.forward(ids, drafter.new_cache(), len(ids)) - rows).max() <= 1e-4


@pytest.mark.parametrize("kind", ["gpt-2", "llama, tied"])
def test_a_drafter_of_pytorch_is_exported_by_pytorch(tmp_path, kind, folders):
    """GPT-2 has a tied head and weights that are (in, out)."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pieces = sentencepiece(LETTERS, "▁ t, ▁t h, ▁th e, i n, o u", name="draft")
    if kind == "gpt-2":
        torch.manual_seed(0)
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=128, vocab_size=pieces.size,
                                         bos_token_id=1, eos_token_id=2, initializer_range=0.3)
        transformers.GPT2LMHeadModel(config).save_pretrained("tiny-gpt")
        pieces.raw.save("tiny-gpt/tokenizer.json")
        base = load("tiny-gpt", backend="torch", device="cpu")
    else:
        base = load(folders["draft"], backend="torch", device="cpu")
    pair, rng = Pair(base, load(folders["target"])), np.random.default_rng(0)
    learner = Adapters("kept").resume(pair, Recipe(rank=4, rate=0.05), Schedule(every=1, guard=0), rng)
    list(omnidraft.learn(learner, PROMPTS[:4], Options(temperature=1.0, max_new_tokens=12), omnidraft.Uniforms(rng)))
    Adapters("kept").keep(learner)
    kept("export", f"{base.name}--tiny-target", "out", "-d", str(base.folder), "--backend", "torch")
    again = load("out", "float32", "torch", "cpu")
    assert not again.model.config.tie_word_embeddings
    assert np.abs(logits(again) - logits(learner.pair.draft)).max() <= 1e-4
    assert np.abs(logits(again) - logits(base)).max() > 0.01
