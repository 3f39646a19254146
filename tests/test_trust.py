"""Input from others: files, adapters, templates and prompts made to do harm are refused in one line."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file
from test_cli import ROOT, run
from test_learning import PROMPTS, adapt, folders, own_caches, paired, resumed, serve  # noqa: F401 (fixtures)
from test_template import USER, folder_of, ours
from vocabularies import byte_level

from omnidraft.cli import prompts as reading
from omnidraft.cli.prompts import read_prompts
from omnidraft.decoding import check_prompt
from omnidraft.engine import weights
from omnidraft.engine.config import ModelConfig
from omnidraft.engine.load import load
from omnidraft.engine.weights import load_tensors, read_header, read_safetensors
from omnidraft.learning import adapters
from omnidraft.learning.adapters import Adapters, checksum, seal
from omnidraft.options import Options
from omnidraft.pairs.conversation import Conversation
from omnidraft.pairs.markers import HIDDEN, Markers
from omnidraft.sampling import Uniforms
from omnidraft.text import confined
from omnidraft.text.errors import OmnidraftError
from omnidraft.text.files import default_folder
from omnidraft.text.special_tokens import Names
from omnidraft.text.tokenizer import Tokenizer

# ---------------------------------------------------------------------------------------------------------- weights


def write(path: Path, header: dict | bytes, data: bytes) -> Path:
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def entry(kind: str, shape: list, begin: int, end: int) -> dict:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "one region twice": {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)},
    "overlap": {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)},
    "odd offsets": {"a": entry("F16", [2], 1, 5)}, "a hole": {"a": entry("F32", [1], 4, 8)},
    "negative": {"a": entry("F32", [1], -4, 0)}, "backwards": {"a": entry("F32", [1], 8, 4)},
    "too long": {"a": entry("F32", [2**40], 0, 2**42)}, "not all": {"a": entry("F32", [1], 0, 4)},
    "shape": {"a": entry("F32", [2**62, 4], 0, 16)}, "deep": b"[" * 100_000, "deep objects": b'{"a":' * 50_000}


@pytest.mark.parametrize("case", HEADERS)
def test_ranges_of_a_weights_file_follow_one_another(case, tmp_path):
    path = write(tmp_path / "model.safetensors", HEADERS[case], b"\0" * 16)
    with pytest.raises(OmnidraftError, match="not a complete safetensors file") as caught:
        read_safetensors(path)
    assert "\n" not in str(caught.value)


def test_only_what_is_asked_for_is_widened(tmp_path):
    size = 16 << 20
    header = {"used": entry("BF16", [2], 0, 4), "unused": entry("BF16", [size // 2], 4, 4 + size)}
    path = write(tmp_path / "model.safetensors", header, b"\x80\x3f\x00\x40")  # 1.0, 2.0
    os.truncate(path, path.stat().st_size + size)
    tracemalloc.start()
    tensors = read_safetensors(path)
    assert tensors["used"].tolist() == [1.0, 2.0] and len(tensors) == 2
    assert tracemalloc.get_traced_memory()[1] < size // 8
    tracemalloc.stop()
    assert sorted(read_header(path)) == ["unused", "used"]


def test_a_header_of_tiny_entries_is_refused_before_memory_is_taken(tmp_path, monkeypatch):
    """900,000 empty tensors took 2.25 GB."""
    one = b'"%d":{"dtype":"F16","shape":[0],"data_offsets":[0,0]},'
    content = b"{" + b"".join(one % i for i in range(160_000)) + b'"x":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}'
    path = write(tmp_path / "model.safetensors", content, b"")
    monkeypatch.setattr(weights, "safe_open", None)  # the library must not read it either
    tracemalloc.start()
    with pytest.raises(OmnidraftError, match="has a header of .* bytes, over 8,388,608: is it the right file"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_pipe_for_weights_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    for read in (load_tensors, lambda folder: read_header(folder / "model.safetensors")):
        with pytest.raises(OmnidraftError, match="not an ordinary file"):
            read(tmp_path)


def test_pytorch_does_not_wait_for_a_pipe(folders, tmp_path):  # noqa: F811
    pytest.importorskip("transformers")
    shutil.copytree(folders["target"], folder := tmp_path / "target")
    os.mkfifo(folder / "generation_config.json")  # transformers would read it
    with pytest.raises(OmnidraftError, match="generation_config.json is a pipe or a device, which is not read: remove it"):
        load(folder, backend="torch")


@pytest.mark.parametrize("change", [
    {"num_hidden_layers": 10**7}, {"num_hidden_layers": 10**30}, {"rope_theta": 10**400}, {"rope_theta": True},
    {"rope_scaling": {"rope_type": "linear", "factor": 1e-320}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}],
    ids=lambda change: str(change)[:40])
def test_sizes_are_checked_before_memory_is_taken(folders, change):  # noqa: F811
    config = json.loads(Path(folders["target"], "config.json").read_text())
    with pytest.raises(OmnidraftError) as caught:
        ModelConfig.parse(config | change, "folder")
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


@pytest.mark.parametrize(("change", "says"), [
    ({"hidden_size": -1}, "hidden_size is -1, but must be"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0, but must be"),
    ({"architectures": None, "model_type": None}, "a model without model_type is not supported")])
def test_what_is_wrong_has_the_name_that_config_json_gives_it(folders, change, says):  # noqa: F811
    config = json.loads(Path(folders["target"], "config.json").read_text())
    with pytest.raises(OmnidraftError, match=says):
        ModelConfig.parse(config | change, "folder")


# -------------------------------------------------------------------------------------------- templates and prompts

BOMBS = {"time": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "one step": "{{ 10 ** (10 ** 9) }}", "memory": "{{ 'word ' * 2000000000 }}",
         "filter": "{{ [1]|tojson(indent=10**9) }}",
         "output": "{{ 'word ' * 2000000 }}", "concatenation":
         "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}"}


@pytest.mark.parametrize("case", BOMBS)
def test_a_template_has_limits_of_time_memory_and_output(case, tmp_path, monkeypatch):
    pytest.importorskip("jinja2")
    pytest.importorskip("resource")
    monkeypatch.setattr(confined, "SECONDS", 1)
    with pytest.raises(OmnidraftError, match="the chat template of .* fails, ") as caught:
        ours(folder_of(tmp_path, "chatml", source=BOMBS[case])).render([USER])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("written", ["the ", "abc" + HIDDEN, "</s>"])
def test_what_a_template_writes_is_not_parsed_if_it_is_too_long(folders, tmp_path, monkeypatch, written):  # noqa: F811
    pytest.importorskip("jinja2")
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    (target / "chat_template.jinja").write_text(f"{{{{ '{written}' * 1000000 }}}}", encoding="utf-8")
    model, read = load(target), []
    for owner, name in ((Tokenizer, "encode"), (Tokenizer, "encode_continuation"), (Names, "find")):
        real = vars(owner)[name]

        def seen(self, text, real=real, **how):
            read.append(len(text))
            return real(self, text, **how)

        monkeypatch.setattr(owner, name, seen)
    with pytest.raises(OmnidraftError, match="makes a text of 4000000 characters, but at most"):
        Conversation(model).ask("hello", Options(), Uniforms(np.random.default_rng(0)))
    assert sum(read) < 100


def test_typed_names_are_found_in_time_in_proportion_to_the_text():
    markers, name = Markers(byte_level(), ""), "<|endoftext|>"
    talk = [{"role": "user", "content": f"a{name}" * 30_000}]
    began = process_time()
    hidden = markers.hide(talk[0])["content"]
    assert len(markers.typed(talk[0]["content"], hidden, talk)) == 30_000
    assert len(markers.typed("x" + talk[0]["content"], "y" + hidden + "z", talk)) == 30_000
    assert process_time() - began < 3


def test_names_are_found_in_time_in_proportion_to_the_text():
    """Each of 20,000 that begin alike was tried at every place of the text."""
    found = Names("a" * 30 + f"<{i}>" for i in range(20_000))
    began = process_time()
    assert found.find("a" * 400_000) == [] and found.find("xa" + "a" * 30 + "<7>") == [(2, 35)]
    assert process_time() - began < 3
    rng = random.Random(0)
    for _ in range(300):
        names = ["".join(rng.choices("<ab>", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 4))]
        text = "".join(rng.choices("<ab> é🙂\udc80", k=rng.randint(0, 20)))
        longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
        assert Names(names).find(text) == [one.span() for one in re.finditer(longest_first, text)], (names, text)


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer"])
def test_a_regular_expression_that_takes_for_ever_is_stopped_before_it_is_used(folders, tmp_path, monkeypatch, part):  # noqa: F811
    """It would not even answer Ctrl-C."""
    pytest.importorskip("resource")
    monkeypatch.setattr(confined, "SECONDS", 1)
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    data = json.loads((target / "tokenizer.json").read_text())
    slow = {"pattern": {"Regex": r"(?:.|.){40}\b\B"}}
    slow |= ({"type": "Replace", "content": "x"} if part == "normalizer" else
             {"type": "Split", "behavior": "Isolated", "invert": False})
    inner = [slow, *[data[part]] * bool(data[part])]
    data[part] = {"type": "Sequence", "normalizers" if part == "normalizer" else "pretokenizers": inner}
    (target / "tokenizer.json").write_text(json.dumps(data))
    for command in (["generate", "the", "-d", folders["draft"], "-t", target], ["align", folders["draft"], target, "the"]):
        result = run(*command)
        why = re.search("has a regular expression that fails, (it takes over|PanicException: )", result.stderr)
        assert result.exit_code == 1 and why
        assert result.stderr.count("\n") == 1


def test_a_tokenizer_is_tried_once(folders, tmp_path, monkeypatch):  # noqa: F811
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    data = json.loads((target / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": " ?[a-z]+| +"}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, data["pre_tokenizer"]]}
    (target / "tokenizer.json").write_text(json.dumps(data))
    runs, real = [], confined.run
    monkeypatch.setattr(confined, "run", lambda *given, **job: (runs.append(given), real(*given, **job))[1])
    for _ in range(3):
        Tokenizer.load(target)
    Tokenizer.load(folders["target"])  # without a regular expression there is nothing to try
    assert len(runs) == 1 and len([*default_folder().glob("tried/*")]) == 1


def test_a_token_longer_than_any_is_refused(folders, tmp_path):  # noqa: F811
    """How long a token may be says how long a text may be that is tokenized."""
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    data = json.loads((target / "tokenizer.json").read_text())
    data["model"]["vocab"]["a" * 1025] = max(data["model"]["vocab"].values()) + 1
    (target / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(OmnidraftError, match="has a token of 1,025 bytes, over 1,024"):
        Tokenizer.load(target)


def test_a_prompt_longer_than_any_context_is_not_encoded(folders, monkeypatch):  # noqa: F811
    target, seen = load(folders["target"]), []
    real = target.tokenizer.encode
    monkeypatch.setattr(target.tokenizer, "encode", lambda text, **how: (seen.append(len(text)), real(text, **how))[1])
    with pytest.raises(OmnidraftError, match="characters"):
        check_prompt(target, "the thing in " * 10**6)
    assert not seen


def test_deep_lines_of_prompts_are_one_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    for line in ("[" * 100_000, '{"prompt": ' + "[" * 100_000):
        path.write_text(line)
        with pytest.raises(OmnidraftError, match="not a JSON object") as caught:
            next(read_prompts(str(path))[0])
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_prompts_are_read_one_by_one(tmp_path, monkeypatch):
    """A file of 2-byte lines took 1 GB for 128 MB."""
    path = tmp_path / "prompts.txt"
    path.write_text("a\n\n" * 60_000)
    tracemalloc.start()
    prompts, count = read_prompts(str(path))
    assert count == sum(1 for _ in prompts) == 60_000 and tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    monkeypatch.setattr(reading, "MOST_PROMPTS", 59_999)
    with pytest.raises(OmnidraftError, match="has over 59,999 prompts: split it"):
        read_prompts(str(path))


def test_a_line_without_end_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "prompts.txt"
    path.write_text("a" * 1000 + "\n" + "b" * 1001)
    monkeypatch.setattr(reading, "LONGEST_LINE", 1000)
    with pytest.raises(OmnidraftError, match="has a line of over 1,000 characters"):
        read_prompts(str(path))
    result = run("adapt", "-", input="b" * 1001)
    assert result.exit_code == 1 and "stdin has a line of over 1,000 characters" in result.stderr


def test_broken_weights_are_one_line_without_warnings(folders, tmp_path):  # noqa: F811
    """NumPy's warnings about infinite numbers must not appear before the error line."""
    target = Path(shutil.copytree(folders["target"], tmp_path / "target"))
    tensors = load_file(target / "model.safetensors")
    save_file({name: np.full_like(array, 3e38) for name, array in tensors.items()}, target / "model.safetensors")
    done = subprocess.run([sys.executable, "cli.py", "generate", "the", "-d", folders["draft"], "-t", str(target)], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "NaN or infinite" in done.stderr


def test_prompts_come_from_ordinary_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "maps").symlink_to("/proc/self/maps")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OmnidraftError, match="not an ordinary file"):
            read_prompts(str(path))
    if Path("/proc/self/maps").exists():  # /proc/kmsg would be waited for
        with pytest.raises(OmnidraftError, match="is missing, empty, not an ordinary file"):
            read_prompts(str(tmp_path / "maps"))


# --------------------------------------------------------------------------------------------------------- adapters

@pytest.fixture
def store(folders, tmp_path) -> Adapters:  # noqa: F811
    learner = resumed(folders, tmp_path / "adapters")
    serve(learner, PROMPTS[:2])
    found = Adapters(tmp_path / "adapters")
    found.keep(learner)
    return found


def reseal(folder: Path, change: dict, files: dict[str, dict] = {}) -> None:  # noqa: B006
    """Change an adapter's manifest, and arrays by file, so that every checksum is right."""
    manifest = json.loads((folder / "current.json").read_text())
    place = folder / manifest["folder"]
    for name, arrays in files.items():
        if name.endswith(".json"):
            (place / name).write_text(json.dumps(json.loads((place / name).read_text()) | arrays))
        else:
            save_file(arrays, place / name)
        manifest["files"][name] = checksum(place / name)
    manifest.pop("checksum")
    manifest = {key: value for key, value in (manifest | change).items() if value is not None}
    manifest["checksum"] = seal(manifest)
    (folder / "current.json").write_text(json.dumps(manifest))


MANIFESTS = [{"version": None}, {"version": "1"}, {"version": -1.5}, {"files": []}, {"files": None}, {"draft": None},
             {"draft": "x"}, {"draft": {}}, {"target": {"name": 1, "tokenizer": 2, "weights": 3}}, {"statistics": []},
             {"statistics": {"tokens": "many"}}, {"statistics": {"tokens": float("nan")}}, {"statistics": {"served": [1]}},
             {"statistics": {"served math": "b"}}, {"statistics": {"rate_share": 0}}, {"statistics": {"error": 5}},
             {"folder": "../other"}, {"folder": 7}, {"files": {"/etc/passwd": "0"}}, {"files": {"a": 1}}, {"format": 3}]


@pytest.mark.parametrize("change", MANIFESTS, ids=str)
def test_fields_of_an_adapter_are_checked(folders, store, change):  # noqa: F811
    pair = paired(folders)
    reseal(store.folder(pair), change)
    with pytest.raises(OmnidraftError, match="damaged or missing") as caught:
        store.load(pair)
    assert "\n" not in str(caught.value) and "damaged" in run("adapters", "list", "--adapters", str(store.root)).stdout


def spoil(arrays: dict, key: str, value: float) -> dict:
    name = next(name for name in arrays if key in name)
    return {**arrays, name: np.full_like(arrays[name], value)}


def test_numbers_and_shapes_of_an_adapter_are_checked_before_anything_is_served(folders, store):  # noqa: F811
    pair = paired(folders)
    folder = store.folder(pair)
    place = folder / json.loads((folder / "current.json").read_text())["folder"]
    lora, states = (load_file(place / f"{name}.safetensors") for name in ("adapter_model", "optimizer"))
    good = {path: path.read_bytes() for path in (*place.iterdir(), folder / "current.json")}
    for files in ({"adapter_model.safetensors": spoil(lora, "lora_B", np.nan)},
                  {"optimizer.safetensors": spoil(states, "square.", -1)},
                  {"optimizer.safetensors": spoil(states, "mean.", np.inf)},
                  {"optimizer.safetensors": {k: v for k, v in states.items() if "steps" not in k}},
                  {"optimizer.safetensors": {k: v.reshape(-1, 1) for k, v in states.items()}},
                  {"adapter_config.json": {"r": 2.0}}, {"adapter_config.json": {"lora_alpha": float("nan")}},
                  {"head.safetensors": {"out.weight": np.zeros(0, "f4"), "out.bias": np.zeros(1, "f4")}},
                  {"head.safetensors": {"out.weight": np.zeros(33, "f4"), "out.bias": np.zeros((1, 1), "f4")}}):
        reseal(folder, {}, files)
        with pytest.raises(OmnidraftError) as caught:
            resumed(folders, store.root)
        assert "\n" not in str(caught.value)
        result = adapt(folders, "math", "--adapters", str(store.root), "--limit", "1", "--rank", "4")
        assert result.exit_code == 1 and "prompts:" not in result.stderr, files
        for path in (*place.iterdir(), folder / "current.json"):
            path.write_bytes(good[path]) if path in good else path.unlink()
    assert resumed(folders, store.root).follows == store.load(paired(folders)).checksum


@pytest.mark.parametrize("file, key, value", [("adapter_model", "lora_B", np.nan), ("optimizer", "square.", -1.0)])
def test_a_damaged_file_of_an_adapter_is_named(folders, store, file, key, value):  # noqa: F811
    folder = store.folder(paired(folders))
    path = next(folder.glob(f"v*/{file}.safetensors"))
    reseal(folder, {}, {path.name: spoil(load_file(path), key, value)})
    with pytest.raises(OmnidraftError, match="adapters delete") as caught:
        store.load(paired(folders))
    assert str(caught.value).startswith(f"{path} is damaged")


# ------------------------------------------------------------------------------------------------------ two writers

def test_the_second_of_two_runs_is_refused_at_once(folders, store, tmp_path):  # noqa: F811
    before = (store.folder(paired(folders)) / "current.json").read_bytes()
    with store.writing(paired(folders)):
        result = adapt(folders, "math", "--adapters", str(store.root), "--limit", "1")
        assert result.exit_code == 1 and "another process is learning" in result.stderr
        code = ("import sys; from omnidraft.learning.adapters import locked; from pathlib import Path\n"
                "with locked(Path(sys.argv[1])): pass")
        done = subprocess.run([sys.executable, "-c", code, str(store.folder(paired(folders)))], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        assert done.returncode and "another process is learning" in done.stderr
        assert adapt(folders, "math", "--adapters", str(store.root), "--limit", "1", "--no-save").exit_code == 0
    assert (store.folder(paired(folders)) / "current.json").read_bytes() == before
    assert adapt(folders, "math", "--adapters", str(store.root), "--limit", "1").exit_code == 0


def test_the_later_of_two_learners_loses_nothing(folders, store):  # noqa: F811
    one, other = resumed(folders, store.root), resumed(folders, store.root)
    serve(one, PROMPTS[:2])
    serve(other, PROMPTS[2:4])
    store.keep(one)
    first = store.load(one.pair).lora.parameters
    with pytest.raises(OmnidraftError, match="another process has saved .* what was learned is in") as caught:
        store.keep(other)
    rescued = Adapters(str(caught.value).rsplit(" ", 1)[1])
    assert rescued.root.parent == store.root.parent  # next to the store
    found = rescued.load(paired(folders)).lora.parameters
    assert all((found[k] == v).all() for k, v in other.trainer.served.items())
    assert all((store.load(paired(folders)).lora.parameters[k] == v).all() for k, v in first.items())
    store.keep(one)  # the first learner can save again


def test_what_cannot_be_saved_where_it_should_is_saved_elsewhere(folders, store, monkeypatch):  # noqa: F811
    path = store.folder(paired(folders)) / "current.json"
    real = adapters.write_manifest

    def full(place, *more):
        if place.is_relative_to(store.root):
            raise OmnidraftError("No space left on device")
        real(place, *more)

    monkeypatch.setattr(adapters, "write_manifest", full)
    (store.root.parent / "prompts.txt").write_text("\n".join(PROMPTS))
    result = adapt(folders, str(store.root.parent / "prompts.txt"), "--adapters", str(store.root), "--limit", "2")
    assert result.exit_code == 1 and "No space left on device; what was learned is in" in result.stderr
    assert "total: 4 prompts" in result.stderr  # the report is still printed
    place = result.stderr.strip().rsplit(" ", 1)[1]
    assert Adapters(place).load(paired(folders)).statistics.prompts == 4
    learner, before = resumed(folders, store.root), sorted(store.root.parent.iterdir())
    path.write_text("{}")  # damaged during learning
    monkeypatch.setattr(adapters, "write_manifest", lambda *more: full(store.root))  # and no space next to it
    with pytest.raises(OmnidraftError, match="damaged .* affected.$"):
        store.keep(learner)
    assert sorted(store.root.parent.iterdir()) == before  # no empty folders are left
    monkeypatch.setattr(adapters, "write_manifest", real)
    with pytest.raises(OmnidraftError, match="damaged .* what was learned is in"):
        store.keep(learner)


def test_a_pipe_for_a_lock_is_not_waited_for(folders, store):  # noqa: F811
    (store.folder(paired(folders)) / "lock").unlink()
    os.mkfifo(store.folder(paired(folders)) / "lock")
    with store.writing(paired(folders)), pytest.raises(OmnidraftError, match="another process is learning"):
        with Adapters(store.root).writing(paired(folders)):
            pass


def test_without_a_home_folder_all_works_that_keeps_nothing(folders, tmp_path, monkeypatch):  # noqa: F811
    """As in a container whose user has no entry in /etc/passwd."""
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.delenv("OMNIDRAFT_HOME", raising=False)
    models, some = ["-d", folders["draft"], "-t", folders["target"]], ["-n", "3", "--limit", "1"]
    for arguments in (["demo", *models, "-n", "3", "--task", "math"], ["generate", "the", *models, "-n", "3"], ["models"],
                      ["adapters", "list"], ["adapt", "math", *models, *some, "--no-save"]):
        assert run(*arguments).exit_code == 0, arguments
    result = run("adapt", "math", *models, *some)
    assert result.exit_code == 1 and "set-OMNIDRAFT_HOME" in result.stderr and result.stderr.count("\n") == 1
    monkeypatch.setattr("omnidraft.pairs.ngram_files.LARGE", 0)  # large vocabularies work too
    assert run("generate", "the", *models, "-n", "3").exit_code == 0


def test_the_folder_of_a_version_is_on_the_disk_before_the_pointer(folders, tmp_path, monkeypatch):  # noqa: F811
    learner, steps = resumed(folders, tmp_path / "new" / "adapters"), []
    serve(learner, PROMPTS[:2])
    sync, put = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda place: (steps.append(os.readlink(f"/proc/self/fd/{place}")), sync(place)))
    monkeypatch.setattr(os, "replace", lambda one, other: (steps.append(f"-> {other}"), put(one, other)))
    folder = Adapters(tmp_path / "new" / "adapters").keep(learner)
    moved = steps.index(f"-> {folder / 'current.json'}")
    for path in (tmp_path, tmp_path / "new", folder.parent, folder):  # each has a new entry
        assert str(path) in steps[:moved], path


# --------------------------------------------------------------------------------------------------------- one line

@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["generate", "--help"]], ids=str)
def test_help_on_a_full_disk(arguments):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "cli.py", *arguments], cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
                              text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


def test_a_mistake_of_the_program_is_one_line_too(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("omnidraft.cli.inspect.tokenizer_of", broken)
    result = run("align", "draft-tasks", "qwen-like")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "ZeroDivisionError: by zero" in result.stderr and "--debug" in result.stderr
    assert isinstance(run("--debug", "align", "draft-tasks", "qwen-like").exception, ZeroDivisionError)


def test_numbers_beyond_what_fits(folders, tmp_path):  # noqa: F811
    (tmp_path / "prompts.txt").write_text("the thing\nin the house")
    assert adapt(folders, "prompts.txt", "--limit", "9" * 20, "--no-save", "-n", "1").exit_code == 0
    result = adapt(folders, "math", "--rank", "9" * 20, "--no-save")
    assert result.exit_code == 1 and "rank is 9" in result.stderr and "Traceback" not in result.stderr


ENTRIES = {"cli.py": "import runpy; runpy.run_path('cli.py', run_name='__main__')",
           "omnidraft": "from omnidraft_main import main; main()",  # as the installed command does
           "-m omnidraft": "import runpy; runpy.run_module('omnidraft', run_name='__main__')"}


@pytest.mark.parametrize(("entry", "name", "status"), [
    ("cli.py", "omnidraft", -2), ("omnidraft", "numpy", -2), ("omnidraft", "typer", -2),
    ("-m omnidraft", "omnidraft.cli", -2)])
def test_ctrl_c_while_modules_are_imported(entry, name, status):
    """Ctrl-C comes when a module is first searched for. -2 means ended by the signal (130 in a shell).

    Processes in the background ignore Ctrl-C, so the code first restores Python's own handler.
    """
    code = ("import os, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "class Finder:\n    def find_spec(self, name, *_):\n"
            f"        if name == {name!r}: os.kill(os.getpid(), signal.SIGINT)\n"
            f"sys.meta_path.insert(0, Finder())\n{ENTRIES[entry]}")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status and not done.stderr


def test_a_run_that_ignores_ctrl_c_goes_on_ignoring_it():
    code = ("import signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsys.argv = ['omnidraft', '--version']\n"
            "from omnidraft_main import main\ntry: main()\nfinally: assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("omnidraft ") and not done.stderr


@pytest.mark.parametrize("value", ["x", -7, 1.5, [], 10**30, None])
def test_a_setting_of_the_wrong_kind_is_taken_as_true_or_false(value):
    raw = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    raw.add_special_tokens(["<s>"])
    made = Tokenizer(raw, "tiny", {"bos_token": "<s>", "add_bos_token": value})
    assert made.encode("a", bos=True) == ([1, 0] if value else [0])


def test_where_adapters_go_is_tested_before_the_models_are_loaded(folders, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "file").write_text("mine")
    generated = run("generate", "the", "-d", folders["draft"], "-t", folders["target"], "--adapters", str(tmp_path / "file"))
    monkeypatch.setattr("omnidraft.cli.options.Models.pair", lambda *_: 1 / 0)
    result = adapt(folders, "math", "--adapters", str(tmp_path / "file" / "new"))
    assert result.exit_code == 1 and "cannot write" in result.stderr
    for result in (generated, adapt(folders, "math", "--adapters", str(tmp_path / "file")),
                   run("adapters", "list", "--adapters", str(tmp_path / "file"))):
        assert result.exit_code == 1 and "file is no folder: adapters are kept in one" in result.stderr
    assert run("adapters", "list", "--adapters", "~nosuch/here").exit_code == 0  # there is no such user: a relative path
